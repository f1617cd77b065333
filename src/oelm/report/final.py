"""The report on all studies of a folder: the answers, the project in numbers, and the files.

Where the results of a folder bear on the published study, the report also judges its claims.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import oelm
from oelm.analysis.budgets import cheapest
from oelm.analysis.compare import Comparison, Found, compare_folder, gather
from oelm.analysis.evidence import Row, judge
from oelm.errors import BadRecord, OelmError
from oelm.published.claims import PublishedRun, published, published_run
from oelm.published.ledger import (
    Bench,
    LedgerEntry,
    TimerRecord,
    counterpart,
    frozen_rows,
    ledger,
    read_benches,
    read_timer,
)
from oelm.published.runs import UNKNOWN
from oelm.record.folder import (
    ATTENTION,
    LOGIT_VARIANCE,
    LOOKS,
    METRICS,
    RECORD,
    REGISTERED,
    SAMPLES,
    STUDY,
    TEST_LOSSES,
    TIMING,
    UNSEALED,
    WINDOW_LOSSES,
    find_records,
    read_study,
    study_folders,
)
from oelm.record.keep import LIGHT
from oelm.record.stages import CHOICE
from oelm.report.budgets import price_of_all
from oelm.report.claims import claims_by_verdict, ledger_section, rules_section
from oelm.report.listing import listed_records
from oelm.report.render import Column, Document, Line, Remark, Section, Table
from oelm.report.tables import link_record, name_arm, unreadable_section
from oelm.report.wording import (
    Language,
    Say,
    format_bytes,
    format_difference,
    format_figure,
    format_interval,
    format_setting,
    format_share,
    format_verdict,
    marks,
    wording,
)
from oelm.spec.model import HuggingFaceSpec, ModelSpec
from oelm.spec.study import AnyStudy, Listing


def project_section(found: Sequence[Found], say: Say) -> Section:
    """Return the table of counts: runs, hours, sizes."""
    records = [record for _, record in found]
    seconds = sum(record.seconds.total for record in records if record.seconds)
    sizes = sum(
        (path / name).stat().st_size for path, _ in found for name in (RECORD, *LIGHT) if (path / name).is_file()
    )
    counts = {
        "stat_runs": f"{len(records):,}",
        "stat_complete": f"{sum(record.status == 'complete' for record in records):,}",
        "stat_failed": f"{sum(record.status == 'failed' for record in records):,}",
        "stat_imported": f"{sum(record.imported for record in records):,}",
        "stat_hours": f"{seconds / 3600:,.1f}",
        "stat_tokens": f"{sum(record.result.train_tokens for record in records if record.result):,}",
        "stat_largest": f"{max((record.parameters.total for record in records if record.parameters), default=0):,}",
        "stat_bytes": format_bytes(sizes, say),
    }
    columns = (Column("name", say("heading_project")), Column("count", ""))
    table = Table("project", columns, tuple(Line((say(key), value)) for key, value in counts.items()))
    return Section("project", say("heading_project"), table=table)


def timeline_section(studies: Sequence[tuple[Path, AnyStudy]], found: Sequence[Found], say: Say) -> Iterator[Section]:
    """List the days on which the runs of each study were made, the earliest study first."""
    entries = []
    by_folder = _group_by_folder(found)
    for folder, study in studies:
        own = [record for _, record in by_folder.get(folder, ())]
        moments = [moment for record in own for moment in (record.started, record.finished)]
        days = sorted(moment[:10] for moment in moments if moment not in (None, UNKNOWN))
        if days:
            text = say("timeline_study", first=days[0], last=days[-1], runs=len(own))
            entries.append((days[0], Remark(study.name, text)))
    if entries:
        ordered = tuple(remark for _, remark in sorted(entries, key=lambda item: item[0]))
        yield Section("timeline", say("heading_timeline"), remarks=ordered)


def _group_by_folder(found: Iterable[Found]) -> dict[Path, list[Found]]:
    """Return the runs at or below each folder."""
    groups: dict[Path, list[Found]] = {}
    for item in found:
        for folder in (item[0], *item[0].parents):
            groups.setdefault(folder, []).append(item)
    return groups


def files_section(say: Say) -> Section:
    """Describe the files in a folder of runs."""
    files = {
        STUDY: "file_study", RECORD: "file_record", METRICS: "file_metrics",
        TIMING: "file_timing", ATTENTION: "file_attention", SAMPLES: "file_samples",
        TEST_LOSSES: "file_losses", WINDOW_LOSSES: "file_window_losses", LOGIT_VARIANCE: "file_logit_variance",
        CHOICE: "file_choice", REGISTERED: "file_registered", LOOKS: "file_looks",
        UNSEALED: "file_unsealed", "report/": "file_report",
    }  # fmt: skip
    return Section("files", say("heading_files"), remarks=tuple(Remark(name, say(key)) for name, key in files.items()))


@dataclass(frozen=True)
class Archive:
    """Everything in a folder of runs."""

    root: Path
    studies: tuple[tuple[Path, AnyStudy], ...]
    comparisons: tuple[tuple[Path, Comparison], ...]
    """Each with the folder of its study. Probes are left out."""
    benches: tuple[Bench, ...]
    found: tuple[Found, ...]
    refused: tuple[tuple[str, str], ...]
    """The study, and the reason why its runs are not compared."""
    unreadable: tuple[str, ...]
    timer: TimerRecord | None = None
    """What explains the published saving of time on BERT."""


def read_archive(root: Path) -> Archive:
    """Read and compare every study of a folder. Studies that cannot be read or compared are listed, not raised."""
    found, bad = find_records(root)
    benches, spoiled = read_benches(root)
    timer, wrong = read_timer(root)
    by_folder = _group_by_folder(found)
    studies, comparisons, refused = [], [], []
    unreadable = [*map(str, bad), *spoiled, *wrong]
    for folder in study_folders(root):
        try:
            study = read_study(folder)
        except OelmError as error:
            unreadable.append(str(error))
            continue
        studies.append((folder, study))
        try:
            own = by_folder.get(folder, [])
            comparisons += [(folder, item) for item in _compare(study, folder, own, bad) if not item.is_probe]
        except OelmError as error:
            refused.append((study.name, str(error)))
    return Archive(
        root, tuple(studies), tuple(comparisons), tuple(benches), tuple(found), tuple(refused), tuple(unreadable), timer
    )


def _compare(study: AnyStudy, folder: Path, own: list[Found], bad: Sequence[BadRecord]) -> Sequence[Comparison]:
    """Compare a study's `own` records; `bad` are the errors of all records that cannot be read."""
    if not isinstance(study, Listing):
        here = [error for error in bad if f"{folder}{os.sep}" in str(error)]
        return [compare_folder(study, folder, read=(own, here))]
    members = list(listed_records(study, own).values())
    return gather(members).comparisons if members else ()


