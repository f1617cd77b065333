"""`oelm import-checkpoint`: a checkpoint of the published study as one of ours."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from oelm.errors import UsageError


@dataclass
class Arguments:
    """Read a published best.pt or latest.pt, safely, into a checkpoint that the other verbs take."""

    file: tyro.conf.Positional[Path]
    """The .pt file; nothing in it is executed."""
    out: tyro.conf.Positional[Path]
    """A new folder for our checkpoint."""


def main(argv: list[str]) -> int:
    """Parse, read, write."""
    arguments = tyro.cli(Arguments, args=argv, prog="oelm import-checkpoint")
    if arguments.out.exists():
        raise UsageError(f"{arguments.out} exists, and nothing is overwritten. Give a new folder.")

    from oelm.interop.predecessor import import_published
    from oelm.spec.data import DataSpec
    from oelm.spec.run import RunSpec, fingerprint
    from oelm.train.checkpoint import Checkpoints

    model, checkpoint = import_published(arguments.file)
    run = RunSpec(label=arguments.file.stem, model=model.spec, data=DataSpec(corpus="unknown"))
    progress = checkpoint.state["progress"]
    writer = Checkpoints(arguments.out.parent, fingerprint(run), run.model_dump(mode="json"))
    writer.write(arguments.out.name, model, {"progress": progress, "freezing": {"hashes": {}}})
    total = sum(parameter.numel() for parameter in model.parameters())
    print(f"{arguments.out}: {total:,} parameters after {progress['step']} steps")
    return 0
