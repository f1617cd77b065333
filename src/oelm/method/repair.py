"""Repairs: small modules that change the Q/K logits, off by default and allowed on any arm.

Repairs that are linear in the input are folded into the weight of their projection before the product, so that a step
costs at most as much as one with trained Q/K. The others act on the queries and keys of each head before the logits.
Key shift and temperature act after positions are applied, so that the same module serves our GPT and the attention
functions of Hugging Face models.

Trained values are stored as differences from having no effect. So they start at zero, two arms start from the same
function, and weight decay pulls a repair towards no effect. The one exception is the inner factor of a low-rank
residual: it is drawn, because it would otherwise have no gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oelm.errors import BadShape
from oelm.spec.method import RepairSpec, heads_of
from oelm.spec.run import stream

_SMALLEST_SQUARE = 1e-6
"""Lower bound of the mean square of a vector that is normalised, so that a vector of zeros stays zero."""


class Repair(nn.Module):
    """The base of all repairs, which distinguishes their parameters from the model's own."""


def num_repair_parameters(model: nn.Module) -> int:
    """Count the parameters of a model's repairs."""
    repairs = (module for module in model.modules() if isinstance(module, Repair))
    return sum(parameter.numel() for repair in repairs for parameter in repair.parameters(recurse=False))


def draw_repairs(model: nn.Module, seed: int) -> None:
    """Draw the repairs that do not start at zero, each from a stream of its own, so that no other draw changes."""
    for name, module in model.named_modules():
        if isinstance(module, FoldedRepair):
            module.draw(stream(seed, "repair", name))


def keys_before(keys_BHTK: Tensor) -> Tensor:
    """Return at each position the key of the previous token; position 0 keeps its own."""
    return torch.cat((keys_BHTK[:, :, :1], keys_BHTK[:, :, :-1]), dim=2)


class KeyShift(Repair):
    """Let a share of the heads, the first ones, read at each position the key of the previous token.

    The input is the unshifted keys of all tokens so far, so with a key/value cache the cached keys and the new ones.
    """

    def __init__(self, share: float, num_heads: int) -> None:
        super().__init__()
        self.shifted = heads_of(share, num_heads)

    def forward(self, keys_BHTK: Tensor) -> Tensor:
        """Return the keys as the logits are taken from them."""
        keys: Tensor = _Shift.apply(keys_BHTK, self.shifted)  # type: ignore[no-untyped-call]
        return keys


class _Shift(torch.autograd.Function):
    """Shift the first heads by one position, with two copies where autograd would make eight."""

    @staticmethod
    def forward(ctx: Any, keys_BHTK: Tensor, heads: int) -> Tensor:
        """Return the keys as the logits are taken from them."""
        ctx.heads = heads
        out = keys_BHTK.clone()
        out[:, :heads, 1:] = keys_BHTK[:, :heads, :-1]
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        """Return the gradient: shifted heads read the first key twice and the last one never."""
        shifted = grads[0][:, : ctx.heads]
        grad = grads[0].clone()
        grad[:, : ctx.heads, :-1] = shifted[:, :, 1:]
        grad[:, : ctx.heads, -1] = 0
        grad[:, : ctx.heads, 0] += shifted[:, :, 0]
        return grad, None


class KeyMix(Repair):
    """Mix each key with the previous one: k_t + m_h (k_(t-1) - k_t), with a trained m_h per head.

    m = 0 is the key itself and m = 1 the shifted key. m is not limited to that range, so that a head may also read the
    difference between a key and the previous one. As for a shift, the input is the unmixed keys of all tokens so far.
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


class QueryBias(Repair):
    """Add a trained vector u_h to each head's queries: (q + u_h) . k = q . k + u_h . k.

    The second term prefers some keys whatever the query is, which a frozen map cannot learn. A bias of the keys would
    add the same number to all logits of a query and change nothing.
    """

    def __init__(self, num_heads: int, head_size: int) -> None:
        super().__init__()
        self.bias_HK = _zeros(num_heads, head_size)

    def forward(self, queries_BHTK: Tensor) -> Tensor:
        """Return the queries with their head's vector added."""
        return queries_BHTK + self.bias_HK.to(queries_BHTK.dtype)[:, None]