def final_document(archive: Archive, out: Path, lang: Language) -> Document:
    """Return the report on all studies together."""
    say = wording(lang)
    comparisons = [comparison for _, comparison in archive.comparisons]
    # A run that two studies share is in both folders.
    runs = list({record.fingerprint: (path, record) for path, record in archive.found}.values())
    lead = (
        say("final_lead", studies=len(archive.studies), runs=len(runs), root=archive.root.name)
        if archive.studies
        else say("final_nothing", root=archive.root.name)
    )
    entries = ledger(comparisons, archive.benches, archive.timer)
    entries = entries if _bears_on_claims(archive, entries) else []
    answers = [*claims_by_verdict(entries, lang), *_where_applies(comparisons, say)] if entries else []
    sections = [
        Section("verdict", say("heading_verdict"), (lead, *answers, *_what_it_takes(comparisons, say))),
        *([ledger_section(entries, out, lang), rules_section(entries, lang)] if entries else []),
        *price_of_all(comparisons, say),
        *_cross_section(archive, out, say),
        *_studies_section(archive, say),
        project_section(runs, say),
        *timeline_section(archive.studies, archive.found, say),
        *([_published_section(say, lang)] if entries else []),
        files_section(say),
        *_leftovers(archive, say),
        Section("citation", say("heading_citation"), (say("citation", version=oelm.__version__),)),
    ]
    footer = say("made_by", version=oelm.__version__, root=archive.root.name)
    return Document(say("final_title"), say("final_question"), tuple(sections), footer)


def _bears_on_claims(archive: Archive, entries: Sequence[LedgerEntry]) -> bool:
    """Whether a folder repeats a published run, or has a result that counts as evidence for a published claim."""
    counted = (finding.reason is None for entry in entries for part in entry.judged for finding in part.findings)
    return any(counted) or any(published_run(record.spec) for _, record in archive.found)


def _where_applies(comparisons: Sequence[Comparison], say: Say) -> Iterator[str]:
    rows = [(comparison, row) for comparison in comparisons for row in frozen_rows(comparison)]
    for verdict, key in {"met": "applies_met", "not met": "applies_not_met", "undecided": "applies_undecided"}.items():
        where = [
            name_arm(f"{comparison.study.name} ({_name_with_counterpart(comparison, row, say)})", row.cell)
            for comparison, row in rows if row.verdict == verdict
        ]  # fmt: skip
        if where:
            yield say(key, where=say("ledger_join").join(where))


