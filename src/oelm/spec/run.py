"""A run as a value, and the fingerprint that says when two runs are the same."""

from __future__ import annotations

from typing import Literal

from pydantic import NonNegativeInt

from oelm.spec.base import NoEffect, Spec, digest
from oelm.spec.data import AnyDataSpec, DataSpec, ExamplesSpec
from oelm.spec.method import MethodSpec, ScheduleSpec
from oelm.spec.model import ForeignSpec, ModelSpec
from oelm.spec.train import Precision, TrainSpec

NUMERICS = 1
"""Raised by hand when a fix changes results: runs of different NUMERICS are different runs."""


class RunSpec(Spec):
    """Everything that determines one training, and the name it goes by."""

    arm: NoEffect[str] = "baseline"
    """What the study calls this method; the method itself is what counts."""
    label: NoEffect[str | None] = None
    scores_test: NoEffect[bool] = True
    """Whether the run is scored on the test split when it ends. The runs that tune a study are not."""
    model: ModelSpec
    method: MethodSpec = MethodSpec()
    data: AnyDataSpec = DataSpec()
    train: TrainSpec = TrainSpec()
    seed: NonNegativeInt = 0
    """Random seed of the run, of everything that has no seed of its own."""
    data_seed: NonNegativeInt | None = None
    """Seed of the order of the training data; None: `seed`."""
    init_seed: NonNegativeInt | None = None
    """Seed of the model's initial weights; None: `seed`."""
    draw_seed: NonNegativeInt | None = None
    """Seed of what the method draws, frozen Q and K among it; None: `seed`."""

    def seed_of(self, purpose: Literal["data", "init", "draw"]) -> int:
        """Return the seed that counts for a purpose."""
        own: int | None = getattr(self, f"{purpose}_seed")
        return self.seed if own is None else own


def declared(run: RunSpec) -> RunSpec:
    """Return a run as a study declares it: without what binding it to its data has filled in."""
    train, model = run.train, run.model
    if train.epochs is not None:
        train = train.model_copy(update={"steps": TrainSpec.model_fields["steps"].default})
    if train.chose_precision:
        train = train.model_copy(update={"precision": "auto", "chose_precision": False})
    if isinstance(model, ForeignSpec):
        model = model.model_copy(update={"checksum": None})
    data = run.data.model_copy(update={"checksum": None})
    return run.model_copy(update={"data": data, "model": model, "train": train})


def in_precision_of(run: RunSpec, begun: RunSpec | None) -> RunSpec:
    """Return a run whose precision is "auto" with the one that it began in, wherever it is continued."""
    if run.train.precision != "auto" or begun is None or not begun.train.chose_precision:
        return run
    return run.model_copy(update={"train": in_precision(run.train, begun.train.precision)})


def in_precision(train: TrainSpec, precision: Precision) -> TrainSpec:
    """Return a training in the precision that "auto" stands for."""
    return train.model_copy(update={"precision": precision, "chose_precision": True})


def fingerprint(run: RunSpec) -> str:
    """Hash every field that can change the numbers, with NUMERICS: same fingerprint, same run."""
    meaning = run.meaning()
    if isinstance(run.data, ExamplesSpec) and run.data.checksum is None:
        # A corpus may be text and labelled text under one name; bound to data, the checksum tells them apart.
        meaning["data"] = {"kind": run.data.kind, **meaning.get("data", {})}
    return digest({"numerics": NUMERICS, "run": meaning})[:16]


def trunk_of(run: RunSpec) -> str | None:
    """Name the trunk of a warm-up-stable-decay run; None for any other run.

    Two runs with one trunk differ only in how long they are and how they decay. Before the earlier of their decays
    begins they are the same run, bit for bit.
    """
    if run.train.decay != "wsd" or run.method.schedule != ScheduleSpec():  # a schedule is in fractions of all steps
        return None
    length = {"steps": 1, "epochs": None, "decay_fraction": 1.0, "min_learning_rate": 0.0}
    return fingerprint(run.model_copy(update={"train": run.train.model_copy(update=length)}))


def branches_off(branch: RunSpec, trunk: RunSpec) -> bool:
    """Whether a run can continue from the checkpoint that a longer one keeps where the shorter one's decay begins."""
    can_branch = branch.train.warmup_steps <= branch.train.decay_start < trunk.train.decay_start
    return can_branch and trunk_of(branch) is not None and trunk_of(branch) == trunk_of(trunk)
