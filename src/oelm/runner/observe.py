"""Who watches a run: the files of metrics and attention, the log, a line for people, TensorBoard on request."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from oelm.files import write_atomically
from oelm.record.attention import append_attention, forget_attention_after
from oelm.record.schema import MetricRecord, perplexity
from oelm.record.store import LOG, METRICS, read_metrics
from oelm.runner.language import WithAttention
from oelm.spec.train import TrainSpec
from oelm.train.evaluate import Measured
from oelm.train.loop import Progress

PLAIN_LINE_SECONDS = 2.0
"""Where there is no terminal, lines are printed no more often than this."""


class RunObserver:
    """Writes what happens to the run's files and shows it.

    On a terminal one line lives at the bottom; elsewhere plain lines are printed. `training.log` holds what was
    said, in the published study's words where it had some.
    """

    def __init__(
        self,
        directory: Path,
        spec: TrainSpec,
        units_per_step: int,
        *,
        is_language: bool = True,
        resumed_at: int = 0,
        quiet: bool = False,
        leads: bool = True,
    ) -> None:
        self.spec, self.units, self.is_language = spec, units_per_step, is_language
        self.console = Console(quiet=quiet or not leads, highlight=False, soft_wrap=True)
        self._bar: Bar | None = None
        self._board: Any = None
        self._directory = directory if leads else None
        self._printed = 0.0
        self._last = ""
        """What validation last said of labels."""
        if not leads:  # one process of several writes; the others train and say nothing
            self._metrics = self._log = Path(os.devnull).open("a")  # noqa: SIM115  (closed on exit)
            return
        _forget_after(directory, resumed_at)
        self._metrics = (directory / METRICS).open("a")
        self._log = (directory / LOG).open("a")
        if spec.tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(directory / "tensorboard"), purge_step=resumed_at + 1)

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._bar = Bar(
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                TextColumn("{task.completed}/{task.total}"),
                TimeRemainingColumn(),
                console=self.console,
            )
            self._bar.start()
            self._bar.add_task("starting", total=self.spec.steps)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()
        for file in (self._metrics, self._log, self._board):
            if file is not None:
                file.close()

    def trained(self, progress: Progress, loss: float, rate: float) -> None:
        """Note the mean loss since the last note."""
        speed = self.units / _recent(progress.step_seconds)
        self._note(
            MetricRecord(
                kind="train",
                step=progress.step,
                loss=loss,
                seconds=progress.train_seconds,
                processor_seconds=progress.processor_seconds,
                learning_rate=rate,
                tokens_per_second=speed,
            )
        )
        judged = f"  ppl {perplexity(loss):.2f}" if self.is_language else self._last
        line = f"loss {loss:.4f}{judged}  lr {rate:.2e}  {speed:,.0f} tokens/s"
        plain = f"[Step {progress.step}] {line}"
        print(plain, file=self._log, flush=True)
        if self._bar:
            self._bar.update(self._bar.task_ids[0], completed=progress.step, description=line)
        elif time.monotonic() - self._printed >= PLAIN_LINE_SECONDS or progress.step == self.spec.steps:
            self._printed = time.monotonic()
            left = (self.spec.steps - progress.step) * _recent(progress.step_seconds)
            self.console.print(f"{plain}  {left:.0f} s left", markup=False)

    def validated(self, progress: Progress, measured: Measured) -> None:
        """Note what validation says."""
        loss, accuracy = measured.loss, measured.accuracy
        seconds, worked = progress.train_seconds, progress.processor_seconds
        self._note(
            MetricRecord(
                kind="val", step=progress.step, loss=loss, seconds=seconds, processor_seconds=worked, accuracy=accuracy
            )
        )
        if self._directory and isinstance(measured, WithAttention):
            append_attention(self._directory, measured.attention(progress.step))
        judged = f"PPL: {perplexity(loss):.2f}" if accuracy is None else f"Accuracy: {accuracy:.2%}"
        self._last = "" if accuracy is None else f"  accuracy {accuracy:.2%}"
        self.said(f"[Step {progress.step}] Validation - Loss: {loss:.4f}, {judged}")

    def said(self, sentence: str) -> None:
        """Print a line and keep it in the log."""
        self.console.print(sentence, markup=False)
        print(sentence, file=self._log, flush=True)

    def _note(self, metric: MetricRecord) -> None:
        print(metric.model_dump_json(exclude_none=True), file=self._metrics, flush=True)
        if self._board:
            self._board.add_scalar(f"loss/{metric.kind}", metric.loss, metric.step)
            if metric.accuracy is not None:
                self._board.add_scalar("accuracy", metric.accuracy, metric.step)
            if metric.learning_rate is not None:
                self._board.add_scalar("learning_rate", metric.learning_rate, metric.step)


def _forget_after(directory: Path, step: int) -> None:
    """Drop metrics, and what heads looked at, of steps that a resumed run will do again."""
    forget_attention_after(directory, step)
    kept = [metric for metric in read_metrics(directory) if metric.step <= step]
    lines = "".join(metric.model_dump_json(exclude_none=True) + "\n" for metric in kept)
    write_atomically(directory / METRICS, lines)


def _recent(step_seconds: list[float]) -> float:
    last = step_seconds[-50:]
    return sum(last) / len(last)
