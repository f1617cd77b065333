"""The loop on a toy task: what it does at which step, and what a resumed run shares with an undisturbed one."""

import math
import os
import signal

import pytest
import torch
from torch import nn

from oelm.errors import RunFailed
from oelm.spec.run import TrainSpec
from oelm.train.checkpoint import Checkpoints, load_into
from oelm.train.device import World
from oelm.train.loop import Interrupted, Measured, Optimizer, StopRequest, Training, catch_signals

WORLD = World(0, 1, torch.device("cpu"))
SPEC = TrainSpec(steps=20, batch_size=4, warmup_steps=2, learning_rate=0.01, eval_every=5, checkpoint_every=7)


class Line(nn.Module):
    """Fits a line through noise, with dropout, so that every source of randomness is in play."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.dropout = nn.Linear(6, 1), nn.Dropout(0.3)

    def forward(self, x, y):
        return ((self.linear(self.dropout(x)) - y) ** 2).mean()


class Task:
    units_per_step = 4
    steps_per_epoch = 2.5

    def batch(self, step, rows):
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(4, 6, generator=generator)
        return x[rows], x[rows].sum(1, keepdim=True)

    def validate(self, model):
        model.eval()
        with torch.no_grad():
            loss = float(model(*self.batch(10**6, slice(None))))
        model.train()
        return Measured(loss)

    def module(self, model):
        return model


class NoFreezing:
    def advance(self, step):
        return False

    def save(self):
        return {}

    def restore(self, step, saved):
        pass


class Notes:
    def __init__(self):
        self.train, self.val = [], []

    def trained(self, progress, loss, rate):
        self.train.append((progress.step, loss, rate))

    def validating(self, progress):
        pass

    def validated(self, progress, measured):
        self.val.append((progress.step, measured.loss))

    def said(self, sentence):
        pass


def training(directory, spec=SPEC, task=None, stop=None):
    model = Line()
    optimizer = Optimizer(model, spec, {name: 1.0 for name, _ in model.named_parameters()})
    return Training(
        model,
        task or Task(),
        spec,
        7,
        optimizer,
        NoFreezing(),
        Checkpoints(directory, "f"),
        WORLD,
        Notes(),
        StopRequest() if stop is None else stop,
        clock=lambda: 42.0,
        memory=lambda: 1000,
    )


def test_it_logs_validates_and_ends_at_the_steps_it_should(tmp_path):
    run = training(tmp_path)
    run.run()
    assert [step for step, *_ in run.observer.train] == list(range(1, 21))
    assert [step for step, _ in run.observer.val] == [5, 10, 15, 20]
    assert run.progress.best_loss == min(loss for _, loss in run.observer.val)
    assert len(run.progress.step_seconds) == 20
    assert run.observer.val[-1][1] < run.observer.val[0][1]


def test_validation_by_epoch_comes_when_the_epoch_ends_whatever_floats_make_of_it(tmp_path):
    task = Task()
    task.steps_per_epoch = 2.1  # 21 // 2.1 is 9
    run = training(tmp_path, SPEC.model_copy(update={"eval_every": "epoch", "steps": 21}), task)
    run.run()
    assert [step for step, _ in run.observer.val] == [3, 5, 7, 9, 11, 13, 15, 17, 19, 21]


class StopAt(StopRequest):
    def __init__(self, run, step):
        super().__init__()
        self.run, self.step = run, step

    def __bool__(self):
        return self.run.progress.step == self.step


@pytest.mark.parametrize("stopped_at", [1, 6, 13, 19])
def test_a_resumed_run_ends_with_the_bits_of_an_undisturbed_one(tmp_path, stopped_at):
    whole = training(tmp_path / "whole")
    whole.run()
    first = training(tmp_path / "parts")
    first.stop = StopAt(first, stopped_at)
    with pytest.raises(Interrupted):
        first.run()
    second = training(tmp_path / "parts")
    saved, troubles = second.checkpoints.load()
    assert not troubles
    load_into(second.model, saved.model, "test")
    second.resume(saved)
    assert second.progress.step == stopped_at
    second.memory = lambda: 1
    second.run()
    for mine, theirs in zip(second.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert first.observer.train + second.observer.train == whole.observer.train
    assert first.observer.val + second.observer.val == whole.observer.val
    assert second.progress.best_step == whole.progress.best_step
    assert second.progress.peak_memory == 1000, "of the session that needed most"


def test_accumulated_parts_give_the_gradient_of_the_whole_batch(tmp_path):
    models = []
    for parts in (1, 2, 4):
        run = training(tmp_path / str(parts), SPEC.model_copy(update={"accumulation": parts}))
        run.model.dropout.p = 0.0
        run.run()
        models.append(run.model.linear.weight)
    assert torch.allclose(models[0], models[1], atol=1e-5)
    assert torch.allclose(models[0], models[2], atol=1e-5)


def test_a_loss_that_is_not_a_number_ends_the_run_in_words(tmp_path):
    class Breaks(Task):
        def batch(self, step, rows):
            x, y = super().batch(step, rows)
            return x, y * (math.nan if step == 11 else 1)

    run = training(tmp_path, task=Breaks())
    with pytest.raises(RunFailed, match="loss of step 12 is nan"):
        run.run()
    saved, _ = run.checkpoints.load()
    assert saved.state["progress"]["step"] == 7


def test_a_run_that_stays_above_where_it_began_is_given_up(tmp_path):
    spec = SPEC.model_copy(update={"steps": 400, "learning_rate": 30.0, "decay": "constant"})
    with pytest.raises(RunFailed, match="diverged"):
        training(tmp_path, spec).run()


def test_dropout_and_batches_do_not_depend_on_what_happened_before(tmp_path):
    run = training(tmp_path)
    torch.manual_seed(123)
    torch.randn(17)
    run.run()
    again = training(tmp_path / "again")
    again.run()
    assert run.observer.train == again.observer.train


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_trains_too(tmp_path, precision):
    run = training(tmp_path, SPEC.model_copy(update={"precision": precision}))
    run.run()
    assert run.observer.val[-1][1] < run.observer.val[0][1]


class Pressing(Task):
    """A task in which a signal arrives while a batch is read, or during a validation."""

    def __init__(self, stop, batch=None, validation=None):
        self.stop, self.at_batch, self.at_validation, self.validations = stop, batch, validation, 0

    def batch(self, step, rows):
        if step == self.at_batch:
            self.stop.receive("SIGTERM")
        return super().batch(step, rows)

    def validate(self, model):
        self.validations += 1
        if self.validations == self.at_validation:
            self.stop.receive("SIGTERM")
        return super().validate(model)


@pytest.mark.parametrize("when", [{"batch": 0}, {"batch": 8}, {"batch": 15}, {"validation": 1}, {"validation": 4}])
def test_a_signal_ends_a_step_or_a_validation_at_once_and_changes_no_bit(tmp_path, when):
    whole = training(tmp_path / "whole")
    whole.run()
    stop = StopRequest()
    broken = training(tmp_path / "broken", task=Pressing(stop, **when), stop=stop)
    with pytest.raises(Interrupted, match=r"stopped by SIGTERM after step"):
        broken.run()
    expected = when.get("batch", 5 * when.get("validation", 0))  # the step in which it arrived is not counted
    assert broken.progress.step == expected
    again = training(tmp_path / "broken")
    saved, _ = again.checkpoints.load()
    if saved is not None:
        load_into(again.model, saved.model, "x")
        again.resume(saved)
    again.run()
    assert [step for step, _ in (*broken.observer.val, *again.observer.val)] == [5, 10, 15, 20]
    for mine, its in zip(whole.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(mine, its)
    assert again.observer.val[-1] == whole.observer.val[-1]


def test_a_signal_is_handled_within_a_long_backward_pass(tmp_path):
    order = []

    class Slow(torch.autograd.Function):
        @staticmethod
        def forward(_context, x):
            return x.clone()

        @staticmethod
        def backward(_context, gradient):
            order.append("late")
            return gradient

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 1)
            self.last.weight.register_post_accumulate_grad_hook(lambda _: os.kill(os.getpid(), signal.SIGTERM))

        def forward(self, x, y):
            return ((self.last(Slow.apply(self.first(x))) - y) ** 2).mean()

    with catch_signals() as stop:
        run = training(tmp_path, stop=stop)
        run.model = Two()
        run.optimizer = Optimizer(run.model, SPEC, {name: 1.0 for name, _ in run.model.named_parameters()})
        with pytest.raises(Interrupted):
            run.run()
    assert run.progress.step == 0
    assert order == []  # the rest of the backward pass was not computed
