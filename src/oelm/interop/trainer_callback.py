"""A callback for the Hugging Face Trainer: the freezing schedule and learning rates of a method.

    model = AutoModelForSequenceClassification.from_pretrained(...)
    oelm.apply(model, "oelm-progressive:0.2-0.8")
    Trainer(model, args, ..., callbacks=[oelm.OelmCallback()]).train()

The Trainer builds its optimiser, and DDP its buckets, from the parameters that train at that moment. So layers that
train at some time are unfrozen while the Trainer is set up, and frozen again before its first step; no step is taken in
between. Whenever the Trainer reads the optimiser (to save, to load, to set rates), the optimiser has the Trainer's own
groups; they are divided by learning-rate multiplier only during a step.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer
from transformers import PreTrainedModel, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.core_model_loading import revert_weight_conversion
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_callback import ExportableState

from oelm.errors import MethodError, NotCarriedOut
from oelm.interop.own_loop import rate_multipliers
from oelm.method.freeze import ENDLESS, named_tensors
from oelm.models import apply as surgery

Groups = list[dict[str, Any]]


class OelmCallback(TrainerCallback, ExportableState):
    """Freeze and unfreeze by the method's schedule, set layer-wise rates, verify frozen tensors at every save.

    Pass it to the constructor of the Trainer. `trainer.train(resume_from_checkpoint=...)` continues the schedule.
    """

    def __init__(self) -> None:
        self.hashes: dict[str, str] = {}
        self._schedule: surgery.FreezeSchedule | None = None
        self._model: nn.Module | None = None
        self._factors: dict[int, float] = {}
        self._groups: Groups | None = None

    def on_init_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        """Unfreeze everything that trains at some time, so that the Trainer's optimiser includes it."""
        del state, control
        model = _model(given)
        moving = _moving_layers(model)
        if moving and args.world_size > 1 and not args.ddp_find_unused_parameters:
            raise NotCarriedOut(
                f"The method freezes and unfreezes layers {moving} during training, which DDP does not follow by "
                "default. Set ddp_find_unused_parameters=True in TrainingArguments."
            )
        if moving and any(name.endswith(".base_layer") for name, _ in model.named_modules()):
            raise NotCarriedOut(
                f"The method trains layers {moving} at some time, but PEFT freezes everything except its adapters and "
                "saves only these. Use a method that keeps them frozen (oelm-freeze), or no adapters."
            )
        if moving:
            surgery.unfreeze(model, layers=moving)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        """Freeze for the first (or the resumed) step, and prepare the learning rates."""
        del args, control
        model = self._model = _model(given)
        if state.global_step:
            _refuse_renamed(model)
        surgery.verify_frozen(model)
        optimizer = surgery.torch_optimizer(given["optimizer"])
        _refuse_missing(model, optimizer)
        self._schedule = surgery.FreezeSchedule(model, state.max_steps)
        saved = _saved_hashes(state)
        if state.global_step and saved:
            self._schedule.restore(state.global_step - 1, saved)
        else:
            self._schedule.restore(0, {"hashes": _after_freezing(model, self._schedule)})
        factors = rate_multipliers(model)
        self._factors = {id(each): factors[name] for name, each in named_tensors(surgery.unwrap(model)).items()}
        kept: Any = state.stateful_callbacks
        kept.setdefault(type(self).__name__, self.state())

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        """Freeze and unfreeze for the step; tensors that stay frozen lose their moments."""
        del args, control
        if self._schedule is not None and self._schedule.advance(state.global_step):
            optimizer = surgery.torch_optimizer(given["optimizer"])
            if self._schedule.timeline.every is None:
                frozen = [parameter for parameter in optimizer.state if not parameter.requires_grad]
                for parameter in frozen:
                    del optimizer.state[parameter]

    def on_pre_optimizer_step(self, *_: Any, **given: Any) -> None:
        """Divide the optimiser's groups by learning-rate multiplier."""
        if any(factor != 1.0 for factor in self._factors.values()):
            optimizer = surgery.torch_optimizer(given["optimizer"])
            self._groups = optimizer.param_groups
            optimizer.param_groups = divide_groups(self._groups, self._factors)

    def on_optimizer_step(self, *_: Any, **given: Any) -> None:
        """Restore the optimiser's own groups."""
        if self._groups is not None:
            surgery.torch_optimizer(given["optimizer"]).param_groups = self._groups
            self._groups = None

    def on_save(self, *_: Any, **given: Any) -> None:
        """Verify that frozen tensors have not changed."""
        surgery.verify_frozen(_model(given))

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        """Verify frozen tensors; if the Trainer has loaded the best checkpoint, with the hashes of that one."""
        del control
        model, best = _model(given), state.best_model_checkpoint
        if args.load_best_model_at_end and best and self._schedule is not None:
            saved = TrainerState.load_from_json(str(Path(best) / TRAINER_STATE_NAME))
            self._schedule.restore(saved.global_step - 1, _saved_hashes(saved))
        surgery.verify_frozen(model)

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint: the hashes of the frozen tensors."""
        hashes = surgery.verify_frozen(self._model) if self._model is not None else self.hashes
        return {"args": {}, "attributes": {"hashes": hashes}}


def divide_groups(groups: Groups, factors: dict[int, float]) -> Groups:
    """Divide parameter groups by the multiplier of each parameter (by id), and multiply the learning rates by it."""
    result = []
    for group in groups:
        members: dict[float, list[nn.Parameter]] = {}
        for parameter in group["params"]:
            members.setdefault(factors.get(id(parameter), 1.0), []).append(parameter)
        result += [{**group, "params": params, "lr": group["lr"] * factor} for factor, params in members.items()]
    return result


def _model(given: dict[str, Any]) -> nn.Module:
    model: nn.Module = given["model"]
    if surgery.find_applied(model) is None:
        raise MethodError(
            f"OelmCallback needs a model with a method, but none has been applied to this {type(model).__name__}. Call "
            "oelm.apply(model, method) before you create the Trainer, or load the model with oelm.load."
        )
    return model


def _saved_hashes(state: TrainerState) -> dict[str, Any] | None:
    """Return the saved state of the callback from a Trainer's state, or None."""
    callbacks: Any = state.stateful_callbacks  # a list in a new state, a dict of states once a Trainer has used it
    hashes = callbacks.get(OelmCallback.__name__, {}).get("attributes", {}).get("hashes")
    return {"hashes": hashes} if hashes else None


