"""Apply a method to a model, audit the model, and prove that frozen weights have not changed.

Everything is checked before anything is written, so a refused method leaves the model untouched.
"""

from __future__ import annotations

import math
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from copy import copy, deepcopy
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, TypedDict, Unpack

import torch
from pydantic import ValidationError
from torch import nn
from torch.optim import Optimizer

from oelm.errors import (
    AlreadyApplied,
    BadShape,
    CheckpointError,
    InvalidSpec,
    MethodError,
    NotCarriedOut,
    ScheduleWarning,
    WrongOptimizer,
)
from oelm.method.freeze import (
    APPLIED,
    ENDLESS,
    Applied,
    Timeline,
    depth_of,
    find_wrapped,
    freeze_tensors,
    hash_rounded,
    initialise,
    is_as_frozen,
    layer_prefixes,
    named_tensors,
    queries_and_keys,
    refuse_moved,
    refuse_unfit,
    refuse_wrapped,
    resolve_layers,
    sha256,
    unfreeze_tensors,
)
from oelm.method.orthogonal import departure, one_thread
from oelm.method.projection import Architecture, Projection
from oelm.method.repair import Repair, draw_repairs, num_repair_parameters
from oelm.method.split import is_split, join
from oelm.models.families import architecture_of
from oelm.spec import explain_validation
from oelm.spec.method import Layers, MethodSpec, NamesSpec, RatesSpec, Role, named_method

_IN_LAYERS = "norms and biases inside the layers"
_REPAIRS = "repairs of the logits"


@dataclass(frozen=True)
class ProjectionAudit:
    """One projection. Only Q, K and frozen projections have a hash."""

    name: str
    role: Role
    site: str
    layer: int
    shape: tuple[int, int, int]
    frozen: bool
    sha256: str | None
    departure: float | None


@dataclass(frozen=True)
class Audit:
    """The parts of a model, and which of them train."""

    model: str
    total: int
    trainable: int
    frozen: int
    max_departure: float | None
    projections: tuple[ProjectionAudit, ...]
    architecture: str = ""
    never_frozen: dict[str, int] | None = None
    """Parameters that no method freezes, by part of the model: embeddings, pooler, classifier, norms, repairs."""
    qk: int = 0
    """Number of weights of Q and K, frozen or not."""
    repair: int = 0
    """Number of trained parameters of the repairs."""

    @property
    def repair_share(self) -> float:
        """Trained parameters of the repairs per weight of Q and K."""
        return self.repair / max(self.qk, 1)

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self)

    @property
    def by_layer(self) -> dict[tuple[str, int], list[ProjectionAudit]]:
        """The projections of each attention site and layer."""
        found: dict[tuple[str, int], list[ProjectionAudit]] = {}
        for row in self.projections:
            found.setdefault((row.site, row.layer), []).append(row)
        return found

    @property
    def totals(self) -> str:
        """The number of trained parameters in the format of PEFT."""
        share = 100 * self.trainable / max(self.total, 1)
        return f"trainable params: {self.trainable:,} || all params: {self.total:,} || trainable%: {share:.4f}"

    def __str__(self) -> str:
        """Return a table of what is frozen and what trains by layer, and the totals."""
        rows = [("site", "layer", "heads x size x input of Q", "frozen", "trains")]
        for (site, layer), projections in self.by_layer.items():
            shape = next((" x ".join(map(str, row.shape)) for row in projections if row.role == "q"), "none")
            frozen, trained = (list_roles(projections, frozen=frozen) for frozen in (True, False))
            rows.append((site, str(layer), shape, frozen or "-", trained or "-"))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return "\n".join([*lines, self.totals])


def list_roles(projections: Iterable[ProjectionAudit], *, frozen: bool) -> str:
    """Return the roles that are frozen, or that train, as text."""
    return " ".join(dict.fromkeys(row.role for row in projections if row.frozen is frozen))


def audit(model: nn.Module) -> Audit:
    """Describe every projection, and count trained and frozen parameters."""
    return _describe(unwrap(model))


