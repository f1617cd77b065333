"""`oelm report`: from records to a page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from oelm.study import Study, load_study

Language = Literal["en", "zh"]


@dataclass
class Arguments:
    """Compare the runs of a study and write a page, a Markdown table and a plot."""

    study: tyro.conf.Positional[Path]
    """The Python file that declares the study."""
    out: Path = Path("runs")
    """Where the runs are: the folder given to `oelm run`."""
    lang: Language = "en"
    """Language of the report."""


def main(argv: list[str]) -> int:
    """Parse and write."""
    arguments = tyro.cli(Arguments, args=argv, prog="oelm report")
    study = load_study(arguments.study)
    conclude(study, arguments.out / study.name, arguments.lang)
    return 0


def conclude(study: Study, root: Path, lang: Language) -> None:
    """Write the report of a study's runs, show its table and say where the page is."""
    from rich.console import Console

    from oelm.report.page import write_report
    from oelm.report.tables import results, terminal
    from oelm.report.wording import wording

    out = root / "report"
    comparison = write_report(study, root, out, lang)
    console = Console()
    console.print(terminal(results(comparison, wording(lang)), study.question, console.width))
    sample = next(iter(sorted(root.glob(f"{study.reference}-*/samples.txt"))), None)
    if sample is not None:
        first = sample.read_text(errors="replace").split("\n\n")[0]
        console.print(f"A sample of {study.reference} (from [...] on):\n{first}\n", markup=False, highlight=False)
    console.print(f"page: {out / 'report.html'}   plot: {out / 'convergence.png'}", soft_wrap=True, highlight=False)
