"""Random seeds and streams, one for each purpose.

Everything random draws from a stream of its own, named after its purpose. So two methods with the same seed see the
same batches, and the same initial values wherever the method does not touch them. A resumed run needs no saved
generator, because its randomness is a function of (seed, purpose, step).
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

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
