"""The record of a run in the making: rewritten whole at each stage, so that there always is one."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from oelm.errors import Diverged
from oelm.record.environment import command_line, environment
from oelm.record.schema import EnvironmentRecord, Failure, RunRecord, SecondsRecord, Status
from oelm.record.store import RECORD, read_record, write_record
from oelm.spec.run import RunSpec, fingerprint
from oelm.train.distributed import World
from oelm.train.loop import Interrupted, Progress


@dataclass
class Recorder:
    """Gathers what is known of a run and writes it down."""

    run: RunSpec
    directory: Path
    world: World
    facts: dict[str, Any] = field(default_factory=dict)
    progress: Progress = field(default_factory=Progress)

    def __post_init__(self) -> None:
        self._began = time.perf_counter()
        self._environment = self._where()
        self._earlier_seconds = 0.0
        self._started = _now()
        if (self.directory / RECORD).exists():
            before = read_record(self.directory)
            if before.status != "complete" or (self.directory / "checkpoints").is_dir():  # else it is trained again
                self._started = before.started
                self._earlier_seconds = before.seconds.total if before.seconds else 0.0
                if before.branched_from:
                    self.facts["branched_from"] = before.branched_from

    def wall_seconds(self) -> float:
        """Return the wall time of the run so far, over all its sessions."""
        return self._earlier_seconds + time.perf_counter() - self._began

    def follow(self, progress: Progress) -> None:
        """Take a training's progress as the run's, with the time of sessions that were killed after it was saved."""
        self.progress = progress
        self._earlier_seconds = max(self._earlier_seconds, progress.wall_seconds)

    def write(self, status: Status, error: str | None = None, failure: Failure | None = None) -> RunRecord:
        """Write the record as it stands; only the leading process does."""
        progress = self.progress
        record = RunRecord(
            fingerprint=fingerprint(self.run),
            status=status,
            spec=self.run,
            environment=self._environment,
            started=self._started,
            finished=None if status == "running" else _now(),
            step=progress.step,
            failure=failure,
            error=error,
            seconds=SecondsRecord(
                total=self.wall_seconds(),
                train=progress.train_seconds,
                processor=progress.processor_seconds,
                validation=sum(progress.validation_seconds),
                checkpoint=progress.checkpoint_seconds,
                timed_steps=len(progress.step_seconds),
            ),
            **self.facts,
        )
        if self.world.leads:
            write_record(self.directory, record)
        return record

    @contextmanager
    def whatever_happens(self) -> Iterator[None]:
        """Leave a record of how the block ended, if it did not end well."""
        try:
            yield
        except Interrupted as wish:
            self.write("interrupted", error=str(wish))
            raise
        except KeyboardInterrupt:
            self.write("interrupted", error="interrupted at once, before the step in hand was done")
            raise
        except BaseException as error:
            with suppress(OSError):  # on a full disk the record of the failure fails too; the error itself goes on
                self.write("failed", error=traceback.format_exc(), failure=_kind_of(error))
            raise

    def _where(self) -> EnvironmentRecord:
        device = torch.cuda.get_device_name() if self.world.device.type == "cuda" else "cpu"
        return environment(device, torch.__version__, command_line(sys.orig_argv, self.directory))


def _kind_of(error: BaseException) -> Failure:
    if isinstance(error, Diverged):
        return "diverged"
    # torch's CPU allocator raises a plain RuntimeError, told by its words alone
    out = isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)
    return "out-of-memory" if out else "error"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
