"""`test_losses.json`: what a run lost on each document, or got right of each example or probe, of the test split.

The bootstrap over the evaluation set reads it. Documents and examples stand in the order of the test split, the same
for every run on the same data.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import model_validator

from oelm.files import write_atomically
from oelm.record.schema import Record, read_if_present

TEST_LOSSES = "test_losses.json"


class TestLossesRecord(Record):
    """Per document: summed nats and the number of predicted tokens. Per example: 1 if it was labelled rightly.

    Per document of a probe: how many answers were right, and how many there are.
    """

    __test__ = False  # a record, whatever pytest makes of its name

    kind: Literal["documents", "examples", "answers"]
    nats: tuple[float, ...] = ()
    tokens: tuple[int, ...] = ()
    correct: tuple[int, ...] = ()

    @model_validator(mode="after")
    def _has_what_its_kind_has(self) -> Self:
        sizes = (len(self.nats), len(self.correct), len(self.tokens))
        size = max(sizes)
        asked = {"documents": (size, 0, size), "examples": (0, size, 0), "answers": (0, size, size)}[self.kind]
        if not size or sizes != asked:
            raise ValueError(
                "documents have as many nats as tokens, examples have `correct`, answers as many `correct` as tokens; "
                f"found nats, correct, tokens of lengths {sizes} for {self.kind}"
            )
        return self

    @property
    def size(self) -> int:
        """How many documents or examples there are."""
        return len(self.nats) or len(self.correct)

    @property
    def share(self) -> float:
        """The share of examples or answers that is right."""
        return sum(self.correct) / (sum(self.tokens) or self.size)


def write_test_losses(directory: Path, losses: TestLossesRecord) -> None:
    """Write a run's losses by document or example; nats to a ten-thousandth, so that the file stays small."""
    rounded = losses.model_copy(update={"nats": tuple(round(value, 4) for value in losses.nats)})
    write_atomically(directory / TEST_LOSSES, rounded.model_dump_json(exclude_defaults=True) + "\n")


def read_test_losses(directory: Path) -> TestLossesRecord | None:
    """Read them; None where a run has left none. Raise BadRecord for a file that is not whole."""
    way_out = "Restore it, or leave it out: only the noise of the evaluation set is lost."
    return read_if_present(directory / TEST_LOSSES, TestLossesRecord, "losses by document or example", way_out)
