"""The most memory that this process has held."""

from __future__ import annotations

import resource
import sys
from pathlib import Path


def peak_resident_bytes(status: Path = Path("/proc/self/status")) -> int:
    """Return the peak of this process's resident memory, in bytes.

    Where the kernel tells it, by VmHWM, which begins anew with a program. ru_maxrss does not: on Linux it is kept over
    fork and exec, so that a process begins with the peak of whoever started it. Elsewhere it is what there is.
    """
    try:
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, the others kibibytes
    return int(line.split()[1]) * 1024
