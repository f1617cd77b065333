"""Language modelling with a decoder of `transformers`, pretrained or from scratch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oelm.data.tokenizer import load_tokenizer
from oelm.data.tokens import TokenData
from oelm.errors import BadData, BadShape, InvalidSpec, OelmError
from oelm.models.build import build
from oelm.record.record import DataRecord
from oelm.spec.data import DataSpec, Split
from oelm.spec.model import HuggingFaceSpec
from oelm.spec.run import RunSpec
from oelm.spec.seeds import derived_seed
from oelm.tasks.classification import read_limits
from oelm.tasks.language import NO_SAMPLES, TEMPERATURE, LanguageTask
from oelm.tasks.task import Artefacts, SplitResult
from oelm.train.loop import Measured

NEW_TOKENS = 32
"""Length of a sample: these models are larger than our GPT, and sampling is not to take longer than measuring."""


class Decoder(nn.Module):
    """Call a decoder with targets. The model owns all weights."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.train(model.training)

    def forward(self, ids_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """Return the mean loss, in nats per token."""
        return token_losses(self.model, ids_BT, targets_BT)[0]


def token_losses(model: nn.Module, ids_BT: Tensor, targets_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean loss, and the loss of every token.

    The logits are those of the whole model, because some families scale or cap them after the last matrix.
    """
    logits_BTV = model(input_ids=ids_BT, use_cache=False).logits.float()
    losses_BT = F.cross_entropy(logits_BTV.transpose(1, 2), targets_BT, reduction="none")
    return losses_BT.mean(), losses_BT.detach()


@dataclass(frozen=True)
class DecoderTask(LanguageTask):
    """Predict the next token of a corpus with a decoder of `transformers`."""

    @classmethod
    def open_data(cls, run: RunSpec) -> TokenData:
        """Open the token files of a run, and prepare them if necessary.

        Raises:
            InvalidSpec: a pretrained model is to read tokens of another vocabulary than its own.

        """
        data, model = run.data, run.model
        assert isinstance(data, DataSpec)  # noqa: S101  (the table of tasks has chosen by both)
        assert isinstance(model, HuggingFaceSpec)  # noqa: S101
        if model.pretrained and data.tokenizer != model.name:
            raise InvalidSpec(
                f"{model.name!r} was pretrained with its own vocabulary, and the text {data.corpus!r} is to be read "
                f"with another one. Set data.tokenizer={model.name!r}, or model.pretrained=False."
            )
        return cls._open(data, None)

    @classmethod
    def build_without_data(cls, run: RunSpec, weights: Mapping[str, Tensor], data: DataRecord | None) -> Any:  # noqa: ARG003
        """Build the model with the vocabulary of the run's record; None if a new model has no record."""
        spec = run.model
        assert isinstance(spec, HuggingFaceSpec)  # noqa: S101
        return None if data is None and not spec.pretrained else cls._build(run, data.vocab_size if data else None)

    def build_model(self) -> nn.Module:
        """Build the model; a new one gets the vocabulary of the data."""
        model = self._build(self.run, self.tokens.vocab_size).to(self.device)
        self.refuse_unreadable(model, "train")
        return model

    @classmethod
    def _build(cls, run: RunSpec, vocab_size: int | None) -> nn.Module:
        spec = run.model
        assert isinstance(spec, HuggingFaceSpec)  # noqa: S101
        model: Any = build(spec, seed=run.seed_of("init"), vocab_size=None if spec.pretrained else vocab_size)
        if not model.can_generate() or model.config.is_encoder_decoder:
            raise InvalidSpec(
                f"{spec.name!r} is a {type(model).__name__}, which does not predict the next token of a text. Use a "
                "decoder such as smollm2 or gpt2-tiny, or labelled data (ExamplesSpec)."
            )
        return model  # type: ignore[no-any-return]

    def refuse_unreadable(self, model: nn.Module, split: Split) -> None:  # noqa: ARG002
        """Raise BadData for tokens that the embedding lacks, and BadShape for windows longer than the positions."""
        known, positions = read_limits(model)
        if known < self.tokens.vocab_size:
            raise BadData(
                f"the tokens in {self.tokens.directory} come from a vocabulary of {self.tokens.vocab_size}, but the "
                f"model has one of {known}. Prepare the data with the vocabulary of the model."
            )
        if self.length > positions:
            raise BadShape(
                f"the windows have {self.length} tokens, but the model reads {positions} at most. Set model.context to "
                "that or less."
            )

    @property
    def length(self) -> int:
        """Tokens of a window."""
        return self.run.model.context

    def module(self, model: nn.Module) -> nn.Module:
        """Return the model with the loss of its targets."""
        return Decoder(model)

    def validate(self, model: nn.Module) -> Measured | None:
        """Measure the fixed part of validation for the learning curve."""
        if "val" not in self.splits:
            return None
        return Measured(self._mean_loss(Decoder(model), "val", self.run.train.eval_tokens))

    _token_losses = staticmethod(token_losses)

    def artefacts(self, model: nn.Module, val: SplitResult, test: SplitResult | None) -> Artefacts:
        """Return losses by document and by position, and continuations of validation text."""
        try:
            samples = self._write_samples(model)
        except OelmError as error:  # training does not need a tokenizer, only the text for people does
            samples = NO_SAMPLES.format(error)
        return Artefacts(
            test_losses=test.losses if test else None, window_losses=(test or val).windows, samples=samples
        )

    def _write_samples(self, model: nn.Module) -> str:
        tokenizer = load_tokenizer(self.tokens.directory)
        prompts = torch.tensor(self._prompts(), device=self.device)
        was_training = model.training
        hugging_face: Any = model.eval()
        try:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(derived_seed(self.run.seed, "samples"))
                written = hugging_face.generate(
                    prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=NEW_TOKENS, do_sample=True,
                    temperature=TEMPERATURE, top_k=0, top_p=1.0, pad_token_id=tokenizer.end_of_text,
                )  # fmt: skip
        finally:
            model.train(was_training)
        length = prompts.shape[1]
        texts = [(tokenizer.decode(row[:length]), tokenizer.decode(row[length:])) for row in written.tolist()]
        return "\n\n".join(f"{start} [...]{new}" for start, new in texts) + "\n"
