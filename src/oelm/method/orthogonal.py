"""Head-wise orthogonal weights, and the other random weights they are compared with.

A projection of H heads maps an input of size I to H vectors of size K. It is head-wise orthogonal when every
K x I block W_h has orthonormal rows, W_h W_h^T = 1. Blocks are drawn independently: heads never mix before the
softmax, so nothing is gained by making them orthogonal to one another.

All draws are made in float64 on one thread, so that the same seed gives the same bytes for any number of threads; the
caller casts. The signs of a QR decomposition are fixed by making the diagonal of R positive: only then is the draw
uniform (Haar) and the decomposition unique.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from oelm.errors import BadShape, NotCarriedOut
from oelm.spec.method import InitSpec


@contextmanager
def one_thread() -> Iterator[None]:
    """Run the block on one thread: with more threads, blocked QR sums in another order and the last bits differ."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def orthonormal_rows(source_HKI: Tensor) -> Tensor:
    """Return, for each block, orthonormal rows that span its row space.

    W^T = QR with the diagonal of R positive; the result is Q^T. The row space is kept, the scale is dropped.
    """
    _refuse_wide_heads(source_HKI.shape[-2], source_HKI.shape[-1])
    with one_thread():
        basis_HIK, r_HKK = torch.linalg.qr(source_HKI.double().mT)
        signs_HK = torch.where(r_HKK.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0)
        rows_HKI: Tensor = (basis_HIK * signs_HK.unsqueeze(-2)).mT.contiguous()
    return rows_HKI


def gaussian(num_heads: int, head_size: int, input_size: int, generator: torch.Generator) -> Tensor:
    """Draw independent standard normal entries."""
    return torch.randn(num_heads, head_size, input_size, generator=generator, dtype=torch.float64)


def match_scale(weight_HKI: Tensor) -> Tensor:
    """Rescale each head to the Frobenius norm sqrt(K) of an orthogonal one; its directions stay."""
    norm_H11: Tensor = torch.linalg.matrix_norm(weight_HKI, keepdim=True)
    return weight_HKI * (math.sqrt(weight_HKI.shape[-2]) / norm_H11)


def correlated_rows(frame_HKI: Tensor, source_HKI: Tensor, correlation: float) -> Tensor:
    """Return b F_h + sqrt(1 - b^2) Z_h for orthonormal rows F_h, with Z_h orthonormal and orthogonal to them.

    Z_h spans the part of the source's rows that is orthogonal to F_h. So the result W_h has exactly orthonormal rows
    without a second decomposition, and W_h F_h^T = b 1. Each head needs 2K dimensions of the input.
    """
    outside_HKI = source_HKI - source_HKI @ frame_HKI.mT @ frame_HKI
    return _mix(frame_HKI, orthonormal_rows(outside_HKI), correlation)


def coordinate_slices(
    num_heads: int, head_size: int, input_size: int, first: int, generator: torch.Generator
) -> Tensor:
    """Let each head read K coordinates of its input with random signs: orthogonal without a matrix product.

    Head h reads K coordinates from first + hK on, modulo the input size.
    """
    _refuse_wide_heads(head_size, input_size)
    rows = torch.arange(num_heads * head_size)
    weight = torch.zeros(num_heads * head_size, input_size, dtype=torch.float64)
    signs = torch.randint(0, 2, (num_heads * head_size,), generator=generator) * 2.0 - 1.0
    weight[rows, (first + rows) % input_size] = signs.double()
    return weight.view(num_heads, head_size, input_size)


def randomised_hadamard(num_heads: int, head_size: int, input_size: int, generator: torch.Generator) -> Tensor:
    """Give each head K rows of a Hadamard matrix whose columns have random signs.

    Sylvester's Hadamard matrices exist for powers of two. For an input of size 2^a m with m odd, this is the Kronecker
    product with a random m x m rotation, which is orthogonal as well.
    """
    _refuse_wide_heads(head_size, input_size)
    power = input_size & -input_size
    hadamard = torch.ones(1, 1, dtype=torch.float64)
    two = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
    while hadamard.shape[0] < power:
        hadamard = torch.kron(two, hadamard)
    heads = []
    for _ in range(num_heads):
        odd = input_size // power
        rotation = orthonormal_rows(gaussian(1, odd, odd, generator))[0]
        rows = torch.randperm(input_size, generator=generator)[:head_size]
        signs = torch.randint(0, 2, (input_size,), generator=generator) * 2.0 - 1.0
        full = torch.kron(hadamard / math.sqrt(power), rotation)
        heads.append(full[rows] * signs)
    return torch.stack(heads)


