"""Holding tensors and proving it."""

import pytest
import torch
from torch import nn

from oelm.errors import FrozenWeightsMoved
from oelm.method.freeze import freeze_tensors, hash_rounded, is_as_frozen, refuse_moved, sha256, unfreeze_tensors


def test_a_stale_gradient_cannot_move_a_held_tensor():
    layer = nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1, weight_decay=0.1)
    layer(torch.ones(1, 4)).sum().backward()
    hashes = freeze_tensors(layer.named_parameters())
    optimizer.step()
    refuse_moved(dict(layer.named_parameters()), hashes)


def test_the_hash_is_of_the_bytes_whatever_the_dtype_and_layout():
    weight = torch.arange(6.0).view(2, 3)
    assert sha256(weight) == sha256(weight.T.contiguous().T)
    assert len({sha256(weight), sha256(weight.bfloat16()), sha256(weight.double()), sha256(weight + 1)}) == 4


def test_what_moved_vanished_or_trains_again_is_named():
    layer = nn.Linear(2, 2)
    hashes = freeze_tensors(layer.named_parameters()) | {"ghost": "0"}
    with torch.no_grad():
        layer.weight[0, 0] += 1
    unfreeze_tensors([("bias", layer.bias)])
    with pytest.raises(FrozenWeightsMoved) as caught:
        refuse_moved(dict(layer.named_parameters()), hashes)
    for words in ("weight (its bytes changed)", "bias (requires_grad is True again)", "ghost (no longer"):
        assert words in str(caught.value)


@pytest.mark.parametrize("start", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("cast", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_a_cast_is_no_movement_and_a_change_under_it_is_one(start, cast):
    weight = torch.randn(40, 40, dtype=torch.float64).to(start)
    frozen, casts = sha256(weight), hash_rounded([("w", weight)])["w"]
    moved = weight.to(cast)
    assert is_as_frozen(moved, frozen, casts)
    assert is_as_frozen(moved.to(torch.float64), frozen, casts)
    moved[0, 0] = torch.nextafter(moved[0, 0], torch.tensor(9.0, dtype=cast))
    assert not is_as_frozen(moved, frozen, casts)


def test_rounding_is_remembered_only_where_digits_can_be_lost():
    assert len(hash_rounded([("w", torch.zeros(2))])["w"]) == 2
    assert len(hash_rounded([("w", torch.zeros(2, dtype=torch.bfloat16))])["w"]) == 1