class QKNorm(Repair):
    """Give each head's query or key the norm sqrt(K), that of an orthogonal projection of a normalised input.

    This bounds the logits at sqrt(K); the temperature that belongs to it lets a head become sharper.
    """

    def forward(self, x_BHTK: Tensor) -> Tensor:
        """Return the normalised vectors."""
        return F.rms_norm(x_BHTK, x_BHTK.shape[-1:], eps=_SMALLEST_SQUARE).to(x_BHTK.dtype)


class PositionBias(Repair):
    """Add to each head's logits a trained bias that depends only on the distance."""

    def __init__(self, num_heads: int, context: int) -> None:
        super().__init__()
        self.bias_HT = nn.Parameter(torch.zeros(num_heads, context))

    def forward(self, new: int, seen: int) -> Tensor:
        """Return the bias for the logits of the last `new` of `seen` tokens: minus infinity for later tokens.

        Each row of this Toeplitz matrix is a window of one vector, (..., b_1, b_0, -inf, ...), and starts one place
        earlier than the row above. Reading windows is cheaper than gathering, forward and backward.
        """
        _refuse_longer(seen, self.bias_HT.shape[1])
        later_HT = self.bias_HT.new_full((self.bias_HT.shape[0], new - 1), -torch.inf)
        far_to_near = torch.cat((self.bias_HT[:, :seen].flip(-1), later_HT), dim=-1)
        return far_to_near.unfold(-1, seen, 1).flip(-2)


class SignedPositionBias(Repair):
    """Add a trained bias by distance if tokens also see later ones: one table for both directions."""

    def __init__(self, num_heads: int, context: int) -> None:
        super().__init__()
        self.bias_HT = nn.Parameter(torch.zeros(num_heads, 2 * context - 1))
        self.context = context

    def forward(self, new: int, seen: int) -> Tensor:
        """Return the bias for the logits of the last `new` of `seen` tokens, all of which are visible."""
        _refuse_longer(seen, self.context)
        # Entry `context` - 1 + d is the bias of keys d tokens back; rows are windows, as in PositionBias.
        nearest = self.context - new
        far_to_near = self.bias_HT[:, nearest : nearest + seen + new - 1].flip(-1)
        return far_to_near.unfold(-1, seen, 1).flip(-2)


class _Waves(torch.autograd.Function):
    """Position features of given amplitudes and frequencies, with explicit gradients.

    Autograd would need three times as many operations, which costs a tenth of what slices save. With the angle a = w i,
    the two halves of a query or key have dx_1/da = -x_2 and dx_2/da = x_1.
    """

    @staticmethod
    def forward(
        ctx: Any, cosine_HM: Tensor, sine_HM: Tensor, frequency_GM: Tensor, new: int, seen: int
    ) -> tuple[Tensor, Tensor]:
        """Return the features of queries (H, new, 2M) and keys (G, seen, 2M)."""
        # Angles grow with the position: in float32, rounding would change logits by 1e-5 at position 300.
        positions_T = torch.arange(seen, device=cosine_HM.device, dtype=torch.float64)
        turns_GTM = positions_T[:, None] * (frequency_GM / (2 * torch.pi))[:, None]
        kind = torch.promote_types(cosine_HM.dtype, torch.float32)
        angles_GTM = (turns_GTM - turns_GTM.round()).mul_(2 * torch.pi).to(kind)
        keys_GTF = torch.cat((angles_GTM.cos(), angles_GTM.sin()), dim=-1)
        cos_HTM, sin_HTM = _of_queries(keys_GTF, cosine_HM.shape[0], new).chunk(2, dim=-1)
        c_H1M, s_H1M = cosine_HM[:, None], sine_HM[:, None]
        one_HTM = (c_H1M * cos_HTM).addcmul_(s_H1M, sin_HTM)
        two_HTM = (c_H1M * sin_HTM).addcmul_(s_H1M, cos_HTM, value=-1)
        queries_HTF = torch.cat((one_HTM, two_HTM), dim=-1)
        ctx.save_for_backward(queries_HTF, keys_GTF)
        ctx.kinds = cosine_HM.dtype, frequency_GM.dtype
        return queries_HTF, keys_GTF

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        """Return the gradients of amplitudes and frequencies."""
        queries_HTF, keys_GTF = ctx.saved_tensors
        num_heads, new = queries_HTF.shape[:2]
        num_key_heads, seen = keys_GTF.shape[:2]
        (one_HTM, two_HTM), (key_one_GTM, key_two_GTM) = (grad.chunk(2, dim=-1) for grad in grads)
        cos_HTM, sin_HTM = _of_queries(keys_GTF, num_heads, new).chunk(2, dim=-1)
        query_one_HTM, query_two_HTM = queries_HTF.chunk(2, dim=-1)
        cos_GTM, sin_GTM = keys_GTF.chunk(2, dim=-1)
        by_cosine_HM = (one_HTM * cos_HTM).addcmul_(two_HTM, sin_HTM).sum(1)
        by_sine_HM = (one_HTM * sin_HTM).addcmul_(two_HTM, cos_HTM, value=-1).sum(1)
        by_query_HTM = (two_HTM * query_one_HTM).addcmul_(one_HTM, query_two_HTM, value=-1)
        by_angle_GTM = (key_two_GTM * cos_GTM).addcmul_(key_one_GTM, sin_GTM, value=-1)
        if num_heads > num_key_heads:
            by_query_HTM = by_query_HTM.view(num_key_heads, -1, *by_query_HTM.shape[1:]).sum(1)
        by_angle_GTM[:, seen - new :] += by_query_HTM
        positions_T1 = torch.arange(seen, device=keys_GTF.device, dtype=keys_GTF.dtype)[:, None]
        by_frequency_GM = by_angle_GTM.mul_(positions_T1).sum(1)
        kind, frequency_kind = ctx.kinds
        return by_cosine_HM.to(kind), by_sine_HM.to(kind), by_frequency_GM.to(frequency_kind), None, None


