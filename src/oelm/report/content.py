"""Everything a report says, as text and links, before it is set as a page or as Markdown."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import oelm
from oelm.analysis.compare import Comparison, Gap, Ignored, Row
from oelm.analysis.fairness import Cell, Evidence, shown
from oelm.analysis.statistics import Verdict
from oelm.record.schema import perplexity
from oelm.record.store import RECORD
from oelm.report.tables import (
    DIRTY,
    Table,
    results,
    shown_interval,
    shown_percent,
    shown_perplexity,
)
from oelm.report.wording import Say

SAMPLES = "samples.txt"
SAMPLE_BYTES = 4000
"""How much of a run's samples a report shows."""


@dataclass(frozen=True)
class Answer:
    """What the study says about one arm."""

    arm: str
    verdict: Verdict
    word: str
    sentence: str


@dataclass(frozen=True)
class Certificate:
    """Where one number was born."""

    seed: int
    perplexity: str
    href: str
    fingerprint: str
    commit: str
    command: str
    machine: str
    spec: str


@dataclass(frozen=True)
class Remark:
    """A line about a run that is not in the table; `href` leads to its record, if it left one."""

    subject: str
    text: str
    href: str | None = None


@dataclass(frozen=True)
class Content:
    """A report, ready to be set."""

    title: str
    question: str
    lead: tuple[str, ...]
    answers: tuple[Answer, ...]
    table: Table
    floor: str | None
    samples: tuple[tuple[str, str], ...]
    evidence: tuple[tuple[str, tuple[Certificate, ...]], ...]
    """Heading and certificates of each line of the table, in its order."""
    gaps: tuple[Remark, ...]
    ignored: tuple[Remark, ...]
    unreadable: tuple[str, ...]
    footer: str


def content(comparison: Comparison, root: Path, out: Path, say: Say) -> Content:
    """Say what a comparison means. Links are relative to `out`, where the report will lie."""
    study = comparison.study
    floors = dict.fromkeys(shown_perplexity(row.floor, say) for row in comparison.rows if row.floor)
    return Content(
        title=study.name,
        question=study.question,
        lead=tuple(_lead(comparison, say)),
        answers=tuple(_answer(comparison, row, say) for row in comparison.rows if row.verdict),
        table=results(comparison, say),
        floor=say("floor_note", floor=", ".join(floors)) if floors else None,
        samples=tuple(_samples(comparison.rows, say)),
        evidence=tuple((named(row.arm, row.cell), tuple(_certificates(row, out, say))) for row in comparison.rows),
        gaps=tuple(_gap(gap, out, say) for gap in comparison.gaps),
        ignored=tuple(_ignored(item, root, out, say) for item in comparison.ignored),
        unreadable=comparison.unreadable,
        footer=say("made_by", version=oelm.__version__, root=root),
    )


def named(arm: str, cell: Cell) -> str:
    """Name an arm at its place on the axes."""
    return ", ".join([arm, *(f"{axis} = {value}" for axis, value in cell)])


def link(directory: Path, out: Path) -> str:
    """Return the address of a run's record as seen from the report."""
    return quote(Path(os.path.relpath(directory / RECORD, out)).as_posix())


def _lead(comparison: Comparison, say: Say) -> Iterator[str]:
    margin = shown_percent(comparison.margin, say, signed=False)
    yield say("target", margin=margin, reference=comparison.study.reference)
    complete = sum(len(row.evidence) for row in comparison.rows)
    yield say("progress", complete=complete, expected=complete + len(comparison.gaps))
    if comparison.judged == "val":
        yield say("judged_on_validation")


def _answer(comparison: Comparison, row: Row, say: Say) -> Answer:
    assert row.verdict is not None  # noqa: S101  (for the type checker: only such rows are asked)
    return Answer(named(row.arm, row.cell), row.verdict, say(row.verdict), _sentence(comparison, row, say))


def _sentence(comparison: Comparison, row: Row, say: Say) -> str:
    difference, reference = row.difference, comparison.study.reference
    if difference is None:
        return say("verdict_no_pairs", reference=reference)
    distance = {"difference": shown_percent(difference.mean, say), "reference": reference}
    if difference.interval is None:
        return say("join").join([say("distance_one_seed", **distance), say("verdict_one_seed")])
    judgement = {
        "met": "verdict_met",
        "not met": "verdict_not_met",
        "undecided": "verdict_undecided" if difference.verdict == "undecided" else "verdict_lost",
    }[row.verdict or "undecided"]
    margin = shown_percent(comparison.margin, say, signed=False)
    return say("join").join([
        say("distance", interval=shown_interval(difference, say), **distance),
        say(judgement, margin=margin, pairs=difference.pairs),
    ])  # fmt: skip


def _samples(rows: Sequence[Row], say: Say) -> Iterator[tuple[str, str]]:
    for row in rows:
        for item in row.evidence:
            path = item.directory / SAMPLES
            if path.is_file():
                with path.open("rb") as file:
                    text = file.read(SAMPLE_BYTES).decode(errors="replace").strip()
                yield say("samples_of", arm=named(row.arm, row.cell), seed=item.spec.seed), text


def _certificates(row: Row, out: Path, say: Say) -> Iterator[Certificate]:
    for item, loss in zip(row.evidence, row.losses, strict=True):
        environment = item.record.environment
        yield Certificate(
            seed=item.spec.seed,
            perplexity=shown_perplexity(perplexity(loss), say) + DIRTY * bool(environment.dirty),
            href=link(item.directory, out),
            fingerprint=item.record.fingerprint,
            commit=_commit(item, say),
            command=environment.command,
            machine=f"{environment.device}, torch {environment.torch}",
            spec=item.spec.model_dump_json(indent=1),
        )


def _commit(item: Evidence, say: Say) -> str:
    environment = item.record.environment
    if environment.commit is None:
        return say("no_commit")
    changed = f"{DIRTY} {say('uncommitted')}" if environment.dirty else ""
    return f"{environment.commit[:12]} {changed}".strip()


def _gap(gap: Gap, out: Path, say: Say) -> Remark:
    record = gap.evidence.record if gap.evidence else None
    return Remark(
        subject=say("samples_of", arm=named(gap.arm, gap.cell), seed=gap.seed),
        text=say(
            f"gap_{gap.state}",
            step=record.step if record else 0,
            error=(record and record.error) or say("no_reason"),
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
