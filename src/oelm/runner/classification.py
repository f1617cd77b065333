"""Classification as a task: labelled texts in, accuracy out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from oelm.data.encoded import EncodedExamples
from oelm.data.grouped import GroupedBatches, in_order_of_length
from oelm.files import write_atomically
from oelm.models.classifier import Classifier, build_classifier
from oelm.models.writer import Writer, build_writer
from oelm.record.losses import TestLossesRecord, write_test_losses
from oelm.record.schema import DataRecord
from oelm.record.store import SAMPLES
from oelm.spec.data import ExamplesSpec, Split
from oelm.spec.run import RunSpec
from oelm.train.evaluate import Measured
from oelm.train.precision import autocast

EVALUATION_BATCH = 64
SHOWN = 12
"""How many test rows are written for people to read."""


@dataclass(frozen=True, kw_only=True)
class Judged(Measured):
    """A split measured, with what the model said of each of its rows, in the split's order."""

    predicted: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]

    @property
    def correct(self) -> npt.NDArray[np.bool_]:
        """Whether each row's label is the predicted one."""
        return np.equal(self.predicted, self.labels)


def macro_f1(predicted: npt.NDArray[np.int64], labels: npt.NDArray[np.int64]) -> float:
    """Return the mean over the labels that occur of 2 TP / (2 TP + FP + FN)."""
    scores = []
    for label in np.union1d(labels, predicted):
        both = np.sum((predicted == label) & (labels == label))
        scores.append(2 * both / (np.sum(predicted == label) + np.sum(labels == label)))
    return float(np.mean(scores))


