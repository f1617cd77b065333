"""Every error that `oelm` raises on purpose.

    OelmError                 exit code 1: the run failed
    ├── UsageError            exit code 2: the request cannot be carried out as given
    │   ├── UnknownName       no method, model, corpus ... has that name; the nearest is suggested
    │   ├── InvalidSpec       the fields of a spec contradict one another
    │   ├── NotCarriedOut     a valid spec that is not implemented (for this model)
    │   ├── BadShape          a head wider than its input, a layer or a role that the model does not have
    │   ├── SlurmUnreachable  Slurm is not installed here or does not answer
    │   ├── StudyChanged      the study differs from the one registered under its name
    │   ├── Sealed            a sealed split that must not be read, or has been opened before
    │   ├── IncomparableRuns  runs that differ in more than the study declares
    │   └── BadData           token files or tables that are missing, incomplete or do not fit
    ├── MethodError           the model is in a state in which the method cannot be applied
    │   ├── AlreadyApplied    a method has already been applied to this model
    │   ├── UnusableWeight    a weight on the meta device, quantised or tied, which cannot be drawn
    │   └── WrongOptimizer    an optimiser that lacks weights that train, or has frozen ones
    ├── FrozenWeightsMoved    a frozen weight no longer has the bytes it was frozen with
    ├── CheckpointError       a checkpoint that is incomplete, of another model or unsafe to read
    ├── RunFailed             training failed; the record says where
    │   └── Diverged          the loss exploded or is not a number
    ├── RunLocked             another process is using this run folder
    ├── BadRecord             a record that cannot be read, or is from a later version
    └── Damaged               a document that is not what was written: its checksum does not match

`ScheduleWarning` is the one warning: nothing carries out the schedule or the learning rates of a method.

A message says what happened, why, and what to do, in at most three short sentences.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

INTERRUPTED = 130
"""Exit code of a command that was asked to stop and has saved its state: the one shells use after Ctrl-C."""

_MOST_NAMES = 12


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out. torch's CPU allocator raises a plain RuntimeError, which only its message tells apart."""
    names = {kind.__name__ for kind in type(error).__mro__}  # without importing torch
    return bool(names & {"MemoryError", "OutOfMemoryError"}) or "can't allocate memory" in str(error)


class OelmError(Exception):
    """The root of the tree above."""

    exit_code = 1


class UsageError(OelmError):
    """The request cannot be carried out as given."""

    exit_code = 2


class UnknownName(UsageError):
    """A name that does not exist. The message suggests the nearest one; without one it lists some names."""

    def __init__(self, kind: str, name: str, known: Iterable[str], hint: str = "") -> None:
        choices = sorted(known)
        near = difflib.get_close_matches(name, choices, n=1, cutoff=0.5)
        more = f" and {len(choices) - _MOST_NAMES} more" if len(choices) > _MOST_NAMES else ""
        advice = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(choices[:_MOST_NAMES])}{more}."
        super().__init__(f"There is no {kind} named {name!r}. {advice} {hint}".rstrip())


class InvalidSpec(UsageError):
    """The fields of a spec contradict one another."""


class NotCarriedOut(UsageError):
    """A valid request that is not implemented; it is refused rather than ignored."""


class BadShape(UsageError):
    """A head wider than its input, or a layer, role or site that the model does not have."""


class BadData(UsageError):
    """Data that are missing, incomplete, or do not fit the model."""


class SlurmUnreachable(UsageError):
    """A Slurm command is missing, or its controller did not answer."""


class StudyChanged(UsageError):
    """The study differs from the one that was registered under its name."""


class Sealed(UsageError):
    """A sealed split that must not be read, or not a second time."""


class IncomparableRuns(UsageError):
    """Runs that differ in more than the study declares."""


class MethodError(OelmError):
    """The model is in a state in which the method cannot be applied."""


class AlreadyApplied(MethodError):
    """A method has already been applied to this model."""


class UnusableWeight(MethodError):
    """A weight that cannot be read or drawn: on the meta device, quantised, tied."""


class WrongOptimizer(MethodError):
    """An optimiser that lacks weights that train, or has frozen ones."""


class FrozenWeightsMoved(OelmError):
    """A frozen weight no longer has the bytes it was frozen with."""


class CheckpointError(OelmError):
    """A checkpoint that is incomplete, belongs to another model, or is unsafe to read."""


class RunFailed(OelmError):
    """Training failed; the record says where."""


class Diverged(RunFailed):
    """The loss exploded or is not a number. While a learning rate is being tuned, this is a result."""


class RunLocked(OelmError):
    """Another process is using this run folder."""


class BadRecord(OelmError):
    """A record that cannot be read, or comes from a later version of this program."""


class Damaged(OelmError, ValueError):
    """A document whose checksum does not match. It is a ValueError, so that readers treat it like any malformed one."""


class ScheduleWarning(UserWarning):
    """A method changes what trains during training, or has its own learning rates, and nothing carries it out."""