def _refuse_renamed(model: nn.Module) -> None:
    """Refuse models whose tensors have other names in checkpoints, because the Trainer does not load these."""
    inner: Any = surgery.unwrap(model)
    if not isinstance(inner, PreTrainedModel):
        return
    own = inner.state_dict()
    if lost := sorted(own.keys() - revert_weight_conversion(inner, dict(own)).keys()):
        raise NotCarriedOut(
            f"The Trainer cannot resume a {type(inner).__name__}: {len(lost)} tensors have other names in the "
            f"checkpoint (the first: {lost[0]}) and would not be loaded. Load the checkpoint with oelm.load and train "
            "it as a new run."
        )


def _moving_layers(model: nn.Module) -> tuple[int, ...]:
    """Return the layers that are frozen at one time and train at another."""
    timeline = surgery.timeline_of(model, ENDLESS)
    if timeline.every:
        return tuple(sorted(timeline.frozen_by_method))
    return tuple(sorted({event.layer for event in timeline.events}))


def _after_freezing(model: nn.Module, schedule: surgery.FreezeSchedule) -> dict[str, str]:
    surgery.freeze(model, layers=tuple(schedule.timeline.frozen_layers(0)))
    return surgery.verify_frozen(model)


def _refuse_missing(model: nn.Module, optimizer: Optimizer) -> None:
    known = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    missing = [
        name for name, parameter in surgery.method_tensors(model, _moving_layers(model)) if id(parameter) not in known
    ]
    if missing:
        raise MethodError(
            f"{len(missing)} tensors train at some time, but are not in the Trainer's optimiser (the first: "
            f"{missing[0]}). Pass the callback to the constructor, Trainer(model=..., callbacks=[...]), and let the "
            "Trainer build the optimiser; a model_init function must end with oelm.unfreeze(model)."
        )
