"""Repairs: small modules that change the Q/K logits, off by default and free for any arm.

They act on queries and keys per head, after positions are in and before the logits are taken, so that the same
module serves our GPT and a foreign model's attention function.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class KeyShift(nn.Module):
    """Let the first share of the heads read, at each position, the key of the token before.

    Position 0 has none before it and reads its own. Give it the keys of all tokens so far: with a key/value cache
    that is the cached, unshifted keys with the new ones appended.
    """

    def __init__(self, share: float, num_heads: int) -> None:
        super().__init__()
        # At least one head: a wish for a share of them must not vanish by rounding.
        self.shifted = max(1, round(share * num_heads))

    def forward(self, keys_BHTK: Tensor) -> Tensor:
        """Return the keys as the logits are taken from them."""
        shifted, kept = keys_BHTK[:, : self.shifted], keys_BHTK[:, self.shifted :]
        before = torch.cat((shifted[:, :, :1], shifted[:, :, :-1]), dim=2)
        return torch.cat((before, kept), dim=1)


class Temperature(nn.Module):
    """Multiply each head's logits by a trained positive factor, one at the start."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.log_factor_H = nn.Parameter(torch.zeros(num_heads))

    def forward(self, queries_BHTK: Tensor) -> Tensor:
        """Return queries scaled by their head's factor."""
        return queries_BHTK * self.log_factor_H.exp().to(queries_BHTK.dtype)[:, None, None]