def _describe(model: nn.Module, hashes: Mapping[str, str] = MappingProxyType({})) -> Audit:
    """Describe a model that is not wrapped; tensors in `hashes` are not hashed again."""
    architecture, state = architecture_of(model), _find_applied_here(model)
    projections = architecture.projections(model)
    gain = state.method.init.gain if state else 1.0
    # These products are so small that several threads would mostly wait for each other.
    with one_thread():
        rows = tuple(_audit_projection(projection, gain, hashes) for projection in projections)
    counts = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    total = sum(size for size, _ in counts)
    trainable = sum(size for size, trains in counts if trains)
    departures = [row.departure for row in rows if row.departure is not None]
    return Audit(
        type(model).__name__,
        total,
        trainable,
        total - trainable,
        max(departures, default=None),
        rows,
        architecture.name,
        _never_frozen(model, projections),
        sum(math.prod(row.shape) for row in rows if row.role in ("q", "k")),
        num_repair_parameters(model),
    )


def _audit_projection(projection: Projection, gain: float, hashes: Mapping[str, str]) -> ProjectionAudit:
    frozen = projection.separate and not projection.weight.requires_grad
    is_qk = projection.role in ("q", "k")
    readable = not projection.weight.is_meta and projection.weight.is_floating_point() and projection.weight.numel() > 0
    digest = hashes.get(f"{projection.name}.weight")
    if digest is None and readable and (frozen or is_qk):
        digest = sha256(projection.weight if projection.separate else projection.read())
    return ProjectionAudit(
        projection.name, projection.role, projection.site, projection.layer, projection.shape, frozen, digest,
        departure=departure(projection.read(), gain) if readable and is_qk else None,
    )  # fmt: skip


def _never_frozen(model: nn.Module, projections: list[Projection]) -> dict[str, int]:
    """Count the parameters outside of all projections, by part of the model."""
    within = tuple({f"{projection.module_name}." for projection in projections})
    layers = tuple(f"{prefix}." for prefix in layer_prefixes(projections))
    repairs = tuple(f"{name}." for name, module in model.named_modules() if isinstance(module, Repair))
    counts: Counter[str] = Counter()
    for name, parameter in named_tensors(model).items():
        if name.startswith(within):
            continue
        if name.startswith(repairs):
            counts[_REPAIRS] += parameter.numel()
            continue
        place = _IN_LAYERS if name.startswith(layers) else re.sub(r"\.(weight|bias)$", "", name)
        counts[".".join(place.split(".")[:2])] += parameter.numel()
    return dict(counts)


class Names(TypedDict, total=False):
    """Names of the modules of each role, as in `NamesSpec`."""

    q: str
    k: str
    v: str | None
    o: str | None
    ffn: str | tuple[str, ...]
    heads: int | None
    key_heads: int | None


def apply(
    model: nn.Module, method: MethodSpec | str, *, seed: int = 0, scheduled: bool = False, **names: Unpack[Names]
) -> Audit:
    """Apply a method to a model, in place, before its first training step.

    The random draws depend only on `seed` and on the name of each projection. Biases keep their values; the method
    chooses whether they are frozen with their weights (`freeze.biases`).

    A model of an unknown family needs the names of its modules: `apply(model, method, q="q_proj", k="k_proj")`, if the
    method freezes them also `v`, `o` and `ffn`. They are the last parts of dotted names. The number of heads comes from
    the configuration, or is given as `heads` and `key_heads`. The names are saved with the model.

    A method that changes what trains during training, or has its own learning rates, warns (ScheduleWarning) that
    this must be carried out, by `oelm.schedule` or `OelmCallback`. `scheduled=True` says that the caller does.

    Raises:
        UnknownName: the method, the model's family or a named module is unknown.
        InvalidSpec: the method is not a name or a MethodSpec, or the names contradict one another.
        AlreadyApplied: a method has already been applied to the model.
        BadShape: a head is wider than its input, or a layer, role or site does not exist.
        UnusableWeight: a weight is on the meta device, quantised or tied.
        MethodError: the model is wrapped by DDP, torch.compile or PEFT.
        NotCarriedOut: the method needs something that the family does not support.

    """
    spec = _method_spec(method)
    state = Applied(spec, seed, names=_names_spec(names))
    architecture, projections, timeline = _check(model, state)
    projections = _prepare(architecture, model, projections, spec)
    if spec.init.draws:
        initialise(queries_and_keys(projections), spec.init, seed)
    _build_in(architecture, model, projections, state)
    freeze(model, layers=tuple(timeline.frozen_layers(0)))
    _specialise(architecture, model, spec)
    if not scheduled:
        _require_schedule(model, spec)
    return _describe(model, state.hashes)  # hashing the frozen tensors again would be a tenth of the work


