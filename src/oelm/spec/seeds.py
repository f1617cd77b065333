"""Seeds that belong to a purpose.

Everything random draws from its own stream, named by what it is for. So two methods with one seed see the same
batches and the same initial values wherever the method does not touch them, and a resumed run needs no saved
generator: its randomness is a function of (seed, purpose, step).
"""

from __future__ import annotations

import hashlib


def derived_seed(seed: int, *purpose: str | int) -> int:
    """Return a 63-bit seed for one purpose; different purposes give unrelated streams."""
    text = "\x1f".join(map(str, (seed, *purpose)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
