"""The method as a value: a point in a product space, never a class hierarchy.

    MethodSpec = initialisation of Q/K  x  what is frozen  x  when  x  repairs of the logits  x  learning rates

Named methods are constants of this space, so every combination between them exists as well. A combination that is not
implemented for a model is refused by name and never ignored.

Names stand for points of the space:

- `oelm-freeze` is a named method: a published one or a control.
- `train-then-freeze:0.3` is a parametrised form.
- `oelm+core+low-rank=8` is a method with parts added; `oelm` is short for `oelm-freeze`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, field_validator, model_validator

from oelm.errors import InvalidSpec, UnknownName
from oelm.spec import Spec, explain_validation

Role = Literal["q", "k", "v", "o", "ffn"]
Site = Literal["self", "encoder", "decoder", "cross"]
Layers = tuple[int, ...]
"""Layer numbers; negative ones count from the last layer, as in Python."""
Moment = Annotated[int, Field(strict=True, ge=0)] | Annotated[float, Field(ge=0, le=1)]
"""A step number, or (as a float) a fraction of training. Integers are strict, because 30.0 would become step 30."""
ArmClass = Literal["trained", "frozen", "repaired"]
"""Arms whose results vary similarly over seeds: nothing is frozen; weights are frozen; weights are frozen and trained
repairs are on."""

POSITION_REPAIRS = frozenset({"position_features", "position_bias"})
"""Repairs that read positions only, so that they also work without Q and K."""

UNTRAINED_REPAIRS = frozenset({"key_shift"})
"""Repairs without trained parameters."""

INITIAL_DEVIATION = 0.02
"""Standard deviation of the matrices of our GPT, and of the frozen Gaussian that imitates its initialisation."""


def heads_of(share: float, num_heads: int) -> int:
    """Return the number of heads in a share of them: none for 0, otherwise at least one."""
    return max(1, round(share * num_heads)) if share else 0


class RepairSpec(Spec):
    """Everything that changes the Q/K logits beyond the two projections.

    Every repair is off by default and allowed on any arm. Each starts without an effect, except `key_shift`, `qk_norm`
    and `position_features`, which change the function itself. They act in this order:

        x -> diagonal -> projection + low_rank -> core -> query_bias -> qk_norm -> positions -> key_shift
          -> key_mix -> temperature -> position_features appended -> logits + position_bias
    """

    key_shift: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the heads that read the key of the previous token."""
    temperature: bool = False
    """A trained factor on each head's logits, one at the start."""
    qk_norm: bool = False
    """Give each head's queries and keys the norm sqrt(K), and its logits a trained factor, one at the start."""
    core: bool = False
    """A trained K x K matrix per query head between the two frames, the identity at the start."""
    diagonal: bool = False
    """A trained diagonal on the input of Q and another on that of K, ones at the start."""
    query_bias: bool = False
    """A trained vector per head, added to its queries: a preference for some keys, whatever the query is."""
    low_rank: Annotated[int, Field(ge=0)] = 0
    """Rank of a trained residual on Q and of another on K, zero at the start."""
    position_bias: bool = False
    """A trained bias per head and distance, zero at the start."""
    key_mix: bool = False
    """A trained mixture, per key head, of a token's key and the previous one; at the start only its own."""
    position_features: Annotated[int, Field(ge=0)] | Literal["quarter"] = 0
    """Number M of trained frequencies per head. Their features replace the last 2M coordinates of each head's queries
    and keys, so that the logits contain a trained function of distance without a mask. "quarter" is a quarter of the
    head size, which leaves half of the coordinates to content."""

    @model_validator(mode="after")
    def _refuse_two_factors(self) -> Self:
        if self.qk_norm and self.temperature:
            raise ValueError("qk_norm has a trained factor per head already; leave temperature off")
        return self

    def num_frequencies(self, head_size: int) -> int:
        """Return M for heads of this size."""
        return head_size // 4 if self.position_features == "quarter" else self.position_features

    def active(self) -> tuple[str, ...]:
        """Return the names of the repairs that are on."""
        return tuple(name for name in type(self).model_fields if getattr(self, name))


