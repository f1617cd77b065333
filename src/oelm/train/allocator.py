"""Keep large blocks of memory instead of returning them to the system.

glibc maps every block above some size afresh and returns it when it is freed. A training step allocates the same
large tensors again and again, so that a good part of its time goes into the kernel clearing pages. Where the C
library is glibc, blocks are kept here and given out again.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import platform

# Parameters of mallopt(3), from malloc.h.
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
_NEVER = 2**31 - 1


def keep_large_blocks() -> bool:
    """Ask the C library to keep what is freed; return whether it will."""
    if platform.libc_ver()[0] != "glibc":
        return False
    libc = ctypes.CDLL(None)
    return bool(libc.mallopt(_MMAP_MAX, 0) and libc.mallopt(_TRIM_THRESHOLD, _NEVER))