def _of_queries(keys_GTF: Tensor, num_heads: int, new: int) -> Tensor:
    """Return the key features of the last `new` positions, once for each query head."""
    last_GTF = keys_GTF[:, keys_GTF.shape[1] - new :]
    groups = num_heads // keys_GTF.shape[0]
    return last_GTF if groups == 1 else last_GTF.repeat_interleave(groups, dim=0)


class PositionFeatures(Repair):
    """Put a trained function of distance into the dot product of queries and keys.

    For head h with M frequencies w_m and trained amplitudes c_m, s_m:

        q(i) = [c_m cos(w_m i) + s_m sin(w_m i)]_m, [c_m sin(w_m i) - s_m cos(w_m i)]_m
        k(j) = [cos(w_m j)]_m, [sin(w_m j)]_m
        q(i) . k(j) = sum_m  c_m cos(w_m (i - j)) + s_m sin(w_m (i - j))

    This is a bias by distance without a mask, so that fused attention kernels and key caches work unchanged. Amplitudes
    start at zero. Frequencies start as a geometric series from pi down to 2 pi / context; what is trained is the
    logarithm of their ratio to it, zero at the start. Query heads that share a key head share its frequencies.
    """

    def __init__(self, num_heads: int, num_key_heads: int, num_frequencies: int, context: int) -> None:
        super().__init__()
        self.groups, self.context = num_heads // num_key_heads, context
        self.cosine_HM = _zeros(num_heads, num_frequencies)
        self.sine_HM = _zeros(num_heads, num_frequencies)
        self.log_frequency_GM = _zeros(num_key_heads, num_frequencies)

    def forward(self, new: int, seen: int, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        """Return the query features of the last `new` of `seen` tokens (H, new, 2M) and all key features (G, seen, 2M).

        `scale` is the factor that attention applies to the dot product; it is divided out of the features.
        """
        features: tuple[Tensor, Tensor] = _Waves.apply(  # type: ignore[no-untyped-call]
            self.cosine_HM / scale, self.sine_HM / scale, self.frequencies(), new, seen
        )
        return features

    def frequencies(self) -> Tensor:
        """Return the angle per position of each key head's features (G, M), in float64."""
        number, device = self.cosine_HM.shape[1], self.cosine_HM.device
        steps_M = torch.arange(number, dtype=torch.float64, device=device) / max(number - 1, 1)
        initial_M = torch.pi * (2.0 / max(self.context, 2)) ** steps_M
        return initial_M * self.log_frequency_GM.double().exp()


class _Append(torch.autograd.Function):
    """Append features, the same for every sequence of a batch, to the coordinates of queries or keys."""

    @staticmethod
    def forward(ctx: Any, content_BHTK: Tensor, features_HTF: Tensor) -> Tensor:
        """Return content and features, concatenated."""
        ctx.content_size, ctx.kind = content_BHTK.shape[-1], features_HTF.dtype
        features_BHTF = features_HTF.to(content_BHTK.dtype).expand(content_BHTK.shape[0], -1, -1, -1)
        # In the memory layout (B, T, H, K), which attention gives its output too: the output projection reads it as is.
        return torch.cat((content_BHTK.transpose(1, 2), features_BHTF.transpose(1, 2)), dim=-1).transpose(1, 2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        """Return both gradients; that of the features is the sum over the batch."""
        content_BHTK, features_BHTF = grads[0][..., : ctx.content_size], grads[0][..., ctx.content_size :]
        # One by one, because a sum over the first dimension of a slice takes eight times as long on a CPU.
        total_HTF = features_BHTF[0].to(ctx.kind)
        for each_HTF in features_BHTF[1:]:
            total_HTF = total_HTF + each_HTF
        return content_BHTK, total_HTF


def append_features(content_BHTK: Tensor, features_HTF: Tensor) -> Tensor:
    """Return queries or keys with position features as their last coordinates."""
    joined: Tensor = _Append.apply(content_BHTK, features_HTF)  # type: ignore[no-untyped-call]
    return joined


class FoldedRepair(Repair):
    """Fold trained parts into the weight of a projection: C_h (W_h + B_h A) diag(d) for each head h.

    C (the core), B, A (the low-rank residual) and d (the diagonal) are each optional. The frozen weight does not
    change; the weight that multiplies the input is computed from it at each step.
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
    def of(cls, repair: RepairSpec, num_heads: int, weight_CI: Tensor, *, core: bool) -> FoldedRepair | None:
        """Return the folded repairs of a spec for one projection, or None if there are none."""
        if not (core or repair.diagonal or repair.low_rank):
            return None
        return cls(num_heads, weight_CI, core=core, diagonal=repair.diagonal, rank=repair.low_rank)

    @torch.no_grad()
    def draw(self, generator: torch.Generator) -> None:
        """Draw the inner factor of the residual, with rows of norm about one; the outer factor is zero."""
        if self.inner_RI is not None:
            rank, input_size = self.inner_RI.shape
            self.inner_RI.copy_(torch.randn(rank, input_size, generator=generator) / input_size**0.5)

    def around(self, x_BTI: Tensor, read: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the output of a projection that `read` computes without a matrix product, using only thin products."""
        kind = x_BTI.dtype
        if self.diagonal_I is not None:
            x_BTI = x_BTI * (1 + self.diagonal_I).to(kind)
        y_BTC = read(x_BTI)
        if self.outer_CR is not None and self.inner_RI is not None:
            y_BTC = y_BTC + F.linear(F.linear(x_BTI, self.inner_RI.to(kind)), self.outer_CR.to(kind))
        if self.core_HKK is not None:
            y_BTHK = y_BTC.view(*y_BTC.shape[:-1], self.num_heads, self.head_size)
            y_BTC = (y_BTHK + torch.einsum("hjk,bthk->bthj", self.core_HKK.to(kind), y_BTHK)).flatten(-2)
        return y_BTC

    def forward(self, weight_CI: Tensor) -> Tensor:
        """Return the weight that the input is multiplied by."""
        kind = weight_CI.dtype  # the model may be in half precision; repairs are not
        if self.outer_CR is not None and self.inner_RI is not None:
            weight_CI = weight_CI + (self.outer_CR @ self.inner_RI).to(kind)
        if self.core_HKK is not None:
            heads_HKI = weight_CI.view(self.num_heads, self.head_size, -1)
            weight_CI = torch.baddbmm(heads_HKI, self.core_HKK.to(kind), heads_HKI).view(weight_CI.shape)
        if self.diagonal_I is not None:
            weight_CI = weight_CI * (1 + self.diagonal_I).to(kind)
        return weight_CI


def _refuse_longer(seen: int, context: int) -> None:
    if seen > context:
        raise BadShape(
            f"The position bias has {context} distances, but the input has {seen} tokens. Shorten the input, or use "
            "position_features, which have no limit."
        )


def _zeros(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.zeros(*shape))
