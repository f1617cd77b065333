"""Where a method meets a model: apply it, audit it, prove it.

Everything is checked before anything is written, so that a refused method leaves the model untouched.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from typing import Any

from torch import nn

from oelm.errors import AlreadyApplied, BadShape, CheckpointError, MethodError
from oelm.inspection import Audit, ProjectionAudit, describe
from oelm.method.freeze import Applied, hold, is_as_frozen, named_tensors, refuse_moved, release, rounded
from oelm.method.initialise import initialise
from oelm.method.projection import Architecture, Projection
from oelm.method.refuse import ENDLESS, depth_of, queries_and_keys, refuse_unfit, refuse_wrapped, wrapped_by
from oelm.method.repair import draw_repairs
from oelm.method.schedule import Timeline, resolve_layers
from oelm.models.families import architecture_of, register_architecture
from oelm.spec.method import Layers, MethodSpec
from oelm.spec.named import named_method

__all__ = [
    "Applied", "Audit", "FreezeSchedule", "ProjectionAudit", "applied", "apply", "audit", "freeze", "inspect",
    "method_tensors", "print_trainable_parameters", "register_architecture", "restore", "timeline_of", "unfreeze",
    "unwrapped", "verify_frozen",
]  # fmt: skip

_STATE = "_oelm"


def apply(model: nn.Module, method: MethodSpec | str, *, seed: int = 0) -> Audit:
    """Carry out a method on a model, in place, as it stands before the first step.

    The draws depend on `seed` and on each projection's name only. Biases keep their values; whether they are frozen
    with their weights is the method's choice (`freeze.biases`).

    Raises:
        UnknownName: there is no method of that name, or the model's family is unknown.
        AlreadyApplied: a method stands on the model.
        BadShape: a head is wider than its input, or a layer, role or site does not exist.
        UnusableWeight: a weight is on the meta device, quantised or tied.
        MethodError: the model is wrapped by DDP, torch.compile or PEFT.
        NotCarriedOut: the family cannot do what the method asks for.

    """
    spec = named_method(method) if isinstance(method, str) else method
    architecture, projections, timeline = _admitted(model, spec)
    projections = _prepare(architecture, model, projections, spec)
    if spec.init.draws:
        initialise(queries_and_keys(projections), spec.init, seed)
    state = Applied(spec, seed)
    _build_in(architecture, model, projections, state)
    freeze(model, layers=tuple(timeline.frozen_layers(0)))
    _specialise(architecture, model, spec)
    # The hashes were taken just now; taking them again would be a tenth of the work.
    return describe(model, architecture.name, architecture.projections(model), state, state.hashes)


def restore(model: nn.Module, state: Applied) -> Audit:
    """Put a method back on a model whose weights carry it already, as after loading a checkpoint.

    Nothing is drawn. Frozen is what was frozen when `state` was saved.

    Raises:
        CheckpointError: a weight is not what was frozen.
        and whatever `apply` raises.

    """
    architecture, projections, _ = _admitted(model, state.method)
    projections = _prepare(architecture, model, projections, state.method)
    _build_in(architecture, model, projections, Applied(state.method, state.seed))
    tensors = named_tensors(model)
    wrong = [
        name
        for name, expected in state.hashes.items()
        if name not in tensors or not is_as_frozen(tensors[name], expected, state.casts.get(name, ()))
    ]
    if wrong:
        raise CheckpointError(
            f"{len(wrong)} of {len(state.hashes)} tensors are not what was frozen when the checkpoint "
            f"was saved: {', '.join(wrong)}. Something wrote to them in between; take another "
            "checkpoint, or apply a method anew with oelm.apply."
        )
    _hold(model, [(name, tensors[name]) for name in state.hashes])
    _specialise(architecture, model, state.method)
    return audit(model)


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside DDP, torch.compile or PEFT."""
    while applied_here(model) is None and (inner := wrapped_by(model)) is not None:
        model = inner
    return model


def applied_here(model: nn.Module) -> Applied | None:
    """Return what stands on exactly this module, or None."""
    state = model.__dict__.get(_STATE)
    return state if isinstance(state, Applied) else None


def applied(model: nn.Module) -> Applied | None:
    """Return what stands on a model, be it wrapped, or None."""
    return applied_here(unwrapped(model))


def inspect(model: nn.Module, method: MethodSpec | str | None = None, *, seed: int = 0) -> Audit:
    """Audit a model as it is, or as a method makes it (which is then applied)."""
    return audit(model) if method is None else apply(model, method, seed=seed)


