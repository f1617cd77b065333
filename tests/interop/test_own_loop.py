from __future__ import annotations

import copy
import itertools
import warnings

import pytest
import torch

import oelm
from oelm.errors import InvalidSpec, MethodError, NotCarriedOut, ScheduleWarning, WrongOptimizer
from oelm.interop.own_loop import rate_multipliers
from oelm.models import apply as surgery
from oelm.models.gpt import GPT
from oelm.spec.run import GPT_SIZES, TrainSpec
from oelm.train.loop import Optimizer

STEPS = 12


def make_gpt(method: str) -> GPT:
    model = GPT(GPT_SIZES["nano"])
    oelm.apply(model, method, scheduled=True)
    return model


def make_gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    fields = {"vocab_size": 20, "n_positions": 8, "n_embd": 16, "n_layer": 2, "n_head": 2}
    return GPT2LMHeadModel(GPT2Config(bos_token_id=None, eos_token_id=None, **fields))


def batch(step: int):
    generator = torch.Generator().manual_seed(step)
    return torch.randint(0, 97, (2, 8), generator=generator)


def adam(model) -> torch.optim.AdamW:
    return torch.optim.AdamW(oelm.parameter_groups(model, lr=1e-2, weight_decay=0.01), fused=True)


def train(model, optimizer, schedule, steps) -> list[torch.Tensor]:
    """Train like a user; return the first layer's Q after each step."""
    seen = []
    for step in steps:
        ids = batch(step)
        model(ids[:, :-1], ids[:, 1:]).backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        seen.append(model.blocks[0].attention.q.weight.detach().clone())
    return seen


def moves(model, method_steps=range(STEPS)) -> list[bool]:
    before = model.blocks[0].attention.q.weight.detach().clone()
    optimizer = adam(model)
    seen = [before, *train(model, optimizer, oelm.schedule(model, optimizer, STEPS), method_steps)]
    oelm.verify_frozen(model, optimizer)
    return [not torch.equal(one, two) for one, two in itertools.pairwise(seen)]


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("train-then-freeze:0.5", [True] * 6 + [False] * 6),
        ("unfreeze-late:0.25", [False] * 3 + [True] * 9),
        ("oelm-every:4", [False, False, False, True] * 3),
        ("oelm-freeze", [False] * STEPS),
    ],
)
def test_a_schedule_is_carried_out_in_the_users_own_loop(method, expected):
    assert moves(make_gpt(method)) == expected


@pytest.mark.parametrize("method", ["oelm-progressive:0.2-0.8", "oelm-every:3", "baseline+layer-rates=0.5"])
def test_the_users_loop_ends_with_the_bits_of_our_own_loop(method):
    model, ours = make_gpt(method), make_gpt(method)
    optimizer = adam(model)
    train(model, optimizer, oelm.schedule(model, optimizer, STEPS), range(STEPS))
    every = surgery.method_of(ours).schedule.every
    spec = TrainSpec(steps=STEPS, weight_decay=0.01, grad_clip=0.0)
    loop = Optimizer(ours, spec, rate_multipliers(ours), keeps_moments=every is not None)
    freezing = surgery.FreezeSchedule(ours, STEPS)
    for step in range(STEPS):
        if freezing.advance(step):
            loop.follow_freezing()
        ids = batch(step)
        loop.backward(ours(ids[:, :-1], ids[:, 1:]))
        loop.step(1e-2)
    for (name, one), two in zip(model.named_parameters(), ours.parameters(), strict=True):
        assert torch.equal(one, two), name


def test_a_resumed_schedule_ends_with_the_same_bits():
    method, half = "oelm-progressive:0.2-0.8", 5
    whole = make_gpt(method)
    optimizer = adam(whole)
    train(whole, optimizer, oelm.schedule(whole, optimizer, STEPS), range(STEPS))
    first = make_gpt(method)
    optimizer = adam(first)
    schedule = oelm.schedule(first, optimizer, STEPS)
    train(first, optimizer, schedule, range(half))
    saved = copy.deepcopy((first.state_dict(), schedule.state_dict(), optimizer.state_dict()))
    second = make_gpt(method)
    optimizer = adam(second)
    schedule = oelm.schedule(second, optimizer, STEPS)
    second.load_state_dict(saved[0])
    schedule.load_state_dict(saved[1])
    optimizer.load_state_dict(saved[2])
    train(second, optimizer, schedule, range(half, STEPS))
    for (name, one), two in zip(whole.named_parameters(), second.parameters(), strict=True):
        assert torch.equal(one, two), name


def test_an_optimiser_of_all_parameters_is_followed_too():
    model = make_gpt("train-then-freeze:0.5")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    train(model, optimizer, oelm.schedule(model, optimizer, STEPS), range(STEPS))
    oelm.verify_frozen(model, optimizer)
    frozen = [each for each in model.parameters() if not each.requires_grad]
    assert frozen
    assert not any(each in optimizer.state for each in frozen)


def test_groups_have_the_learning_rates_of_the_method():
    model = make_gpt("baseline+layer-rates=0.5")
    rates = {id(each): group["lr"] for group in oelm.parameter_groups(model, lr=0.8) for each in group["params"]}
    named = {name: rates[id(each)] for name, each in model.named_parameters()}
    assert named["blocks.1.attention.q.weight"] == pytest.approx(0.8)
    assert named["blocks.0.attention.q.weight"] == pytest.approx(0.4)
    assert named["token_embedding.weight"] == pytest.approx(0.2)


