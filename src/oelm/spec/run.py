"""A run as a value, and the fingerprint that identifies it.

The words for the identity of a run:

- A **declared** run is what a study or the command line requests.
- Resolving it (`oelm.runs.resolve`) fills in what depends on the data and the machine: checksums of data and weights,
  the number of steps in its epochs, the precision that "auto" stands for. Records contain the **resolved** run.
- `undo_resolve` removes these fields again, so that a record can be matched to the study that declared its run.
- The `fingerprint` identifies a run: it is a hash of every field that can change its numbers. Resolving a run changes
  its fingerprint, because the content of the data counts.

Everything random draws from a stream of its own, named after its purpose. So two methods with the same seed see the
same batches, and the same initial values wherever the method does not touch them. A resumed run needs no saved
generator, because its randomness is a function of (seed, purpose, step).
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from oelm.files import digest
from oelm.spec import Name, NoEffect, Spec, remember
from oelm.spec.data import AnyDataSpec, DataSpec, ExamplesSpec
from oelm.spec.method import MethodSpec, ScheduleSpec
from oelm.spec.model import HuggingFaceSpec, ModelSpec
from oelm.spec.train import Precision, TrackerName, TrainSpec

if TYPE_CHECKING:
    import torch


def derived_seed(seed: int, *purpose: str | int) -> int:
    """Return a 63-bit seed for one purpose; different purposes give unrelated streams."""
    text = "\x1f".join(map(str, (seed, *purpose)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def stream(seed: int, *purpose: str | int) -> torch.Generator:
    """Return a CPU generator for one purpose, seeded by `derived_seed`."""
    import torch  # here, so that specs can be read without torch

    return torch.Generator().manual_seed(derived_seed(seed, *purpose))


NUMERICS = 1
"""Version of the numbers. It is raised by hand when a fix changes results, so that earlier runs are not mistaken for
later ones."""


class ContinueSpec(Spec):
    """The run whose last checkpoint a run starts from, with its weights and moments (`oelm train --continue-from`)."""

    fingerprint: str
    step: PositiveInt
    """Number of steps of the checkpoint. They count as steps of the run that continues it."""
    folder: NoEffect[Path | None] = None
    """Folder of the run that is continued."""


class RunSpec(Spec):
    """Everything that determines one training run, and its names."""

    arm: NoEffect[Name] = "baseline"
    """Name of the method in the study. The method itself is the field `method`."""
    label: NoEffect[Name | None] = None
    """Name of a run that is listed one by one (`Listing`)."""
    scores_test: NoEffect[bool] = True
    """Whether the run is scored on the test split when it ends. Tuning runs are not."""
    model: ModelSpec
    method: MethodSpec = MethodSpec()
    data: AnyDataSpec = DataSpec()
    train: TrainSpec = TrainSpec()
    seed: NonNegativeInt = 0
    """Random seed of the run, for everything that has no seed of its own."""
    data_seed: NonNegativeInt | None = None
    """Seed of the order of the training data; None: `seed`."""
    init_seed: NonNegativeInt | None = None
    """Seed of the model's initial weights; None: `seed`."""
    draw_seed: NonNegativeInt | None = None
    """Seed of what the method draws, such as frozen Q and K; None: `seed`."""
    continues: ContinueSpec | None = None
    """The run that this one continues; None: it starts with new or pretrained weights."""

    def seed_of(self, purpose: Literal["data", "init", "draw"]) -> int:
        """Return the seed used for a purpose."""
        own: int | None = getattr(self, f"{purpose}_seed")
        return self.seed if own is None else own


def fingerprint(run: RunSpec) -> str:
    """Return the hash that identifies a run: of every field that can change its numbers, and of NUMERICS.

    Two runs with the same fingerprint are the same run. Names, folders and how often to save do not count.
    """
    return _fingerprint_of(_identity(run))


def _fingerprint_of(identity: dict[str, Any]) -> str:
    return digest({"numerics": NUMERICS, "run": identity})[:16]


