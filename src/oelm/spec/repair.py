"""Repairs as values: what may change the logits beyond the two projections.

Every repair is off by default, free for any arm, and starts as if it were not there (`key_shift` and `qk_norm`, which
change the function itself, apart). On our GPT they act in this order, whichever of them are on:

    x -> diagonal -> projection + low_rank -> core -> qk_norm -> positions -> key_shift -> key_mix -> temperature
      -> logits + position_bias
"""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from oelm.spec.base import Spec


class RepairSpec(Spec):
    """Everything that changes the Q/K logits beyond the two projections."""

    key_shift: Annotated[float, Field(ge=0, le=1)] = 0.0
    """The share of heads that read the key of the token before."""
    temperature: bool = False
    """A trained factor on each head's logits, one at the start."""
    qk_norm: bool = False
    """Give each head's queries and keys the norm sqrt(K), and its logits a trained factor, one at the start."""
    core: bool = False
    """A trained K x K matrix per query head between the two frames, the identity at the start."""
    diagonal: bool = False
    """A trained diagonal on the input of Q and another on that of K, ones at the start."""
    low_rank: Annotated[int, Field(ge=0)] = 0
    """The rank of a trained residual on Q and of another on K, zero at the start."""
    position_bias: bool = False
    """A trained bias per head and distance, zero at the start."""
    key_mix: bool = False
    """A trained mixture, per key head, of a token's key and the one before, all its own at the start."""

    @model_validator(mode="after")
    def _has_one_factor_per_head(self) -> Self:
        if self.qk_norm and self.temperature:
            raise ValueError("qk_norm has a trained factor per head already; leave temperature off")
        return self

    def active(self) -> tuple[str, ...]:
        """Name the repairs that are on."""
        return tuple(name for name in type(self).model_fields if getattr(self, name))
