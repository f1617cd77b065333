"""The final report: every study of a folder, the published claims, trends, and the project in numbers."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import oelm
from oelm.analysis.benches import Bench, read_benches
from oelm.analysis.compare import Comparison, Found, compare_folder
from oelm.analysis.findings import counterpart, frozen_rows
from oelm.analysis.gather import gather
from oelm.analysis.ledger import ledger
from oelm.analysis.measure import judge
from oelm.analysis.price import cheapest
from oelm.analysis.published import PublishedRun, published
from oelm.analysis.rows import Row
from oelm.errors import OelmError, UsageError
from oelm.record.store import find_records, read_study, study_folders
from oelm.report.certificates import link, named, unreadable_section
from oelm.report.claims import claims_by_verdict, ledger_section, rules_section
from oelm.report.document import Column, Document, Line, Remark, Section, Table
from oelm.report.listing import listed_records
from oelm.report.numbers import (
    marks,
    shown_difference,
    shown_figure,
    shown_interval,
    shown_setting,
    shown_share,
    shown_verdict,
)
from oelm.report.page import PAGE, report_folder, write_document
from oelm.report.price import price_of_all
from oelm.report.project import files_section, project_section, timeline_section
from oelm.report.wording import Language, Say, wording
from oelm.spec.model import ForeignSpec, ModelSpec
from oelm.study import AnyStudy, Listing


@dataclass(frozen=True)
class Archive:
    """Everything in a folder of runs."""

    root: Path
    studies: tuple[tuple[Path, AnyStudy], ...]
    comparisons: tuple[tuple[Path, Comparison], ...]
    """With the folder of the study each is from. Probes are not among them."""
    benches: tuple[Bench, ...]
    found: tuple[Found, ...]
    refused: tuple[tuple[str, str], ...]
    """Study, and why its runs are not compared."""
    unreadable: tuple[str, ...]


def write_final(root: Path, out: Path, lang: Language) -> Document:
    """Report everything below a folder."""
    if not root.is_dir():
        raise UsageError(f"{root} is no folder, so there is nothing to report. Give the folder of `oelm run`.")
    document = final_document(read_archive(root), out, lang)
    write_document(document, out, lang)
    return document


def read_archive(root: Path) -> Archive:
    """Read and compare every study of a folder; whatever cannot be read or compared is listed, and stops nothing."""
    found, bad = find_records(root)
    benches, spoiled = read_benches(root)
    studies, comparisons, refused = [], [], []
    unreadable = [*map(str, bad), *spoiled]
    for folder in study_folders(root):
        try:
            study = read_study(folder)
        except OelmError as error:
            unreadable.append(str(error))
            continue
        studies.append((folder, study))
        try:
            comparisons += [(folder, item) for item in _compared(study, folder, found) if not item.is_probe]
        except OelmError as error:
            refused.append((study.name, str(error)))
    return Archive(
        root, tuple(studies), tuple(comparisons), tuple(benches), tuple(found), tuple(refused), tuple(unreadable)
    )


def _compared(study: AnyStudy, folder: Path, found: Sequence[Found]) -> Sequence[Comparison]:
    if not isinstance(study, Listing):
        return [compare_folder(study, folder)]
    own = [(path, record) for path, record in found if path.is_relative_to(folder)]
    members = list(listed_records(study, own).values())
    return gather(members).comparisons if members else ()


def final_document(archive: Archive, out: Path, lang: Language) -> Document:
    """Say what all studies together mean."""
    say = wording(lang)
    comparisons = [comparison for _, comparison in archive.comparisons]
    # A run that a second study has taken over lies in both folders.
    runs = list({record.fingerprint: (path, record) for path, record in archive.found}.values())
    lead = (
        say("final_lead", studies=len(archive.studies), runs=len(runs), root=archive.root.name)
        if archive.studies
        else say("final_nothing", root=archive.root.name)
    )
    entries = ledger(comparisons, archive.benches)
    sections = [
        Section(
            "verdict", say("heading_verdict"), (lead, *claims_by_verdict(entries, lang), *_answers(comparisons, say))
        ),
        ledger_section(entries, out, lang),
        rules_section(entries, lang),
        *price_of_all(comparisons, say),
        *_cross_section(archive, out, say),
        *_studies_section(archive, out, lang),
        project_section(runs, say),
        *timeline_section(archive.studies, archive.found, say),
        _published_section(say, lang),
        files_section(say),
        *_leftovers(archive, say),
        Section("citation", say("heading_citation"), (say("citation", version=oelm.__version__),)),
    ]
    footer = say("made_by", version=oelm.__version__, root=archive.root.name)
    return Document(say("final_title"), say("final_question"), tuple(sections), footer)


def _answers(comparisons: Sequence[Comparison], say: Say) -> Iterator[str]:
    yield from _where_applies(comparisons, say)
    yield from _what_it_takes(comparisons, say)


def _where_applies(comparisons: Sequence[Comparison], say: Say) -> Iterator[str]:
    rows = [(comparison, row) for comparison in comparisons for row in frozen_rows(comparison)]
    for verdict, key in {"met": "applies_met", "not met": "applies_not_met", "undecided": "applies_undecided"}.items():
        where = [
            named(f"{comparison.study.name} ({_beside_its_like(comparison, row, say)})", row.cell)
            for comparison, row in rows if row.verdict == verdict
        ]  # fmt: skip
        if where:
            yield say(key, where=say("ledger_join").join(where))


def _beside_its_like(comparison: Comparison, row: Row, say: Say) -> str:
    """Name an arm and, where the reference starts otherwise, what it is against the one that starts alike."""
    other = counterpart(comparison, row)
    if other is None or other.arm == comparison.study.reference:
        return row.arm
    judged = judge(comparison.measure, row.by_seed, other.by_seed, comparison.margin)
    shown = shown_difference(judged.difference.mean, comparison.measure, say) if judged else say("none")
    return say("applies_beside", arm=row.arm, other=other.arm, difference=shown)


def _what_it_takes(comparisons: Sequence[Comparison], say: Say) -> Iterator[str]:
    """Name the arms that keep all of Q and K frozen, train the least beside them, and are surely within the margin."""
    places = [
        say("takes_one", study=named(comparison.study.name, item.cell), arm=item.row.arm,
            share=shown_share(item.share, say), difference=shown_difference(difference.mean, comparison.measure, say),
            interval=shown_interval(difference, comparison.measure, say))
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
            comparison.study.name, architecture(spec.model), say(f"kind_{spec.data.kind}"), named(row.arm, row.cell),
            spec.data.corpus, shown_figure(row.figure, measure, say) + marks(row),
            shown_difference(difference.mean, measure, say) if difference else say("none"),
            shown_interval(difference, measure, say), shown_verdict(row, say),
        ),
        tone=row.verdict,
        links={5: link(row.evidence[0].directory, out)},
    )  # fmt: skip


def architecture(model: ModelSpec) -> str:
    """Name a model for a table."""
    if isinstance(model, ForeignSpec):
        return model.name if model.pretrained else f"{model.name} (0)"
    return f"GPT {model.num_layers} x {model.model_dim}"


def _studies_section(archive: Archive, out: Path, lang: Language) -> Iterator[Section]:
    remarks = []
    for folder, study in archive.studies:
        page = report_folder(folder, lang) / PAGE
        href = quote(Path(os.path.relpath(page, out)).as_posix()) if page.exists() else None
        remarks.append(Remark(study.name, study.question, href))
    if remarks:
        yield Section("studies", wording(lang)("heading_studies"), remarks=tuple(remarks))


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
        Line((run.id, run.corpus, run.method, shown_setting(run.learning_rate), _claimed(run)))
        for run in published().runs
    ]
    table = Table("published", tuple(Column(name, say(key)) for name, key in keys.items()), tuple(lines))
    return Section("contradictions", say("heading_contradictions"), table=table, remarks=remarks)


def _claimed(run: PublishedRun) -> str:
    return f"{run.perplexity:.2f}" if run.perplexity else f"{100 * (run.accuracy or 0):.2f} %"


def _leftovers(archive: Archive, say: Say) -> Iterator[Section]:
    folders = [folder for folder, _ in archive.studies]
    loose = [path for path, _ in archive.found if not any(path.is_relative_to(folder) for folder in folders)]
    if loose:
        yield Section("loose", say("heading_loose"), (say("loose", count=len(loose)),))
    if archive.refused:
        remarks = tuple(Remark(study, reason) for study, reason in archive.refused)
        yield Section("refused", say("heading_refused"), remarks=remarks)
    if archive.unreadable:
        yield unreadable_section(archive.unreadable, say)