@remember
def _identity(run: RunSpec) -> dict[str, Any]:
    meaning = run.meaning()
    if isinstance(run.data, ExamplesSpec) and run.data.checksum is None:
        # Text and labelled text may have the same name. Once a run is resolved, the checksum tells them apart.
        meaning["data"] = {"kind": run.data.kind, **meaning.get("data", {})}
    return meaning


@remember
def _declared_identity(run: RunSpec) -> dict[str, Any]:
    return _identity(undo_resolve(run))


def undo_resolve(run: RunSpec) -> RunSpec:
    """Return a resolved run as it was declared: without checksums, derived steps and the precision of "auto"."""
    train, model = run.train, run.model
    if train.epochs is not None:
        train = train.model_copy(update={"steps": TrainSpec.model_fields["steps"].default})
    if train.chose_precision:
        train = train.model_copy(update={"precision": "auto", "chose_precision": False})
    if isinstance(model, HuggingFaceSpec) and model.checksum is not None:
        model = model.model_copy(update={"checksum": None})
    if run.data.checksum is None and train is run.train and model is run.model:
        return run  # a copy would be hashed again
    data = run.data.model_copy(update={"checksum": None})
    return run.model_copy(update={"data": data, "model": model, "train": train})


def declared_fingerprint(run: RunSpec) -> str:
    """Return the fingerprint of a run as it was declared: how a study finds the records of its runs."""
    return _fingerprint_of(_declared_identity(run))


def in_precision_of(run: RunSpec, begun: RunSpec | None) -> RunSpec:
    """Return a run with precision "auto" in the precision it was started with, on whichever machine it continues."""
    if run.train.precision != "auto" or begun is None or not begun.train.chose_precision:
        return run
    return run.model_copy(update={"train": in_precision(run.train, begun.train.precision)})


def in_precision(train: TrainSpec, precision: Precision) -> TrainSpec:
    """Return a training in the precision that "auto" stands for."""
    return train.model_copy(update={"precision": precision, "chose_precision": True})


def with_tracker(run: RunSpec, name: TrackerName | None) -> RunSpec:
    """Return the run with an experiment tracker, or the run as it is."""
    return run if name is None else run.model_copy(update={"train": run.train.model_copy(update={"track": name})})


def trunk_of(run: RunSpec) -> str | None:
    """Return the fingerprint of the trunk of a warm-up-stable-decay run; None for any other run.

    Two runs with the same trunk differ only in their length and decay. Before the earlier decay begins they are
    identical, bit for bit.
    """
    if run.train.decay != "wsd" or run.method.schedule != ScheduleSpec():  # a schedule uses fractions of all steps
        return None
    length = {"steps": 1, "epochs": None, "decay_fraction": 1.0, "min_learning_rate": 0.0}
    return fingerprint(run.model_copy(update={"train": run.train.model_copy(update=length)}))


def branches_off(branch: RunSpec, trunk: RunSpec) -> bool:
    """Whether a run can continue from a checkpoint of a longer one, kept where the decay of the shorter one begins."""
    can_branch = branch.train.warmup <= branch.train.decay_start < trunk.train.decay_start
    return can_branch and trunk_of(branch) is not None and trunk_of(branch) == trunk_of(trunk)


class SlurmSpec(Spec):
    """The resources to request from Slurm for each run. Cores and GPUs follow from the run's threads and processes."""

    partition: Name | None = None
    """Partition; by default that of the cluster."""
    account: Name | None = None
    """Account that is charged for the time; by default your default account."""
    time: Annotated[int, Field(ge=5)] = 240
    """Time limit in minutes. A run that takes longer saves its state, is queued again and continues, as often as
    needed."""
    memory: PositiveFloat | None = None
    """Memory in GB; by default that of the cluster."""
    gpu: Name | None = None
    """Kind of GPU as the cluster names it, e.g. a100; by default any."""