def apply_to_shapes(model: nn.Module, method: MethodSpec) -> Audit | None:
    """Split and freeze a model on the meta device as `apply` does, to count costs; return None if that needs values.

    Nothing is checked, drawn or hashed. Repairs, slices and absent Q/K change more than which weights train, so they
    need a model with values.
    """
    is_dense = method.init.shape in ("host", "normal", "orthogonal", "hadamard")
    if not is_dense or method.repair.active():
        return None
    projections = _at_sites(architecture_of(model).projections(model), method)
    _make_separate(projections, method)
    setattr(model, APPLIED, Applied(method, seed=0))
    frozen = Timeline(method, depth_of(projections), steps=ENDLESS).frozen_layers(0)
    for _, parameter in method_tensors(model, layers=tuple(frozen)):
        parameter.requires_grad_(False)
    return _describe(model)


def _method_spec(method: MethodSpec | str) -> MethodSpec:
    if isinstance(method, MethodSpec):
        return method
    if not isinstance(method, str):
        raise InvalidSpec(
            f"{method!r} is not a method. Give a name from oelm.methods(), for example 'oelm-freeze', or an "
            "oelm.MethodSpec; 'baseline' changes nothing."
        )
    return named_method(method)


def remove(model: nn.Module) -> None:
    """Remove the method from a model, in place: everything trains again, and another method can be applied.

    Weights keep their values. What the method drew into Q and K is not taken back.

    Raises:
        NotCarriedOut: the method has changed more than weights (repairs, absent Q and K, slices).

    """
    method = _require_applied(model).method
    if method.repair.active() or method.init.shape == "absent" or method.slices_stay:
        raise NotCarriedOut(
            "This method has changed the model itself: it has repairs, slices, or no Q and K, so the plain model would "
            "compute something else. Create a new model instead."
        )
    unfreeze(model)
    mark_scheduled(model)
    inner = unwrap(model)
    for module in inner.modules():
        if is_split(module):
            join(module)
    del inner.__dict__[APPLIED]
    config: Any = getattr(inner, "config", None)
    if hasattr(config, "save_pretrained"):
        del config.oelm


def method_of(model: nn.Module) -> MethodSpec | None:
    """Return the method applied to a model (looking inside wrappers), or None."""
    state = find_applied(model)
    return state.method if state else None


# A method with a schedule or with learning rates of its own does nothing by itself: a loop must carry it out.


def _require_schedule(model: nn.Module, method: MethodSpec) -> None:
    """Warn now and, if nothing has changed by then, at the first training step of a model."""
    reason = _needs_schedule(method)
    if reason is None:
        return
    warnings.warn(
        f"The method {reason}. Nothing does this in your own training loop unless you call oelm.schedule(model, "
        "optimizer, steps); for the Hugging Face Trainer, pass callbacks=[oelm.OelmCallback()].",
        ScheduleWarning,
        stacklevel=3,
    )
    _watch(model, method)


def _watch(model: nn.Module, method: MethodSpec) -> None:
    if _needs_schedule(method) is not None:
        model.register_forward_pre_hook(_warn_of_missing_schedule)


def _needs_schedule(method: MethodSpec) -> str | None:
    moves, rates = method.schedule.moves, method.rates != RatesSpec()
    if not moves and not rates:
        return None
    parts = ["changes which weights train during training"] * moves + ["has its own learning rates"] * rates
    return " and ".join(parts)


def _warn_of_missing_schedule(model: nn.Module, _args: Any) -> None:
    """Warn once, before a training step without a schedule. This is a forward hook of the model."""
    if not (model.training and torch.is_grad_enabled()):
        return
    mark_scheduled(model)
    if (method := method_of(model)) is not None and (reason := _needs_schedule(method)) is not None:
        warnings.warn(
            f"This model trains without the schedule of its method, which {reason}. Create oelm.schedule(model, "
            "optimizer, steps) before the first step, or pass oelm.OelmCallback() to the Trainer.",
            ScheduleWarning,
            stacklevel=2,
        )


