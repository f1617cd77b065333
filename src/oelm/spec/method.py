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

Role = Literal["q", "k", "v", "o", "ffn"]
Site = Literal["self", "encoder", "decoder", "cross"]
Layers = tuple[int, ...]
"""Layer numbers; negative ones count from the last, as in Python."""
Moment = NonNegativeInt | Annotated[float, Field(ge=0, le=1)]
"""When: a step number, or (as a float) a fraction of training."""


class InitSpec(Spec):
    """What is drawn into every Q and K projection the method reaches.

    `host` leaves the weights as the model made them and `absent` removes Q and K, so that attention is uniform.
    `gain` multiplies what is drawn; `matched` rescales each head to the Frobenius norm of an orthogonal one.
    """

    shape: Literal["host", "normal", "orthogonal", "slice", "hadamard", "absent"] = "host"
    scope: Literal["head", "global"] = "head"
    source: Literal["fresh", "current"] = "fresh"
    gain: PositiveFloat = 1.0
    deviation: PositiveFloat | None = None
    """Of each entry of a `normal` draw that is not matched in scale."""
    matched: bool = False
    correlation: Annotated[float, Field(ge=-1, le=1)] = 0.0

    @model_validator(mode="after")
    def _means_something(self) -> Self:
        drawn = self.shape in ("normal", "orthogonal", "slice", "hadamard")
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
        if (self.gain != 1.0 or self.correlation != 0.0) and not drawn:
            raise ValueError(f"gain and correlation shape what is drawn, and {self.shape!r} draws nothing")
        return self


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


class RepairSpec(Spec):
    """Everything that changes the Q/K logits beyond the two projections. All off by default, free for any arm."""

    key_shift: Annotated[float, Field(ge=0, le=1)] = 0.0
    """The share of heads that read the key of the token before."""
    temperature: bool = False
    """A trained factor on each head's logits, one at the start."""
    qk_norm: bool = False
    """Normalise each head's queries and keys."""
    core: bool = False
    """A trained K x K matrix per head between the frozen frames."""
    diagonal: bool = False
    """A trained diagonal on the input of Q and of K."""
    low_rank: Annotated[int, Field(ge=0)] = 0
    """The rank of a trained residual on frozen Q/K."""
    position_bias: bool = False
    """A trained bias per head and distance."""
    key_mix: bool = False
    """A trained mixture, per head, of a token's key and the one before."""

    def active(self) -> tuple[str, ...]:
        """Name the repairs that are on."""
        return tuple(name for name in type(self).model_fields if getattr(self, name))


class RatesSpec(Spec):
    """Multipliers on the learning rate: by role, by layer, and geometric by depth (the last layer has 1)."""

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
        return self

    @property
    def touches(self) -> bool:
        """Whether applying this method changes anything at all."""
        return self != MethodSpec()


_QK: tuple[Role, ...] = ("q", "k")
_ORTHOGONAL = InitSpec(shape="orthogonal")
_FROM_CURRENT = InitSpec(shape="orthogonal", source="current")
_FROZEN = FreezeSpec(roles=_QK)
_SHIFT = RepairSpec(key_shift=0.5)

METHODS: dict[str, MethodSpec] = {
    "baseline": MethodSpec(),
    "oelm-freeze": MethodSpec(init=_ORTHOGONAL, freeze=_FROZEN),
    "oelm-random": MethodSpec(init=InitSpec(shape="normal", deviation=0.02), freeze=_FROZEN),
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
    "oelm-shift": MethodSpec(init=_ORTHOGONAL, freeze=_FROZEN, repair=_SHIFT),
    "baseline-shift": MethodSpec(repair=_SHIFT),
}

FORMS = {
    "oelm-partial": "oelm-partial:LAYERS, the layers whose Q/K train, e.g. oelm-partial:-1 or oelm-partial:0,-1",
    "oelm-progressive": "oelm-progressive:START-STOP[:first|:last], layers unfrozen one by one between two "
    "fractions of training, the last layer first unless told, e.g. oelm-progressive:0.2-0.8",
    "oelm-every": "oelm-every:N, Q/K updated on each N-th step, e.g. oelm-every:10",
}


def oelm_partial(*trained: int) -> MethodSpec:
    """Freeze Q/K for good in all layers but `trained`; every layer starts orthogonal."""
    release = Change(action="unfreeze", at=0, layers=trained)
    return METHODS["oelm-freeze"].model_copy(update={"schedule": ScheduleSpec(changes=(release,))})


def oelm_progressive(start: float, stop: float, order: Literal["first", "last"] = "last") -> MethodSpec:
    """Unfreeze Q/K layer by layer between two fractions of training."""
    way: Literal["first-to-last", "last-to-first"] = "first-to-last" if order == "first" else "last-to-first"
    sweep = Sweep(action="unfreeze", start=start, stop=stop, order=way)
    return METHODS["oelm-freeze"].model_copy(update={"schedule": ScheduleSpec(changes=(sweep,))})


def oelm_every(steps: int) -> MethodSpec:
    """Update Q/K on each `steps`-th step only."""
    return METHODS["oelm-freeze"].model_copy(update={"schedule": ScheduleSpec(every=steps)})


def named_method(name: str) -> MethodSpec:
    """Return the method of a name, or of a parametrised form such as `oelm-every:10`."""
    if name in METHODS:
        return METHODS[name]
    form, _, argument = name.partition(":")
    if form not in FORMS:
        raise UnknownName("method", name, METHODS, "Parametrised: " + "; ".join(FORMS.values()) + ".")
    try:
        return _parametrised(form, argument)
    except ValueError as error:
        raise InvalidSpec(f"{name!r} is not of the form {FORMS[form]} ({error}).") from error


def _parametrised(form: str, argument: str) -> MethodSpec:
    if form == "oelm-partial":
        return oelm_partial(*(int(layer) for layer in argument.split(",")))
    if form == "oelm-every":
        return oelm_every(int(argument))
    span, _, order = argument.partition(":")
    start, stop = span.split("-")
    if order not in ("", "first", "last"):
        raise ValueError(f"{order!r} is neither 'first' nor 'last'")
    return oelm_progressive(float(start), float(stop), "first" if order == "first" else "last")
