"""`attention.jsonl`: what the heads of a run look at, a line for each look at validation."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from oelm.errors import BadRecord
from oelm.files import write_atomically
from oelm.record.schema import Record

ATTENTION = "attention.jsonl"


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
