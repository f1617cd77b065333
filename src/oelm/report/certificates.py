"""From any number of a report to its record, spec, commit and command; and every run that gives no number."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from oelm.analysis.compare import Comparison, Gap, Ignored
from oelm.analysis.evidence import Cell, Evidence, shown
from oelm.analysis.rows import Row
from oelm.record.store import RECORD
from oelm.report.document import Fold, Remark, Section
from oelm.report.numbers import DIRTY, OUTSIDE_HISTORY, UNKNOWN_TREE, marks_of, shown_figure, shown_place
from oelm.report.wording import Say

MOST_REMARKS = 60
"""A folder of a thousand foreign records needs no thousand lines; how many more there are is told."""


def named(arm: str, cell: Cell) -> str:
    """Name an arm at its place on the axes."""
    return ", ".join(filter(None, [arm, shown_place(cell)]))


def link(directory: Path, out: Path) -> str:
    """Return the address of a run's record as seen from the report."""
    return quote(Path(os.path.relpath(directory / RECORD, out)).as_posix())


def evidence_section(comparison: Comparison, out: Path, say: Say) -> Iterator[Section]:
    """List where every number of the table was born."""
    older = {run.fingerprint for _, run in comparison.registration.older} if comparison.registration else set()
    folds = [
        fold for number, row in enumerate(comparison.rows, 1) for fold in _certificates(row, number, older, out, say)
    ]  # fmt: skip
    if folds:
        yield Section("evidence", say("heading_evidence"), (say("evidence_note"),), folds=tuple(folds))


def _certificates(row: Row, number: int, older: set[str], out: Path, say: Say) -> Iterator[Fold]:
    for place, (item, cost) in enumerate(zip(row.evidence, row.costs, strict=True)):
        figure = shown_figure(row.measure.figure(cost), row.measure, say) + marks_of(item.record)
        heading = {"title": named(row.arm, row.cell), "title_anchor": f"evidence-{number}"} if place == 0 else {}
        summary = f"{say('seed')} {item.spec.seed}: {say(row.measure.name)} {figure}"
        summary += f" ({say('older_run')})" if item.record.fingerprint in older else ""
        yield certificate(item, summary, out, say, **heading)


def certificate(item: Evidence, summary: str, out: Path, say: Say, **heading: str) -> Fold:
    """Return the birth certificate of a run's number."""
    environment, href = item.record.environment, link(item.directory, out)
    return Fold(
        summary=summary,
        text=item.spec.model_dump_json(indent=1),
        facts=(
            (say("record"), item.record.fingerprint, href),
            (say("commit"), _commit(item, say), None),
            (say("command"), environment.command, None),
            (say("machine"), f"{environment.device}, torch {environment.torch}", None),
        ),
        anchor=f"run-{item.record.fingerprint}",
        href=href,
        **heading,
    )


def _commit(item: Evidence, say: Say) -> str:
    environment = item.record.environment
    if environment.commit is None:
        return say("no_commit")
    words = {DIRTY: "uncommitted", UNKNOWN_TREE: "tree_unknown", OUTSIDE_HISTORY: "not_in_history"}
    remarks = [f"{mark} {say(words[mark])}" for mark in marks_of(item.record) if mark in words]
    return " ".join([environment.commit[:12], *remarks])


def remark_sections(comparison: Comparison, root: Path, out: Path, say: Say) -> Iterator[Section]:
    """Tell what gives no figure, what is of no study, and what cannot be read."""
    gaps = tuple(gap_remark(gap, out, say) for gap in comparison.gaps)
    ignored = tuple(_ignored(item, root, out, say) for item in comparison.ignored)
    for anchor, remarks in {"gaps": gaps, "ignored": ignored}.items():
        if remarks:
            more = len(remarks) - MOST_REMARKS
            words = (say("and_more", count=more),) if more > 0 else ()
            yield Section(anchor, say(f"heading_{anchor}"), words, remarks=remarks[:MOST_REMARKS])
    if comparison.unreadable:
        yield unreadable_section(comparison.unreadable, say)


def unreadable_section(complaints: tuple[str, ...], say: Say) -> Section:
    """Tell what could not be read, file by file."""
    remarks = tuple(Remark(say("file"), line) for line in dict.fromkeys(complaints))
    return Section("unreadable", say("heading_unreadable"), remarks=remarks)


def gap_remark(gap: Gap, out: Path, say: Say) -> Remark:
    """Say why a run gives no figure."""
    record = gap.evidence.record if gap.evidence else None
    unsaid = "not_finite" if gap.state == "diverged" else "no_reason"
    return Remark(
        subject=say("samples_of", arm=named(gap.arm, gap.cell), seed=gap.seed),
        text=say(
            f"gap_{gap.state}",
            step=record.step if record else 0,
            error=(record.last_words if record else "") or say(unsaid),
        ),
        href=link(gap.evidence.directory, out) if gap.evidence else None,
    )


def _ignored(item: Ignored, root: Path, out: Path, say: Say) -> Remark:
    differs = "; ".join(
        say("ignored_differs", field=field, found=shown(found), meant=shown(meant))
        for field, (found, meant) in item.differs.items()
    )
    return Remark(
        subject=os.path.relpath(item.directory, root),
        text=say("ignored_twin", other=os.path.relpath(item.twin, root)) if item.twin else differs,
        href=link(item.directory, out),
    )