def freeze(model: nn.Module, *, layers: Layers | None = None) -> list[str]:
    """Freeze the method's roles in `layers` (None: its own); return the names of the tensors that are frozen now."""
    return _hold(model, method_tensors(model, layers))


def unfreeze(model: nn.Module, *, layers: Layers | None = None) -> list[str]:
    """Let the method's roles in `layers` (None: its own) train; return the names of the tensors that train now."""
    state = _required(model)
    names = release(method_tensors(model, layers))
    for name in names:
        state.hashes.pop(name, None)
        state.casts.pop(name, None)
    _note(unwrapped(model), state)
    return names


def verify_frozen(model: nn.Module) -> dict[str, str]:
    """Prove that every frozen tensor holds what it was frozen with; return the hashes.

    A cast to another floating-point type is no movement: the values are compared as that type holds them.

    Raises:
        FrozenWeightsMoved: naming each tensor that is not what was frozen.

    """
    state = _required(model)
    refuse_moved(named_tensors(unwrapped(model)), state.hashes, state.casts)
    return dict(state.hashes)


def audit(model: nn.Module) -> Audit:
    """Describe every projection and count what trains."""
    inner = unwrapped(model)
    architecture = architecture_of(inner)
    return describe(inner, architecture.name, architecture.projections(inner), applied_here(inner))


def print_trainable_parameters(model: nn.Module) -> None:
    """Print what trains, in the words of PEFT."""
    print(audit(model))  # noqa: T201  (printing is what it is for)


def timeline_of(model: nn.Module, steps: int) -> Timeline:
    """Return the schedule of the model's method in a training of `steps`."""
    return Timeline(_required(model).method, depth_of(projections_in_reach(model)), steps)


def projections_in_reach(model: nn.Module) -> list[Projection]:
    """Return the projections at the sites of the method: whatever it says of layers and roles is about these."""
    inner = unwrapped(model)
    return _in_reach(architecture_of(inner).projections(inner), _required(model).method)


def method_tensors(model: nn.Module, layers: Layers | None = None) -> list[tuple[str, nn.Parameter]]:
    """Return the named tensors that the model's method freezes in `layers` (None: its own), at whatever time."""
    method, projections = _required(model).method, projections_in_reach(model)
    chosen = set(resolve_layers(method.freeze.layers if layers is None else layers, depth_of(projections)))
    return [
        named
        for projection in projections
        if projection.role in method.freeze.roles and projection.layer in chosen
        for named in projection.parameters(biases=method.freeze.biases)
    ]


class FreezeSchedule:
    """A method's schedule carried out on a model: what the training loop asks at every step."""

    def __init__(self, model: nn.Module, steps: int) -> None:
        self.model = model
        self.timeline = timeline_of(model, steps)
        # What `apply` froze, which knew no number of steps: a fraction of few steps may round to the first of them.
        self._frozen = timeline_of(model, ENDLESS).frozen_layers(0)

    def advance(self, step: int) -> bool:
        """Freeze and unfreeze as a step asks; return whether what trains has changed."""
        wanted = self.timeline.frozen_layers(step)
        if wanted == self._frozen:
            return False
        if thawing := self._frozen - wanted:
            unfreeze(self.model, layers=tuple(thawing))
        if freezing := wanted - self._frozen:
            freeze(self.model, layers=tuple(freezing))
        self._frozen = wanted
        return True

    def save(self) -> dict[str, Any]:
        """Return what `restore` needs, as JSON data."""
        return {"hashes": dict(_required(self.model).hashes)}

    def restore(self, step: int, saved: dict[str, Any] | None) -> None:
        """Bring back the state that stood during a step, on weights that are loaded already.

        None stands for weights from elsewhere, of which nothing was saved: they are frozen as they are.

        Raises:
            CheckpointError: a loaded weight is not what was frozen when the checkpoint was saved.

        """
        self._frozen = self.timeline.frozen_layers(max(step, 0))
        unfreeze(self.model)
        freeze(self.model, layers=tuple(self._frozen))
        if saved is not None:
            refuse_other_than(saved["hashes"], _required(self.model).hashes)


def refuse_other_than(saved: dict[str, str], found: dict[str, str]) -> None:
    """Raise unless the frozen tensors are those of a checkpoint, with its hashes."""
    wrong = sorted(name for name in {*saved, *found} if saved.get(name) != found.get(name))
    if wrong:
        raise CheckpointError(
            f"{len(wrong)} of {len(saved)} frozen tensors are not what was frozen when the checkpoint "
            f"was saved: {', '.join(wrong)}. Something wrote to the checkpoint or to the model; take "
            "an earlier checkpoint, or start anew."
        )