class InitSpec(Spec):
    """How every Q and K projection of the method is initialised."""

    shape: Literal["host", "normal", "orthogonal", "slice", "hadamard", "absent"] = "host"
    """`host` keeps the model's weights. `absent` removes Q and K: attention is then uniform, or a function of positions
    alone if a position repair is on."""
    scope: Literal["head", "global"] = "head"
    """Whether the rows are orthogonal within each head or across all heads."""
    source: Literal["fresh", "current"] = "fresh"
    """Whether weights are drawn freely or within the row space of the current weights."""
    gain: PositiveFloat = 1.0
    """Factor on the weights, so that the logits start gain^2 times as large."""
    deviation: PositiveFloat | None = None
    """Standard deviation of each entry of a `normal` draw that is not `matched`."""
    matched: bool = False
    """Rescale each head of a `normal` draw to the Frobenius norm of an orthogonal one."""
    correlation: Annotated[float, Field(ge=-1, le=1)] = 0.0
    """b of K_h = b Q_h + sqrt(1 - b^2) Z_h for each head h: at 1, a head compares tokens by one and the same map."""
    same_heads: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the heads, the first ones, whose queries and keys read the same coordinates (`slice` only). With a key
    shift such a head finds earlier occurrences of the current token and reads what followed: induction."""

    @model_validator(mode="after")
    def _refuse_contradictions(self) -> Self:
        shape = self.shape
        if self.same_heads and shape != "slice":
            raise ValueError(f"same_heads says which coordinates slices read: it goes with 'slice', not {shape!r}")
        if self.scope == "global" and shape != "orthogonal":
            raise ValueError(f"scope='global' is one QR over all heads: it goes with 'orthogonal', not {shape!r}")
        if self.source == "current" and shape not in ("normal", "orthogonal"):
            raise ValueError(
                f"source='current' keeps a row space: it goes with 'orthogonal' or 'normal', not {shape!r}"
            )
        if self.matched and shape != "normal":
            raise ValueError(f"matched=True rescales a Gaussian: it goes with 'normal', not {shape!r}")
        if (self.deviation is not None) != (shape == "normal" and not self.matched):
            raise ValueError(
                "shape='normal' needs either deviation or matched=True, and no other shape has a deviation "
                f"(found shape={shape!r}, deviation={self.deviation}, matched={self.matched})"
            )
        if self.gain != 1.0 and shape == "absent":
            raise ValueError("gain scales Q and K, but shape='absent' removes them")
        correlates = shape in ("normal", "orthogonal") and (self.scope, self.source) == ("head", "fresh")
        if self.correlation != 0.0 and not correlates:
            raise ValueError(
                "correlation mixes fresh draws head by head: it goes with 'normal' or 'orthogonal', scope='head' and "
                f"source='fresh', not shape={shape!r}, scope={self.scope!r}, source={self.source!r}"
            )
        return self

    @property
    def draws(self) -> bool:
        """Whether Q and K get new values."""
        return self.shape not in ("host", "absent") or self.gain != 1.0


class FreezeSpec(Spec):
    """The weights to freeze: which roles, in which layers (None: all), with or without their biases."""

    roles: tuple[Role, ...] = ()
    layers: Layers | None = None
    biases: bool = True

    @model_validator(mode="after")
    def _refuse_double_roles(self) -> Self:
        if len(set(self.roles)) != len(self.roles):
            raise ValueError(f"a role is named twice in {self.roles}")
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
    def _refuse_backward(self) -> Self:
        if type(self.start) is not type(self.stop):
            raise ValueError("start and stop must both be steps (integers) or both fractions of training (floats)")
        if self.start >= self.stop:
            raise ValueError(f"a sweep runs forward, but start={self.start} and stop={self.stop}")
        return self


class ScheduleSpec(Spec):
    """When the frozen roles are frozen.

    A layer whose first change is `freeze` trains until then; every other layer starts frozen. With `every=N`, frozen
    weights are updated on every N-th step; on the steps between they have no gradient, no moments and no decay.
    """

    changes: tuple[Annotated[Change | Sweep, Field(discriminator="kind")], ...] = ()
    every: Annotated[int, Field(ge=2)] | None = None

    @model_validator(mode="after")
    def _refuse_two_clocks(self) -> Self:
        moments = [change.at if isinstance(change, Change) else change.start for change in self.changes]
        if len({type(moment) for moment in moments if moment != 0}) > 1:
            raise ValueError(
                f"the changes at {moments} are in steps (integers) and in fractions of training (floats), so which is "
                "first depends on how long training is; use one of them for all"
            )
        return self

    @property
    def moments(self) -> tuple[Moment, ...]:
        """The steps or fractions of training at which the changes are."""
        pairs = ((each.at,) if isinstance(each, Change) else (each.start, each.stop) for each in self.changes)
        return tuple(moment for pair in pairs for moment in pair)

    @property
    def later(self) -> tuple[Change | Sweep, ...]:
        """The changes during training, without those at step 0: weights that are unfrozen there never were frozen."""
        return tuple(change for change in self.changes if not isinstance(change, Change) or change.at > 0)

    @property
    def moves(self) -> bool:
        """Whether the set of trained weights changes during training."""
        return self.every is not None or bool(self.later)


class RatesSpec(Spec):
    """Multipliers on the learning rate: by role, by layer, and geometric by depth (the last layer has 1).

    A repair learns at the rate of its layer, whatever the role of the projection it repairs.
    """

    roles: Mapping[Role, PositiveFloat] = {}
    layers: Mapping[int, PositiveFloat] = {}
    layer_decay: Annotated[float, Field(gt=0, le=1)] = 1.0


class NamesSpec(Spec):
    """The names of the modules that hold each role, for models of an unknown family; the last parts of dotted names."""

    q: str
    k: str
    v: str | None = None
    o: str | None = None
    ffn: tuple[str, ...] = ()
    heads: PositiveInt | None = None
    """Number of query heads; None: as in the model's configuration."""
    key_heads: PositiveInt | None = None
    """Number of key heads; None: as many as fit the shapes."""

    @field_validator("ffn", mode="before")
    @classmethod
    def _accept_one_name(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _refuse_one_module(self) -> Self:
        if self.q == self.k:
            raise ValueError(
                f"q and k are both {self.q!r}: one module with several roles has an order of rows that a name does "
                "not tell. Write an oelm.Architecture with oelm.Fused; see docs/architectures.md."
            )
        return self


class MethodSpec(Spec):
    """One cell of the ablation. `sites` limits the method to some attention sites (None: all)."""

    init: InitSpec = InitSpec()
    freeze: FreezeSpec = FreezeSpec()
    schedule: ScheduleSpec = ScheduleSpec()
    repair: RepairSpec = RepairSpec()
    rates: RatesSpec = RatesSpec()
    sites: tuple[Site, ...] | None = None

    @model_validator(mode="after")
    def _refuse_parts_without_effect(self) -> Self:
        if (self.schedule.changes or self.schedule.every) and not self.freeze.roles:
            raise ValueError("a schedule says when roles are frozen, but freeze.roles is empty; name roles there")
        if self.init.shape == "absent":
            both = {"q", "k"} & set(self.freeze.roles) | set(self.repair.active()) - POSITION_REPAIRS
            if both:
                raise ValueError(f"init.shape='absent' leaves no Q or K for {sorted(both)} to act on")
        if self.repair.qk_norm and self.init.gain != 1.0:
            raise ValueError(
                f"init.gain={self.init.gain} has no effect with repair.qk_norm, which gives queries and keys a fixed "
                "norm; leave one of them out"
            )
        return self

    @property
    def slices_stay(self) -> bool:
        """Whether Q and K are slices during all of training, so that they can be read without a matrix product."""
        frozen = {"q", "k"} <= set(self.freeze.roles) and not self.schedule.moves
        return self.init.shape == "slice" and frozen

    @property
    def arm_class(self) -> ArmClass:
        """The class of arms whose results vary over seeds as those of this method do."""
        if not self.freeze.roles and self.init.shape != "absent":
            return "trained"
        return "repaired" if set(self.repair.active()) - UNTRAINED_REPAIRS else "frozen"

    @property
    def touches(self) -> bool:
        """Whether applying this method changes anything."""
        return self != MethodSpec()


_QK: tuple[Role, ...] = ("q", "k")
_ORTHOGONAL = InitSpec(shape="orthogonal")
_FROM_CURRENT = InitSpec(shape="orthogonal", source="current")
_FROZEN = FreezeSpec(roles=_QK)

PARTS: dict[str, tuple[Literal["init", "repair", "rates"], str, bool | int | float | str | None]] = {
    "shift": ("repair", "key_shift", 0.5),
    "temperature": ("repair", "temperature", True),
    "qk-norm": ("repair", "qk_norm", True),
    "core": ("repair", "core", True),
    "diagonal": ("repair", "diagonal", True),
    "query-bias": ("repair", "query_bias", True),
    "low-rank": ("repair", "low_rank", 4),
    "bias": ("repair", "position_bias", True),
    "mix": ("repair", "key_mix", True),
    "features": ("repair", "position_features", "quarter"),
    "correlated": ("init", "correlation", 0.5),
    "same": ("init", "same_heads", 0.5),
    "gain": ("init", "gain", None),
    "layer-rates": ("rates", "layer_decay", None),
}
"""Part of a method -> the section and field it sets, and its default value (None: a value must be given)."""
_REPAIRS = (*(name for name, (section, _, _) in PARTS.items() if section == "repair"), "core+diagonal")

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
    "random-trained": MethodSpec(init=InitSpec(shape="normal", deviation=INITIAL_DEVIATION)),
    "oelm-q-only": MethodSpec(init=_ORTHOGONAL, freeze=FreezeSpec(roles=("q",))),
    "oelm-qk-ffn": MethodSpec(init=_ORTHOGONAL, freeze=FreezeSpec(roles=(*_QK, "ffn"))),
    "oelm-slice": MethodSpec(init=InitSpec(shape="slice"), freeze=_FROZEN),
    "oelm-fast": MethodSpec(
        init=InitSpec(shape="slice", same_heads=0.5),
        freeze=_FROZEN,
        repair=RepairSpec(key_shift=0.5, query_bias=True, position_features="quarter"),
    ),
    "oelm-hadamard": MethodSpec(init=InitSpec(shape="hadamard"), freeze=_FROZEN),
    "uniform": MethodSpec(init=InitSpec(shape="absent")),
    "position-only": MethodSpec(init=InitSpec(shape="absent"), repair=RepairSpec(position_features="quarter")),
    "position-only-bias": MethodSpec(init=InitSpec(shape="absent"), repair=RepairSpec(position_bias=True)),
}


