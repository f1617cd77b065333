"""A run as a value, and the fingerprint that says when two runs are the same."""

from __future__ import annotations

from pydantic import NonNegativeInt

from oelm.spec.base import NoEffect, Spec, digest
from oelm.spec.data import DataSpec
from oelm.spec.method import MethodSpec
from oelm.spec.model import ModelSpec
from oelm.spec.train import TrainSpec

NUMERICS = 1
"""Raised by hand when a fix changes results: runs of different NUMERICS are different runs."""


class RunSpec(Spec):
    """Everything that determines one training, and the name it goes by."""

    arm: NoEffect[str] = "baseline"
    """What the study calls this method; the method itself is what counts."""
    label: NoEffect[str | None] = None
    model: ModelSpec
    method: MethodSpec = MethodSpec()
    data: DataSpec = DataSpec()
    train: TrainSpec = TrainSpec()
    seed: NonNegativeInt = 0


def fingerprint(run: RunSpec) -> str:
    """Hash every field that can change the numbers, with NUMERICS: same fingerprint, same run."""
    return digest({"numerics": NUMERICS, "run": run.meaning()})[:16]
