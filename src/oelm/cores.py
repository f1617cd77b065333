"""How many processor cores this process may use, and how its threads wait. Nothing here imports torch."""

from __future__ import annotations

import math
import os
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")


def available_cores() -> int:
    """Return the number of cores that the CPU affinity and the cgroup allow; at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([cores, *_cgroup_quotas()]))


def default_threads() -> int:
    """Return the number of threads for one process: the available cores, or fewer if OMP_NUM_THREADS says so."""
    asked = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return min(available_cores(), int(asked)) if asked.isdecimal() and int(asked) else available_cores()


def _cgroup_quotas(root: Path = CGROUP, own: Path = OWN_CGROUP) -> list[int]:
    """Return the cores that the CPU quotas of this process's cgroups (version 2) allow, rounded up; none if unlimited.

    Containers and Slurm limit processes in this way, which neither the number of cores nor the affinity shows.
    """
    quotas = []
    try:
        for place in cgroup_folders(root, own):
            if (file := place / "cpu.max").is_file():
                quota, period = file.read_text().split()
                quotas += [] if quota == "max" else [math.ceil(int(quota) / int(period))]
    except (OSError, ValueError):
        return []
    return quotas


def cgroup_folders(root: Path, own: Path) -> list[Path]:
    """Return the folder of this process's cgroup (version 2) and those of the cgroups that contain it; none if unknown.

    Each may have limits, and all of them hold.
    """
    try:
        group = next(line[3:] for line in own.read_text().splitlines() if line.startswith("0::"))
    except (OSError, StopIteration):
        return []
    folder = root / group.strip().strip("/")
    return [place for place in (folder, *folder.parents) if place.is_relative_to(root)]


def wait_without_spinning() -> None:
    """Let OpenMP threads sleep while they wait for each other, unless the user has chosen otherwise.

    By default GNU OpenMP spins. If other programs use the cores, a thread then burns its time slice while the thread it
    waits for cannot run, and a step takes ten times as long. OpenMP reads this when torch is loaded, so it must be
    called before; processes that are started later inherit it.
    """
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & set(os.environ):
        os.environ["OMP_WAIT_POLICY"] = "passive"