def mark_scheduled(model: nn.Module) -> None:
    """Note that the schedule of a model's method is carried out, so that nothing warns of its absence."""
    hooks = unwrap(model)._forward_pre_hooks  # noqa: SLF001  (a handle would not survive copies of the model)
    for number in [number for number, hook in hooks.items() if hook is _warn_of_missing_schedule]:
        del hooks[number]


def restore_method(model: nn.Module, state: Applied) -> Audit:
    """Apply a saved method to a model whose weights were trained with it, for example after loading a checkpoint.

    Nothing is drawn. The tensors that were frozen when `state` was saved are frozen again.

    Raises:
        CheckpointError: a frozen weight has changed.
        and everything that `apply` raises.

    """
    architecture, projections, _ = _check(model, state)
    projections = _prepare(architecture, model, projections, state.method)
    _build_in(architecture, model, projections, Applied(state.method, state.seed, names=state.names))
    freeze_as_saved(model, state.hashes, state.casts)
    _specialise(architecture, model, state.method)
    _watch(model, state.method)
    return audit(model)


def freeze_as_saved(
    model: nn.Module, hashes: Mapping[str, str], casts: Mapping[str, tuple[str, ...]] = MappingProxyType({})
) -> None:
    """Freeze exactly the tensors that were frozen when a checkpoint was saved, after its weights have been loaded.

    Raises:
        CheckpointError: one of them has changed.

    """
    if find_applied(model) is None and not hashes:
        return
    tensors = named_tensors(model)
    wrong = [
        name
        for name, expected in hashes.items()
        if name not in tensors or not is_as_frozen(tensors[name], expected, casts.get(name, ()))
    ]
    if wrong:
        raise CheckpointError(
            f"{len(wrong)} of {len(hashes)} frozen tensors have changed since the checkpoint was saved: "
            f"{', '.join(wrong)}. Use another checkpoint, or apply a method again with oelm.apply."
        )
    unfreeze(model)
    _hold(model, [(name, tensors[name]) for name in hashes])


def unwrap(model: nn.Module) -> nn.Module:
    """Return the model inside DDP, torch.compile or PEFT."""
    while _find_applied_here(model) is None and (inner := find_wrapped(model)) is not None:
        model = inner
    return model


def _find_applied_here(model: nn.Module) -> Applied | None:
    state = model.__dict__.get(APPLIED)
    return state if isinstance(state, Applied) else None


def find_applied(model: nn.Module) -> Applied | None:
    """Return the method applied to the model (looking inside wrappers), or None."""
    return _find_applied_here(unwrap(model))


def inspect(model: nn.Module, method: MethodSpec | str | None = None, *, seed: int = 0) -> Audit:
    """Audit a model, or what a method would make of it. The method is applied to a copy."""
    return audit(model) if method is None else apply(deepcopy(model), method, seed=seed, scheduled=True)


def freeze(model: nn.Module, *, layers: Layers | None = None) -> list[str]:
    """Freeze the method's roles in `layers` (None: the method's layers); return the names of the frozen tensors."""
    return _hold(model, method_tensors(model, layers))


def unfreeze(model: nn.Module, *, layers: Layers | None = None) -> list[str]:
    """Train the method's roles in `layers` (None: the method's layers); return the names of the unfrozen tensors."""
    state = _require_applied(model)
    names = unfreeze_tensors(method_tensors(model, layers))
    for name in names:
        state.hashes.pop(name, None)
        state.casts.pop(name, None)
    _note(unwrap(model), state)
    return names


def verify_frozen(model: nn.Module, optimizer: Optimizer | None = None) -> dict[str, str]:
    """Verify that no frozen tensor has changed; return the hashes.

    A cast to another floating-point type is not a change: the values are compared after the same rounding. With an
    optimiser, also verify that it has every tensor that trains and no frozen one. An optimiser that was built before
    the method was applied does not have the parts into which fused tensors were split, so these would never train.

    Raises:
        FrozenWeightsMoved: naming each tensor that has changed.
        WrongOptimizer: the optimiser lacks tensors that train, or has frozen ones.

    """
    state = _require_applied(model)
    tensors = named_tensors(unwrap(model))
    refuse_moved(tensors, state.hashes, state.casts)
    if optimizer is not None:
        _refuse_other_members(tensors, optimizer)
    return dict(state.hashes)


