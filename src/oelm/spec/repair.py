"""Repairs as values: what may change the logits beyond the two projections.

Every repair is off by default and allowed on any arm. All start as if they were not there, except `key_shift`,
`qk_norm` and `position_features`, which change the function itself. They act in this order:

    x -> diagonal -> projection + low_rank -> core -> query_bias -> qk_norm -> positions -> key_shift
      -> key_mix -> temperature -> position_features appended -> logits + position_bias
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from oelm.spec.base import Spec

POSITION_REPAIRS = frozenset({"position_features", "position_bias"})
"""Repairs that read positions only, so that they also work without Q and K."""

UNTRAINED_REPAIRS = frozenset({"key_shift"})
"""Repairs without trained parameters."""


def heads_of(share: float, num_heads: int) -> int:
    """Return how many heads a share of them is: none for 0, otherwise at least one."""
    return max(1, round(share * num_heads)) if share else 0


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
    query_bias: bool = False
    """A trained vector per head, added to its queries: a preference for some keys, whatever the query is."""
    low_rank: Annotated[int, Field(ge=0)] = 0
    """The rank of a trained residual on Q and of another on K, zero at the start."""
    position_bias: bool = False
    """A trained bias per head and distance, zero at the start."""
    key_mix: bool = False
    """A trained mixture, per key head, of a token's key and the one before, all its own at the start."""
    position_features: Annotated[int, Field(ge=0)] | Literal["quarter"] = 0
    """Number M of trained frequencies per head. Their features replace the last 2M coordinates of each head's queries
    and keys, so that the logits contain a trained function of distance without a mask. "quarter" is a quarter of the
    head size, which leaves half of the coordinates to content."""

    @model_validator(mode="after")
    def _has_one_factor_per_head(self) -> Self:
        if self.qk_norm and self.temperature:
            raise ValueError("qk_norm has a trained factor per head already; leave temperature off")
        return self

    def num_frequencies(self, head_size: int) -> int:
        """Return M for heads of a size."""
        return head_size // 4 if self.position_features == "quarter" else self.position_features

    def active(self) -> tuple[str, ...]:
        """Name the repairs that are on."""
        return tuple(name for name in type(self).model_fields if getattr(self, name))