def methods() -> dict[str, MethodSpec]:
    """Return all named methods. Parametrised forms and added parts make more: docs/method.md lists them."""
    return dict(METHODS)


def named_method(name: str) -> MethodSpec:
    """Return the method of a name, of a parametrised form such as `oelm-every:10`, or of either with parts added."""
    if name in METHODS:
        return METHODS[name]
    base, *parts = name.split("+")
    form, _, argument = base.partition(":")
    try:
        if parts:
            usage = "NAME+PART[=VALUE]+..., e.g. oelm+core+bias or baseline+low-rank=8"
            return add_parts(named_method("oelm-freeze" if base == "oelm" else base), *parts)
        if form not in METHOD_FORMS:
            known = (
                ["oelm-freeze"]
                if name == "oelm"
                else [*METHODS, *(f"{form}:{argument}" if argument else form for form in METHOD_FORMS)]
            )
            raise UnknownName("method", name, known, "docs/method.md lists all methods and their forms.")
        usage, parse = METHOD_FORMS[form]
        return parse(argument)
    except ValueError as error:
        raise InvalidSpec(f"{name!r} is not of the form {usage} ({explain_validation(error)}).") from error


def add_parts(method: MethodSpec, *parts: str) -> MethodSpec:
    """Add parts, such as `core` or `low-rank=8`, to a method that does not have them yet."""
    for part in parts:
        name, _, value = part.partition("=")
        if name not in PARTS:
            raise UnknownName("part of a method", name, PARTS)
        section, field, default = PARTS[name]
        whole = getattr(method, section)
        if getattr(whole, field) != type(whole).model_fields[field].default:
            raise ValueError(f"{name!r} is there twice")
        if value and default is True:
            raise ValueError(f"{name!r} is on or off and takes no value")
        if not value and default is None:
            raise ValueError(f"{name!r} needs a value")
        # Validated, unlike model_copy, so that parts that contradict one another are refused.
        changed = type(whole).model_validate({**dict(whole), field: value or default})
        if section == "repair" and getattr(changed, field) == type(whole).model_fields[field].default:
            raise ValueError(f"{name!r} with the value {value} has no effect; leave it out")
        method = MethodSpec.model_validate({**dict(method), section: changed})
    return method