def torch_optimizer(optimizer: Any) -> Optimizer:
    """Return the torch optimiser inside that of accelerate."""
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer  # type: ignore[no-any-return]


def _refuse_other_members(tensors: Mapping[str, nn.Parameter], optimizer: Optimizer) -> None:
    members = {id(each): each for group in torch_optimizer(optimizer).param_groups for each in group["params"]}
    missing = [name for name, each in tensors.items() if each.requires_grad and id(each) not in members]
    frozen = [name for name, each in tensors.items() if not each.requires_grad and id(each) in members]
    found = [
        f"{what} {len(names)} {kind} (the first: {names[0]})"
        for what, kind, names in (("lacks", "tensors that train", missing), ("has", "frozen tensors", frozen))
        if names
    ]
    if found:
        raise WrongOptimizer(
            f"The optimiser {' and '.join(found)}. Build it after oelm.apply, with the tensors that train: "
            "oelm.parameter_groups(model, lr=...)."
        )


def print_trainable_parameters(model: nn.Module) -> None:
    """Print the number of trained parameters in the format of PEFT."""
    print(audit(model).totals)  # noqa: T201  (its purpose)


def timeline_of(model: nn.Module, steps: int) -> Timeline:
    """Return the freezing schedule of the model's method for a training of `steps`."""
    return Timeline(_require_applied(model).method, depth_of(projections_in_reach(model)), steps)


def projections_in_reach(model: nn.Module) -> list[Projection]:
    """Return the projections at the attention sites of the method; its layers and roles refer to these."""
    inner = unwrap(model)
    return _at_sites(architecture_of(inner).projections(inner), _require_applied(model).method)


def method_tensors(model: nn.Module, layers: Layers | None = None) -> list[tuple[str, nn.Parameter]]:
    """Return the tensors that the model's method freezes at some time in `layers` (None: the method's layers)."""
    method, projections = _require_applied(model).method, projections_in_reach(model)
    chosen = set(resolve_layers(method.freeze.layers if layers is None else layers, depth_of(projections)))
    return [
        named
        for projection in projections
        if projection.role in method.freeze.roles and projection.layer in chosen
        for named in projection.parameters(biases=method.freeze.biases)
    ]


class FreezeSchedule:
    """Freeze and unfreeze a model by the schedule of its method; the training loop calls it at every step."""

    def __init__(self, model: nn.Module, steps: int) -> None:
        self.model = model
        mark_scheduled(model)
        self.timeline = timeline_of(model, steps)
        # `apply` does not know the number of steps, and a fraction of few steps may round to the first one.
        self._frozen = timeline_of(model, ENDLESS).frozen_layers(0)

    def advance(self, step: int) -> bool:
        """Freeze and unfreeze for a step; return whether the set of trained tensors has changed."""
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
        """Return the state for `restore`, as JSON data."""
        return {"hashes": dict(_require_applied(self.model).hashes)}

    def restore(self, step: int, saved: dict[str, Any] | None) -> None:
        """Restore the state during a step, after the weights have been loaded.

        With `saved=None` (weights of another origin) the weights are frozen without a check.

        Raises:
            CheckpointError: a frozen weight has changed since the checkpoint was saved.

        """
        self._frozen = self.timeline.frozen_layers(max(step, 0))
        unfreeze(self.model)
        freeze(self.model, layers=tuple(self._frozen))
        if saved is None:
            return
        expected, found = saved["hashes"], _require_applied(self.model).hashes
        wrong = sorted(name for name in {*expected, *found} if expected.get(name) != found.get(name))
        if wrong:
            raise CheckpointError(
                f"{len(wrong)} of {len(expected)} frozen tensors have changed since the checkpoint was saved: "
                f"{', '.join(wrong)}. Use an earlier checkpoint, or start again from step 0."
            )


def _names_spec(names: Names) -> NamesSpec | None:
    if not names:
        return None
    try:
        return NamesSpec.model_validate(names)
    except ValidationError as error:
        raise InvalidSpec(f"The names of the model's modules cannot be used: {explain_validation(error)}") from error