def _admitted(model: nn.Module, method: MethodSpec) -> tuple[Architecture, list[Projection], Timeline]:
    """Check everything; return the family, the projections in the method's reach and its schedule."""
    if applied(model) is not None:
        raise AlreadyApplied(
            f"a method stands on this {type(model).__name__} already. Build the model anew, or change "
            "what is frozen with oelm.freeze and oelm.unfreeze."
        )
    refuse_wrapped(model)
    architecture = architecture_of(model)
    projections = _in_reach(architecture.projections(model), method)
    return architecture, projections, refuse_unfit(architecture, model, projections, method)


def _prepare(
    architecture: Architecture, model: nn.Module, projections: list[Projection], method: MethodSpec
) -> list[Projection]:
    """Give every projection the parameters that the method needs; return the projections as they are then."""
    _make_separate(projections, method)
    if method.repair.position_features and method.init.shape != "absent":
        architecture.narrow(model, method.repair, queries_and_keys(projections))
        projections = _in_reach(architecture.projections(model), method)
    return projections


def _make_separate(projections: list[Projection], method: MethodSpec) -> None:
    """Give roles that are frozen, or learn at another rate, parameters of their own."""
    absent = method.init.shape == "absent"
    narrow = bool(method.repair.position_features)
    roles = {*method.freeze.roles, *method.rates.roles, *(("q", "k") if absent or narrow else ())}
    for projection in projections:
        if projection.role in roles:
            projection.split(biases=method.freeze.biases or absent or narrow)


def _build_in(architecture: Architecture, model: nn.Module, projections: list[Projection], state: Applied) -> None:
    """Carry out what changes more than weights, and leave the note that a method stands here."""
    setattr(model, _STATE, state)
    _own_config(model)
    chosen = queries_and_keys(projections)
    if state.method.init.shape == "absent":
        architecture.remove_qk(model, chosen)
        # Where Q and K stay as modules they are held: zero queries must not decay into something, nor keys move.
        left = queries_and_keys(_in_reach(architecture.projections(model), state.method))
        _hold(model, [named for projection in left for named in projection.parameters(biases=True)])
    architecture.set_apart(model, state.method, chosen)
    chosen = queries_and_keys(_in_reach(architecture.projections(model), state.method))
    architecture.install(model, state.method, chosen)
    draw_repairs(model, state.seed)
    _note(model, state)


def _specialise(architecture: Architecture, model: nn.Module, method: MethodSpec) -> None:
    if method.slices_stay:
        for projection in queries_and_keys(_in_reach(architecture.projections(model), method)):
            architecture.specialise(model, projection)


def _hold(model: nn.Module, tensors: Iterable[tuple[str, nn.Parameter]]) -> list[str]:
    state = _required(model)
    named = list(tensors)
    state.hashes.update(hold(named))
    state.casts.update(rounded(named))
    _note(unwrapped(model), state)
    return [name for name, _ in named]


def _own_config(model: nn.Module) -> None:
    """Give a `transformers` model a configuration of its own: models made from one object would share their notes."""
    config: Any = getattr(model, "config", None)
    if hasattr(config, "save_pretrained"):
        own = copy(config)
        for module in model.modules():
            if module.__dict__.get("config") is config:
                module.config = own


def _note(model: nn.Module, state: Applied) -> None:
    """Write the method into the configuration of a `transformers` model, which goes into its config.json."""
    config: Any = getattr(model, "config", None)
    if hasattr(config, "save_pretrained"):
        config.oelm = {
            "method": state.method.model_dump(mode="json"),
            "seed": state.seed,
            "hashes": dict(state.hashes),
            "casts": {name: list(casts) for name, casts in state.casts.items()},
        }


def _required(model: nn.Module) -> Applied:
    state = applied(model)
    if state is None:
        raise MethodError(
            f"no method stands on this {type(model).__name__}. Call oelm.apply(model, method) first; "
            "'baseline' changes nothing."
        )
    return state


def _in_reach(projections: list[Projection], method: MethodSpec) -> list[Projection]:
    if method.sites is None:
        return projections
    missing = set(method.sites) - {projection.site for projection in projections}
    if missing:
        raise BadShape(
            f"the method names the attention sites {sorted(missing)}, but this model has "
            f"{sorted({p.site for p in projections})}. Name some of these, or sites=None for all."
        )
    return [projection for projection in projections if projection.site in method.sites]
