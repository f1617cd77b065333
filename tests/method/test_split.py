"""A fused tensor taken apart by role."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn

from oelm.errors import UnusableWeight
from oelm.method.split import Fused, split

BLOCKS = Fused((("q", 4), ("k", 4), ("v", 4)))
INTERLEAVED = Fused((("q", 4), ("k", 4), ("v", 4)), groups=2)
UNEVEN = Fused((("q", 8), ("k", 2), ("v", 2)), groups=2)
LAYOUTS = pytest.mark.parametrize("fused", [BLOCKS, INTERLEAVED, UNEVEN], ids=["blocks", "interleaved", "uneven"])


class Transposed(nn.Module):
    """transformers' Conv1D, without transformers."""

    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(6, 12)), nn.Parameter(torch.randn(12))

    def forward(self, x):
        return torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight).view(*x.shape[:-1], 12)


@LAYOUTS
@pytest.mark.parametrize("shape", [(12, 6), (12,)])
def test_taking_apart_and_putting_together_are_inverse(fused, shape):
    whole = torch.randn(shape)
    parts = fused.take_apart(whole)
    assert torch.equal(fused.put_together(list(parts.values())), whole)
    assert {role: part.shape[0] for role, part in parts.items()} == dict(fused.rows)


def test_interleaved_rows_belong_to_the_heads_they_stand_with():
    parts = INTERLEAVED.take_apart(torch.arange(12))
    assert parts["q"].tolist() == [0, 1, 6, 7]
    assert parts["k"].tolist() == [2, 3, 8, 9]


@LAYOUTS
@pytest.mark.parametrize("biases", [True, False])
def test_a_split_linear_computes_the_same_numbers_and_gradients(fused, biases):
    plain = nn.Linear(6, 12)
    module = copy.deepcopy(plain)
    split(module, fused, biases=biases)
    x = torch.randn(3, 5, 6)
    assert torch.allclose(module(x), plain(x), atol=1e-6)
    assert isinstance(module, nn.Linear)
    module(x).square().sum().backward()
    plain(x).square().sum().backward()
    for role, rows in fused.take_apart(plain.weight.grad).items():
        assert torch.allclose(module.parts()[role].weight.grad, rows, atol=1e-5)


def test_a_split_transposed_map_computes_the_same_numbers():
    plain = Transposed()
    module = copy.deepcopy(plain)
    split(module, Fused(BLOCKS.rows, transposed=True), biases=True)
    x = torch.randn(2, 5, 6)
    assert torch.allclose(module(x), plain(x), atol=1e-6)
    assert module.parts()["k"].weight.shape == (6, 4)


@LAYOUTS
def test_saving_merges_and_loading_splits(fused):
    plain, module = nn.Linear(6, 12), nn.Linear(6, 12)
    split(module, fused, biases=True)
    assert set(module.state_dict()) == {"weight", "bias"}
    module.load_state_dict(plain.state_dict())
    assert torch.equal(module.state_dict()["weight"], plain.weight)
    nn.Linear(6, 12).load_state_dict(module.state_dict())


def test_a_checkpoint_that_does_not_fit_is_refused_as_torch_refuses_it():
    module = nn.Linear(6, 12)
    split(module, BLOCKS, biases=True)
    with pytest.raises(RuntimeError, match=r"shape \(6, 6\)"):
        module.load_state_dict(nn.Linear(6, 6).state_dict())
    with pytest.raises(RuntimeError, match="Missing key"):
        module.load_state_dict({"bias": torch.zeros(12)})


def test_copies_and_pickles_are_split_and_independent():
    module = nn.Linear(6, 12)
    split(module, INTERLEAVED, biases=True)
    module.parts()["q"].weight.requires_grad_(False)
    stored = io.BytesIO()
    pickle.dump(module, stored)
    stored.seek(0)
    for twin in (copy.deepcopy(module), pickle.load(stored)):  # noqa: S301  (our own bytes)
        assert type(twin) is type(module)
        assert isinstance(twin, nn.Linear)
        assert torch.equal(twin.weight, module.weight)
        assert not twin.parts()["q"].weight.requires_grad
        twin.parts()["v"].weight.data.add_(1)
        assert not torch.equal(twin.weight, module.weight)


def test_writing_to_data_reaches_the_parts_and_other_changes_in_place_are_refused():
    module = nn.Linear(6, 12)
    split(module, INTERLEAVED, biases=True)
    expected = module.weight.detach() + 1
    module.weight.data += 1
    assert torch.equal(module.weight, expected)
    module.weight = nn.Parameter(torch.zeros(12, 6))
    assert not module.parts()["k"].weight.any()
    with pytest.raises(UnusableWeight, match="would be lost"), torch.no_grad():
        module.weight.add_(1)
    with pytest.raises(UnusableWeight, match="would be lost"):
        nn.init.normal_(module.weight)


def test_torchs_attention_keeps_its_outputs_in_training_and_on_its_fast_path():
    torch.manual_seed(0)
    plain = nn.TransformerEncoderLayer(12, 3, 24, dropout=0.0, batch_first=True).eval()
    layer = copy.deepcopy(plain)
    rows = (("q", 12), ("k", 12), ("v", 12))
    split(layer.self_attn, Fused(rows, weight="in_proj_weight", bias="in_proj_bias"), biases=True)
    x = torch.randn(2, 5, 12)
    with torch.no_grad():  # without gradients, in eval: the fast path
        assert torch.allclose(layer(x), plain(x), atol=1e-6)
        layer.self_attn.parts()["v"].weight.zero_()
        assert not torch.allclose(layer(x), plain(x))
    assert isinstance(layer.self_attn, nn.MultiheadAttention)
