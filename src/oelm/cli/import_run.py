"""`oelm import-run`: a run of the published program as one of ours, to be drawn and compared."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from oelm.record.imported import Settings, import_run


@dataclass
class Arguments:
    """Read folders in the published layout (timing_stats.json, training.log) as records marked imported.

    What their files do not say has to be said here; `oelm compare` and `oelm report` then compare them with one another
    (not with runs of ours: nobody knows the bytes they were trained on). Taken to be as published: medium-512, 8
    sequences a step, 1000 steps of warm-up, validation every 1000.
    """

    folders: tyro.conf.Positional[tuple[Path, ...]]
    """The --out_dir of published runs."""
    learning_rate: float
    """Their --max_lr: no file states it."""
    seed: int = 42
    """Their --seed; 42 is the published default."""
    steps: int | None = None
    """Their --max_steps; by default the last step in the log."""
    out: Path = Path("runs/imported")
    """Where the records go."""


def main(argv: list[str]) -> int:
    """Parse, read, write."""
    arguments = tyro.cli(Arguments, args=argv, prog="oelm import-run")
    settings = Settings(learning_rate=arguments.learning_rate, seed=arguments.seed, steps=arguments.steps)
    for folder in arguments.folders:
        print(import_run(folder, settings, arguments.out))
    return 0
