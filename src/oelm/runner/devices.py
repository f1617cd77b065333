"""GPUs that are free: not ours already, and not busy with other people's work.

NVML sees every process on the machine, CUDA only its own; so NVML is asked. Runs are given their GPU by its UUID, which
means the same to both, whereas their numbers may differ.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psutil

from oelm.errors import UsageError

MEMORY_SHARE = 0.1
"""A GPU with more of its memory taken is somebody's."""
UTILISATION = 10
"""So is one that is busy for more than this many percent of the time."""


@dataclass(frozen=True)
class Gpu:
    """One GPU as NVML shows it."""

    uuid: str
    name: str
    memory_used: int
    memory_total: int
    utilisation: int
    pids: tuple[int, ...]

    @property
    def is_free(self) -> bool:
        """Whether nobody seems to be using it: neither its memory nor its time, and no process computes on it."""
        return (
            not self.pids and self.memory_used <= MEMORY_SHARE * self.memory_total and self.utilisation <= UTILISATION
        )

    @property
    def occupation(self) -> str:
        """Who is using it, in words."""
        users = ", ".join(_owner(pid) for pid in self.pids) or "nobody we can see"
        return f"{self.name} {self.uuid[:12]}: {self.memory_used / 2**30:.1f} GiB, {self.utilisation} % ({users})"


class Gpus:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves us; numbers in it are taken as nvidia-smi shows them.

    `nvml` is the module `pynvml`, or something with its functions.
    """

    def __init__(self, nvml: Any = None, environment: Mapping[str, str] = os.environ) -> None:
        nvml = nvml or importlib.import_module("pynvml")
        self._nvml, self._environment = nvml, environment
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            raise UsageError(
                f"a run asks for train.device=cuda, and no NVIDIA driver answers here ({error}). Run it on a machine "
                "with a GPU, or set train.device=cpu."
            ) from error
        if not self.visible():
            raise UsageError(
                "a run asks for train.device=cuda, and CUDA_VISIBLE_DEVICES="
                f"{environment.get('CUDA_VISIBLE_DEVICES')!r} leaves no GPU. Unset it, or name one."
            )

    def visible(self) -> list[Gpu]:
        """Return the GPUs we may use, in the order in which CUDA_VISIBLE_DEVICES names them."""
        every = [self._look(index) for index in range(self._nvml.nvmlDeviceGetCount())]
        wish = self._environment.get("CUDA_VISIBLE_DEVICES")
        if wish is None:
            return every
        chosen: list[Gpu] = []
        for word in (word.strip() for word in wish.split(",")):
            named = every[int(word) : int(word) + 1] if word.isdigit() else _by_uuid(every, word)
            gpu = named[0] if len(named) == 1 else None
            if gpu is None or gpu in chosen:
                break  # as CUDA does: what follows an invalid entry is not seen
            chosen.append(gpu)
        return chosen

    def free(self, ours: Collection[str]) -> list[Gpu]:
        """Return the visible GPUs that are neither ours (by UUID) nor anybody's."""
        return [gpu for gpu in self.visible() if gpu.uuid not in ours and gpu.is_free]

    def _look(self, index: int) -> Gpu:
        nvml = self._nvml
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        try:
            busy = int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        except nvml.NVMLError:  # slices of a GPU (MIG) have no such figure; their memory tells enough
            busy = 0
        return Gpu(
            uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
            name=_text(nvml.nvmlDeviceGetName(handle)),
            memory_used=int(memory.used),
            memory_total=int(memory.total),
            utilisation=busy,
            pids=tuple(process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)),
        )


def _by_uuid(gpus: list[Gpu], beginning: str) -> list[Gpu]:
    return [gpu for gpu in gpus if beginning.startswith("GPU-") and gpu.uuid.startswith(beginning)]


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _owner(pid: int) -> str:
    with suppress(psutil.Error):
        return f"{psutil.Process(pid).username()}'s process {pid}"
    return f"process {pid}"
