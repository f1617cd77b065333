"""Methods by name: the published ones and their controls, parametrised forms, and parts added to any of them."""

from __future__ import annotations

from typing import Literal

from oelm.errors import InvalidSpec, UnknownName
from oelm.spec.base import in_words
from oelm.spec.method import Change, FreezeSpec, InitSpec, MethodSpec, Role, ScheduleSpec, Sweep
from oelm.spec.model import INITIAL_DEVIATION
from oelm.spec.repair import RepairSpec

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
"""What can be added to a method by name: the field it sets, and to what unless told (None: it must be told)."""
_REPAIRED = (
    "shift",
    "temperature",
    "qk-norm",
    "core",
    "diagonal",
    "query-bias",
    "low-rank",
    "bias",
    "mix",
    "features",
    "core+diagonal",
)

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
        raise InvalidSpec(f"{name!r} is not of the form {FORMS.get(form, form)} ({in_words(error)}).") from error


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
        return unfreeze_late(_fraction(argument))
    first, _, way = argument.partition(":")
    if form == "train-then-freeze":
        _refuse_other(way, "orthogonal")
        return train_then_freeze(_fraction(first), orthogonal=way == "orthogonal")
    start, stop = first.split("-")
    _refuse_other(way, "first", "last")
    return oelm_progressive(_fraction(start), _fraction(stop), "first" if way == "first" else "last")


def _fraction(text: str) -> float:
    if not 0 <= (value := float(text)) <= 1:
        raise ValueError(f"{text} is no fraction of training, which goes from 0 to 1")
    return value


def _refuse_other(word: str, *known: str) -> None:
    if word not in ("", *known):
        raise ValueError(f"{word!r} is not {' or '.join(map(repr, known))}")


for _base, _short in (("oelm-freeze", "oelm"), ("baseline", "baseline")):
    METHODS |= {
        f"{_short}-{parts.replace('+', '-')}": composed(METHODS[_base], *parts.split("+")) for parts in _REPAIRED
    }
METHODS["oelm-correlated"] = composed(METHODS["oelm-freeze"], "correlated")
