"""The method's schedule and learning rates for users of the Hugging Face Trainer.

    model = AutoModelForSequenceClassification.from_pretrained(...)
    oelm.apply(model, "oelm-progressive:0.2-0.8")
    Trainer(model, args, ..., callbacks=[oelm.OelmCallback()]).train()

The Trainer builds its optimiser, and DDP its buckets, from what trains at that moment. So layers that will train
some day are let train while the Trainer is being set up, and frozen again before its first step; at no time is a
step taken with them. The optimiser keeps the Trainer's own groups whenever the Trainer looks at it (to save, to
load, to set rates); only for the moment of a step they are divided by learning-rate multiplier.
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

from oelm import surgery
from oelm.errors import MethodError, NotCarriedOut
from oelm.method.freeze import named_tensors
from oelm.method.rates import multipliers
from oelm.method.refuse import ENDLESS

Groups = list[dict[str, Any]]


class OelmCallback(TrainerCallback, ExportableState):
    """Freeze and unfreeze by the method's schedule, set layer-wise rates, prove what is frozen at every save.

    Give it to the Trainer when you make it. `trainer.train(resume_from_checkpoint=...)` continues where it was.
    """

    def __init__(self) -> None:
        self.hashes: dict[str, str] = {}
        self._schedule: surgery.FreezeSchedule | None = None
        self._model: nn.Module | None = None
        self._factors: dict[int, float] = {}
        self._groups: Groups | None = None

    def on_init_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        """Let the Trainer see everything that will train at some time."""
        del state, control
        model = _model(given)
        moving = _moving_layers(model)
        if moving and args.world_size > 1 and not args.ddp_find_unused_parameters:
            raise NotCarriedOut(
                f"the method's schedule changes what trains in layers {moving} during training, which "
                "DDP only follows when told. Set ddp_find_unused_parameters=True in TrainingArguments."
            )
        if moving and any(name.endswith(".base_layer") for name, _ in model.named_modules()):
            raise NotCarriedOut(
                f"the method lets layers {moving} train, and PEFT freezes everything below its adapters and saves "
                "nothing else. Take a method that keeps all of them frozen (oelm-freeze), or no adapters."
            )
        if moving:
            surgery.unfreeze(model, layers=moving)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        """Freeze as the first (or the resumed) step asks, and prepare the learning rates."""
        del args, control
        model = self._model = _model(given)
        if state.global_step:
            _refuse_renamed(model)
        surgery.verify_frozen(model)
        optimizer = _torch_optimizer(given["optimizer"])
        _refuse_missing(model, optimizer)
        self._schedule = surgery.FreezeSchedule(model, state.max_steps)
        saved = _kept(state)
        if state.global_step and saved:
            self._schedule.restore(state.global_step - 1, saved)
        else:
            self._schedule.restore(0, {"hashes": _after_freezing(model, self._schedule)})
        self._factors = _factors(model)
        kept: Any = state.stateful_callbacks
        kept.setdefault(type(self).__name__, self.state())

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        """Freeze and unfreeze as the step asks; what is frozen for good loses its moments."""
        del args, control
        if self._schedule is not None and self._schedule.advance(state.global_step):
            optimizer = _torch_optimizer(given["optimizer"])
            if self._schedule.timeline.every is None:
                frozen = [parameter for parameter in optimizer.state if not parameter.requires_grad]
                for parameter in frozen:
                    del optimizer.state[parameter]

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        """Divide the optimiser's groups by learning-rate multiplier."""
        del args, state, control
        if self._factors:
            optimizer = _torch_optimizer(given["optimizer"])
            self._groups = optimizer.param_groups
            optimizer.param_groups = divided(self._groups, self._factors)

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        """Give the optimiser its own groups back."""
        del args, state, control
        if self._groups is not None:
            _torch_optimizer(given["optimizer"]).param_groups = self._groups
            self._groups = None

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        """Prove that what is frozen has not moved."""
        del args, state, control
        surgery.verify_frozen(_model(given))

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        """Prove it once more; of the best checkpoint, if the Trainer has just loaded that, by its own hashes."""
        del control
        model, best = _model(given), state.best_model_checkpoint
        if args.load_best_model_at_end and best and self._schedule is not None:
            saved = TrainerState.load_from_json(str(Path(best) / TRAINER_STATE_NAME))
            self._schedule.restore(saved.global_step - 1, _kept(saved))
        surgery.verify_frozen(model)

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps: the hashes of what is frozen."""
        hashes = surgery.verify_frozen(self._model) if self._model is not None else self.hashes
        return {"args": {}, "attributes": {"hashes": hashes}}


def divided(groups: Groups, factors: dict[int, float]) -> Groups:
    """Divide parameter groups by the multiplier of each parameter (by id), the rate multiplied by it."""
    result = []
    for group in groups:
        members: dict[float, list[nn.Parameter]] = {}
        for parameter in group["params"]:
            members.setdefault(factors.get(id(parameter), 1.0), []).append(parameter)
        result += [{**group, "params": params, "lr": group["lr"] * factor} for factor, params in members.items()]
    return result


def _model(given: dict[str, Any]) -> nn.Module:
    model: nn.Module = given["model"]
    if surgery.applied(model) is None:
        raise MethodError(
            f"OelmCallback was given to a Trainer whose {type(model).__name__} has no method on it. Call "
            "oelm.apply(model, method) before making the Trainer, or load it with oelm.load."
        )
    return model


def _kept(state: TrainerState) -> dict[str, Any] | None:
    """Return what a Trainer's state keeps of the callback, if it has any."""
    callbacks: Any = state.stateful_callbacks  # a list before a Trainer has seen it, a dict of states after that
    hashes = callbacks.get(OelmCallback.__name__, {}).get("attributes", {}).get("hashes")
    return {"hashes": hashes} if hashes else None


def _refuse_renamed(model: nn.Module) -> None:
    """Refuse models whose checkpoints name tensors otherwise: the Trainer loads none of these when it resumes."""
    inner: Any = surgery.unwrapped(model)
    if not isinstance(inner, PreTrainedModel):
        return
    own = inner.state_dict()
    if lost := sorted(own.keys() - revert_weight_conversion(inner, dict(own)).keys()):
        raise NotCarriedOut(
            f"the Trainer does not load all that it has saved of a {type(inner).__name__}: {len(lost)} tensors have "
            f"other names in the checkpoint (the first: {lost[0]}), and would begin anew. Load the checkpoint with "
            "oelm.load and train it as a new run."
        )


def _moving_layers(model: nn.Module) -> tuple[int, ...]:
    """Return the layers that are frozen at some time and train at another."""
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
            f"{len(missing)} tensors train at some time and are not in the Trainer's optimiser (the first: "
            f"{missing[0]}). Pass the callback when making the Trainer, Trainer(model=..., callbacks=[...]), and "
            "let the Trainer build the optimiser after that; what model_init makes must end with oelm.unfreeze(model)."
        )


def _factors(model: nn.Module) -> dict[int, float]:
    """Return the multiplier of each parameter that has one other than 1, by id."""
    inner = surgery.unwrapped(model)
    state = surgery.applied(inner)
    if state is None:
        return {}
    tensors = named_tensors(inner)
    factors = multipliers(tensors, surgery.projections_in_reach(inner), state.method.rates)
    return {id(tensors[name]): factor for name, factor in factors.items() if factor != 1.0}


def _torch_optimizer(optimizer: Any) -> Optimizer:
    """Return the optimiser inside accelerate's."""
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer  # type: ignore[no-any-return]
