"""Methods by name: the published ones and their controls, parametrised forms, and parts added to any of them.

- `oelm-freeze` is a named method.
- `train-then-freeze:0.3` is a parametrised form.
- `oelm+core+low-rank=8` is a method with parts added; `oelm` is short for `oelm-freeze`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from oelm.errors import InvalidSpec, UnknownName
from oelm.spec.method import Change, FreezeSpec, InitSpec, MethodSpec, RepairSpec, Role, ScheduleSpec, Sweep
from oelm.spec.model import INITIAL_DEVIATION
from oelm.spec.value import explain_validation

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