def _parse_partial(argument: str) -> MethodSpec:
    """Freeze Q/K in all layers but the named ones; every layer starts orthogonal."""
    return _schedule(Change(action="unfreeze", at=0, layers=tuple(int(layer) for layer in argument.split(","))))


def _parse_progressive(argument: str) -> MethodSpec:
    """Unfreeze Q/K layer by layer between two fractions of training, by default the last layer first."""
    span, _, first = argument.partition(":")
    start, stop = span.split("-")
    _refuse_other(first, "first", "last")
    order: Literal["first-to-last", "last-to-first"] = "first-to-last" if first == "first" else "last-to-first"
    return _schedule(Sweep(action="unfreeze", start=_fraction(start), stop=_fraction(stop), order=order))


def _parse_every(argument: str) -> MethodSpec:
    """Update Q/K on every N-th step only."""
    return METHODS["oelm-freeze"].model_copy(update={"schedule": ScheduleSpec(every=int(argument))})


def _parse_train_then_freeze(argument: str) -> MethodSpec:
    """Train Q/K up to a fraction of training, from the model's own or from orthogonal weights, then freeze them."""
    fraction, _, start = argument.partition(":")
    _refuse_other(start, "orthogonal")
    return _schedule(Change(action="freeze", at=_fraction(fraction)), "oelm-freeze" if start else "frozen-as-is")