def _check(model: nn.Module, state: Applied) -> tuple[Architecture, list[Projection], Timeline]:
    """Check everything; return the family, the projections at the method's sites, and its schedule."""
    if find_applied(model) is not None:
        raise AlreadyApplied(
            f"A method has already been applied to this {type(model).__name__}. Call oelm.remove(model) first, or "
            "change what is frozen with oelm.freeze and oelm.unfreeze."
        )
    refuse_wrapped(model)
    architecture = architecture_of(model, state.names)
    projections = _at_sites(architecture.projections(model), state.method)
    return architecture, projections, refuse_unfit(architecture, model, projections, state.method)


def _prepare(
    architecture: Architecture, model: nn.Module, projections: list[Projection], method: MethodSpec
) -> list[Projection]:
    """Split and narrow projections as the method needs it; return the resulting projections."""
    _make_separate(projections, method)
    if method.repair.position_features and method.init.shape != "absent":
        architecture.narrow(model, method.repair, queries_and_keys(projections))
        projections = _at_sites(architecture.projections(model), method)
    return projections


def _make_separate(projections: list[Projection], method: MethodSpec) -> None:
    """Give roles that are frozen or have another learning rate their own parameters."""
    absent = method.init.shape == "absent"
    narrow = bool(method.repair.position_features)
    roles = {*method.freeze.roles, *method.rates.roles, *(("q", "k") if absent or narrow else ())}
    for projection in projections:
        if projection.role in roles:
            projection.split(biases=method.freeze.biases or absent or narrow)


def _build_in(architecture: Architecture, model: nn.Module, projections: list[Projection], state: Applied) -> None:
    """Change what is more than weights (remove Q and K, add repairs), and mark the model with its method."""
    setattr(model, APPLIED, state)
    _copy_config(model)
    chosen = queries_and_keys(projections)
    if state.method.init.shape == "absent":
        architecture.remove_qk(model, chosen)
        # If modules of Q and K remain, they are frozen, so that zero queries stay zero.
        left = queries_and_keys(_at_sites(architecture.projections(model), state.method))
        _hold(model, [named for projection in left for named in projection.parameters(biases=True)])
    architecture.set_apart(model, state.method, chosen)
    chosen = queries_and_keys(_at_sites(architecture.projections(model), state.method))
    architecture.install(model, state.method, chosen)
    draw_repairs(model, state.seed)
    _note(model, state)


def _specialise(architecture: Architecture, model: nn.Module, method: MethodSpec) -> None:
    if method.slices_stay:
        for projection in queries_and_keys(_at_sites(architecture.projections(model), method)):
            architecture.specialise(model, projection)


def _hold(model: nn.Module, tensors: Iterable[tuple[str, nn.Parameter]]) -> list[str]:
    state = _require_applied(model)
    named = list(tensors)
    state.hashes.update(freeze_tensors(named))
    state.casts.update(hash_rounded(named))
    _note(unwrap(model), state)
    return [name for name, _ in named]


def _copy_config(model: nn.Module) -> None:
    """Copy the configuration of a `transformers` model, which may be shared with other models."""
    config: Any = getattr(model, "config", None)
    if hasattr(config, "save_pretrained"):
        own = copy(config)
        for module in model.modules():
            if module.__dict__.get("config") is config:
                module.config = own


def _note(model: nn.Module, state: Applied) -> None:
    """Write the method into the configuration of a `transformers` model, which is saved as config.json."""
    config: Any = getattr(model, "config", None)
    if hasattr(config, "save_pretrained"):
        config.oelm = {
            "method": state.method.model_dump(mode="json"),
            "seed": state.seed,
            "hashes": dict(state.hashes),
            "casts": {name: list(casts) for name, casts in state.casts.items()},
        }
        if state.names is not None:
            config.oelm["names"] = state.names.model_dump(mode="json")


def _require_applied(model: nn.Module) -> Applied:
    state = find_applied(model)
    if state is None:
        raise MethodError(
            f"No method has been applied to this {type(model).__name__}. Call oelm.apply(model, method) first; "
            "the method 'baseline' changes nothing."
        )
    return state


def _at_sites(projections: list[Projection], method: MethodSpec) -> list[Projection]:
    if method.sites is None:
        return projections
    missing = set(method.sites) - {projection.site for projection in projections}
    if missing:
        raise BadShape(
            f"the method names the attention sites {sorted(missing)}, but this model has "
            f"{sorted({p.site for p in projections})}. Name some of these, or sites=None for all."
        )
    return [projection for projection in projections if projection.site in method.sites]
