"""`oelm unpack`: the runs of an archived study as folders again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from oelm.errors import UsageError


@dataclass
class Arguments:
    """Unpack the runs of an archived study, for example to continue it with `oelm run` on another machine.

    Runs that are already there are not touched.
    """

    folder: tyro.conf.Positional[Path]
    """The folder that holds runs.tar.xz."""
    out: Path = Path("runs")
    """The folder given to `oelm run`; the runs go into a folder below it, named after the study."""


def main(argv: list[str]) -> int:
    """Parse and unpack."""
    arguments = tyro.cli(Arguments, args=argv, prog="oelm unpack")

    from oelm.record.archive import ARCHIVE, add_runs
    from oelm.record.store import read_study

    folder = arguments.folder.parent if arguments.folder.name == ARCHIVE else arguments.folder
    if not (folder / ARCHIVE).is_file():
        raise UsageError(f"{folder} holds no {ARCHIVE}. Give the folder of an archived study.")
    target = arguments.out / read_study(folder).name
    added, present = add_runs(folder, target)
    print(f"{target}: {added} runs unpacked" + (f", {present} were there already" if present else ""))
    return 0