def _parse_unfreeze_late(argument: str) -> MethodSpec:
    """Keep orthogonal Q/K frozen up to a fraction of training, then train them."""
    return _schedule(Change(action="unfreeze", at=_fraction(argument)))


METHOD_FORMS: dict[str, tuple[str, Callable[[str], MethodSpec]]] = {
    "oelm-partial": ("oelm-partial:LAYERS, e.g. oelm-partial:-1 or oelm-partial:0,-1", _parse_partial),
    "oelm-progressive": (
        "oelm-progressive:START-STOP[:first|:last], e.g. oelm-progressive:0.2-0.8",
        _parse_progressive,
    ),
    "oelm-every": ("oelm-every:N, e.g. oelm-every:10", _parse_every),
    "train-then-freeze": (
        "train-then-freeze:FRACTION[:orthogonal], e.g. train-then-freeze:0.3",
        _parse_train_then_freeze,
    ),
    "unfreeze-late": ("unfreeze-late:FRACTION, e.g. unfreeze-late:0.8", _parse_unfreeze_late),
}
"""Parametrised form -> how it is written, with an example, and its parser."""


def _schedule(change: Change | Sweep, name: str = "oelm-freeze") -> MethodSpec:
    return METHODS[name].model_copy(update={"schedule": ScheduleSpec(changes=(change,))})


def _fraction(text: str) -> float:
    if not 0 <= (value := float(text)) <= 1:
        raise ValueError(f"{text} is not a fraction of training, which is between 0 and 1")
    return value


def _refuse_other(word: str, *known: str) -> None:
    if word not in ("", *known):
        raise ValueError(f"{word!r} is not {' or '.join(map(repr, known))}")


for _base, _short in (("oelm-freeze", "oelm"), ("baseline", "baseline")):
    METHODS |= {
        f"{_short}-{parts.replace('+', '-')}": add_parts(METHODS[_base], *parts.split("+")) for parts in _REPAIRS
    }
METHODS["oelm-correlated"] = add_parts(METHODS["oelm-freeze"], "correlated")
