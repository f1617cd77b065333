"""Language modelling as a task: token files in, a loss per token out."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from oelm.data import probes
from oelm.data.batches import TrainingBatches, evaluation_batches
from oelm.data.tokenizer import Tokenizer, load_tokenizer
from oelm.data.tokens import TokenData
from oelm.errors import BadData, OelmError
from oelm.files import write_atomically
from oelm.models.attention import attention_summary, logit_variances
from oelm.models.generate import generate
from oelm.models.gpt import GPT
from oelm.record.attention import AttentionRecord, LogitVarianceRecord, write_logit_variance
from oelm.record.losses import TestLossesRecord, write_test_losses
from oelm.record.schema import DataRecord
from oelm.record.store import SAMPLES
from oelm.record.window_losses import WindowLossesRecord, write_window_losses
from oelm.runner.answers import Answers
from oelm.runner.documents import DocumentLosses
from oelm.spec.data import ProbeSpec, Split, probe_of
from oelm.spec.model import GPTSpec
from oelm.spec.run import RunSpec
from oelm.train.evaluate import Measured, mean_loss

SEEN_WEIGHTS = 1 << 26
"""At most so many attention weights of a layer are looked at: whole squares, which training never holds."""
LOOKED_AT = 4
"""Validation windows in which the variances of logits are measured."""
NUM_SAMPLES, PROMPT_TOKENS, SAMPLE_TOKENS = 3, 24, 96


@dataclass(frozen=True, kw_only=True)
class WithAttention(Measured):
    """A part of validation measured, with what the heads look at just then."""

    entropy: list[list[float]]
    distance: list[list[float]]

    def attention(self, step: int) -> AttentionRecord:
        """State it for the record."""
        return AttentionRecord.model_validate({"step": step, "entropy": self.entropy, "distance": self.distance})


@dataclass(frozen=True, kw_only=True)
class ByDocument(Measured):
    """A whole split measured, with what each of its documents cost and, for text, the losses by position."""

    losses: TestLossesRecord
    windows: WindowLossesRecord | None = None


@dataclass(frozen=True)
class LanguageTask:
    """The windows of a corpus, cut for one run."""

    run: RunSpec
    tokens: TokenData
    context: int
    batches: TrainingBatches
    device: torch.device

    @property
    def units_per_step(self) -> int:
        """Tokens of one step."""
        return self.run.train.batch_size * self.context

    @property
    def steps_per_epoch(self) -> float:
        """How many steps see every window once."""
        return self.batches.steps_per_epoch

    def batch(self, step: int, rows: slice) -> tuple[Tensor, ...]:
        """Return inputs and targets of some rows of a step."""
        return self.batches.batch(step, rows)

    def module(self, model: nn.Module) -> nn.Module:
        """Return the model itself: called with targets it returns the loss."""
        return model

    def validate(self, model: nn.Module) -> Measured:
        """Measure the fixed part of validation that is looked at along the way, and what heads look at meanwhile."""
        assert isinstance(model, GPT)  # noqa: S101  (what this task builds)
        measured = self.measure(model, "val", self.run.train.eval_tokens)
        spec = model.spec
        rows = max(1, min(4, SEEN_WEIGHTS // (spec.num_heads * spec.context**2)))
        ids, _ = self.batches.batch(0, slice(0, rows))
        summary = attention_summary(model, ids.to(self.device))
        return WithAttention(measured.loss, measured.accuracy, **asdict(summary))

    @property
    def probe(self) -> ProbeSpec | None:
        """The probe that the tokens are, whose answers are counted; None for text."""
        return None if self.tokens.meta is None else probe_of(self.tokens.meta.corpus)

    def measure(self, model: nn.Module, split: Split, limit: int | None = None) -> Measured:
        """Measure a split, or its first tokens: a probe by its answers, a whole split also by document and position."""
        batches = evaluation_batches(
            self.tokens.split(split),
            context=self.context,
            limit=limit,
            batch_size=max(1, self.run.train.batch_size // self.run.train.accumulation),
        )
        assert isinstance(model, GPT)  # noqa: S101  (what this task builds)
        if self.probe:
            answers = Answers(model, self.probe)
            loss = mean_loss(answers, batches, self.device, self.run.train.precision)
            record = answers.record()
            return ByDocument(loss, record.share, losses=record)
        if limit is None:
            kept = DocumentLosses(model)
            loss = mean_loss(kept, batches, self.device, self.run.train.precision)
            losses, windows = kept.records(self.tokens, split, self.context)
            return ByDocument(loss, losses=losses, windows=windows)
        return Measured(mean_loss(model, batches, self.device, self.run.train.precision))

    @property
    def splits(self) -> tuple[Split, ...]:
        """Which splits there are; token files without meta may have no test."""
        return self.tokens.splits

    @property
    def length(self) -> int:
        """Tokens of a sequence."""
        return self.context

    written = None
    """No answer stands beside the text: what is read is what is predicted."""

    def data_record(self) -> DataRecord:
        """State the corpus."""
        return DataRecord(
            corpus=self.run.data.corpus,
            checksum=self.tokens.checksum,
            vocab_size=self.tokens.vocab_size,
            floor=dict(self.tokens.floor),
            tokens={split: self.tokens.num_tokens(split) for split in self.tokens.splits},
            guess=probes.guess(self.probe) if self.probe else None,
        )

    def write_artefacts(self, directory: Path, model: nn.Module, val: Measured, test: Measured | None) -> None:
        """Write losses by document and by position, variances of logits, and continuations of validation windows."""
        assert isinstance(model, GPT)  # noqa: S101  (what this task builds)
        if isinstance(test, ByDocument):
            write_test_losses(directory, test.losses)
        judged = test or val
        if isinstance(judged, ByDocument) and judged.windows is not None:
            write_window_losses(directory, judged.windows)
        ids_BT = self._validation_windows()
        variances = asdict(logit_variances(model, ids_BT.to(self.device)))
        write_logit_variance(directory, LogitVarianceRecord.model_validate({"tokens": ids_BT.numel(), **variances}))
        try:
            samples = self._samples(model, load_tokenizer(self.tokens.directory))
        except OelmError as error:  # token files alone train a model; only a person's reading needs their tokenizer
            samples = f"no samples: {error}\n"
        write_atomically(directory / SAMPLES, samples)

    def _validation_windows(self) -> Tensor:
        """Return a few whole windows of validation, evenly spread over it, the same for every run on these tokens."""
        tokens = self.tokens.split("val")
        length = min(self.context, len(tokens))
        count = len(tokens) // length
        rows = min(LOOKED_AT, count)
        starts = [number * count // rows * length for number in range(rows)]
        return torch.from_numpy(np.stack([tokens[start : start + length] for start in starts]).astype(np.int64))

    def _samples(self, model: GPT, tokenizer: Tokenizer) -> str:
        tokens = self.tokens.split("val")
        prompt = min(PROMPT_TOKENS, len(tokens), self.context)
        texts = []
        for number in range(NUM_SAMPLES):
            start = number * ((len(tokens) - prompt) // NUM_SAMPLES)
            ids = [int(token) for token in tokens[start : start + prompt]]
            new = list(generate(model, ids, new_tokens=SAMPLE_TOKENS, temperature=0.8, seed=self.run.seed + number))
            texts.append(f"{tokenizer.decode(ids)} [...]{tokenizer.decode(new)}")
        return "\n\n".join(texts) + "\n"


def language_task(run: RunSpec, tokens: TokenData, model: GPT, device: torch.device) -> LanguageTask:
    """Cut a corpus into the windows of a run."""
    context = model.spec.context
    batches = TrainingBatches(
        tokens.split("train"), context=context, batch_size=run.train.batch_size, seed=run.seed_of("data")
    )
    return LanguageTask(run, tokens, context, batches, device)


def refuse_larger_vocabulary(tokens: TokenData, vocab_size: int) -> None:
    """Refuse tokens that a model's embedding does not hold."""
    if vocab_size < tokens.vocab_size:
        raise BadData(
            f"the tokens in {tokens.directory} come from a vocabulary of {tokens.vocab_size}, and the model has "
            f"one of {vocab_size}. Prepare the data with the model's, or leave model.vocab_size out for a new model."
        )


def build_gpt(spec: GPTSpec, tokens: TokenData, seed: int, device: torch.device) -> GPT:
    """Build the run's model with the vocabulary of its data.

    The weights are drawn on the CPU wherever the model lives, so that they are the same there.
    """
    vocab_size = spec.vocab_size or tokens.vocab_size
    refuse_larger_vocabulary(tokens, vocab_size)
    return GPT(spec.model_copy(update={"vocab_size": vocab_size}), seed).to(device)
