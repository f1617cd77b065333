"""Checkpoints: written atomically, with checksums, and read without unpickling.

A checkpoint is a directory with `model.safetensors`, `training.safetensors` (moments, step times) and `state.json`
(everything else, the sha256 of the other two, and its own checksum). It is written under a temporary name and takes the
place of `latest` in one step. The one before it is kept as `previous`, so a damaged `latest` costs some steps and never
the run.
"""

from __future__ import annotations

import ctypes
import errno
import glob
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save_file
from torch import Tensor, nn

from oelm.errors import CheckpointError, Damaged
from oelm.files import add_checksum, has_checksum, sha256_of, strip_checksum, sync, write_atomically

MODEL, TRAINING, STATE = "model.safetensors", "training.safetensors", "state.json"


def branch_name(step: int) -> str:
    """Return the name of the checkpoint after a step, where shorter runs branch off."""
    return f"branch-{step}"


@dataclass(frozen=True)
class Checkpoint:
    """The content of a checkpoint."""

    model: dict[str, Tensor]
    training: dict[str, Tensor]
    state: dict[str, Any]


class Checkpoints:
    """The checkpoints of one run: `latest`, the `previous` one, and the `best` by validation."""

    def __init__(self, directory: Path, fingerprint: str, spec: Mapping[str, Any] | None = None) -> None:
        self.directory = directory
        self.fingerprint = fingerprint
        self.spec = spec
        """The run's spec as JSON data, so that a checkpoint alone describes its model."""
        self.check: Callable[[], None] = lambda: None
        """Called before the folder changes; raises once this process has lost the lock of the run."""
        self.owner = os.getpid()
        """The number in the temporary names of this process: that of its lock, where it holds one."""
        self.count_lines: Callable[[], dict[str, int]] = dict
        """Return how many lines the curves of the run have; saved, so that lost lines are noticed."""

    def save(self, model: nn.Module, training: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Save everything that a bit-exact continuation needs as `latest`."""
        fresh = self._write_aside("latest", model, training, state)
        self.check()
        self._put(fresh, self.directory / "latest", self.directory / "previous")
        sync(self.directory)

    def save_best(self, model: nn.Module, state: Mapping[str, Any]) -> None:
        """Save the best weights so far by validation accuracy, or by loss for tasks without accuracy."""
        self.write("best", model, state)

    def write(
        self, name: str, model: nn.Module, state: Mapping[str, Any], training: Mapping[str, Tensor] | None = None
    ) -> None:
        """Save a checkpoint under a name, and replace an older one."""
        fresh = self._write_aside(name, model, training or {}, state)
        old = self.directory / f".old-{name}"
        self.check()
        self._put(fresh, self.directory / name, old)
        shutil.rmtree(old, ignore_errors=True)

    def _put(self, fresh: Path, place: Path, old: Path) -> None:
        """Let a new folder take a place, and move the folder that was there to `old`.

        A process that was suspended before this call and has lost its lock changes nothing: the next holder has removed
        `fresh`, so the exchange fails.
        """
        try:
            if not place.exists():
                fresh.rename(place)
            elif _exchange(fresh, place):
                if not old.exists():
                    fresh.rename(old)
                elif _exchange(fresh, old):
                    shutil.rmtree(fresh, ignore_errors=True)
            else:
                self._put_in_steps(fresh, place, old)
        except FileNotFoundError:
            self.check()
            raise

    def _put_in_steps(self, fresh: Path, place: Path, old: Path) -> None:
        """Do the same where folders cannot be exchanged, as on NFS: whatever a late process has moved is put back."""
        fresh.stat()
        shutil.rmtree(old, ignore_errors=True)
        place.rename(old)
        try:
            fresh.rename(place)
        except FileNotFoundError:
            old.rename(place)
            raise

    def load(self) -> tuple[Checkpoint | None, list[str]]:
        """Return the newest intact checkpoint of this run, if any, and the errors of newer ones.

        Raises:
            CheckpointError: checkpoints exist, but none can be read, or they belong to another run.

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
                f"No checkpoint in {self.directory} can be read: {' '.join(troubles)} "
                "Remove the folder to start again from step 0."
            )
        return None, troubles

    def _write_aside(
        self, name: str, model: nn.Module, training: Mapping[str, Tensor], state: Mapping[str, Any]
    ) -> Path:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._remove_leftovers(name)
        aside = self.directory / f".{name}.{self.owner}"
        aside.mkdir()
        try:
            save_file(model_tensors(model), aside / MODEL)
            save_file({key: tensor.contiguous() for key, tensor in training.items()}, aside / TRAINING)
            hashes = {file: sha256_of(aside / file) for file in (MODEL, TRAINING)}
            own = {"fingerprint": self.fingerprint, "spec": self.spec, "lines": self.count_lines(), "sha256": hashes}
            write_atomically(aside / STATE, add_checksum(json.dumps({**state, **own}, indent=1)))
            for file in (MODEL, TRAINING):
                sync(aside / file)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
        return aside

    def _remove_leftovers(self, name: str) -> None:
        """Remove the temporary folders of processes that were killed or succeeded while they wrote."""
        leftovers = list(self.directory.glob(f".{glob.escape(name)}.*"))
        self.check()  # what was listed before this check belongs to no later holder of the lock
        for leftover in leftovers:
            if leftover.suffix[1:].isdigit():  # a user's folder may have folders with similar names
                shutil.rmtree(leftover, ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two folders in one step; return False where the system cannot. Raise OSError if one is gone."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):  # not Linux, or an old C library
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    if renameat2(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):  # some network file systems
        return False
    raise OSError(number, os.strerror(number), str(one))


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return every parameter and persistent buffer by name; tied tensors occur once.

    The state_dict is used only to find persistent buffers, because it merges the parts of a split module into one
    tensor.
    """
    persistent = set(model.state_dict())
    buffers = {name: buffer for name, buffer in model.named_buffers() if name in persistent}
    return {name: tensor.detach().contiguous() for name, tensor in (*model.named_parameters(), *buffers.items())}


def read_checkpoint(directory: Path) -> Checkpoint:
    """Read a checkpoint. Each file is read once, and the bytes that are verified are those that are used."""
    state = read_state(directory)
    model, training = (_read_tensors(directory, file, state["sha256"][file]) for file in (MODEL, TRAINING))
    return Checkpoint(model, training, state)


def _read_tensors(directory: Path, file: str, sha256: str) -> dict[str, Tensor]:
    try:
        content = (directory / file).read_bytes()
        if hashlib.sha256(content).hexdigest() == sha256:
            return load(content)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise _incomplete(directory, error) from error
    raise CheckpointError(f"{directory / file} has changed since it was written (checksum).")


def read_state(directory: Path) -> dict[str, Any]:
    """Read and verify the `state.json` of a checkpoint.

    Raises:
        FileNotFoundError: there is no such folder.
        CheckpointError: the file is missing, damaged or incomplete.

    """
    if not directory.is_dir():
        raise FileNotFoundError(directory)
    try:
        text = (directory / STATE).read_text(encoding="utf-8")
        state: dict[str, Any] = json.loads(strip_checksum(text))
        _require_fields(state, of_training=not has_checksum(text))
    except Damaged as error:
        raise CheckpointError(f"{directory / STATE} has changed since it was written: {error}.") from error
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise _incomplete(directory, error) from error
    return state


def _require_fields(state: dict[str, Any], *, of_training: bool) -> None:
    """Raise an error if fields are missing or of another type.

    `of_training` is for files of earlier versions, which have no checksum: damage to them is found here and not later.
    """
    hashes = [state["sha256"][file] for file in (MODEL, TRAINING)]
    texts = [state["fingerprint"], *hashes]
    if of_training:
        texts += [*state["progress"], *(state["freezing"] or ())]
        texts.append("" if type(state["progress"]["step"]) is int else None)
    if not all(isinstance(text, str) for text in texts):
        raise TypeError(f"fields of {STATE} have other types")


def _incomplete(directory: Path, error: Exception) -> CheckpointError:
    return CheckpointError(f"{directory} is not a whole checkpoint ({type(error).__name__}: {error}).")


@torch.no_grad()
def load_into(model: nn.Module, tensors: Mapping[str, Tensor], source: str) -> None:
    """Copy saved tensors into a model with the same names and shapes.

    Raises:
        CheckpointError: names or shapes differ; the model is not changed.

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
            f"{extra[:3] or 'nothing'}, of another shape {shapes[:3] or 'nothing'}. Use the model it was saved from."
        )
    for name, target in {**dict(model.named_parameters()), **dict(model.named_buffers())}.items():
        if name in tensors:
            target.copy_(tensors[name])
