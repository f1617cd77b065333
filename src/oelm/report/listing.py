"""The report of runs that are listed one by one. They are compared only where that is fair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import oelm
from oelm.analysis.compare import Comparison, Found, by_data, gather, methods_of
from oelm.analysis.evidence import Evidence, Measure, Row, measure_of
from oelm.errors import IncomparableRuns, UsageError
from oelm.published.claims import group_settings, published_run
from oelm.record.folder import find_records
from oelm.record.record import RunRecord
from oelm.record.stages import sort_by_precedence
from oelm.report.render import Answer, Column, Document, Line, Section, Table
from oelm.report.study import answer_of, published_section, statistics_remarks
from oelm.report.tables import certificate, unreadable_section
from oelm.report.wording import ONE_SEED, Language, Say, format_figure, format_setting, mark_notes, marks_of, wording
from oelm.spec.run import NUMERICS, RunSpec, declared_fingerprint
from oelm.spec.study import Listing

Members = dict[str, Found]
"""Label -> the folder and the record of the listed run."""


def listing_document(listing: Listing, root: Path, out: Path, lang: Language) -> tuple[Document, list[Comparison]]:
    """Return the report of the listed runs, and the comparisons that they allow."""
    if not root.is_dir():
        raise UsageError(f"{root} is not a folder, so it has no run of {listing.name!r}. Run the listing first.")
    say = wording(lang)
    found, bad = find_records(root)
    members = listed_records(listing, found)
    complete = [item for item in members.values() if item[1].status == "complete"]
    compared, answers = _comparisons(complete, say)
    lead = say("listing_lead", complete=len(complete), expected=len(listing.listed))
    details = tuple(remark for comparison in compared for remark in statistics_remarks(comparison, say))
    evidence = [_row(label, directory, record) for label, (directory, record) in members.items()]
    sections = [
        Section("verdict", say("heading_verdict"), (lead,), answers=tuple(answers)),
        Section("table", say("heading_listing"), table=_table(listing.listed, members, say)),
        *([Section("statistics", say("heading_statistics"), remarks=details)] if details else []),
        *published_section(evidence, out, say, lang),
        *_settings_section(listing.listed, say),
        Section("evidence", say("heading_evidence"), (say("evidence_note"),), folds=tuple(
            certificate(item, row.arm, out, say) for row, item in evidence
        )),
        *([unreadable_section(tuple(map(str, bad)), say)] if bad else []),
    ]  # fmt: skip
    footer = say("made_by", version=oelm.__version__, root=root.resolve().name)
    return Document(listing.name, listing.question, tuple(sections), footer), compared


def listed_records(listing: Listing, found: Sequence[Found]) -> Members:
    """Find the record of each listed run; of several, the one that takes precedence. Other NUMERICS are other runs."""
    by_run: dict[str, Found] = {}
    for directory, record in sort_by_precedence(found, lambda item: item[1]):
        if record.numerics == NUMERICS:
            by_run[declared_fingerprint(record.spec)] = (directory, record)
    return {
        run.label or "": by_run[key] for run in listing.listed if (key := declared_fingerprint(run)) in by_run
    }  # fmt: skip


def _comparisons(complete: Sequence[Found], say: Say) -> tuple[list[Comparison], list[Answer]]:
    """Compare the runs of each corpus. A refused comparison is an answer too."""
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
        found = [answer_of(comparison, row, say) for row in comparison.rows if row.verdict]
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
    notes = mark_notes("".join(line.cells[5] for line in lines), say)
    return Table("runs", columns, lines, tuple(notes))


def _line(run: RunSpec, member: Found | None, say: Say) -> Line:
    cells = [run.label or "", run.data.corpus, run.arm, format_setting(run.train.learning_rate)]
    if member is None:
        return Line((*cells, say("gap_missing"), say("none"), say("none")))
    _, record = member
    measure = _measure(record)
    cost = measure.cost(record.result) if record.status == "complete" else None
    state = say("status_complete") if record.status == "complete" else _state(record, say)
    if cost is None:
        return Line((*cells, state, say("none"), say("none")))
    figure = format_figure(measure.figure(cost), measure, say) + ONE_SEED + marks_of(record)
    return Line(
        (*cells, state, figure, say(f"{measure.name}_{measure.judged}")),
        links={5: f"#run-{record.fingerprint}"},
    )


def _settings_section(runs: Sequence[RunSpec], say: Say) -> list[Section]:
    """Return the settings of the published runs with their sources, without those that only this program has."""
    known = [run for run in runs if published_run(run)]
    lines = [
        Line((setting.field, say("all_runs") if whose == "all" else whose, setting.value,
              say(f"basis_{setting.basis}"), setting.where, setting.differs or say("none")))
        for kind in dict.fromkeys(run.model.kind for run in known)
        for setting, whose in group_settings([run for run in known if run.model.kind == kind])
        if setting.basis != "ours"
    ]  # fmt: skip
    if not lines:
        return []
    columns = tuple(
        Column(name, say(key))
        for name, key in {
            "field": "setting", "runs": "runs", "value": "setting_value", "basis": "setting_basis",
            "where": "setting_where", "differs": "setting_differs",
        }.items()
    )  # fmt: skip
    table = Table("settings", columns, tuple(lines))
    return [Section("settings", say("heading_settings"), (say("settings_note"),), table=table)]


def _state(record: RunRecord, say: Say) -> str:
    state = "diverged" if record.failure == "diverged" else record.status
    unsaid = "not_finite" if state == "diverged" else "no_reason"
    return say(f"gap_{state}", step=record.step, error=record.last_words or say(unsaid))
