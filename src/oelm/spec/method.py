"""The method as a value: a point in a product space, never a class hierarchy.

    MethodSpec = initialisation of Q/K  x  what is frozen  x  when  x  repairs of the logits  x  learning rates

Named methods are constants of this space, so the cells between them exist too. Code that meets a cell it does
not carry out refuses it by name; nothing is ignored.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveFloat, model_validator

from oelm.errors import InvalidSpec, UnknownName
from oelm.spec.base import Spec
from oelm.spec.model import INITIAL_DEVIATION
from oelm.spec.repair import RepairSpec

Role = Literal["q", "k", "v", "o", "ffn"]
Site = Literal["self", "encoder", "decoder", "cross"]
Layers = tuple[int, ...]
"""Layer numbers; negative ones count from the last, as in Python."""
Moment = NonNegativeInt | Annotated[float, Field(ge=0, le=1)]
"""When: a step number, or (as a float) a fraction of training."""


class InitSpec(Spec):
    """What is drawn into every Q and K projection the method reaches.

    `host` leaves the weights as the model made them and `absent` removes Q and K, so that attention is uniform.
    `gain` multiplies what is drawn (with `host`: what is there), so that the logits start gain^2 times as large;
    `matched` rescales each head to the Frobenius norm of an orthogonal one.
    """

    shape: Literal["host", "normal", "orthogonal", "slice", "hadamard", "absent"] = "host"
    scope: Literal["head", "global"] = "head"
    source: Literal["fresh", "current"] = "fresh"
    gain: PositiveFloat = 1.0
    deviation: PositiveFloat | None = None
    """Of each entry of a `normal` draw that is not matched in scale."""
    matched: bool = False
    correlation: Annotated[float, Field(ge=-1, le=1)] = 0.0
    """b of K_h = b Q_h + sqrt(1 - b^2) Z_h, head by head: at 1 a head compares tokens by one and the same map."""

    @model_validator(mode="after")
    def _means_something(self) -> Self:
        if self.scope == "global" and self.shape != "orthogonal":
            raise ValueError(f"scope='global' is one QR over all heads: it goes with 'orthogonal', not {self.shape!r}")
        if self.source == "current" and self.shape not in ("normal", "orthogonal"):
            raise ValueError(
                f"source='current' keeps a row space: it goes with 'orthogonal' or 'normal', not {self.shape!r}"
            )
        if self.matched and self.shape != "normal":
            raise ValueError(f"matched=True rescales a Gaussian: it goes with 'normal', not {self.shape!r}")
        if (self.deviation is not None) != (self.shape == "normal" and not self.matched):
            raise ValueError(
                "a 'normal' draw takes its scale from deviation or from matched=True, exactly one of "
                f"them; no other shape has a deviation (shape={self.shape!r}, "
                f"deviation={self.deviation}, matched={self.matched})"
            )
        if self.gain != 1.0 and self.shape == "absent":
            raise ValueError("gain scales Q and K, and 'absent' leaves none")
        correlates = self.shape in ("normal", "orthogonal") and (self.scope, self.source) == ("head", "fresh")
        if self.correlation != 0.0 and not correlates:
            raise ValueError(
                "correlation mixes fresh draws head by head: it goes with 'normal' or 'orthogonal', scope='head' and "
                f"source='fresh', not shape={self.shape!r}, scope={self.scope!r}, source={self.source!r}"
            )
        return self

    @property
    def draws(self) -> bool:
        """Whether Q and K get other values than those they have."""
        return self.shape not in ("host", "absent") or self.gain != 1.0


class FreezeSpec(Spec):
    """Which weights are frozen: roles, in which layers (None: all), with or without their biases."""

    roles: tuple[Role, ...] = ()
    layers: Layers | None = None
    biases: bool = True

    @model_validator(mode="after")
    def _says_each_role_once(self) -> Self:
        if len(set(self.roles)) != len(self.roles):
            raise ValueError(f"a role stands twice in {self.roles}")
        return self


class Change(Spec):
    """Freeze or unfreeze some layers (None: all that the method freezes) at one moment."""

    kind: Literal["change"] = "change"
    action: Literal["freeze", "unfreeze"]
    at: Moment
    layers: Layers | None = None


class Sweep(Spec):
    """Freeze or unfreeze layer after layer, evenly from `start` to `stop`."""

    kind: Literal["sweep"] = "sweep"
    action: Literal["freeze", "unfreeze"]
    start: Moment
    stop: Moment
    order: Literal["first-to-last", "last-to-first"] = "last-to-first"

    @model_validator(mode="after")
    def _runs_forward(self) -> Self:
        if type(self.start) is not type(self.stop):
            raise ValueError("start and stop are both steps (integers) or both fractions of training (floats)")
        if self.start >= self.stop:
            raise ValueError(f"a sweep runs forward, but start={self.start} and stop={self.stop}")
        return self


class ScheduleSpec(Spec):
    """When the frozen roles are frozen.

    A layer whose first change is `freeze` trains until then; every other layer starts frozen. With `every=N`
    what is frozen at the time is updated on each N-th step after all, and on the steps between has no gradient,
    no moments and no decay.
    """

    changes: tuple[Annotated[Change | Sweep, Field(discriminator="kind")], ...] = ()
    every: Annotated[int, Field(ge=2)] | None = None

    @model_validator(mode="after")
    def _has_one_clock(self) -> Self:
        moments = [change.at if isinstance(change, Change) else change.start for change in self.changes]
        if len({type(moment) for moment in moments if moment != 0}) > 1:
            raise ValueError(
                f"the changes come at {moments}, in steps (integers) and in fractions of training (floats): which is "
                "first depends on how long training is; give all in one of them"
            )
        return self

    @property
    def moves(self) -> bool:
        """Whether what trains changes during training; what is unfrozen at step 0 never was frozen."""
        later = (change for change in self.changes if not isinstance(change, Change) or change.at > 0)
        return self.every is not None or any(later)


class RatesSpec(Spec):
    """Multipliers on the learning rate: by role, by layer, and geometric by depth (the last layer has 1).

    A repair learns at the rate of its layer; the role of the projection it repairs has no say in it.
    """

    roles: dict[Role, PositiveFloat] = {}
    layers: dict[int, PositiveFloat] = {}
    layer_decay: Annotated[float, Field(gt=0, le=1)] = 1.0


class MethodSpec(Spec):
    """One cell of the ablation. `sites` limits all of it to some attention sites (None: every site)."""

    init: InitSpec = InitSpec()
    freeze: FreezeSpec = FreezeSpec()
    schedule: ScheduleSpec = ScheduleSpec()
    repair: RepairSpec = RepairSpec()
    rates: RatesSpec = RatesSpec()
    sites: tuple[Site, ...] | None = None

    @model_validator(mode="after")
    def _schedules_something(self) -> Self:
        if (self.schedule.changes or self.schedule.every) and not self.freeze.roles:
            raise ValueError("a schedule says when roles are frozen, and freeze.roles is empty; name roles there")
        if self.init.shape == "absent" and (self.freeze.roles or self.repair.active()):
            both = {"q", "k"} & set(self.freeze.roles) or self.repair.active()
            if both:
                raise ValueError(f"init.shape='absent' leaves no Q or K for {sorted(both)} to act on")
        if self.repair.qk_norm and self.init.gain != 1.0:
            raise ValueError(
                f"repair.qk_norm gives every query and key one norm, so that init.gain={self.init.gain} would "
                "scale nothing; leave one of them off"
            )
        return self

    @property
    def touches(self) -> bool:
        """Whether applying this method changes anything at all."""
        return self != MethodSpec()


_QK: tuple[Role, ...] = ("q", "k")
_ORTHOGONAL = InitSpec(shape="orthogonal")
_FROM_CURRENT = InitSpec(shape="orthogonal", source="current")
_FROZEN = FreezeSpec(roles=_QK)

PARTS: dict[str, tuple[Literal["init", "repair", "rates"], str, bool | int | float | None]] = {
    "shift": ("repair", "key_shift", 0.5),
    "temperature": ("repair", "temperature", True),
    "qk-norm": ("repair", "qk_norm", True),
    "core": ("repair", "core", True),
    "diagonal": ("repair", "diagonal", True),
    "low-rank": ("repair", "low_rank", 4),
    "bias": ("repair", "position_bias", True),
    "mix": ("repair", "key_mix", True),
    "correlated": ("init", "correlation", 0.5),
    "gain": ("init", "gain", None),
    "layer-rates": ("rates", "layer_decay", None),
}
"""What can be added to a method by name: the field it sets, and to what unless told (None: it must be told)."""
_REPAIRED = ("shift", "temperature", "qk-norm", "core", "diagonal", "low-rank", "bias", "mix", "core+diagonal")

METHODS: dict[str, MethodSpec] = {
    "baseline": MethodSpec(),
    "oelm-freeze": MethodSpec(init=_ORTHOGONAL, freeze=_FROZEN),
    "oelm-random": MethodSpec(init=InitSpec(shape="normal", deviation=INITIAL_DEVIATION), freeze=_FROZEN),
    "oelm-random-matched": MethodSpec(init=InitSpec(shape="normal", matched=True), freeze=_FROZEN),
    "oelm-global": MethodSpec(init=InitSpec(shape="orthogonal", scope="global"), freeze=_FROZEN),
    "oelm-from-current": MethodSpec(init=_FROM_CURRENT, freeze=_FROZEN),
    "oelm-random-from-current": MethodSpec(
        init=InitSpec(shape="normal", source="current", matched=True), freeze=_FROZEN
    ),
    "frozen-as-is": MethodSpec(freeze=_FROZEN),
    "orthogonal-trained": MethodSpec(init=_ORTHOGONAL),
    "orthogonal-from-current-trained": MethodSpec(init=_FROM_CURRENT),
    "oelm-q-only": MethodSpec(init=_ORTHOGONAL, freeze=FreezeSpec(roles=("q",))),
    "oelm-qk-ffn": MethodSpec(init=_ORTHOGONAL, freeze=FreezeSpec(roles=(*_QK, "ffn"))),
    "oelm-slice": MethodSpec(init=InitSpec(shape="slice"), freeze=_FROZEN),
    "oelm-hadamard": MethodSpec(init=InitSpec(shape="hadamard"), freeze=_FROZEN),
    "uniform": MethodSpec(init=InitSpec(shape="absent")),
}

FORMS = {
    "oelm-partial": "oelm-partial:LAYERS, the layers whose Q/K train, e.g. oelm-partial:-1 or oelm-partial:0,-1",
    "oelm-progressive": "oelm-progressive:START-STOP[:first|:last], layers unfrozen one by one between two "
    "fractions of training, the last layer first unless told, e.g. oelm-progressive:0.2-0.8",
    "oelm-every": "oelm-every:N, Q/K updated on each N-th step, e.g. oelm-every:10",
    "train-then-freeze": "train-then-freeze:FRACTION[:orthogonal], Q/K trained up to that fraction of training and "
    "frozen from there, starting as the model has them unless told, e.g. train-then-freeze:0.3",
    "unfreeze-late": "unfreeze-late:FRACTION, orthogonal Q/K frozen up to that fraction of training and trained from "
    "there, e.g. unfreeze-late:0.8",
}
COMPOSED = (
    "NAME+PART[=VALUE]+..., a method (oelm stands for oelm-freeze) with parts added, each one of "
    + ", ".join(name if default is not None else f"{name}=VALUE" for name, (_, _, default) in PARTS.items())
    + ", e.g. oelm+core+bias or baseline+low-rank=8"
)


def oelm_partial(*trained: int) -> MethodSpec:
    """Freeze Q/K for good in all layers but `trained`; every layer starts orthogonal."""
    return _scheduled(Change(action="unfreeze", at=0, layers=trained))


def oelm_progressive(start: float, stop: float, order: Literal["first", "last"] = "last") -> MethodSpec:
    """Unfreeze Q/K layer by layer between two fractions of training."""
    way: Literal["first-to-last", "last-to-first"] = "first-to-last" if order == "first" else "last-to-first"
    return _scheduled(Sweep(action="unfreeze", start=start, stop=stop, order=way))


def oelm_every(steps: int) -> MethodSpec:
    """Update Q/K on each `steps`-th step only."""
    return METHODS["oelm-freeze"].model_copy(update={"schedule": ScheduleSpec(every=steps)})


def train_then_freeze(fraction: float, *, orthogonal: bool = False) -> MethodSpec:
    """Train Q/K up to a fraction of training, from where the baseline starts or from orthogonal, then freeze them."""
    return _scheduled(Change(action="freeze", at=fraction), "oelm-freeze" if orthogonal else "frozen-as-is")


def unfreeze_late(fraction: float) -> MethodSpec:
    """Keep orthogonal Q/K frozen up to a fraction of training, then train them."""
    return _scheduled(Change(action="unfreeze", at=fraction))


def _scheduled(change: Change | Sweep, name: str = "oelm-freeze") -> MethodSpec:
    return METHODS[name].model_copy(update={"schedule": ScheduleSpec(changes=(change,))})


def named_method(name: str) -> MethodSpec:
    """Return the method of a name, of a parametrised form such as `oelm-every:10`, or of either with parts added."""
    if name in METHODS:
        return METHODS[name]
    base, *parts = name.split("+")
    form, _, argument = base.partition(":")
    if parts:
        form, method = COMPOSED, named_method("oelm-freeze" if base == "oelm" else base)
    elif form not in FORMS:
        forms = "; ".join((*FORMS.values(), COMPOSED))
        raise UnknownName("method", name, METHODS, f"Parametrised: {forms}.")
    try:
        return composed(method, *parts) if parts else _parametrised(form, argument)
    except ValueError as error:
        raise InvalidSpec(f"{name!r} is not of the form {FORMS.get(form, form)} ({error}).") from error


def composed(method: MethodSpec, *parts: str) -> MethodSpec:
    """Add parts, such as `core` or `low-rank=8`, to a method that has none of them yet."""
    for part in parts:
        name, _, value = part.partition("=")
        if name not in PARTS:
            raise UnknownName("part of a method", name, PARTS)
        section, field, default = PARTS[name]
        whole = getattr(method, section)
        if getattr(whole, field) != type(whole).model_fields[field].default:
            raise ValueError(f"{name!r} stands twice")
        if value and default is True:
            raise ValueError(f"{name!r} is on or off and takes no value")
        if not value and default is None:
            raise ValueError(f"{name!r} needs a value")
        # Built anew, not copied, so that what does not go together is refused.
        changed = type(whole).model_validate({**dict(whole), field: value or default})
        method = MethodSpec.model_validate({**dict(method), section: changed})
    return method


def _parametrised(form: str, argument: str) -> MethodSpec:
    if form == "oelm-partial":
        return oelm_partial(*(int(layer) for layer in argument.split(",")))
    if form == "oelm-every":
        return oelm_every(int(argument))
    if form == "unfreeze-late":
        return unfreeze_late(float(argument))
    first, _, way = argument.partition(":")
    if form == "train-then-freeze":
        _refuse_other(way, "orthogonal")
        return train_then_freeze(float(first), orthogonal=way == "orthogonal")
    start, stop = first.split("-")
    _refuse_other(way, "first", "last")
    return oelm_progressive(float(start), float(stop), "first" if way == "first" else "last")


def _refuse_other(word: str, *known: str) -> None:
    if word not in ("", *known):
        raise ValueError(f"{word!r} is not {' or '.join(map(repr, known))}")


for _base, _short in (("oelm-freeze", "oelm"), ("baseline", "baseline")):
    METHODS |= {
        f"{_short}-{parts.replace('+', '-')}": composed(METHODS[_base], *parts.split("+")) for parts in _REPAIRED
    }
METHODS["oelm-correlated"] = composed(METHODS["oelm-freeze"], "correlated")
