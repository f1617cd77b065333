"""Models as values: our own GPT by its sizes, a Hugging Face model by its name."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from oelm.errors import UnknownName
from oelm.spec import Spec


class GPTSpec(Spec):
    """Our GPT: pre-norm, exact GELU, tied embeddings, no biases in attention."""

    kind: Literal["gpt"] = "gpt"
    vocab_size: PositiveInt | None = None
    """Size of the vocabulary; None: that of the data's tokenizer."""
    context: PositiveInt = 512
    model_dim: PositiveInt = 512
    num_layers: PositiveInt = 6
    num_heads: PositiveInt = 8
    num_key_heads: PositiveInt | None = None
    """Number of key and value heads, each shared by several query heads; None: as many as query heads."""
    qk_head_size: PositiveInt | None = None
    """Size of a query or key head; None: model_dim / num_heads. The control with thin Q/K has a smaller one."""
    ffn_dim: PositiveInt | None = None
    """Width of the feed-forward layer; None: four times model_dim."""
    positions: Literal["learned", "rope"] = "learned"
    norm: Literal["layer", "rms"] = "layer"
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    initial_deviation: PositiveFloat | Literal["width"] = 0.02
    """Standard deviation of every matrix at initialisation, or the rule "width" (docs/decisions/032): 1/sqrt(I) for a
    matrix that reads I inputs, divided by sqrt(2 num_layers) where its output is added to the residual stream."""
    labels: PositiveInt | None = None
    """Number of classes of a classification head; None: that of labelled data, and no such head for text."""

    @model_validator(mode="after")
    def _refuse_uneven_heads(self) -> Self:
        if self.model_dim % self.num_heads:
            raise ValueError(f"model_dim={self.model_dim} is not a multiple of num_heads={self.num_heads}")
        if self.num_heads % self.key_heads:
            raise ValueError(f"num_heads={self.num_heads} is not a multiple of num_key_heads={self.key_heads}")
        if self.positions == "rope" and self.qk_size % 2:
            raise ValueError(f"RoPE rotates pairs of coordinates, but the Q/K head size is odd: {self.qk_size}")
        return self

    @property
    def key_heads(self) -> int:
        """The number of key (and value) heads."""
        return self.num_key_heads or self.num_heads

    @property
    def head_size(self) -> int:
        """The size of a value head."""
        return self.model_dim // self.num_heads

    @property
    def qk_size(self) -> int:
        """The size of a query or key head."""
        return self.qk_head_size or self.head_size

    @property
    def hidden_dim(self) -> int:
        """The width of the feed-forward layer."""
        return self.ffn_dim or 4 * self.model_dim


class HuggingFaceSpec(Spec):
    """A `transformers` model: a named configuration, a local directory or a hub name."""

    kind: Literal["foreign"] = "foreign"
    name: str
    labels: PositiveInt | None = None
    """Number of classes of a classification head; None: that of labelled data, otherwise the model keeps its head."""
    pretrained: bool = True
    """Whether to load the trained weights; False: the same architecture from scratch."""
    context: PositiveInt = 512
    """Number of tokens of a window of running text. Labelled text has `data.max_length` instead."""
    checksum: str | None = None
    """Checksum of the files in a local directory. Resolving a run fills it in, so that the fingerprint depends on the
    initial weights and not only on their folder."""


ModelSpec = Annotated[GPTSpec | HuggingFaceSpec, Field(discriminator="kind")]

GPT2_VOCAB_SIZE = 50257
INITIAL_DEVIATION = 0.02
"""Standard deviation of the matrices of our GPT, and of the frozen Gaussian that imitates its initialisation."""

GPT_SIZES: dict[str, GPTSpec] = {
    "nano": GPTSpec(context=32, model_dim=32, num_layers=2, num_heads=4, vocab_size=97),
    "mini": GPTSpec(context=128, model_dim=128, num_layers=4, num_heads=4),
    "medium-512": GPTSpec(vocab_size=GPT2_VOCAB_SIZE, dropout=0.1),
}


def named_size(name: str) -> GPTSpec:
    """Return the GPT of a named size, with the vocabulary of the data that it will read."""
    if name not in GPT_SIZES:
        raise UnknownName("GPT size", name, GPT_SIZES)
    return GPT_SIZES[name].model_copy(update={"vocab_size": None})


# The number of parameters and steps in closed form, for studies that declare sizes.


def block_parameters(model: GPTSpec) -> int:
    """Count the parameters of all blocks: attention, feed-forward and their norms, without embeddings and last norm."""
    queries = model.num_heads * model.qk_size
    keys = model.key_heads * model.qk_size
    values = model.key_heads * model.head_size
    attention = model.model_dim * (queries + keys + values + model.num_heads * model.head_size)
    feed_forward = 2 * model.model_dim * model.hidden_dim + model.hidden_dim + model.model_dim
    norms = 2 * model.model_dim * (2 if model.norm == "layer" else 1)
    return model.num_layers * (attention + feed_forward + norms)


def steps_for(tokens_per_parameter: float, model: GPTSpec, batch_size: int) -> int:
    """Return the number of steps after which a model has seen `tokens_per_parameter` tokens per block parameter."""
    tokens = tokens_per_parameter * block_parameters(model)
    return max(1, round(tokens / (batch_size * model.context)))
