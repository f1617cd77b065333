"""Cross-entropy over a large vocabulary without storing all logits.

The logits of a whole batch are often the largest tensor of a training step (B T x V). Here one chunk of rows at a time
is projected and turned into its loss and, if needed, into the gradients of the hidden states and of the vocabulary
matrix. The backward pass only scales these gradients. So the work is that of the plain computation, and the memory is
that of one chunk.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from oelm.models.linear import HALF, cast_for_product

CHUNK_BYTES = 64 * 2**20
"""Approximate size of a chunk of logits: large enough for full speed of the matrix product."""
CACHED_BYTES = 3 * 2**19
"""Float32 logits that fit into the caches of a core: 7 rows of GPT-2's vocabulary, 192 rows of one of 2,048 entries."""
CACHED_PRODUCT = 4096
"""Rows of the vocabulary matrix whose half-precision gradient fits into the caches."""
SMALLEST = 1e-30
"""The logarithm of a smaller float32 probability is too inaccurate."""


def chunk_slices(rows: int, weight_VD: Tensor) -> Iterator[slice]:
    """Cut the rows into chunks of about equal size.

    In half precision they are twice as large, because every chunk adds a product to a float32 sum.
    """
    limit = 2 * CHUNK_BYTES if weight_VD.dtype in HALF else CHUNK_BYTES
    most = max(1, limit // (weight_VD.shape[0] * weight_VD.element_size()))
    chunk = math.ceil(rows / math.ceil(rows / most))
    return (slice(start, min(start + chunk, rows)) for start in range(0, rows, chunk))


def _chunks(
    hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, divisor: float | None = None
) -> Iterator[tuple[slice, Tensor, Tensor | None]]:
    """Yield chunks of rows, their losses (C,) and, with a divisor, the gradients of their logits over it, (V, C)."""
    chunk = _half_chunk if weight_VD.dtype in HALF else _full_chunk
    block = weight_VD.new_empty(0)
    for rows in chunk_slices(hidden_ND.shape[0], weight_VD):
        part_CD, target_C = hidden_ND[rows], targets_N[rows]
        # All chunks share one block of memory, because allocating a new one each time is slow.
        block = block if block.numel() else weight_VD.new_empty(weight_VD.shape[0] * len(part_CD))
        yield rows, *chunk(part_CD, weight_VD, target_C, divisor, block[: weight_VD.shape[0] * len(part_CD)])


def _full_chunk(
    part_CD: Tensor, weight_VD: Tensor, target_C: Tensor, divisor: float | None, block: Tensor
) -> tuple[Tensor, Tensor | None]:
    # The vocabulary is the first axis: products in the layout (V, C) are up to twice as fast on a CPU.
    logits_VC = torch.mm(weight_VD, part_CD.T, out=block.view(len(weight_VD), -1))
    target_1C = target_C[None]
    largest_1C, wanted_1C = logits_VC.amax(0, keepdim=True), logits_VC.gather(0, target_1C)
    # In place and only once: the exponentials of all logits take a good part of a step.
    exps_VC = logits_VC.sub_(largest_1C).exp_()
    mass_1C = exps_VC.sum(0, keepdim=True)
    losses_C = (mass_1C.log() + largest_1C - wanted_1C)[0]
    if divisor is None:
        return losses_C, None
    grad_VC = exps_VC.mul_(1 / (mass_1C * divisor))
    return losses_C, grad_VC.scatter_add_(0, target_1C, grad_VC.new_full((), -1.0 / divisor).expand_as(target_1C))


def _half_chunk(
    part_CD: Tensor, weight_VD: Tensor, target_C: Tensor, divisor: float | None, block: Tensor
) -> tuple[Tensor, Tensor | None]:
    # Rows are the first axis: half-precision products are as fast in this layout, and softmax has its rows in cache.
    logits_CV = torch.mm(part_CD, weight_VD.T, out=block.view(len(part_CD), -1))
    rows = max(1, CACHED_BYTES // (4 * len(weight_VD))) if part_CD.device.type == "cpu" else len(part_CD)
    pairs = zip(torch.split(logits_CV, rows), torch.split(target_C[:, None], rows), strict=True)
    losses_C = torch.cat([_rows_to_gradient(logits, target, divisor) for logits, target in pairs])
    return losses_C, None if divisor is None else logits_CV.T


def _rows_to_gradient(logits_RV: Tensor, target_R1: Tensor, divisor: float | None) -> Tensor:
    """Return the losses of some rows; with a divisor, replace their logits by the gradients."""
    probabilities_RV = torch.softmax(logits_RV, dim=1, dtype=torch.float32)
    wanted_R1 = probabilities_RV.gather(1, target_R1)
    losses_R = -wanted_R1.log()[:, 0]
    if (lost_R := wanted_R1[:, 0] < SMALLEST).any():
        exact_R = logits_RV.float().logsumexp(1) - logits_RV.gather(1, target_R1)[:, 0].float()
        losses_R = torch.where(lost_R, exact_R, losses_R)
    if divisor is not None:
        probabilities_RV.scatter_(1, target_R1, wanted_R1 - 1)
        logits_RV.copy_(probabilities_RV if divisor == 1 else probabilities_RV.mul_(1 / divisor))
    return losses_R


def product_slices(vocabulary: int, device: torch.device) -> Iterator[slice]:
    """Cut the vocabulary so that a half-precision product is still in cache when it is added to its float32 sum."""
    rows = CACHED_PRODUCT if device.type == "cpu" else vocabulary
    return (slice(start, start + rows) for start in range(0, vocabulary, rows))


def _add_product(sum_VD: Tensor, grad_VC: Tensor, part_CD: Tensor, *, is_first: bool) -> None:
    """Add a product to a float32 sum, which the first product fills: memory that was never written needs no zeros."""
    if sum_VD.dtype == part_CD.dtype:
        torch.addmm(sum_VD, grad_VC, part_CD, beta=0 if is_first else 1, out=sum_VD)
        return
    for rows in product_slices(len(sum_VD), sum_VD.device):
        product_RD = grad_VC[rows] @ part_CD
        sum_VD[rows].copy_(product_RD) if is_first else sum_VD[rows].add_(product_RD)


class TiedGradient:
    """The gradient of a matrix that is both the token embedding and the vocabulary of the loss.

    Autograd would make a second dense gradient for the embedding, nearly all zeros, and add the two. Instead the loss
    leaves its gradient here, and the embedding, whose backward pass comes later, adds the rows of its tokens. Both ways
    have the same bits: the gradients of a token that occurs twice are summed first, in order.
    """

    def __init__(self) -> None:
        self.node: Any = None
        """The embedding in the graph of autograd."""
        self.left: list[Tensor] = []
        """The gradient that the loss has left, if any."""

    def has_reader(self) -> bool:
        """Return whether the embedding is part of the running backward pass.

        It is not if hidden states were detached, or if gradients of other tensors only are computed. Then nothing may
        be left: it would be lost, or be added to a later pass.
        """
        return self.node is not None and torch._C._will_engine_execute_node(self.node)  # noqa: SLF001


class _TiedEmbedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ids_BT: Tensor, weight_VD: Tensor, left: list[Tensor]) -> Tensor:
        ctx.save_for_backward(ids_BT)
        ctx.left, ctx.shape = left, weight_VD.shape
        return F.embedding(ids_BT, weight_VD)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor, None]:
        (ids_BT,), grad_BTD = ctx.saved_tensors, grads[0]
        grad_VD = ctx.left.pop() if ctx.left else grad_BTD.new_zeros(ctx.shape)
        tokens_U, place_N = ids_BT.unique(return_inverse=True)
        # In the type of the sum: the loss leaves float32 also for a matrix in half precision.
        sums_UD = grad_VD.new_zeros(len(tokens_U), grad_BTD.shape[-1])
        sums_UD.index_add_(0, place_N.flatten(), grad_BTD.flatten(0, -2).to(grad_VD.dtype))
        return None, grad_VD.index_add_(0, tokens_U, sums_UD), None


