"""What must hold for every method on our GPT."""

import copy

import pytest
import torch

import oelm
from oelm.errors import AlreadyApplied, BadShape, FrozenWeightsMoved, MethodError, UnknownName, UnusableWeight
from oelm.method.freeze import multipliers, sha256
from oelm.method.orthogonal import departure
from oelm.models import apply as surgery
from oelm.models.families import architecture_of
from oelm.models.gpt import GPT
from oelm.spec.method import METHODS, FreezeSpec, InitSpec, MethodSpec
from oelm.spec.run import GPT_SIZES, TrainSpec
from oelm.train.loop import Optimizer

NANO = GPT_SIZES["nano"]
FORMS = [
    "oelm-partial:-1",
    "oelm-progressive:0.2-0.8",
    "oelm-every:10",
    "train-then-freeze:0.3",
    "unfreeze-late:0.8",
    "oelm+core+diagonal+low-rank+bias+mix+temperature",
    "oelm-q-only+core+bias",
    "oelm-random-matched+correlated",
    "baseline+gain=3",
]
EVERY_METHOD = [*METHODS, *FORMS]
ORTHOGONAL = [
    name for name in EVERY_METHOD if oelm.named_method(name).init.shape in ("orthogonal", "slice", "hadamard")
]


def prepared(method, seed=0):
    model = GPT(NANO, seed)
    audit = oelm.apply(model, method, seed=seed)
    return model, audit


def named(model, roles):
    return {f"{p.name}.weight": p.weight for p in architecture_of(model).projections(model) if p.role in roles}


def decayed_steps(model, steps, optimizer=None):
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        ids = torch.randint(0, 97, (2, 17), generator=generator)
        model(ids[:, :-1], ids[:, 1:]).backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("method", ORTHOGONAL)
def test_every_heads_gram_matrix_is_the_identity(method):
    model, audit = prepared(method)
    for projection in architecture_of(model).projections(model):
        if projection.role in ("q", "k"):
            assert departure(projection.read()) < 1e-6
    assert audit.max_departure < 1e-6


@pytest.mark.parametrize("method", EVERY_METHOD)
def test_fifty_decayed_steps_leave_frozen_bytes_unchanged_while_the_rest_moves(method):
    model, audit = prepared(method)
    before = {name: sha256(parameter) for name, parameter in model.named_parameters()}
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    assert sum(dict(model.named_parameters())[name].numel() for name in frozen) == audit.frozen
    decayed_steps(model, 50)  # learning rate x weight decay = 1e-3
    oelm.verify_frozen(model)
    for name, parameter in model.named_parameters():
        assert (sha256(parameter) == before[name]) == (name in frozen), name
    assert all(name not in frozen for name in named(model, {"v", "o"}))


@pytest.mark.parametrize("method", EVERY_METHOD)
def test_trainable_and_frozen_add_up_to_the_total(method):
    model, audit = prepared(method)
    assert audit.trainable + audit.frozen == audit.total == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("method", EVERY_METHOD)
def test_two_methods_with_one_seed_agree_wherever_the_method_does_not_touch(method):
    baseline, _ = prepared("baseline", seed=4)
    model, _ = prepared(method, seed=4)
    other = dict(baseline.named_parameters())
    for name, parameter in model.named_parameters():
        if name in other and not name.endswith(("attention.q.weight", "attention.k.weight")):
            assert torch.equal(parameter, other[name]), name


def test_the_draw_depends_on_the_seed_and_differs_between_layers_and_roles():
    hashes = [
        projection.sha256
        for seed in (0, 1)
        for projection in prepared("oelm-freeze", seed)[1].projections
        if projection.role in ("q", "k")
    ]
    assert len(set(hashes)) == len(hashes)
    again = [p.sha256 for p in prepared("oelm-freeze", 0)[1].projections]
    assert again == [p.sha256 for p in prepared("oelm-freeze", 0)[1].projections]


def test_frozen_parameters_are_in_no_optimiser_we_build():
    model, audit = prepared("oelm-qk-ffn")
    names = [name for name, _ in model.named_parameters()]
    rates = multipliers(names, architecture_of(model).projections(model), MethodSpec().rates)
    optimizer = Optimizer(model, TrainSpec(), rates)
    assert sum(p.numel() for group in optimizer.adam.param_groups for p in group["params"]) == audit.trainable


def test_unfreezing_midway_trains_exactly_what_it_says():
    model, _ = prepared("oelm-freeze")
    released = oelm.unfreeze(model, layers=(-1,))
    assert released == ["blocks.1.attention.q.weight", "blocks.1.attention.k.weight"]
    before = {name: sha256(weight) for name, weight in named(model, {"q", "k"}).items()}
    decayed_steps(model, 3)
    oelm.verify_frozen(model)
    moved = {name for name, weight in named(model, {"q", "k"}).items() if sha256(weight) != before[name]}
    assert moved == set(released)


def test_freezing_again_holds_what_training_made_of_it():
    model, _ = prepared("oelm-freeze")
    oelm.unfreeze(model)
    decayed_steps(model, 2)
    oelm.freeze(model)
    decayed_steps(model, 2)
    assert len(oelm.verify_frozen(model)) == 4


def test_verification_names_the_weight_that_moved():
    model, _ = prepared("oelm-freeze")
    with torch.no_grad():
        model.blocks[1].attention.k.weight[0, 0] += 1e-6
    with pytest.raises(FrozenWeightsMoved, match=r"blocks\.1\.attention\.k\.weight \(its bytes changed\)"):
        oelm.verify_frozen(model)


