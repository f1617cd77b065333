"""Models as values: our own GPT by its sizes, a foreign Transformer by its name."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from oelm.errors import UnknownName
from oelm.spec.base import Spec


class GPTSpec(Spec):
    """Our GPT: pre-norm, exact GELU, tied embeddings, no biases in attention."""

    kind: Literal["gpt"] = "gpt"
    vocab_size: PositiveInt | None = None
    """None: that of the data's tokenizer."""
    context: PositiveInt = 512
    model_dim: PositiveInt = 512
    num_layers: PositiveInt = 6
    num_heads: PositiveInt = 8
    num_key_heads: PositiveInt | None = None
    """None: as many as query heads. Fewer: each key and value head serves several query heads."""
    qk_head_size: PositiveInt | None = None
    """None: model_dim / num_heads. Smaller: the thin control."""
    ffn_dim: PositiveInt | None = None
    """None: four times model_dim."""
    positions: Literal["learned", "rope"] = "learned"
    norm: Literal["layer", "rms"] = "layer"
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    initial_deviation: PositiveFloat | Literal["width"] = 0.02
    """Standard deviation of every matrix as it is drawn, or the rule "width" (docs/decisions/032): 1/sqrt(I) for a
    matrix that reads I inputs, divided by sqrt(2 num_layers) where its output is added to the residual stream."""
    labels: PositiveInt | None = None
    """With a classification head of that many classes; None: as many as the data have, and none for text."""

    @model_validator(mode="after")
    def _divides(self) -> Self:
        if self.model_dim % self.num_heads:
            raise ValueError(f"model_dim={self.model_dim} is not a multiple of num_heads={self.num_heads}")
        if self.num_heads % self.key_heads:
            raise ValueError(f"num_heads={self.num_heads} is not a multiple of num_key_heads={self.key_heads}")
        if self.positions == "rope" and self.qk_size % 2:
            raise ValueError(f"RoPE turns pairs of coordinates, and the Q/K head size is odd: {self.qk_size}")
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


class ForeignSpec(Spec):
    """A `transformers` model: a named configuration, a local directory or a hub name.

    `checksum` is that of the files in a local directory. It is filled in when a run is bound to its data, so that the
    fingerprint of a run names the weights it began with and not merely where they lay.
    """

    kind: Literal["foreign"] = "foreign"
    name: str
    labels: PositiveInt | None = None
    """With a classification head of that many classes; None: as many as labelled data have, else the own head."""
    pretrained: bool = True
    """False: the same architecture from scratch."""
    checksum: str | None = None


ModelSpec = Annotated[GPTSpec | ForeignSpec, Field(discriminator="kind")]

GPT2_VOCAB_SIZE = 50257
INITIAL_DEVIATION = 0.02
"""Of every matrix of our GPT as it is drawn, and of a frozen Gaussian that is to be what the model would have drawn."""

GPT_SIZES: dict[str, GPTSpec] = {
    "nano": GPTSpec(context=32, model_dim=32, num_layers=2, num_heads=4, vocab_size=97),
    "mini": GPTSpec(context=128, model_dim=128, num_layers=4, num_heads=4),
    "medium-512": GPTSpec(vocab_size=GPT2_VOCAB_SIZE, dropout=0.1),
}


def named_size(name: str) -> GPTSpec:
    """Return the GPT of a named size."""
    if name not in GPT_SIZES:
        raise UnknownName("GPT size", name, GPT_SIZES)
    return GPT_SIZES[name]