def _name_with_counterpart(comparison: Comparison, row: Row, say: Say) -> str:
    """Name an arm. If the reference has other initial weights, add the difference to the arm that has the same."""
    other = counterpart(comparison, row)
    if other is None or other.arm == comparison.study.reference:
        return row.arm
    judged = judge(comparison.measure, row.by_seed, other.by_seed, comparison.margin)
    shown = format_difference(judged.difference.mean, comparison.measure, say) if judged else say("none")
    return say("applies_against", arm=row.arm, other=other.arm, difference=shown)


def _what_it_takes(comparisons: Sequence[Comparison], say: Say) -> Iterator[str]:
    """Name the arms that freeze Q and K completely, are within the margin with 95 % confidence, and train the least."""
    places = [
        say("takes_one", study=name_arm(comparison.study.name, item.cell), arm=item.row.arm,
            share=format_share(item.share, say), difference=format_difference(difference.mean, comparison.measure, say),
            interval=format_interval(difference, comparison.measure, say))
        for comparison in comparisons
        for item in cheapest(comparison)
        if item.kind == "frozen" and item.margin == comparison.margin
        if item.row and (difference := item.row.difference)
    ]  # fmt: skip
    if places:
        yield say("takes", where=say("ledger_join").join(places))


def _cross_section(archive: Archive, out: Path, say: Say) -> Iterator[Section]:
    lines = []
    for _, comparison in archive.comparisons:
        frozen = {arm.name for arm in comparison.study.arms if {"q", "k"} <= set(arm.method.freeze.roles)}
        rows = [row for row in comparison.rows if row.arm in frozen and row.evidence and row.difference]
        lines += [_cross_line(comparison, row, out, say) for row in rows]
    if lines:
        keys = {"name": "study", "words": "architecture", "state": "kind", "arm": "arm", "measure": "corpus",
                "figure": "figure", "difference": "step_difference", "interval": "interval",
                "verdict": "whether"}  # fmt: skip
        columns = tuple(Column(name, say(key)) for name, key in keys.items())
        table = Table("cross", columns, tuple(lines))
        yield Section("cross", say("heading_cross"), (say("cross_note"),), table=table)


def _cross_line(comparison: Comparison, row: Row, out: Path, say: Say) -> Line:
    spec, measure, difference = row.evidence[0].spec, comparison.measure, row.difference
    return Line(
        (
            comparison.study.name, architecture(spec.model), say(f"kind_{spec.data.kind}"), name_arm(row.arm, row.cell),
            spec.data.corpus, format_figure(row.figure, measure, say) + marks(row),
            format_difference(difference.mean, measure, say) if difference else say("none"),
            format_interval(difference, measure, say), format_verdict(row, say),
        ),
        tone=row.verdict,
        links={5: link_record(row.evidence[0].directory, out)},
    )  # fmt: skip


def architecture(model: ModelSpec) -> str:
    """Name a model for a table."""
    if isinstance(model, HuggingFaceSpec):
        return model.name if model.pretrained else f"{model.name} (0)"
    return f"GPT {model.num_layers} x {model.model_dim}"


def _studies_section(archive: Archive, say: Say) -> Iterator[Section]:
    """List the studies with their questions. The writer of the report adds links to their reports."""
    if archive.studies:
        remarks = tuple(Remark(study.name, study.question) for _, study in archive.studies)
        yield Section("studies", say("heading_studies"), remarks=remarks)


def _published_section(say: Say, lang: Language) -> Section:
    remarks = tuple(
        Remark(", ".join(item.runs) or say("whole_study"), item.en if lang == "en" else item.zh)
        for item in published().contradictions
    )
    keys = {
        "name": "published_id",
        "words": "corpus",
        "arm": "arm",
        "rate": "learning_rate",
        "figure": "published_there",
    }
    lines = [
        Line((run.id, run.corpus, run.method, format_setting(run.learning_rate), _format_claimed(run)))
        for run in published().runs
    ]
    table = Table("published", tuple(Column(name, say(key)) for name, key in keys.items()), tuple(lines))
    return Section("contradictions", say("heading_contradictions"), table=table, remarks=remarks)


def _format_claimed(run: PublishedRun) -> str:
    return f"{run.perplexity:.2f}" if run.perplexity else f"{100 * (run.accuracy or 0):.2f} %"


def _leftovers(archive: Archive, say: Say) -> Iterator[Section]:
    folders = {folder for folder, _ in archive.studies}
    loose = [path for path, _ in archive.found if folders.isdisjoint((path, *path.parents))]
    if loose:
        yield Section("loose", say("heading_loose"), (say("loose", count=len(loose)),))
    if archive.refused:
        remarks = tuple(Remark(study, reason) for study, reason in archive.refused)
        yield Section("refused", say("heading_refused"), remarks=remarks)
    if archive.unreadable:
        yield unreadable_section(archive.unreadable, say)
