"""Everything `oelm` raises on purpose.

    OelmError                 exit code 1: the run could not be done
    ├── UsageError            exit code 2: what was asked cannot be done as asked
    │   ├── UnknownName       no method, model, corpus ... of that name; the nearest is suggested
    │   ├── InvalidSpec       the fields of a spec contradict one another
    │   ├── NotCarriedOut     a valid spec that no code here carries out (for this model)
    │   ├── BadShape          a head wider than its input, a layer or a role that the model lacks
    │   ├── SlurmUnreachable  no Slurm here, or one that does not answer
    │   ├── StudyChanged      a study that is not the one registered under its name
    │   ├── Sealed            a sealed split that may not be read, or has been opened before
    │   ├── IncomparableRuns  runs that differ in more than the study declares
    │   └── BadData           token files or tables that are missing, torn or do not fit
    ├── MethodError           the model is in a state that does not take the method
    │   ├── AlreadyApplied    a method stands on this model already
    │   └── UnusableWeight    a weight on the meta device, quantised, tied: nothing to draw into
    ├── FrozenWeightsMoved    a frozen weight no longer has the bytes it was frozen with
    ├── CheckpointError       a checkpoint that is torn, foreign or unsafe to read
    ├── RunFailed             training broke; the record says where
    │   └── Diverged          its loss ran away or is no number
    ├── RunLocked             another live process works in this folder
    └── BadRecord             a record that cannot be read, or is from a later version

Each message answers four questions: what was asked, what was found, what would do, what to try.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

INTERRUPTED = 130
"""The exit code of what was asked to stop, and has saved itself: that of a shell's command after Ctrl-C."""


class OelmError(Exception):
    """The root of the tree above."""

    exit_code = 1


class UsageError(OelmError):
    """What was asked cannot be done as asked."""

    exit_code = 2


class UnknownName(UsageError):
    """A name that stands for nothing here."""

    def __init__(self, kind: str, name: str, known: Iterable[str], hint: str = "") -> None:
        choices = sorted(known)
        near = difflib.get_close_matches(name, choices, n=1, cutoff=0.5)
        guess = f" Did you mean {near[0]!r}?" if near else ""
        super().__init__(
            f"there is no {kind} named {name!r}.{guess} Known: {', '.join(choices)}.{' ' + hint if hint else ''}"
        )


class InvalidSpec(UsageError):
    """Fields that contradict one another."""


class NotCarriedOut(UsageError):
    """A valid wish that no code here carries out; refused rather than ignored."""


class BadShape(UsageError):
    """A head wider than its input, or a layer, role or site that the model lacks."""


class BadData(UsageError):
    """Data that are missing, torn, or do not fit the model."""


class SlurmUnreachable(UsageError):
    """A command of Slurm that is missing, or that had no answer from its controller."""


class StudyChanged(UsageError):
    """A study that differs from the one that was registered under its name."""


class Sealed(UsageError):
    """A sealed split that may not be read, or not once more."""


class MethodError(OelmError):
    """The model is in a state that does not take the method."""


class AlreadyApplied(MethodError):
    """A method stands on this model already."""


class UnusableWeight(MethodError):
    """A weight with nothing to read or draw into: on the meta device, quantised, tied."""


class FrozenWeightsMoved(OelmError):
    """A frozen weight no longer has the bytes it was frozen with."""


class CheckpointError(OelmError):
    """A checkpoint that is torn, belongs to another model, or is unsafe to read."""


class RunFailed(OelmError):
    """Training broke; the record says where."""


class Diverged(RunFailed):
    """The loss ran away or is no number: a result, where the learning rate is what is being tuned."""


class RunLocked(OelmError):
    """Another live process works in this folder."""


class IncomparableRuns(UsageError):
    """Runs that differ in more than the study declares."""


class BadRecord(OelmError):
    """A record that cannot be read, or comes from a later version of this program."""
