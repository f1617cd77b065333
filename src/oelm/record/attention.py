"""`attention.jsonl`: what the heads of a run look at, a line for each look at validation.

`logit_variance.json`: how much the logits of each head vary by content and by position, at the end of training.
"""

from __future__ import annotations

import itertools
import statistics
from pathlib import Path

from pydantic import ValidationError

from oelm.errors import BadRecord
from oelm.files import write_atomically
from oelm.record.schema import Record, read_if_present

ATTENTION, LOGIT_VARIANCE = "attention.jsonl", "logit_variance.json"


class AttentionRecord(Record):
    """Means over the tokens of some text, as [layer][head], after a step."""

    step: int = 0
    entropy: tuple[tuple[float, ...], ...]
    """In nats: 0 looks at one token, log(T) at all alike."""
    distance: tuple[tuple[float, ...], ...]
    """In tokens back."""


def read_attention(directory: Path) -> list[AttentionRecord]:
    """Read what a run's heads have looked at, the end last; empty where nothing is known. Raise BadRecord if torn."""
    path = directory / ATTENTION
    try:
        return parsed(path.read_text(errors="replace"))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise BadRecord(f"{path} cannot be read: {error.strerror}. Check who owns it.") from error
    except BadRecord as error:
        raise BadRecord(f"{directory.name}: {error}") from error


def parsed(text: str) -> list[AttentionRecord]:
    """Read the lines. A last one that a crash cut short is left out: resuming writes it anew."""
    found = []
    for number, line in enumerate(text.split("\n")[:-1], 1):
        try:
            found.append(AttentionRecord.model_validate_json(line))
        except ValidationError as error:
            raise BadRecord(
                f"{ATTENTION}, line {number}, does not hold the attention of a run: {line[:60]!r}."
            ) from error
    return found


def append_attention(directory: Path, record: AttentionRecord) -> None:
    """Add a line."""
    with (directory / ATTENTION).open("a") as file:
        print(record.model_dump_json(), file=file)


def forget_attention_after(directory: Path, step: int) -> None:
    """Drop the lines of steps that a resumed run will do again."""
    if (directory / ATTENTION).exists():
        kept = [record for record in read_attention(directory) if record.step <= step]
        write_atomically(directory / ATTENTION, "".join(record.model_dump_json() + "\n" for record in kept))


class LogitVarianceRecord(Record):
    """Variances of a query's logits over its keys, by source, as [layer][head]; means over queries of some windows."""

    tokens: int
    """Tokens of the validation windows that were looked at."""
    content: tuple[tuple[float, ...], ...]
    """Of the product of queries and keys; rotary and learned positions act within it."""
    position: tuple[tuple[float, ...], ...]
    """Of position features and the position bias; zero where there are none."""

    @property
    def median_share(self) -> float | None:
        """The median over heads of content / (content + position); None where position is not a source of its own."""
        content, position = (list(itertools.chain.from_iterable(layers)) for layers in (self.content, self.position))
        if not any(position):
            return None
        pairs = zip(content, position, strict=True)
        return statistics.median(one / (one + other) for one, other in pairs if one + other)


def write_logit_variance(directory: Path, record: LogitVarianceRecord) -> None:
    """Write the variances of a run's logits."""
    write_atomically(directory / LOGIT_VARIANCE, record.model_dump_json() + "\n")


def read_logit_variance(directory: Path) -> LogitVarianceRecord | None:
    """Read them; None where a run has left none. Raise BadRecord for a damaged file."""
    way_out = "Restore it, or delete it."
    return read_if_present(directory / LOGIT_VARIANCE, LogitVarianceRecord, "variances of logits", way_out)
