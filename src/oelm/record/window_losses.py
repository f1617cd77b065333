"""`window_losses.json`: the losses of a run by position in the window, on repeats and on all other tokens.

A *repeat* completes a bigram that has already been seen in the window: the pair of the token before it and the token
itself occurs earlier in the same window. Attention by content can predict it by looking the earlier pair up; attention
by position cannot.
"""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import model_validator

from oelm.files import write_atomically
from oelm.record.schema import Record, read_if_present
from oelm.spec.data import Split

WINDOW_LOSSES = "window_losses.json"


class TokenLosses(Record):
    """Summed nats and numbers of predicted tokens, by bin of positions."""

    nats: tuple[float, ...]
    tokens: tuple[int, ...]

    @property
    def mean(self) -> float | None:
        """The mean loss over all positions, in nats; None where there is no such token."""
        count = sum(self.tokens)
        return sum(self.nats) / count if count else None


class WindowLossesRecord(Record):
    """The losses of one split, split into repeats and others, each by bin of positions."""

    split: Split
    starts: tuple[int, ...]
    """First position of each bin; position 0 predicts the second token of a window from its first."""
    context: int
    """Positions in a window: the last bin ends here."""
    repeats: TokenLosses
    others: TokenLosses

    @model_validator(mode="after")
    def _has_a_value_for_each_bin(self) -> Self:
        sizes = {len(values) for each in (self.repeats, self.others) for values in (each.nats, each.tokens)}
        if sizes != {len(self.starts)}:
            raise ValueError(f"{len(self.starts)} bins of positions have values of lengths {sorted(sizes)}")
        return self

    @property
    def by_position(self) -> tuple[float | None, ...]:
        """The mean loss of each bin, repeats and others together."""
        both = zip(self.repeats.nats, self.others.nats, self.repeats.tokens, self.others.tokens, strict=True)
        return tuple((one + two) / (count + more) if count + more else None for one, two, count, more in both)

    @property
    def share_of_repeats(self) -> float:
        """The share of the predicted tokens that are repeats."""
        return sum(self.repeats.tokens) / max(1, sum(self.repeats.tokens) + sum(self.others.tokens))


def write_window_losses(directory: Path, losses: WindowLossesRecord) -> None:
    """Write a run's losses; nats to a ten-thousandth, so that the file stays small."""
    rounded = {
        name: each.model_copy(update={"nats": tuple(round(value, 4) for value in each.nats)})
        for name, each in {"repeats": losses.repeats, "others": losses.others}.items()
    }
    write_atomically(directory / WINDOW_LOSSES, losses.model_copy(update=rounded).model_dump_json() + "\n")


def read_window_losses(directory: Path) -> WindowLossesRecord | None:
    """Read them; None where a run has left none. Raise BadRecord for a damaged file."""
    way_out = "Restore it, or delete it: only the losses by position and on repeats are lost."
    return read_if_present(directory / WINDOW_LOSSES, WindowLossesRecord, "losses by position", way_out)
