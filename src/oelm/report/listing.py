"""The report of runs listed one by one: each beside its published figure, compared only where that is fair."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import oelm
from oelm.analysis.compare import Comparison, Found
from oelm.analysis.evidence import Evidence
from oelm.analysis.gather import by_data, gather, methods_of
from oelm.analysis.measure import Measure, measure_of
from oelm.analysis.rows import Row
from oelm.errors import IncomparableRuns, UsageError
from oelm.record.schema import RunRecord
from oelm.record.stages import in_order_of_counting
from oelm.record.store import find_records
from oelm.report.certificates import certificate, unreadable_section
from oelm.report.content import answer
from oelm.report.document import Answer, Column, Document, Line, Section, Table
from oelm.report.numbers import ONE_SEED, mark_notes, marks_of, shown_figure, shown_setting
from oelm.report.sections import beside_published
from oelm.report.wording import Language, Say, wording
from oelm.spec.run import NUMERICS, RunSpec, declared, fingerprint
from oelm.study import Listing

Members = dict[str, Found]
"""Label -> the record of the listed run, and where it lies."""


def listing_document(listing: Listing, root: Path, out: Path, lang: Language) -> tuple[Document, list[Comparison]]:
    """Say what became of the listed runs; return the comparisons that they allow as well."""
    if not root.is_dir():
        raise UsageError(f"{root} is no folder, so no run of {listing.name!r} is there. Run it first.")
    say = wording(lang)
    found, bad = find_records(root)
    members = listed_records(listing, found)
    complete = [item for item in members.values() if item[1].status == "complete"]
    compared, answers = _comparisons(complete, say)
    lead = say("listing_lead", complete=len(complete), expected=len(listing.listed))
    evidence = [_row(label, directory, record) for label, (directory, record) in members.items()]
    sections = [
        Section("verdict", say("heading_verdict"), (lead,), answers=tuple(answers)),
        Section("table", say("heading_listing"), table=_table(listing.listed, members, say)),
        *beside_published(evidence, out, say, lang),
        Section("evidence", say("heading_evidence"), (say("evidence_note"),), folds=tuple(
            certificate(item, row.arm, out, say) for row, item in evidence
        )),
        *([unreadable_section(tuple(map(str, bad)), say)] if bad else []),
    ]  # fmt: skip
    footer = say("made_by", version=oelm.__version__, root=root.resolve().name)
    return Document(listing.name, listing.question, tuple(sections), footer), compared


def listed_records(listing: Listing, found: Sequence[Found]) -> Members:
    """Find the records of the listed runs, of several the one that counts. Those of other NUMERICS are other runs'."""
    by_run: dict[str, Found] = {}
    for directory, record in in_order_of_counting(found, lambda item: item[1]):
        if record.numerics == NUMERICS:
            by_run[fingerprint(declared(record.spec))] = (directory, record)
    return {
        run.label or "": by_run[key] for run in listing.listed if (key := fingerprint(declared(run))) in by_run
    }  # fmt: skip


def _comparisons(complete: Sequence[Found], say: Say) -> tuple[list[Comparison], list[Answer]]:
    """Compare corpus by corpus; a refusal is an answer too."""
    compared: list[Comparison] = []
    answers: list[Answer] = []
    groups = by_data(complete)
    for corpus, members in groups.items():
        if len(methods_of(members)) < 2:
            word = say("listing_alone")
            answers.append(Answer(corpus, "undecided", word, ", ".join(str(r.spec.label) for _, r in members)))
            continue
        try:
            (comparison,) = gather(members).comparisons
        except IncomparableRuns as error:
            why = say("listing_refused_why", reason=str(error))
            answers.append(Answer(corpus, "undecided", say("listing_refused"), why))
            continue
        compared.append(comparison)
        found = [answer(comparison, row, say) for row in comparison.rows if row.verdict]
        answers += [replace(one, subject=f"{corpus}, {one.subject}") for one in found] if len(groups) > 1 else found
    return compared, answers


def _measure(record: RunRecord) -> Measure:
    return measure_of(record.spec.data, [record.result])


def _row(label: str, directory: Path, record: RunRecord) -> tuple[Row, Evidence]:
    item, measure = Evidence(record.spec.arm, directory, record), _measure(record)
    cost = measure.cost(record.result)
    return Row(label, (), measure, (item,), () if cost is None else (cost,), None, None, None), item


def _table(runs: Sequence[RunSpec], members: Mapping[str, Found], say: Say) -> Table:
    columns = tuple(
        Column(name, say(key))
        for name, key in {
            "name": "run", "words": "corpus", "arm": "arm", "rate": "learning_rate", "state": "status",
            "figure": "figure", "measure": "measure",
        }.items()
    )  # fmt: skip
    lines = tuple(_line(run, members.get(run.label or ""), say) for run in runs)
    notes = tuple(_notes(lines, say))
    return Table("runs", columns, lines, notes)


def _line(run: RunSpec, member: Found | None, say: Say) -> Line:
    cells = [run.label or "", run.data.corpus, run.arm, shown_setting(run.train.learning_rate)]
    if member is None:
        return Line((*cells, say("gap_missing"), say("none"), say("none")))
    _, record = member
    measure = _measure(record)
    cost = measure.cost(record.result) if record.status == "complete" else None
    state = say("status_complete") if record.status == "complete" else _state(record, say)
    if cost is None:
        return Line((*cells, state, say("none"), say("none")))
    figure = shown_figure(measure.figure(cost), measure, say) + ONE_SEED + marks_of(record)
    return Line(
        (*cells, state, figure, say(f"{measure.name}_{measure.judged}")),
        links={5: f"#run-{record.fingerprint}"},
    )


def _state(record: RunRecord, say: Say) -> str:
    state = "diverged" if record.failure == "diverged" else record.status
    unsaid = "not_finite" if state == "diverged" else "no_reason"
    return say(f"gap_{state}", step=record.step, error=record.last_words or say(unsaid))


def _notes(lines: Sequence[Line], say: Say) -> Iterator[str]:
    yield from mark_notes("".join(line.cells[5] for line in lines), say)
