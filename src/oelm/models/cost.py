"""What a training step costs, from shapes alone: FLOPs by part, bytes of weights, moments and activations.

A product of an m x n by an n x p matrix counts 2 m n p. A linear map costs one product forward and two backward:
one for the gradient of its input, one for that of its weight, which a frozen weight saves. Attention counts the
full T x T square, as implementations without causal skipping compute it. Norms, softmax, other elementwise work and
the optimiser count nothing: their work is linear in what the products are quadratic in.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from oelm.errors import NotCarriedOut
from oelm.models.gpt import GPT
from oelm.models.repaired_attention import plain_config
from oelm.models.trace import Trace, trace_step

ADAM_MOMENTS = 2


@dataclass(frozen=True)
class Cost:
    """FLOPs of one step by part, what the method removed from it, and bytes."""

    forward_flops: dict[str, int]
    backward_flops: dict[str, int]
    removed_flops: int
    """Against the same model without the method, everything trained; negative where repairs add more products."""
    weight_bytes: int
    optimizer_bytes: int
    activation_bytes: int
    """An estimate: what the forward pass keeps for the backward pass, without scratch space and the loss."""

    @property
    def total_flops(self) -> int:
        """FLOPs of one whole step."""
        return sum(self.forward_flops.values()) + sum(self.backward_flops.values())

    @property
    def flop_share(self) -> float:
        """The fraction that the method removes from a step of the same model with everything trained."""
        return self.removed_flops / (self.total_flops + self.removed_flops)

    @property
    def gradient_bytes(self) -> int:
        """One gradient for everything that trains."""
        return self.optimizer_bytes // ADAM_MOMENTS

    @property
    def checkpoint_bytes(self) -> int:
        """What continuing needs: every weight, and the moments of what trains."""
        return self.weight_bytes + self.optimizer_bytes

    @property
    def memory_bytes(self) -> int:
        """An estimate of what a step holds at once: weights, gradients, moments, activations."""
        return self.weight_bytes + self.gradient_bytes + self.optimizer_bytes + self.activation_bytes


def training_cost(model: nn.Module, batch_size: int, length: int, written: int | None = None) -> Cost:
    """Count one step on `batch_size` sequences of `length` tokens (images have a size of their own).

    An encoder-decoder writes as many tokens as it reads, unless it is told how many are `written`.

    Raises:
        BadShape: our GPT's context is shorter.
        NotCarriedOut: the model is neither our GPT nor of `transformers`, or does not take such a batch.

    """
    inputs = _inputs(model, batch_size, length, written or length)
    now, whole = (_traced(each, inputs) for each in (model, _as_built(model)))
    before, after = (sum(each.forward.values()) + sum(each.backward.values()) for each in (whole, now))
    sizes = [
        (parameter.numel() * parameter.element_size(), parameter.requires_grad) for parameter in model.parameters()
    ]
    return Cost(
        forward_flops=dict(now.forward),
        backward_flops=dict(now.backward),
        removed_flops=before - after,
        weight_bytes=sum(size for size, _ in sizes),
        optimizer_bytes=ADAM_MOMENTS * sum(size for size, trains in sizes if trains),
        activation_bytes=now.kept_bytes,
    )


def _as_built(model: nn.Module) -> nn.Module:
    """Return the model as it is without a method, on the meta device."""
    if isinstance(model, GPT):
        return GPT(model.spec, device="meta")
    with torch.device("meta"):
        return type(model)(plain_config(copy.deepcopy(cast("Any", model).config)))


def _traced(model: nn.Module, inputs: dict[str, Tensor]) -> Trace:
    try:
        with _some_padding(model):
            return trace_step(model, inputs)
    except (RuntimeError, ValueError, IndexError) as error:  # whatever foreign code says of a shape it does not take
        shape = " x ".join(map(str, next(iter(inputs.values())).shape))
        raise NotCarriedOut(
            f"the cost of a step on {shape} was asked for, but this {type(model).__name__} does not "
            "take such a batch, or looks at values that a count from shapes does not have "
            f"({str(error).splitlines()[0]}). Try a length within its positions, or the model with its own head."
        ) from error


@contextmanager
def _some_padding(model: nn.Module) -> Iterator[None]:
    """Name a padding token where there is none: classifiers look for one, whatever it is."""
    config: Any = getattr(model, "config", None)
    if config is None or getattr(config, "pad_token_id", 0) is not None:
        yield
        return
    config.pad_token_id = 0
    try:
        yield
    finally:
        config.pad_token_id = None


def _inputs(model: nn.Module, batch_size: int, length: int, written: int) -> dict[str, Tensor]:
    """Return a batch without values, by the names of the model's arguments."""
    ids, answers, lengths = (
        torch.empty(shape, dtype=torch.long, device="meta")
        for shape in ((batch_size, length), (batch_size, written), (batch_size,))
    )
    if isinstance(model, GPT):
        # Without targets: the loss computes its gradient on the way forward, where forward and backward mix.
        return {"ids_BT": ids} | ({"lengths_B": lengths} if model.classifier is not None else {})
    config: Any = getattr(model, "config", None)
    if not hasattr(config, "save_pretrained"):
        raise NotCarriedOut(
            f"the cost of a {type(model).__name__} was asked for, and nothing here knows what it takes as input. "
            "Costs are counted for our GPT and for models of transformers."
        )
    if getattr(model, "main_input_name", "") == "pixel_values":
        shape = (batch_size, config.num_channels, config.image_size, config.image_size)
        return {"pixel_values": torch.empty(shape, device="meta")}
    texts = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return texts | ({"decoder_input_ids": answers} if config.is_encoder_decoder else {})