def embed_tied(ids_BT: Tensor, weight_VD: Tensor) -> tuple[Tensor, TiedGradient | None]:
    """Return the rows of the tokens, and what `chunked_cross_entropy` needs to share the gradient of the matrix."""
    # Adding rows is deterministic on a CPU only, and a compiler cannot look inside.
    if weight_VD.device.type != "cpu" or not weight_VD.requires_grad or torch.compiler.is_compiling():
        return F.embedding(ids_BT, weight_VD), None
    tied = TiedGradient()
    embedded_BTD: Tensor = _TiedEmbedding.apply(ids_BT, weight_VD, tied.left)  # type: ignore[no-untyped-call]
    tied.node = embedded_BTD.grad_fn
    return embedded_BTD, tied


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, tied: TiedGradient | None) -> Tensor:
        rows, weight_VD = hidden_ND.shape[0], weight_VD.to(hidden_ND.dtype)
        # The factor of a gradient scaler is known only in the backward pass. Until then fp16, which underflows below
        # 6e-8, keeps gradients of the sum of losses. Sums over chunks are in float32: half precision would round each.
        divisor = 1 if hidden_ND.dtype == torch.float16 else rows
        ctx.divisor_left = rows // divisor
        is_half, wants_gradient = hidden_ND.dtype in HALF, any(ctx.needs_input_grad[:2])
        grad_hidden = torch.empty_like(hidden_ND) if ctx.needs_input_grad[0] else None
        grad_weight = None
        if ctx.needs_input_grad[1]:
            grad_weight = torch.empty_like(weight_VD, dtype=torch.float32 if is_half else None)
        total = torch.zeros((), dtype=torch.float32, device=hidden_ND.device)
        for span, losses_C, grad_VC in _chunks(hidden_ND, weight_VD, targets_N, divisor if wants_gradient else None):
            total += losses_C.sum()
            if grad_VC is None:
                continue
            if grad_hidden is not None:
                torch.mm(grad_VC.T, weight_VD, out=grad_hidden[span])
            if grad_weight is not None:
                _add_product(grad_weight, grad_VC, hidden_ND[span], is_first=span.start == 0)
        ctx.save_for_backward(grad_hidden, grad_weight)
        ctx.tied = tied
        return total / rows

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        factor = grads[0] / ctx.divisor_left
        gradients = ctx.saved_tensors  # read once, as activation checkpointing requires
        # With retain_graph another backward pass may follow. A compiler cannot look into this call, nor at the factor.
        is_compiling = torch.compiler.is_compiling()
        if not is_compiling and torch._C._autograd._get_current_graph_task_keep_graph():  # noqa: SLF001
            gradients = tuple(each if each is None else each.clone() for each in gradients)
        # In place: without retain_graph nothing else reads the saved tensors.
        if is_compiling or factor.device.type != "cpu" or factor != 1:  # reading the number would make a GPU wait
            gradients = tuple(each if each is None else each.mul_(factor) for each in gradients)
        grad_hidden, grad_weight = gradients
        if ctx.tied is not None and grad_weight is not None and ctx.tied.has_reader():
            ctx.tied.left[:] = [grad_weight]
            grad_weight = None
        return grad_hidden, grad_weight, None, None


