"""The method as a value: a point in a product space, never a class hierarchy.

    MethodSpec = initialisation of Q/K  x  what is frozen  x  when  x  repairs of the logits  x  learning rates

Named methods are constants of this space, so the cells between them exist too. Code that meets a cell it does
not carry out refuses it by name; nothing is ignored.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, PositiveFloat, model_validator

from oelm.spec.base import Spec
from oelm.spec.repair import POSITION_REPAIRS, UNTRAINED_REPAIRS, RepairSpec

Role = Literal["q", "k", "v", "o", "ffn"]
Site = Literal["self", "encoder", "decoder", "cross"]
Layers = tuple[int, ...]
"""Layer numbers; negative ones count from the last, as in Python."""
Moment = Annotated[int, Field(strict=True, ge=0)] | Annotated[float, Field(ge=0, le=1)]
"""When: a step number, or (as a float) a fraction of training. Strict, for 30.0 is neither and would become step 30."""


ArmClass = Literal["trained", "frozen", "repaired"]
"""Arms whose results vary alike over seeds: nothing is frozen; something is; something is, and trained repairs help."""


class InitSpec(Spec):
    """What is drawn into every Q and K projection the method reaches.

    `host` leaves the weights as the model made them. `absent` removes Q and K: attention is then uniform, or a
    function of positions alone where a position repair is on.
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

    same_heads: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the heads, the first ones, whose queries and keys read the same coordinates (`slice` only). With a key
    shift on them such a head finds earlier occurrences of the current token and reads what followed: induction."""

    @model_validator(mode="after")
    def _means_something(self) -> Self:
        if self.same_heads and self.shape != "slice":
            raise ValueError(f"same_heads says which coordinates slices read: it goes with 'slice', not {self.shape!r}")
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
    def later(self) -> tuple[Change | Sweep, ...]:
        """The changes during training: what is unfrozen at step 0 never was frozen."""
        return tuple(change for change in self.changes if not isinstance(change, Change) or change.at > 0)

    @property
    def moves(self) -> bool:
        """Whether what trains changes during training."""
        return self.every is not None or bool(self.later)


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
        if self.init.shape == "absent":
            both = {"q", "k"} & set(self.freeze.roles) | set(self.repair.active()) - POSITION_REPAIRS
            if both:
                raise ValueError(f"init.shape='absent' leaves no Q or K for {sorted(both)} to act on")
        if self.repair.qk_norm and self.init.gain != 1.0:
            raise ValueError(
                f"repair.qk_norm gives every query and key one norm, so that init.gain={self.init.gain} would "
                "scale nothing; leave one of them off"
            )
        return self

    @property
    def slices_stay(self) -> bool:
        """Whether Q and K are slices and stay so: they can be read without a product."""
        frozen = {"q", "k"} <= set(self.freeze.roles) and not self.schedule.moves
        return self.init.shape == "slice" and frozen

    @property
    def arm_class(self) -> ArmClass:
        """The class of arms that this method belongs to, for the variance of its results over seeds."""
        if not self.freeze.roles and self.init.shape != "absent":
            return "trained"
        return "repaired" if set(self.repair.active()) - UNTRAINED_REPAIRS else "frozen"

    @property
    def touches(self) -> bool:
        """Whether applying this method changes anything at all."""
        return self != MethodSpec()
