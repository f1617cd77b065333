"""Which arms of a study say what attending by content is worth: trained, frozen and position only.

For arms with the same position scheme (the same trained bias, or the same position features):

    T  trained Q/K          F  frozen Q/K          P  position only: Q and K are absent

The arms are found by their methods, never by name, unless a study declares them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from oelm.spec.base import Spec
from oelm.spec.method import FreezeSpec, MethodSpec
from oelm.spec.repair import POSITION_REPAIRS

Scheme = tuple[bool, int | str]
"""The position repairs of a method: whether it has the bias, and how many features."""

NEGLIGIBLE_LOGITS = 0.05
"""Content logits of this standard deviation or less leave attention to positions: exp(0.05) is a factor of 1.05."""


class ContentSpec(Spec):
    """The roles of a study's arms, where it declares them by name."""

    trained: str
    """The arm with trained Q/K."""
    position: str
    """The arm that attends by position only."""
    frozen: tuple[str, ...] | None = None
    """The arms with frozen Q/K; None: every arm that freezes Q and K in all layers and has the scheme of `trained`."""


@dataclass(frozen=True)
class ContentArms:
    """The names of the arms with one position scheme."""

    trained: str
    position: str
    frozen: tuple[str, ...]
    scheme: Scheme
    is_exact: bool = True
    """Whether the position-only arm has no Q and K. False: they are frozen and so small that they hardly count."""


def position_scheme(method: MethodSpec) -> Scheme:
    """Return the position repairs of a method."""
    return method.repair.position_bias, method.repair.position_features


def is_position_only(method: MethodSpec) -> bool:
    """Whether attention depends on positions alone: Q and K are absent, and a position repair is on."""
    return method.init.shape == "absent" and any(position_scheme(method)) and method.sites is None


def is_nearly_position_only(method: MethodSpec, width: int | None) -> bool:
    """Whether Q and K are frozen at a scale at which their logits hardly count, and a position repair is on.

    For a normalised input of size D and entries of deviation s the logits have deviation D s^2 (0.04 for D = 96 and
    s = 0.02). Repairs that could make them larger rule that out.
    """
    deviation = method.init.deviation
    if width is None or deviation is None or not _freezes_all(method) or not any(position_scheme(method)):
        return False
    others = set(method.repair.active()) - POSITION_REPAIRS - {"key_shift", "key_mix"}
    return not others and width * (method.init.gain * deviation) ** 2 <= NEGLIGIBLE_LOGITS


def find_content_arms(
    methods: Mapping[str, MethodSpec], *, reference: str, width: int | None = None, declared: ContentSpec | None = None
) -> tuple[ContentArms, ...]:
    """Return the roles of some arms of one model, for each position scheme that has a T and a P; exact ones first.

    Of several candidates, T is the reference, else the arm with the fewest other repairs. `width` is the size of the
    model where it is known.
    """
    if declared is not None:
        scheme = position_scheme(methods[declared.trained])
        frozen = declared.frozen
        if frozen is None:
            frozen = tuple(name for name in frozen_arms(methods, scheme) if name != declared.position)
        return (ContentArms(declared.trained, declared.position, frozen, scheme),)
    found = []
    for scheme in dict.fromkeys(map(position_scheme, methods.values())):
        own = {name: method for name, method in methods.items() if position_scheme(method) == scheme}
        exact = [name for name, method in own.items() if is_position_only(method)]
        near = [name for name, method in own.items() if is_nearly_position_only(method, width)]
        trained = [name for name, method in own.items() if any(scheme) and _trains_all(method)]
        if (exact or near) and trained:
            best = min(trained, key=lambda name: (name != reference, len(own[name].repair.active())))
            position = (exact or near)[0]
            frozen = tuple(name for name in frozen_arms(own, scheme) if name != position)
            found.append(ContentArms(best, position, frozen, scheme, bool(exact)))
    return tuple(sorted(found, key=lambda arms: not arms.is_exact))


def missing_arms(methods: Mapping[str, MethodSpec]) -> tuple[str, ...]:
    """Name the arms to add where T or P is missing, in a position scheme that the study already has."""
    alone = [method for method in methods.values() if is_position_only(method)]
    has_bias, has_features = (
        any(values) for values in zip(*map(position_scheme, alone or methods.values()), strict=True)
    )
    part = "bias" if has_bias and not has_features else "features"
    trained = any(_trains_all(method) and part in _parts(method) for method in methods.values())
    position = any(part in _parts(method) for method in alone)
    names = {"position-only-bias" if part == "bias" else "position-only": position, f"baseline+{part}": trained}
    return tuple(name for name, is_there in names.items() if not is_there)


def _parts(method: MethodSpec) -> set[str]:
    has_bias, features = position_scheme(method)
    return {name for name, is_on in {"bias": has_bias, "features": features}.items() if is_on}


def frozen_arms(methods: Mapping[str, MethodSpec], scheme: Scheme) -> tuple[str, ...]:
    """Name the arms with a position scheme that freeze all of Q and K."""
    return tuple(name for name, method in methods.items() if position_scheme(method) == scheme and _freezes_all(method))


def _freezes_all(method: MethodSpec) -> bool:
    """Whether Q and K, and nothing else, are frozen in every layer from the first step to the last."""
    freeze = method.freeze
    whole = set(freeze.roles) == {"q", "k"} and freeze.layers is None and method.sites is None
    return whole and not method.schedule.changes and method.schedule.every is None


def _trains_all(method: MethodSpec) -> bool:
    """Whether every layer has Q and K, and all of them train."""
    return method.freeze == FreezeSpec() and method.init.shape != "absent" and method.sites is None
