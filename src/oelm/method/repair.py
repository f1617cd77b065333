"""Repairs: small modules that change the Q/K logits, off by default and free for any arm.

What is linear in the input is folded into the weight of its projection before the product is taken: a step then
costs at most what one with trained Q/K costs, whichever of these repairs are on. The others act on queries and keys
per head before the logits are taken, the two that need no more than that (key shift, temperature) after positions
are in, so that the same module serves our GPT and a foreign model's attention function.

Trained values are kept as departures from doing nothing. So they start at zero, two arms start from the same
function, and weight decay pulls a repair towards no repair. The one exception is drawn: the inner factor of a
low-rank residual, which would otherwise have no gradient.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oelm.method.orthogonal import stream
from oelm.spec.repair import RepairSpec

_SMALLEST_SQUARE = 1e-6
"""Of a normalised vector, on average over its entries: a vector of zeros stays one."""


class Repair(nn.Module):
    """What all repairs are, so that their parameters can be told from the model's own."""


def num_repair_parameters(model: nn.Module) -> int:
    """Count the scalars that the repairs of a model train."""
    repairs = (module for module in model.modules() if isinstance(module, Repair))
    return sum(parameter.numel() for repair in repairs for parameter in repair.parameters(recurse=False))


def draw_repairs(model: nn.Module, seed: int) -> None:
    """Draw what does not start at zero, each from a stream of its own, so that no other draw is shifted by it."""
    for name, module in model.named_modules():
        if isinstance(module, Fold):
            module.draw(stream(seed, "repair", name))


def keys_before(keys_BHTK: Tensor) -> Tensor:
    """Return at each position the key of the token before; position 0 has none before it and keeps its own."""
    return torch.cat((keys_BHTK[:, :, :1], keys_BHTK[:, :, :-1]), dim=2)


class KeyShift(Repair):
    """Let the first share of the heads read, at each position, the key of the token before.

    Give it the keys of all tokens so far: with a key/value cache that is the cached, unshifted keys with the new ones
    appended.
    """

    def __init__(self, share: float, num_heads: int) -> None:
        super().__init__()
        # At least one head: a wish for a share of them must not vanish by rounding.
        self.shifted = max(1, round(share * num_heads))

    def forward(self, keys_BHTK: Tensor) -> Tensor:
        """Return the keys as the logits are taken from them."""
        shifted, kept = keys_BHTK[:, : self.shifted], keys_BHTK[:, self.shifted :]
        return torch.cat((keys_before(shifted), kept), dim=1)


class KeyMix(Repair):
    """Mix each key with the one before: k_t + m_h (k_(t-1) - k_t), with a trained m_h per head.

    m = 0 is the key itself, m = 1 the shifted key; nothing keeps m between them, so that a head may also read how a
    key differs from the one before. Like a shift, it wants the unmixed keys of all tokens so far.
    """

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.share_H = nn.Parameter(torch.zeros(num_heads))

    def forward(self, keys_BHTK: Tensor) -> Tensor:
        """Return the keys as the logits are taken from them."""
        return torch.lerp(keys_BHTK, keys_before(keys_BHTK), self.share_H.to(keys_BHTK.dtype)[:, None, None])


class Temperature(Repair):
    """Multiply each head's logits by a trained positive factor, one at the start."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.log_factor_H = nn.Parameter(torch.zeros(num_heads))

    def forward(self, queries_BHTK: Tensor) -> Tensor:
        """Return queries scaled by their head's factor."""
        return queries_BHTK * self.log_factor_H.exp().to(queries_BHTK.dtype)[:, None, None]


class QKNorm(Repair):
    """Give each head's query or key the norm sqrt(K), that of an orthogonal projection of a normalised input.

    By itself it would bound the logits at sqrt(K); the temperature that goes with it lets a head become sharper.
    """

    def forward(self, x_BHTK: Tensor) -> Tensor:
        """Return the vectors at their new length."""
        return F.rms_norm(x_BHTK, x_BHTK.shape[-1:], eps=_SMALLEST_SQUARE).to(x_BHTK.dtype)


class PositionBias(Repair):
    """Add to each head's logits a trained bias that depends on the distance alone."""

    def __init__(self, num_heads: int, context: int) -> None:
        super().__init__()
        self.bias_HT = nn.Parameter(torch.zeros(num_heads, context))

    def forward(self, new: int, seen: int) -> Tensor:
        """Return what is added to the logits of the last `new` of `seen` tokens: minus infinity for later tokens.

        Row i of a Toeplitz matrix is a window of one vector, (..., b_1, b_0, -inf, ...), that starts a place earlier
        in each row: cheaper to read than to gather, forward and backward.
        """
        later_HT = self.bias_HT.new_full((self.bias_HT.shape[0], new - 1), -torch.inf)
        far_to_near = torch.cat((self.bias_HT[:, :seen].flip(-1), later_HT), dim=-1)
        return far_to_near.unfold(-1, seen, 1).flip(-2)


class Fold(Repair):
    """Fold trained parts into the weight of a projection: C_h (W_h + B_h A) diag(d) for each head h.

    C (the core), B, A (the low-rank residual) and d (the diagonal) are there or not. The frozen weight stays what it
    is; what the input is multiplied by is made anew from it at each step.
    """

    def __init__(self, num_heads: int, weight_CI: Tensor, *, core: bool, diagonal: bool, rank: int) -> None:
        super().__init__()
        rows, input_size = weight_CI.shape
        self.num_heads, self.head_size = num_heads, rows // num_heads
        self.core_HKK = _zeros(num_heads, self.head_size, self.head_size) if core else None
        self.diagonal_I = _zeros(input_size) if diagonal else None
        self.outer_CR = _zeros(rows, rank) if rank else None
        self.inner_RI = _zeros(rank, input_size) if rank else None

    @classmethod
    def of(cls, repair: RepairSpec, num_heads: int, weight_CI: Tensor, *, core: bool) -> Fold | None:
        """Return what a spec asks for on one projection, or None where that is nothing."""
        if not (core or repair.diagonal or repair.low_rank):
            return None
        return cls(num_heads, weight_CI, core=core, diagonal=repair.diagonal, rank=repair.low_rank)

    @torch.no_grad()
    def draw(self, generator: torch.Generator) -> None:
        """Draw the inner factor of the residual, its rows about as long as orthonormal ones; the outer one is zero."""
        if self.inner_RI is not None:
            rank, input_size = self.inner_RI.shape
            self.inner_RI.copy_(torch.randn(rank, input_size, generator=generator) / input_size**0.5)

    def forward(self, weight_CI: Tensor) -> Tensor:
        """Return the weight that the input is multiplied by."""
        kind = weight_CI.dtype  # a model may be in half precision; what is trained beside it is not
        if self.outer_CR is not None and self.inner_RI is not None:
            weight_CI = weight_CI + (self.outer_CR @ self.inner_RI).to(kind)
        if self.core_HKK is not None:
            heads_HKI = weight_CI.view(self.num_heads, self.head_size, -1)
            weight_CI = torch.baddbmm(heads_HKI, self.core_HKK.to(kind), heads_HKI).view(weight_CI.shape)
        if self.diagonal_I is not None:
            weight_CI = weight_CI * (1 + self.diagonal_I).to(kind)
        return weight_CI


def _zeros(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.zeros(*shape))
