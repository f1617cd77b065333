"""A linear map that only reads coordinates.

Rows that are multiples of unit vectors need no matrix product, forward or backward: the output is some coordinates of
the input, times a factor each. The dense weight stays as the parameter, frozen, so that counting, hashing, saving and
exporting see an ordinary linear layer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

MAX_RUNS = 4
"""Up to this many runs of consecutive coordinates are read as views; more are gathered one by one."""


class Coordinates(nn.Module):
    """The coordinates that the rows of a weight read, one each."""

    places: Tensor
    runs: list[tuple[int, int]]

    def __init__(self, weight_CI: Tensor) -> None:
        super().__init__()
        self.find(weight_CI)

    def find(self, weight_CI: Tensor) -> None:
        """Note which coordinate each row reads.

        Raises:
            ValueError: a row is not a multiple of a unit vector.

        """
        weight_CI = weight_CI.detach()
        places = weight_CI.abs().argmax(dim=1)
        read = torch.zeros_like(weight_CI, dtype=torch.bool).scatter_(1, places[:, None], value=True)
        if bool(weight_CI[~read].any()) or not bool(weight_CI[read].all()):
            raise ValueError("the rows are not multiples of unit vectors")
        self.register_buffer("places", places, persistent=False)
        self.runs = _runs(places.tolist())

    def forward(self, weight_CI: Tensor, x: Tensor) -> Tensor:
        """Return what the product with the weight would."""
        # Read from the weight each time, so that weights loaded later are the ones that count.
        factors_C = weight_CI.gather(1, self.places[:, None])[:, 0].to(x.dtype)
        if len(self.runs) > MAX_RUNS or torch.compiler.is_compiling():
            return x[..., self.places] * factors_C
        read: Tensor = _ReadRuns.apply(x, factors_C, self.runs)  # type: ignore[no-untyped-call]
        return read


class _ReadRuns(torch.autograd.Function):
    """Read runs of coordinates times their factors, each element once. Autograd would copy and clear several times."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factors_C: Tensor, runs: list[tuple[int, int]]) -> Tensor:
        """Return the coordinates, run after run."""
        ctx.save_for_backward(factors_C)
        ctx.runs, ctx.size = runs, x.shape[-1]
        out = x.new_empty(*x.shape[:-1], factors_C.shape[0])
        start = 0
        for first, length in runs:
            part = out.narrow(-1, start, length)
            torch.mul(x.narrow(-1, first, length), factors_C[start : start + length], out=part)
            start += length
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        """Return the gradient of the input; two runs may read the same coordinate."""
        (factors_C,), grad = ctx.saved_tensors, grads[0]
        grad_x = grad.new_zeros(*grad.shape[:-1], ctx.size)
        start = 0
        for first, length in ctx.runs:
            part = grad_x.narrow(-1, first, length)
            part.addcmul_(grad.narrow(-1, start, length), factors_C[start : start + length])
            start += length
        return grad_x, None, None


class SlicedLinear(Coordinates, nn.Linear):
    """An `nn.Linear` without bias in which each frozen row reads one coordinate."""

    def __init__(self, dense: nn.Linear) -> None:
        nn.Linear.__init__(self, dense.in_features, dense.out_features, bias=False, device="meta")
        self.weight = dense.weight
        self.find(self.weight)
        self.has_trained = False

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]  # a linear layer has its own weight
        """Read the coordinates. A weight that has trained is multiplied with, even if it is frozen again."""
        if self.weight.requires_grad:
            self.has_trained = True
        if self.has_trained:
            return nn.Linear.forward(self, x)
        return Coordinates.forward(self, self.weight, x)


def is_sliced(module: nn.Module | None) -> bool:
    """Return whether a module reads coordinates instead of multiplying."""
    return isinstance(module, SlicedLinear) and not (module.has_trained or module.weight.requires_grad)


def _runs(places: list[int]) -> list[tuple[int, int]]:
    """Return the first coordinate and the length of each run of consecutive coordinates."""
    starts = [at for at in range(len(places)) if at == 0 or places[at] != places[at - 1] + 1]
    return [(places[start], end - start) for start, end in zip(starts, [*starts[1:], len(places)], strict=True)]