@dataclass(frozen=True)
class ClassificationTask:
    """The labelled texts of a corpus, batched for one run."""

    run: RunSpec
    examples: EncodedExamples
    batches: GroupedBatches
    device: torch.device
    answers: list[list[int]] | None = None
    """The tokens of each label's name, where they are to be written."""

    @property
    def units_per_step(self) -> int:
        """Tokens of one step on the average, without padding."""
        return round(self.run.train.batch_size * float(self.examples.splits["train"].lengths.mean()))

    @property
    def steps_per_epoch(self) -> float:
        """How many steps see every row."""
        return self.batches.steps_per_epoch

    def batch(self, step: int, rows: slice) -> tuple[Tensor, ...]:
        """Return some rows of a step."""
        return self.batches.batch(step, rows)

    def module(self, model: nn.Module) -> Classifier | Writer:
        """Return the model with the loss of its labels, or of its answers."""
        return Classifier(model, self.examples.encoder.pad) if self.answers is None else Writer(model, self.answers)

    def validate(self, model: nn.Module) -> Measured:
        """Measure the fixed part of validation that is looked at along the way."""
        return self.measure(model, "val", self.run.train.eval_tokens)

    @torch.no_grad()
    def measure(self, model: nn.Module, split: Split, limit: int | None = None) -> Judged:
        """Measure a whole split, or about `limit` tokens of it."""
        encoded, pad = self.examples.splits[split], self.examples.encoder.pad
        found: list[tuple[npt.NDArray[np.int64], Tensor, Tensor]] = []
        was_training = model.training
        module = self.module(model).eval()
        try:
            for rows, batch in in_order_of_length(encoded, batch_size=EVALUATION_BATCH, pad=pad, limit=limit):
                with autocast(self.device, self.run.train.precision):
                    losses, answers = module.judge(*(tensor.to(self.device) for tensor in batch))
                found.append((rows, losses.cpu(), answers.cpu()))
        finally:
            model.train(was_training)
        rows = np.concatenate([each[0] for each in found])
        order = np.argsort(rows)
        loss = torch.cat([each[1] for each in found]).double().mean().item()
        predicted, labels = torch.cat([each[2] for each in found]).numpy()[order], encoded.labels[rows[order]]
        accuracy = float((predicted == labels).mean())
        score = macro_f1(predicted, labels) if self.answers is None else None  # what is written may be no label at all
        return Judged(loss, accuracy, score, predicted=predicted, labels=labels)

    @property
    def splits(self) -> tuple[Split, ...]:
        """Labelled text always has all three."""
        return tuple(self.examples.splits)

    @property
    def length(self) -> int:
        """Tokens of a row on the average; all of `max_length` where everything is padded to it."""
        return self.batches.length or round(float(self.examples.splits["train"].lengths.mean()))

    @property
    def written(self) -> int | None:
        """Tokens of the longest answer, to which all are padded; None where labels are chosen."""
        return max(map(len, self.answers)) if self.answers else None

    def data_record(self) -> DataRecord:
        """State the corpus, and what was left out of it."""
        return DataRecord(
            corpus=self.examples.corpus,
            checksum=self.examples.checksum,
            vocab_size=self.examples.encoder.vocab_size,
            tokens=self.examples.num_tokens,
            rows={split: len(encoded) for split, encoded in self.examples.splits.items()},
            labels=self.examples.labels,
            guess=_commonest(self.examples.splits["test"].labels),
            notes=self.examples.notes,
        )

    def write_artefacts(self, directory: Path, _model: nn.Module, _val: Measured, judged: Measured | None) -> None:
        """Write which test rows are right, for paired comparisons, and some of them for people.

        A run that is not scored on test leaves neither.
        """
        if not isinstance(judged, Judged):
            return
        right = TestLossesRecord(kind="examples", correct=tuple(judged.correct.astype(int).tolist()))
        write_test_losses(directory, right)
        texts, names = self.examples.texts.splits["test"].texts, self.examples.labels
        wrong_first = np.argsort(judged.correct, kind="stable")[: SHOWN // 2]
        shown = [*wrong_first, *(row for row in range(SHOWN) if row < len(texts) and row not in wrong_first)][:SHOWN]
        lines = [
            f"{'right' if judged.correct[row] else 'WRONG'}: {' | '.join(texts[row])}\n"
            f"  label {names[judged.labels[row]]}, predicted {(*names, 'something else')[judged.predicted[row]]}"
            for row in shown
        ]
        write_atomically(directory / SAMPLES, "\n".join(lines) + "\n")


def classification_task(run: RunSpec, examples: EncodedExamples, device: torch.device) -> ClassificationTask:
    """Batch the examples of a run."""
    spec = run.data
    assert isinstance(spec, ExamplesSpec)  # noqa: S101  (examples come of nothing else)
    batches = GroupedBatches(
        examples.splits["train"],
        batch_size=run.train.batch_size,
        seed=run.seed_of("data"),
        pad=examples.encoder.pad,
        length=spec.max_length if spec.padding == "max_length" else None,
    )
    answers = None
    if spec.answers == "text":
        encodings = examples.encoder.encode([(name,) for name in examples.labels], spec.max_length)
        answers = [encoding.ids for encoding in encodings]
    return ClassificationTask(run, examples, batches, device, answers)


def _commonest(labels: npt.NDArray[np.int64]) -> float:
    """Return the share of right answers that whoever always gives the commonest label has."""
    return float(np.unique(labels, return_counts=True)[1].max() / len(labels))


def build_for(run: RunSpec, examples: EncodedExamples, device: torch.device) -> nn.Module:
    """Build the run's model with a head for the labels of its data."""
    assert isinstance(run.data, ExamplesSpec)  # noqa: S101  (examples come of nothing else)
    vocab_size = examples.encoder.vocab_size
    if run.data.answers == "text":
        own = vocab_size if run.data.vocab_size is not None else None
        return build_writer(run.model, vocab_size=own, seed=run.seed_of("init"), device=device)
    return build_classifier(
        run.model,
        examples.labels,
        vocab_size=vocab_size,
        own_vocabulary=run.data.vocab_size is not None,
        max_length=min(run.data.max_length, max(int(each.lengths.max()) for each in examples.splits.values()))
        if run.data.padding == "longest"
        else run.data.max_length,
        seed=run.seed_of("init"),
        device=device,
    )