def draw(
    init: InitSpec,
    shape: tuple[int, int, int],
    generator: torch.Generator,
    *,
    current_HKI: Tensor | None = None,
    keys_HKI: Tensor | None = None,
    first: int = 0,
) -> Tensor:
    """Draw one Q or K projection of `shape` (H, K, I) according to `init`, in float64 on the CPU.

    `keys_HKI` are the keys that queries correlate with, one block per query head; `first` is the first coordinate that
    slices read.
    """
    num_heads, head_size, input_size = shape
    if init.shape == "host":
        return init.gain * _need(current_HKI, "init.shape='host'")
    if init.shape == "slice":
        return init.gain * coordinate_slices(num_heads, head_size, input_size, first, generator)
    if init.shape == "hadamard":
        return init.gain * randomised_hadamard(num_heads, head_size, input_size, generator)
    if init.shape not in ("normal", "orthogonal"):
        raise NotCarriedOut(f"init.shape={init.shape!r} has no weights to draw.")
    source_HKI = _source(init, shape, generator, current_HKI)
    frame_HKI = None if keys_HKI is None or not init.correlation else keys_HKI / init.gain
    if init.shape == "normal":
        weight_HKI = match_scale(source_HKI) if init.matched else source_HKI * (init.deviation or 1.0)
        if frame_HKI is not None:
            mixed_HKI = _mix(frame_HKI, weight_HKI, init.correlation)
            weight_HKI = match_scale(mixed_HKI) if init.matched else mixed_HKI
    elif init.scope == "global":
        flat_KI = source_HKI.reshape(1, num_heads * head_size, input_size)
        weight_HKI = orthonormal_rows(flat_KI).view(num_heads, head_size, input_size)
    elif frame_HKI is not None:
        weight_HKI = correlated_rows(frame_HKI, source_HKI, init.correlation)
    else:
        weight_HKI = orthonormal_rows(source_HKI)
    return init.gain * weight_HKI


def _source(
    init: InitSpec, shape: tuple[int, int, int], generator: torch.Generator, current_HKI: Tensor | None
) -> Tensor:
    """Return the matrix to be scaled or made orthogonal."""
    if init.source == "fresh":
        return gaussian(*shape, generator)
    frame_HKI = _need(current_HKI, "init.source='current'")
    if init.shape == "orthogonal":
        return frame_HKI
    # A random mixture of a head's own rows keeps their row space and nothing else.
    num_heads, head_size, _ = shape
    return gaussian(num_heads, head_size, head_size, generator) @ orthonormal_rows(frame_HKI)


def _need(current_HKI: Tensor | None, option: str) -> Tensor:
    if current_HKI is None:
        raise NotCarriedOut(f"{option} needs the current weights, but none were given.")
    return current_HKI.detach().to("cpu", torch.float64)


def _mix(frame_HKI: Tensor, other_HKI: Tensor, correlation: float) -> Tensor:
    return correlation * frame_HKI + math.sqrt(1 - correlation**2) * other_HKI


def departure(weight_HKI: Tensor, gain: float = 1.0) -> float:
    """Return how far heads are from orthogonal: the largest entry of |W_h W_h^T / gain^2 - 1|."""
    unit_HKI = weight_HKI.detach().double() / gain
    eye = torch.eye(unit_HKI.shape[-2], dtype=torch.float64, device=unit_HKI.device)
    return float((unit_HKI @ unit_HKI.mT - eye).abs().max())


def _refuse_wide_heads(rows: int, input_size: int) -> None:
    if rows > input_size:
        raise BadShape(
            f"{rows} orthonormal rows do not fit into an input of size {input_size}. Use smaller heads, "
            "init.scope='head' instead of 'global', or init.shape='normal'."
        )
