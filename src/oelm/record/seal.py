"""`unsealed.json`: what the final weights of a study score on a sealed split, written once."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import ValidationError

from oelm.errors import BadRecord
from oelm.record.schema import Record
from oelm.record.store import UNSEALED


class SealedScore(Record):
    """One run on the sealed split."""

    fingerprint: str
    arm: str
    seed: int
    loss: float
    """Mean natural-log loss per token, as on the test split."""
    accuracy: float | None = None
    """Share of right answers of a probe."""


class SealedSplit(Record):
    """The sealed split of one data folder."""

    corpus: str
    checksum: str
    """Of the data it belongs to."""
    sha256: str
    documents: int
    tokens: int


class UnsealedRecord(Record):
    """The content of `unsealed.json`."""

    schema_version: int = 1
    study: str
    digest: str
    """Of the study as registered."""
    opened: str
    """When the split was opened, in UTC."""
    scored: str
    """When all runs had been scored."""
    commit: str | None
    dirty: bool | None
    splits: tuple[SealedSplit, ...]
    scores: tuple[SealedScore, ...]


def read_unsealed(root: Path) -> UnsealedRecord | None:
    """Read what a study scored on its sealed split; None where it has not been opened."""
    path = root / UNSEALED
    try:
        return UnsealedRecord.model_validate(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BadRecord(f"{path} cannot be read: {error.strerror}. Check who owns it.") from error
    except ValueError as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise BadRecord(f"{path} does not hold scores on a sealed split: {reason}. Restore it.") from error
