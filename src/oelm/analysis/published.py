"""The published study's figures, to stand beside ours, with what is known to be wrong with them.

They are claims, not results of this program. A run is recognised by its label, which begins with the published id.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from oelm.spec.model import GPTSpec, named_size
from oelm.spec.run import RunSpec


class PublishedRun(BaseModel):
    """One experiment, as published."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    corpus: str
    method: str
    """Its name here."""
    learning_rate: float
    perplexity: float | None = None
    accuracy: float | None = None
    steps: int | None = None
    train_seconds: float | None = None
    step_seconds: float | None = None
    flop_share: float | None = None
    """What freezing can save of a step at most, counted by this program."""
    note: str | None = None


class Contradiction(BaseModel):
    """What is known to be wrong, in both languages, and the runs that it is about (none: the study)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    runs: tuple[str, ...] = ()
    of_each: bool = False
    """Whether it is true of each of the runs by itself, not between them."""
    en: str
    zh: str


class Published(BaseModel):
    """`published.json`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    about: str
    runs: tuple[PublishedRun, ...]
    contradictions: tuple[Contradiction, ...]


@cache
def published() -> Published:
    """Read the figures that come with the program."""
    return Published.model_validate_json((Path(__file__).parent / "published.json").read_bytes())


def published_run(run: RunSpec) -> PublishedRun | None:
    """Return the published experiment that a run's label names, such as `GPT-01` or `GPT-01_baseline`."""
    label = (run.label or "").upper()
    return next((item for item in published().runs if re.match(rf"{re.escape(item.id)}(?![0-9])", label)), None)


def is_at_published_size(run: RunSpec, there: PublishedRun) -> bool:
    """Whether a run has the text and the model of the published one, so that their figures can be set in a ratio."""
    if run.data.corpus != there.corpus:
        return False
    if isinstance(run.model, GPTSpec):
        return run.model == named_size("medium-512")
    return "bert-base" in run.model.name


def contradictions_about(ids: set[str]) -> list[Contradiction]:
    """Return what is known to be wrong with some runs, or between them."""
    return [item for item in published().contradictions if _is_about(item, ids)]


def _is_about(item: Contradiction, ids: set[str]) -> bool:
    named = set(item.runs)
    return bool(named & ids) if item.of_each else bool(named) and named <= ids
