"""The ceiling of an arm: the reference's step, less exactly what the arm leaves out."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import oelm
from oelm.bench.methods import remove_work, removed_work
from oelm.models.flops import training_cost
from oelm.models.gpt import GPT
from oelm.spec.run import GPT_SIZES

NANO = GPT_SIZES["nano"]
IDS = torch.arange(32).view(2, 16)


def made(method):
    model = GPT(NANO)
    oelm.apply(model, method)
    return model


def ceiling_of(arm, reference="baseline"):
    model = made(reference)
    remove_work(model, removed_work(model, made(arm)))
    return model


@pytest.mark.parametrize("method", ["oelm-freeze", "oelm-slice", "uniform", "oelm-partial:-1", "oelm-qk-ffn"])
def test_a_ceiling_has_the_products_of_its_arm_and_trains_what_it_trains(method, monkeypatch, plain_cross_entropy):
    monkeypatch.setattr("oelm.models.gpt.chunked_cross_entropy", plain_cross_entropy)
    ceiling, arm = ceiling_of(method), made(method)
    with (
        FlopCounterMode(display=False) as counter,
        torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
    ):
        ceiling(IDS, IDS).backward()
    assert counter.get_total_flops() == training_cost(arm, 2, 16).total_flops
    trained = {name for name, parameter in arm.named_parameters() if parameter.requires_grad}
    assert {name for name, parameter in ceiling.named_parameters() if parameter.grad is not None} == trained


def test_what_stays_of_a_ceiling_is_the_reference_and_not_the_arm():
    ceiling, reference = ceiling_of("oelm-freeze"), made("baseline")
    assert torch.equal(ceiling(IDS, IDS), reference(IDS, IDS))


@pytest.mark.parametrize("method", ["baseline", "baseline-shift", "orthogonal-trained"])
def test_an_arm_that_trains_everything_removes_nothing(method):
    assert not removed_work(made("baseline"), made(method))


def test_a_reference_that_is_frozen_already_leaves_only_the_products_to_remove():
    removed = removed_work(made("oelm-freeze"), made("oelm-slice"))
    assert not removed.constants
    assert len(removed.products) == 2 * NANO.num_layers


def test_arms_that_remove_the_same_have_equal_work_removed():
    baseline = made("baseline")
    assert removed_work(baseline, made("oelm-freeze")) == removed_work(baseline, made("oelm-random"))
    assert removed_work(baseline, made("oelm-freeze")) != removed_work(baseline, made("oelm-slice"))
