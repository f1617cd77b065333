"""FLOPs and bytes from shapes, against a closed form and torch's own counter."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import oelm
from oelm.models.cost import training_cost
from oelm.models.gpt import GPT
from oelm.models.loss import plain_cross_entropy
from oelm.spec.model import GPT_SIZES

NANO = GPT_SIZES["nano"]


def test_freezing_qk_removes_the_published_share_of_a_medium_step():
    model = GPT(GPT_SIZES["medium-512"])
    oelm.apply(model, "oelm-freeze")
    cost = training_cost(model, 8, 512)
    depth, width, length, vocabulary, tokens = 6, 512, 512, 50257, 8 * 512
    per_token = depth * (12 * width**2 + 2 * length * width) + vocabulary * width
    removed = 2 * tokens * depth * 2 * width**2
    assert cost.removed_flops == removed
    assert cost.total_flops + removed == 3 * 2 * tokens * per_token
    assert round(100 * cost.flop_share, 1) == 2.2


FOLDED = [
    f"{base}+{parts}" for base in ("oelm", "baseline") for parts in ("core", "diagonal", "low-rank", "core+low-rank")
]


@pytest.mark.parametrize("method", ["baseline", "oelm-freeze", "oelm+bias+mix+temperature", *FOLDED])
def test_the_count_equals_torchs_own(method, monkeypatch):
    # torch's counter does not see products in place; the plain loss does the same work in plain sight.
    monkeypatch.setattr("oelm.models.gpt.chunked_cross_entropy", plain_cross_entropy)
    model = GPT(NANO.model_copy(update={"dropout": 0.0}))
    oelm.apply(model, method)
    ids = torch.zeros(2, 16, dtype=torch.long)
    with (
        FlopCounterMode(display=False) as counter,
        torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
    ):
        model(ids, ids).backward()
    assert training_cost(model, 2, 16).total_flops == counter.get_total_flops()


def test_moments_are_kept_for_what_trains_only():
    model = GPT(NANO)
    audit = oelm.apply(model, "oelm-freeze")
    cost = training_cost(model, 1, 16)
    assert cost.weight_bytes == 4 * audit.total
    assert cost.optimizer_bytes == 2 * 4 * audit.trainable


def test_slices_save_every_product_of_their_projections():
    frozen, sliced = GPT(NANO), GPT(NANO)
    oelm.apply(frozen, "oelm-freeze")
    oelm.apply(sliced, "oelm-slice")
    assert training_cost(sliced, 1, 16).removed_flops == 3 * training_cost(frozen, 1, 16).removed_flops
    assert training_cost(sliced, 1, 16).forward_flops["q"] == 0


def test_a_projection_with_something_folded_in_saves_nothing_and_the_other_one_what_it_did():
    frozen, core = GPT(NANO), GPT(NANO)
    oelm.apply(frozen, "oelm-freeze")
    oelm.apply(core, "oelm-core")
    assert 2 * training_cost(core, 1, 16).removed_flops == training_cost(frozen, 1, 16).removed_flops
    assert training_cost(core, 1, 16).forward_flops["repair"] == 2 * 2 * 32 * 32 * 8