def chunked_cross_entropy(
    hidden_BTD: Tensor, weight_VD: Tensor, targets_BT: Tensor, tied: TiedGradient | None = None
) -> Tensor:
    """Return the mean cross-entropy of `hidden @ weight.T` against `targets`, in nats.

    The matrix is cast only for the products: autograd would round the gradient of a cast copy to its type. With `tied`,
    the gradient of the matrix reaches it through `embed_tied`.
    """
    loss: Tensor = _ChunkedCrossEntropy.apply(_rows(hidden_BTD), weight_VD, targets_BT.reshape(-1), tied)  # type: ignore[no-untyped-call]
    return loss


@torch.no_grad()
def token_cross_entropy(hidden_BTD: Tensor, weight_VD: Tensor, targets_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Return the same mean, bit for bit, and the cross-entropy of every token, (B, T)."""
    hidden_ND = _rows(hidden_BTD)
    found = _chunks(hidden_ND, weight_VD.to(hidden_ND.dtype), targets_BT.reshape(-1))
    chunks = [losses_C for _, losses_C, _ in found]
    total = torch.zeros((), dtype=torch.float32, device=hidden_ND.device)
    for losses_C in chunks:  # in the same order as above: another order of summation gives other bits
        total += losses_C.sum()
    return total / hidden_ND.shape[0], torch.cat(chunks).view_as(targets_BT)


def _rows(hidden_BTD: Tensor) -> Tensor:
    """Flatten to rows, in the type of matrix products."""
    return cast_for_product(hidden_BTD.reshape(-1, hidden_BTD.shape[-1]))
