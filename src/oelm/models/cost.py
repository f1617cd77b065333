"""What a training step costs, from shapes alone: FLOPs by part, bytes of weights and moments.

A product of an m x n by an n x p matrix counts 2 m n p. A linear map costs one product forward and two backward:
one for the gradient of its input, one for that of its weight, which a frozen weight saves. Attention counts the
full T x T square, as implementations without causal skipping compute it. Norms, softmax and the optimiser are left
out: their work is linear in what the products are quadratic in.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import cast

from torch import nn

from oelm.method.projection import Projection
from oelm.method.repair import Fold
from oelm.models.families import architecture_of
from oelm.models.gpt import GPT, Block
from oelm.models.sliced import SlicedLinear

ADAM_MOMENTS = 2


@dataclass(frozen=True)
class Cost:
    """FLOPs of one step by part, what the method removed from it, and bytes kept."""

    forward_flops: dict[str, int]
    backward_flops: dict[str, int]
    removed_flops: int
    weight_bytes: int
    optimizer_bytes: int

    @property
    def total_flops(self) -> int:
        """FLOPs of one whole step."""
        return sum(self.forward_flops.values()) + sum(self.backward_flops.values())

    @property
    def flop_share(self) -> float:
        """The fraction that the method removes from a step of the same model with everything trained."""
        return self.removed_flops / (self.total_flops + self.removed_flops)


def training_cost(model: GPT, sequences: int, length: int) -> Cost:
    """Count one step on `sequences` of `length` tokens."""
    tokens = sequences * length
    forward: Counter[str] = Counter()
    backward: Counter[str] = Counter()
    removed = 0
    for projection in architecture_of(model).projections(model):
        product = 2 * tokens * projection.weight.numel()
        trains = projection.weight.requires_grad
        fold = _fold(model, projection)
        differentiated = trains or fold is not None  # what is folded into a weight has its gradient from the weight's
        reads_only = isinstance(projection.module, SlicedLinear) and not trains
        forward[projection.role] += 0 if reads_only else product
        backward[projection.role] += (0 if reads_only else product) + (product if differentiated else 0)
        removed += 3 * product if reads_only else (0 if differentiated else product)
        if fold is not None:
            once, back = _folding(fold, projection)
            forward["repair"] += once
            backward["repair"] += back
    spec = model.spec
    if any(block.attention.q is not None for block in model.blocks):  # type: ignore[union-attr]
        scores = 2 * tokens * length * spec.num_heads * spec.qk_size * spec.num_layers
        forward["attention"] += scores
        backward["attention"] += 2 * scores
        mixing = 2 * tokens * length * spec.num_heads * spec.head_size * spec.num_layers
        forward["attention"] += mixing
        backward["attention"] += 2 * mixing
    head = 2 * tokens * model.token_embedding.weight.numel()
    forward["head"] += head
    backward["head"] += head + (head if model.token_embedding.weight.requires_grad else 0)
    removed += 0 if model.token_embedding.weight.requires_grad else head
    return Cost(dict(forward), dict(backward), removed, *_bytes(model))


def _fold(model: GPT, projection: Projection) -> Fold | None:
    attention = cast("Block", model.blocks[projection.layer]).attention
    return {"q": attention.query_fold, "k": attention.key_fold}.get(projection.role)


def _folding(fold: Fold, projection: Projection) -> tuple[int, int]:
    """Count the products that fold repairs into a weight, forward and backward: once a step, not per token."""
    entries, forward, backward = projection.weight.numel(), 0, 0
    if fold.inner_RI is not None:
        product = 2 * entries * fold.inner_RI.shape[0]
        forward, backward = product, 2 * product
    if fold.core_HKK is not None:
        product = 2 * entries * fold.head_size
        passes_on = projection.weight.requires_grad or fold.inner_RI is not None
        forward, backward = forward + product, backward + (2 * product if passes_on else product)
    return forward, backward


def _bytes(model: nn.Module) -> tuple[int, int]:
    sizes = [(p.numel() * p.element_size(), p.requires_grad) for p in model.parameters()]
    return sum(size for size, _ in sizes), ADAM_MOMENTS * sum(size for size, trains in sizes if trains)
