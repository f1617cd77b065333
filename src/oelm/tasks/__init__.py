"""Tasks: what a run learns, and the protocol with everything that a run needs from it.

A new kind of task is a class with the methods of `Task` in a file of its own, and one case in `task_class`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from oelm.errors import BadData
from oelm.record.folder import (
    LogitVarianceRecord,
    RunFolder,
    TestLossesRecord,
    WindowLossesRecord,
)
from oelm.record.record import DataRecord
from oelm.spec.run import HuggingFaceSpec, RunSpec, Split
from oelm.train.loop import Measured, TrainingTask


class Data(Protocol):
    """The opened data of a run."""

    @property
    def checksum(self) -> str:
        """Checksum of all bytes that the run reads."""

    def refuse_changes(self) -> None:
        """Raise BadData if files that are read during training are not those that were opened."""


def refuse_changed_data(run: RunSpec, data: Data) -> None:
    """Raise BadData for other data than those that the run was declared for."""
    if run.data.checksum not in (None, data.checksum):
        raise BadData(
            f"the run was declared for data with checksum {run.data.checksum}, but {run.data.corpus!r} has "
            f"{data.checksum}. Prepare the same data again, or declare the run without a checksum."
        )


@dataclass(frozen=True, kw_only=True)
class SplitResult(Measured):
    """A whole split measured: the means, and the result of every document or labelled text, in the order of the split.

    `windows` has the losses by position of running text, `predicted` the labels that a classifier chose.
    """

    losses: TestLossesRecord
    windows: WindowLossesRecord | None = None
    predicted: tuple[int, ...] = ()


@dataclass(frozen=True)
class Artefacts:
    """The small files of a finished run in addition to its record. None: this run does not have that file."""

    test_losses: TestLossesRecord | None = None
    window_losses: WindowLossesRecord | None = None
    logit_variance: LogitVarianceRecord | None = None
    samples: str | None = None
    """Some outputs of the model for people to read."""

    def write(self, folder: RunFolder) -> None:
        """Write the files into a run folder."""
        if self.test_losses is not None:
            folder.write_test_losses(self.test_losses)
        if self.window_losses is not None:
            folder.write_window_losses(self.window_losses)
        if self.logit_variance is not None:
            folder.write_logit_variance(self.logit_variance)
        if self.samples is not None:
            folder.write_samples(self.samples)


class Task(TrainingTask, Protocol):
    """A task: how to open the data, build the model, train it and measure it. `TrainingTask` has what training uses."""

    reports_perplexity: bool
    """Whether the log shows perplexity; other tasks show accuracy."""

    def __init__(self, run: RunSpec, data: Data, device: torch.device) -> None:
        """Hold a resolved run and its data, which `open_data` or `open_other_data` of this class has opened."""

    @classmethod
    def open_data(cls, run: RunSpec) -> Data:
        """Open the data of a run, and prepare them if necessary."""

    @classmethod
    def open_other_data(cls, run: RunSpec, path: Path, split: Split, tokenizer: str | None) -> Data:
        """Open other data for one split, read in the same way as the data of the run.

        `tokenizer` is the SHA-256 of the run's tokenizer, as its record has it.
        """

    @classmethod
    def build_without_data(
        cls, run: RunSpec, weights: Mapping[str, Tensor], data: DataRecord | None
    ) -> nn.Module | None:
        """Build the model of a checkpoint from its weights and the run's record; None if that takes the data."""

    def tokenizer_files(self) -> Mapping[str, bytes]:
        """Return the files of the run's own tokenizer; none if every machine can get it."""

    def build_model(self) -> nn.Module:
        """Build the model of the run, before its method is applied."""

    def refuse_unreadable(self, model: nn.Module, split: Split) -> None:
        """Raise BadData or BadShape if the model cannot read a split."""

    @property
    def run(self) -> RunSpec:
        """The run of this task."""

    @property
    def splits(self) -> tuple[Split, ...]:
        """The splits that the data have."""

    @property
    def length(self) -> int:
        """Tokens of a sequence, on average; the cost of a step depends on it."""

    @property
    def answer_length(self) -> int | None:
        """Tokens that a decoder writes for each sequence; None for models without an encoder."""

    def measure(self, model: nn.Module, split: Split) -> SplitResult:
        """Measure a whole split."""

    def describe(self, result: SplitResult, split: Split) -> dict[str, float | int | None]:
        """Return what `oelm evaluate` prints in addition to the loss."""

    def data_record(self) -> DataRecord:
        """Return what the record of the run says about its data."""

    def artefacts(self, model: nn.Module, val: SplitResult, test: SplitResult | None) -> Artefacts:
        """Return the small files of a finished run; `test` is None for a run that is not scored on test."""


def task_class(run: RunSpec) -> type[Task]:
    """Return the class of a run's task. Its module is imported only now: a run needs one of them."""
    match run.data.task:
        case "language" if isinstance(run.model, HuggingFaceSpec):
            from oelm.tasks.language import DecoderTask

            return DecoderTask
        case "language":
            from oelm.tasks.language import LanguageTask

            return LanguageTask
        case "probe":
            from oelm.tasks.probe import ProbeTask

            return ProbeTask
        case "classification":
            from oelm.tasks.classification import ClassificationTask

            return ClassificationTask
        case "seq2seq":
            from oelm.tasks.seq2seq import Seq2SeqTask

            return Seq2SeqTask


def make_task(run: RunSpec, data: Data, device: torch.device) -> Task:
    """Create the task of a resolved run from its data."""
    return task_class(run)(run, data, device)