def test_an_optimiser_without_the_methods_rates_or_groups_is_refused():
    model = make_gpt("baseline+layer-rates=0.5")
    with pytest.raises(MethodError, match="its own learning rates"):
        oelm.schedule(model, torch.optim.SGD(model.parameters(), lr=1.0), STEPS)
    model = make_gpt("unfreeze-late:0.5")
    trained = [each for each in model.parameters() if each.requires_grad]
    groups = [{"params": trained[:1]}, {"params": trained[1:]}]
    with pytest.raises(MethodError, match="none of the optimiser's 2 groups"):
        oelm.schedule(model, torch.optim.SGD(groups, lr=1.0), STEPS)


def test_an_optimiser_built_before_apply_on_a_fused_family_is_found():
    model = make_gpt2()
    early = torch.optim.AdamW(model.parameters())
    oelm.apply(model, "oelm-freeze")
    with pytest.raises(WrongOptimizer, match=r"lacks 4 tensors that train .*c_attn.v.weight"):
        oelm.verify_frozen(model, early)
    with pytest.raises(WrongOptimizer, match="has 8 frozen tensors"):
        oelm.verify_frozen(model, torch.optim.AdamW(model.parameters()))
    oelm.verify_frozen(model, torch.optim.AdamW(oelm.parameter_groups(model, lr=1e-3)))


def test_apply_warns_that_a_schedule_needs_to_be_carried_out():
    for method in ("train-then-freeze:0.5", "oelm-every:2", "baseline+layer-rates=0.5"):
        with pytest.warns(ScheduleWarning, match=r"oelm\.schedule"):
            oelm.apply(GPT(GPT_SIZES["nano"]), method)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        oelm.apply(GPT(GPT_SIZES["nano"]), "oelm-freeze")


def test_training_without_the_schedule_warns_and_with_it_does_not():
    ids = torch.zeros(1, 4, dtype=torch.long)
    model = make_gpt2()
    with pytest.warns(ScheduleWarning):
        oelm.apply(model, "unfreeze-late:0.5")
    scheduled = copy.deepcopy(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ScheduleWarning)
        model.eval()(ids)
        oelm.schedule(scheduled, torch.optim.SGD(scheduled.parameters(), lr=1.0), STEPS)
        scheduled.train()(ids)
    with pytest.warns(ScheduleWarning, match="trains without the schedule"):
        model.train()(ids)


@pytest.mark.parametrize("with_callback", [True, False])
def test_the_trainer_warns_without_the_callback(tmp_path, with_callback):
    from transformers import Trainer, TrainingArguments

    model = make_gpt2()
    oelm.apply(model, "unfreeze-late:0.5", scheduled=True)
    surgery._watch(model, surgery.method_of(model))
    rows = [{"input_ids": torch.arange(4), "labels": torch.arange(4)}] * 4
    options = TrainingArguments(
        str(tmp_path), max_steps=2, per_device_train_batch_size=2, report_to=[], use_cpu=True, disable_tqdm=True,
        save_strategy="no",
    )  # fmt: skip
    callbacks = [oelm.OelmCallback()] if with_callback else []
    trainer = Trainer(model, options, train_dataset=rows, callbacks=callbacks)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.train()
    assert any(each.category is ScheduleWarning for each in caught) is not with_callback


def test_a_removed_method_leaves_the_plain_model_with_its_weights():
    model = make_gpt2()
    names = sorted(name for name, _ in model.named_parameters())
    ids = torch.arange(6)[None]
    oelm.apply(model, "oelm-freeze")
    logits = model.eval()(ids).logits
    oelm.remove(model)
    assert oelm.method_of(model) is None
    assert not hasattr(model.config, "oelm")
    assert sorted(name for name, _ in model.named_parameters()) == names
    assert all(each.requires_grad for each in model.parameters())
    assert torch.equal(model(ids).logits, logits)
    oelm.apply(model, "frozen-as-is")
    assert oelm.method_of(model) == oelm.methods()["frozen-as-is"]


def test_a_method_with_repairs_is_not_removed():
    model = make_gpt("oelm-bias")
    with pytest.raises(NotCarriedOut, match="Create a new model"):
        oelm.remove(model)


@pytest.mark.parametrize("nothing", [None, 3, {"freeze": "q"}])
def test_something_else_than_a_method_is_refused(nothing):
    with pytest.raises(InvalidSpec, match=r"is not a method. Give a name from oelm.methods"):
        oelm.apply(GPT(GPT_SIZES["nano"]), nothing)


def test_inspect_leaves_the_model_alone():
    model = make_gpt2()
    before = {name: each.clone() for name, each in model.state_dict().items()}
    audit = oelm.inspect(model, "oelm-freeze")
    assert audit.frozen
    assert oelm.method_of(model) is None
    assert oelm.audit(model).frozen == 0
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())


def test_a_printed_audit_shows_what_is_frozen_by_layer():
    model = GPT(GPT_SIZES["nano"])
    audit = oelm.apply(model, "oelm-partial:-1")
    lines = str(audit).splitlines()
    assert lines[1].split() == ["self", "0", "4", "x", "8", "x", "32", "q", "k", "v", "o", "ffn"]
    assert lines[2].split() == ["self", "1", "4", "x", "8", "x", "32", "-", "q", "k", "v", "o", "ffn"]
    assert lines[-1].startswith("trainable params: ")
