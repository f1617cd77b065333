"""Begin a short warm-up-stable-decay run with the checkpoint of a longer one, taken where the short one's decay begins.

Up to that step both runs are the same run, because a step depends on weights, moments and its own number only. So the
branch ends with the bits of a run from scratch, has the same fingerprint, and trains from scratch where no such
checkpoint is in the same runs folder.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from oelm.errors import CheckpointError
from oelm.record.attention import ATTENTION
from oelm.record.schema import BranchRecord
from oelm.record.store import METRICS
from oelm.runner.queue import Entry
from oelm.spec.run import RunSpec, branches_off
from oelm.train.checkpoint import Checkpoint, branch_name, read_checkpoint

CHECKPOINTS = "checkpoints"


@dataclass(frozen=True)
class Trunk:
    """A longer run, and its checkpoint where a shorter one branches off."""

    directory: Path
    checkpoint: Checkpoint
    record: BranchRecord


def find_branch(run: RunSpec, directory: Path) -> Trunk | None:
    """Return the kept checkpoint that a bound run can begin with, from the folders next to its own; None without one.

    A damaged checkpoint, or one of other settings, is passed over: the run then trains from scratch.
    """
    if run.train.decay != "wsd":
        return None
    step = run.train.decay_start
    for place in sorted(directory.parent.glob(f"*/{CHECKPOINTS}/{branch_name(step)}")):
        try:
            checkpoint = read_checkpoint(place)
            trunk = RunSpec.model_validate(checkpoint.state["spec"])
        except (CheckpointError, ValidationError):
            continue
        if branches_off(run, trunk) and checkpoint.state["progress"]["step"] == step:
            record = BranchRecord(fingerprint=checkpoint.state["fingerprint"], step=step)
            return Trunk(place.parents[1], checkpoint, record)
    return None


def copy_curves(trunk: Path, branch: Path) -> None:
    """Give a branch the curves of its trunk; the observer drops what comes after the branching step."""
    for name in (METRICS, ATTENTION):
        if (trunk / name).exists():
            shutil.copyfile(trunk / name, branch / name)


def awaits(run: RunSpec, other: Entry) -> bool:
    """Whether another run will keep the checkpoint that this one can begin with, and has not kept it yet."""
    step = run.train.decay_start
    if step not in other.run.train.branch_at or not branches_off(run, other.run):
        return False
    return other.directory is None or not (other.directory / CHECKPOINTS / branch_name(step)).exists()
