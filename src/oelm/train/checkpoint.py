"""Checkpoints that survive: atomic, checksummed, nothing unpickled.

A checkpoint is a directory with `model.safetensors`, `training.safetensors` (moments, step times) and
`state.json` (everything else, and the sha256 of the other two). It is written aside and renamed into place; the
one before it is kept as `previous`, so that a torn or damaged `latest` costs some steps and never the run.
"""

from __future__ import annotations

import glob
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from oelm.errors import CheckpointError
from oelm.files import sha256_of, write_atomically

MODEL, TRAINING, STATE = "model.safetensors", "training.safetensors", "state.json"


def branch_name(step: int) -> str:
    """Return the name of the checkpoint that shorter runs branch off after a step."""
    return f"branch-{step}"


@dataclass(frozen=True)
class Checkpoint:
    """What was saved."""

    model: dict[str, Tensor]
    training: dict[str, Tensor]
    state: dict[str, Any]


class Checkpoints:
    """The checkpoints of one run: `latest`, the `previous` one, and the `best` by validation."""

    def __init__(self, directory: Path, fingerprint: str, spec: Mapping[str, Any] | None = None) -> None:
        self.directory = directory
        self.fingerprint = fingerprint
        self.spec = spec
        """The run's spec as JSON data: a checkpoint by itself says what model it is of."""

    def save(self, model: nn.Module, training: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Save all that a bit-exact continuation needs."""
        fresh = self._write_aside("latest", model, training, state)
        latest, previous = self.directory / "latest", self.directory / "previous"
        if latest.exists():
            shutil.rmtree(previous, ignore_errors=True)
            latest.rename(previous)
        fresh.rename(latest)
        _sync(self.directory)

    def save_best(self, model: nn.Module, state: Mapping[str, Any]) -> None:
        """Save the weights that validation finds best so far: by loss, or by accuracy where there is one."""
        self.write("best", model, state)

    def write(
        self, name: str, model: nn.Module, state: Mapping[str, Any], training: Mapping[str, Tensor] | None = None
    ) -> None:
        """Save weights, and what else is given, under a name; replace what was there."""
        fresh = self._write_aside(name, model, training or {}, state)
        place, old = self.directory / name, self.directory / f".old-{name}"
        if place.exists():
            shutil.rmtree(old, ignore_errors=True)
            place.rename(old)
        fresh.rename(place)
        shutil.rmtree(old, ignore_errors=True)

    def load(self) -> tuple[Checkpoint | None, list[str]]:
        """Return the newest whole checkpoint of this run, if any, and what was wrong with newer ones.

        Raises:
            CheckpointError: there are checkpoints, but none can be read, or they belong to another run.

        """
        troubles = []
        for name in ("latest", "previous"):
            try:
                checkpoint = read_checkpoint(self.directory / name)
            except FileNotFoundError:
                continue
            except CheckpointError as error:
                troubles.append(str(error))
                continue
            if checkpoint.state["fingerprint"] != self.fingerprint:
                raise CheckpointError(
                    f"{self.directory / name} belongs to run {checkpoint.state['fingerprint']}, not to "
                    f"{self.fingerprint}. Continue with the settings it was made with, or use another folder."
                )
            return checkpoint, troubles
        if troubles:
            raise CheckpointError(
                f"no checkpoint in {self.directory} can be read: {' '.join(troubles)} "
                "Remove the folder to start again from step 0."
            )
        return None, troubles

    def _write_aside(
        self, name: str, model: nn.Module, training: Mapping[str, Tensor], state: Mapping[str, Any]
    ) -> Path:
        self.directory.mkdir(parents=True, exist_ok=True)
        for leftover in self.directory.glob(f".{glob.escape(name)}.*"):  # of a process that was killed while writing
            if leftover.suffix[1:].isdigit():  # the folder may be a user's, with folders of like names in it
                shutil.rmtree(leftover, ignore_errors=True)
        aside = self.directory / f".{name}.{os.getpid()}"
        aside.mkdir()
        try:
            save_file(model_tensors(model), aside / MODEL)
            save_file({key: tensor.contiguous() for key, tensor in training.items()}, aside / TRAINING)
            hashes = {file: sha256_of(aside / file) for file in (MODEL, TRAINING)}
            plain = {**state, "fingerprint": self.fingerprint, "spec": self.spec, "sha256": hashes}
            write_atomically(aside / STATE, json.dumps(plain, indent=1))
            for file in (MODEL, TRAINING):
                _sync(aside / file)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
        return aside


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return every parameter and persistent buffer by name, each once however often it is tied.

    The state_dict says which buffers persist, and nothing about parameters: it shows the parts of a split module as
    the one tensor they were.
    """
    persistent = set(model.state_dict())
    buffers = {name: buffer for name, buffer in model.named_buffers() if name in persistent}
    return {name: tensor.detach().contiguous() for name, tensor in (*model.named_parameters(), *buffers.items())}


def read_checkpoint(directory: Path) -> Checkpoint:
    """Read a checkpoint and prove that it is whole."""
    if not directory.is_dir():
        raise FileNotFoundError(directory)
    try:
        state = json.loads((directory / STATE).read_text())
        for file, expected in state["sha256"].items():
            if sha256_of(directory / file) != expected:
                raise CheckpointError(f"{directory / file} does not have the checksum it was written with.")
        model, training = load_file(directory / MODEL), load_file(directory / TRAINING)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise CheckpointError(f"{directory} is not a whole checkpoint ({type(error).__name__}: {error}).") from error
    return Checkpoint(model, training, state)


@torch.no_grad()
def load_into(model: nn.Module, tensors: Mapping[str, Tensor], source: str) -> None:
    """Copy saved tensors into a model of the same names and shapes.

    Raises:
        CheckpointError: naming the first tensors that differ; the model is untouched then.

    """
    own = model_tensors(model)
    missing, extra = sorted(set(own) - set(tensors)), sorted(set(tensors) - set(own))
    shapes = [
        f"{name} {tuple(tensors[name].shape)} instead of {tuple(own[name].shape)}"
        for name in own
        if name in tensors and tensors[name].shape != own[name].shape
    ]
    if missing or extra or shapes:
        raise CheckpointError(
            f"{source} is the checkpoint of another model: missing {missing[:3] or 'nothing'}, unknown "
            f"{extra[:3] or 'nothing'}, of another shape {shapes[:3] or 'nothing'}. Give the model it was made with."
        )
    for name, target in {**dict(model.named_parameters()), **dict(model.named_buffers())}.items():
        if name in tensors:
            target.copy_(tensors[name])


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