@pytest.mark.parametrize("roles", [("q",), ("k",), ("v",), ("o",), ("ffn",), ("q", "o", "ffn")])
def test_any_roles_in_any_layers_can_be_frozen(roles):
    model, _ = prepared(MethodSpec(freeze=FreezeSpec(roles=roles, layers=(0,))))
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    expected = {name for name in named(model, set(roles)) if name.startswith("blocks.0.")}
    assert {name for name in frozen if name.endswith("weight")} == expected
    assert {name for name in frozen if name.endswith("bias")} == {
        n.replace("weight", "bias") for n in expected if "ffn" in n
    }


def test_biases_are_frozen_by_explicit_choice():
    model, _ = prepared(MethodSpec(freeze=FreezeSpec(roles=("ffn",), biases=False)))
    assert model.blocks[0].ffn.up.bias.requires_grad
    assert not model.blocks[0].ffn.up.weight.requires_grad


def test_a_copy_is_frozen_too_and_independent():
    model, _ = prepared("oelm-freeze")
    twin = copy.deepcopy(model)
    decayed_steps(twin, 2)
    oelm.verify_frozen(twin)
    oelm.unfreeze(twin)
    assert not model.blocks[0].attention.q.weight.requires_grad


def test_a_schedule_follows_its_steps():
    model, _ = prepared("oelm-progressive:0.2-0.8")
    schedule = surgery.FreezeSchedule(model, steps=10)
    trains = []
    for step in range(10):
        schedule.advance(step)
        trains.append([block.attention.q.weight.requires_grad for block in model.blocks])
    assert trains == [[False, False]] * 2 + [[False, True]] * 6 + [[True, True]] * 2


def test_every_third_step_updates_qk_and_the_others_leave_bytes_and_moments_alone():
    model, _ = prepared("oelm-every:3")
    names = [name for name, _ in model.named_parameters()]
    rates = multipliers(names, architecture_of(model).projections(model), MethodSpec().rates)
    optimizer = Optimizer(model, TrainSpec(weight_decay=0.1, learning_rate=0.01), rates, keeps_moments=True)
    schedule = surgery.FreezeSchedule(model, steps=9)
    weight = model.blocks[0].attention.q.weight
    changed, counts = [], []
    for step in range(9):
        if schedule.advance(step):
            optimizer.follow_freezing()
        before = sha256(weight)
        ids = torch.randint(0, 97, (2, 17))
        optimizer.backward(model(ids[:, :-1], ids[:, 1:]))
        optimizer.step(0.01)
        changed.append(sha256(weight) != before)
        counts.append(float(optimizer.adam.state.get(weight, {}).get("step", 0)))
    assert changed == [False, False, True] * 3
    assert counts == [0, 0, 1, 1, 1, 2, 2, 2, 3]


def untouched(model):
    return {name: (sha256(parameter), parameter.requires_grad) for name, parameter in model.named_parameters()}


@pytest.mark.parametrize(
    ("method", "error", "words"),
    [
        ("oelm-freez", UnknownName, "Did you mean 'oelm-freeze'"),
        ("oelm-partial:7", BadShape, "numbered 0 to 1"),
        (MethodSpec(freeze=FreezeSpec(roles=("q",), layers=(2,))), BadShape, "names layer 2"),
        ("oelm+low-rank=32", BadShape, "low_rank=32"),
        (MethodSpec(init=InitSpec(shape="orthogonal"), sites=("cross",)), BadShape, "cross"),
    ],
)
def test_a_refused_method_leaves_the_model_untouched(method, error, words):
    model = GPT(NANO)
    before = untouched(model)
    with pytest.raises(error, match=words):
        oelm.apply(model, method)
    assert untouched(model) == before
    oelm.apply(model, "oelm-freeze")


def test_a_head_wider_than_its_input_is_refused_before_anything_is_drawn():
    model = GPT(NANO.model_copy(update={"qk_head_size": 40}))
    before = untouched(model)
    with pytest.raises(BadShape, match="input of size 32"):
        oelm.apply(model, "oelm-freeze")
    assert untouched(model) == before


def test_freezing_a_role_the_model_lacks_is_refused():
    model, _ = prepared("uniform")
    del model._oelm
    with pytest.raises(BadShape, match=r"\['k', 'q'\], but .*'ffn', 'o', 'v'"):
        oelm.apply(model, "frozen-as-is")


def test_a_second_method_is_refused():
    model, _ = prepared("baseline")
    with pytest.raises(AlreadyApplied, match="already"):
        oelm.apply(model, "oelm-freeze")


def test_a_model_on_the_meta_device_is_refused():
    with pytest.raises(UnusableWeight, match="meta device"):
        oelm.apply(GPT(NANO, device="meta"), "oelm-freeze")


def test_a_quantised_weight_is_refused():
    model = GPT(NANO)
    weight = torch.zeros(32, 32, dtype=torch.int8)
    model.blocks[0].attention.q.weight = torch.nn.Parameter(weight, requires_grad=False)
    with pytest.raises(UnusableWeight, match="quantised"):
        oelm.apply(model, "oelm-freeze")


def test_verifying_a_model_without_a_method_is_refused():
    with pytest.raises(MethodError, match="No method has been applied"):
        oelm.verify_frozen(GPT(NANO))
