"""What to ask Slurm for."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PositiveFloat

from oelm.spec.base import Spec


class SlurmSpec(Spec):
    """What to ask Slurm for, for each run. How many cores and GPUs follows from the run's threads and processes."""

    partition: str | None = None
    """By default the cluster's own."""
    account: str | None = None
    """Whom the time is charged to; by default your default account."""
    time: Annotated[int, Field(ge=5)] = 240
    """Limit in minutes. A run that takes longer saves itself, is queued again and goes on, as often as it needs."""
    memory: PositiveFloat | None = None
    """In GB; by default what the cluster gives."""
    gpu: str | None = None
    """Kind of GPU as the cluster names it, e.g. a100; by default any."""
