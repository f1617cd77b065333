"""Resolve a run: find or prepare its data, so that its fingerprint includes their checksum and its steps are known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch

from oelm.errors import BadData, OelmError
from oelm.files import sha256_of
from oelm.spec.model import HuggingFaceSpec, ModelSpec
from oelm.spec.run import RunSpec, in_precision
from oelm.spec.train import steps_of
from oelm.spec.value import digest
from oelm.tasks import make_task, task_class
from oelm.tasks.task import Data, refuse_changed_data
from oelm.train.device import resolve_precision


class ResolvedRun(NamedTuple):
    """A run that can be carried out: nothing in it is left to be derived, and its data are open."""

    spec: RunSpec
    """The run with the checksums of its data and weights, its number of steps and its precision."""
    data: Data


def resolve(run: RunSpec) -> ResolvedRun:
    """Find the data and weights of a run, prepare data that are missing, and derive its steps and precision.

    Raises:
        BadData: the data, or the weights in a folder, are damaged or not those that the run was declared for.
        NotCarriedOut: a Hugging Face model on a probe.
        InvalidSpec: a pretrained decoder on text with another vocabulary than its own.

    """
    data = task_class(run).open_data(run)
    refuse_changed_data(run, data)
    train = run.train
    if train.precision == "auto":
        train = in_precision(train, resolve_precision(train.device, train.precision))
    named = run.model_copy(
        update={
            "data": run.data.model_copy(update={"checksum": data.checksum}),
            "model": _add_checksum(run.model),
            "train": train,
        }
    )
    if train.epochs is None:
        return ResolvedRun(named, data)
    steps = steps_of(train.epochs, make_task(named, data, torch.device("cpu")).steps_per_epoch)
    return ResolvedRun(named.model_copy(update={"train": train.model_copy(update={"steps": steps})}), data)


def prepare_data(runs: Iterable[RunSpec]) -> Iterator[tuple[str, Data]]:
    """Open the data of some runs, each corpus once, and prepare what is missing; yield their names and the data.

    Data that cannot be had are left out: the runs that need them report the reason when they are resolved.
    """
    seen = set()
    for run in runs:
        if run.data in seen:
            continue
        seen.add(run.data)
        with suppress(OelmError):
            yield run.data.corpus, task_class(run).open_data(run)


def _add_checksum(model: ModelSpec) -> ModelSpec:
    """Return a model that is a folder with the checksum of its files; any other model is identified by its name."""
    if not isinstance(model, HuggingFaceSpec) or not Path(model.name).is_dir():
        return model
    kinds = ("config.json", "*.safetensors", "*.bin") if model.pretrained else ("config.json",)
    files = sorted(path for kind in kinds for path in Path(model.name).glob(kind))
    found = digest({path.name: _hash(path, path.stat().st_size, path.stat().st_mtime_ns) for path in files})[:16]
    if model.checksum not in (None, found):
        raise BadData(
            f"the run was declared for the model with checksum {model.checksum}, but the files in {model.name} have "
            f"{found}. Restore the files, or declare the run without a checksum."
        )
    return model.model_copy(update={"checksum": found})


@lru_cache(maxsize=64)  # the runs of a study start from the same weights
def _hash(path: Path, _size: int, _changed: int) -> str:
    return sha256_of(path)
