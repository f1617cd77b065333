"""`oelm archive`: the runs of a study in one file, to be committed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro


@dataclass
class Arguments:
    """Pack the records, curves and other light files of a study into FOLDER/runs.tar.xz, next to its declaration.

    Weights, checkpoints, logs and runs that have not ended are left out, and so are paths of this machine. The study
    need not be finished: `oelm unpack` elsewhere and `oelm run` continue it. `oelm report FOLDER --markdown` writes
    the report to be committed with it.
    """

    study: tyro.conf.Positional[Path]
    """The folder of the study's runs, or the Python file that declares it (its runs are then looked for in runs/)."""
    out: Path
    """The folder to write, for example docs/results/fair-imdb."""
    scale: str | None = None
    """Which of the file's scales; by default the study itself."""
    alone: bool = False
    """Store everything, also what the archive of a folder next to --out stores already."""


def main(argv: list[str]) -> int:
    """Parse and pack."""
    arguments = tyro.cli(Arguments, args=argv, prog="oelm archive")

    from oelm.cli.report import members_of, study_and_root
    from oelm.record.archive import ARCHIVE, opened
    from oelm.record.keep import keep_archived

    study, root = study_and_root(arguments.study, Path("runs"), arguments.scale)
    with opened(root) as readable:
        members = members_of(study, readable)
        ended = [(path, record) for path, record in members if record.status in ("complete", "failed")]
        index = keep_archived(study, readable, ended, arguments.out, alone=arguments.alone)
    if len(ended) < len(members):
        print(f"{len(members) - len(ended)} runs have not ended and are left out")
    places = sorted({entry.stored_in for entry in index.files if entry.stored_in})
    shared = sum(entry.stored_in is not None for entry in index.files)
    where = f", {shared} of them stored by {', '.join(places)}" if shared else ""
    path = arguments.out / ARCHIVE
    print(f"{path}: {len(ended)} runs, {len(index.files)} files{where}; {path.stat().st_size / 1e6:.2f} MB")
    return 0
