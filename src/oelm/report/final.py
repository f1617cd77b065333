"""The report on all studies of a folder: the answers, the project in numbers, and the files.

Where the results of a folder bear on the published study, the report also judges its claims: for each a paragraph, a
small forest plot, and the runs behind it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args
from urllib.parse import quote

import oelm
from oelm.analysis.budgets import cheapest
from oelm.analysis.compare import Comparison, Found, compare_folder, gather
from oelm.analysis.evidence import Row, judge
from oelm.analysis.regime import MARGINS_REQUIRED
from oelm.analysis.statistics import CONFIDENCE, MARGIN, Estimate
from oelm.errors import BadRecord, OelmError
from oelm.published.claims import (
    LEAST_PLACES_TO_POOL,
    ClaimRule,
    ClaimSize,
    PublishedRun,
    Range,
    Unit,
    Words,
    published,
    published_run,
    scaled,
)
from oelm.published.ledger import (
    LEDGER_POWER,
    Bench,
    ClaimFinding,
    DecidingNeed,
    JudgedRule,
    LedgerEntry,
    LedgerVerdict,
    TimerRecord,
    TimerSaving,
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
from oelm.report.figures import Band, ClaimDot, ClaimPanel, draw_claim_forest, draw_figure
from oelm.report.listing import listed_records
from oelm.report.render import Answer, Column, Document, Figure, Footnote, Line, Remark, Section, Table
from oelm.report.sections import price_of_all
from oelm.report.tables import link_record, name_arm, unreadable_section
from oelm.report.wording import (
    Language,
    Say,
    format_bytes,
    format_difference,
    format_figure,
    format_interval,
    format_probability,
    format_setting,
    format_share,
    format_verdict,
    marks,
    without_minus_zero,
    wording,
)
from oelm.spec.run import HuggingFaceSpec, ModelSpec
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


# The ledger of the published claims.


def ledger_section(entries: Sequence[LedgerEntry], out: Path, lang: Language) -> Section:
    """Show the verdict on every published claim."""
    say = wording(lang)
    answers = tuple(
        Answer(
            subject=claim_text(entry.claim.title, lang),
            tone=entry.verdict,
            word=say(entry.verdict),
            sentence=say("join").join(_paragraph(entry, say, lang)),
            needs=tuple(_needs(entry, say, lang)),
            figure=_claim_figure(entry, lang),
            footnotes=tuple(_footnotes(entry, out, say)),
            anchor=f"claim-{entry.claim.name}",
        )
        for entry in entries
    )
    note = say("ledger_note", pooled=LEAST_PLACES_TO_POOL, claims=len(entries))
    return Section("ledger", say("heading_ledger"), (note,), answers=answers)


def claims_by_verdict(entries: Sequence[LedgerEntry], lang: Language) -> Iterator[str]:
    """List the claims of each verdict."""
    say = wording(lang)
    for verdict in get_args(LedgerVerdict):
        titles = [claim_text(entry.claim.title, lang) for entry in entries if entry.verdict == verdict]
        if titles:
            yield say("claims_by_verdict", verdict=say(verdict), claims=say("ledger_join").join(titles))


def rules_section(entries: Sequence[LedgerEntry], lang: Language) -> Section:
    """Show the rules behind the verdicts: the table of oelm.published.claims."""
    say = wording(lang)
    keys = {"name": "rules_claim", "words": "rules_published", "state": "rules_claimed", "difference": "rules_none",
            "measure": "rules_counts"}  # fmt: skip
    columns = tuple(Column(name, say(key)) for name, key in keys.items())
    lines = tuple(
        Line((
            _name_part(entry, part, say, lang),
            _format_sizes(part.rule.sizes, part.rule.unit, say, lang),
            _format_claim(part.rule, say),
            _format_no_effect(part.rule, say),
            claim_text(part.rule.counts, lang),
        ))
        for entry in entries
        for part in entry.judged
    )  # fmt: skip
    return Section("rules", say("heading_rules"), (say("rules_note"),), table=Table("rules", columns, lines))


def _name_part(entry: LedgerEntry, part: JudgedRule, say: Say, lang: Language) -> str:
    title = claim_text(entry.claim.title, lang)
    several = len(entry.judged) > 1
    return say("claim_size", size=title, source=say(f"quantity_{part.rule.quantity}")) if several else title


def claim_text(text: Words, lang: Language) -> str:
    """Return a text of the claims in the given language."""
    return text.zh if lang == "zh" else text.en


def _paragraph(entry: LedgerEntry, say: Say, lang: Language) -> Iterator[str]:
    several = len(entry.judged) > 1
    for part in entry.judged:
        if several:  # the figure and the rules have the published sizes
            yield say("claim_part", name=say(f"quantity_{part.rule.quantity}"), text=_describe_effect(part, say))
            if part.pooled:
                yield say("claim_part_verdict", verdict=say(part.verdict))
            continue
        yield say("claim_published", sizes=_format_sizes(part.rule.sizes, part.rule.unit, say, lang))
        yield _describe_effect(part, say)
        if part.flop_share:
            yield say("claim_flops", share=_format_number(part.flop_share, "share", say, signed=False))
        if entry.timer:
            yield _explain_timer(entry.timer, say)
    yield from _explain_correction(entry, say)
    yield from _regime(entry, say)


def _explain_timer(timer: TimerRecord, say: Say) -> str:
    def format_saving(found: TimerSaving) -> str:
        saving = _format_number(found.saving, "share", say)
        if found.interval is None:
            return saving
        low, high = (_format_number(bound, "share", say) for bound in found.interval)
        return say("claim_timer_saving", saving=saving, low=low, high=high)

    return say(
        "claim_timer",
        model=timer.size,
        published=format_saving(timer.as_published),
        alike=format_saving(timer.timed_alike),
        limit=_format_number(timer.flop_share, "share", say, signed=False),
    )


def _needs(entry: LedgerEntry, say: Say, lang: Language) -> Iterator[str]:
    """Say what would decide each rule of an undecided claim."""
    for part in entry.judged:
        if part.need:
            text = _describe_need(part.need, part.rule, say, lang)
            name = say(f"quantity_{part.rule.quantity}") if len(entry.judged) > 1 else ""
            yield say("claim_part", name=name, text=text) if name else text


def _explain_correction(entry: LedgerEntry, say: Say) -> Iterator[str]:
    """Give the reason for the verdict, or the verdict before the correction for all claims."""
    if entry.p is None:
        return
    if entry.alone != entry.verdict:
        yield say("claim_corrected_away", verdict=say(entry.alone), p=format_probability(entry.p, say))
    elif entry.verdict != "undecided":
        yield say(f"claim_because_{entry.verdict}", p=format_probability(entry.p, say))


def _regime(entry: LedgerEntry, say: Say) -> Iterator[str]:
    regimes = {part.regime for part in entry.judged if part.pooled}
    worth = [value for part in entry.judged for value in part.worth]
    margin = _format_number(MARGIN, "percent", say, signed=False)
    if "small" in regimes:
        shown = (
            [_format_number(value, "percent", say, signed=False) for value in sorted({min(worth), max(worth)})]
            if worth
            else []
        )
        yield (
            say("regime_small", worth=say("to").join(shown), times=f"{MARGINS_REQUIRED:g}", margin=margin)
            if shown
            else say("regime_small_bound", times=f"{MARGINS_REQUIRED:g}", margin=margin)
        )
    elif "unknown" in regimes:
        yield say("regime_unknown")


def _describe_effect(part: JudgedRule, say: Say) -> str:
    unit = part.rule.unit
    shown = [
        say("claim_at", place=place.name, effect=_format_effect(place.estimate, unit, say)) for place in part.places
    ]
    if not part.pooled:
        singles = [(item.study, item.mean) for item in part.findings if item.mean is not None]
        if not singles:
            return say("claim_unmeasured")
        listed = say("ledger_join").join(f"{study} {_format_number(mean, unit, say)}" for study, mean in singles)
        return say("claim_no_interval", listed=listed)
    if len(shown) == 1:
        return say("claim_measured_one", effect=shown[0])
    pooled = _format_effect(part.pooled.estimate, unit, say)
    listed = say("ledger_join").join(shown)
    return say("claim_measured_two" if len(shown) == 2 else "claim_measured_many", listed=listed, pooled=pooled,
               places=len(shown))  # fmt: skip


def _describe_need(need: DecidingNeed, rule: ClaimRule, say: Say, lang: Language) -> str:
    hours = say("none")
    if need.hours is not None:
        hours = say("gpu_hours" if need.on_gpu else "core_hours", value=f"{need.hours:.2g}")
    if need.seeds:
        seeds = say("ledger_join").join(
            say("need_seeds_at", place=name, count=more) for name, more in need.seeds.items()
        )
        power = say("percent", value=f"{100 * LEDGER_POWER:.0f}")
        return say("need_seeds", seeds=seeds, runs=need.runs, hours=hours, power=power)
    key = "need_bench" if need.runs == 1 else "need_experiment"
    return say(key, experiment=claim_text(rule.experiment, lang), runs=need.runs, hours=hours)


def _format_sizes(sizes: Sequence[ClaimSize], unit: Unit, say: Say, lang: Language) -> str:
    return say("ledger_join").join(
        say("claim_size", size=_format_number(size.value, unit, say), source=claim_text(size.source, lang))
        for size in sizes
    )


def _format_claim(rule: ClaimRule, say: Say) -> str:
    return _format_range(rule.claimed, rule.unit, say)


def _format_range(bounds: Range, unit: Unit, say: Say) -> str:
    # Points gained are points lost with the sign changed, so the bounds change places.
    low, high = (-bounds.high, -bounds.low) if unit == "points" else (bounds.low, bounds.high)
    if math.isinf(low) or math.isinf(high):
        end = _format_number(bounds.low if math.isinf(bounds.high) else bounds.high, unit, say)
        return say("range_below", high=end) if math.isinf(low) else say("range_above", low=end)
    if unit == "steps":
        return say("range_plain", low=f"{low:.2f}", high=f"{high:.2f}")
    if unit == "points":
        return say("range_points", low=f"{low:+.2f}", high=f"{high:+.2f}")
    return say("range", low=f"{scaled(low, unit):+.1f}", high=f"{scaled(high, unit):+.1f}")


def _format_no_effect(rule: ClaimRule, say: Say) -> str:
    if rule.no_effect is None:
        return say("none")
    return f"± {_format_number(rule.no_effect, rule.unit, say, signed=False)}"


def _format_effect(estimate: Estimate, unit: Unit, say: Say) -> str:
    interval = estimate.interval(CONFIDENCE)
    return say("claim_effect", mean=_format_number(estimate.mean, unit, say),
               interval=_format_range(Range(interval.low, interval.high), unit, say))  # fmt: skip


def _format_number(value: float, unit: Unit, say: Say, *, signed: bool = True) -> str:
    """Format an effect. Points lost get a minus sign."""
    sign = "+" if signed else ""
    if unit == "points":
        return say("points", value=f"{without_minus_zero(-value):{sign}.2f}")
    if unit == "steps":
        return say("ledger_steps", value=f"{value:.2f}")
    return say("percent", value=f"{without_minus_zero(scaled(value, unit)):{sign}.1f}")


def _footnotes(entry: LedgerEntry, out: Path, say: Say) -> Iterator[Footnote]:
    """Describe every finding: its effect, whether it counts, and its runs, arm by arm."""
    said: set[tuple[str, str, str]] = set()
    for part in entry.judged:
        for finding in part.findings:
            key = (finding.study, finding.what, part.rule.quantity)
            if key not in said:
                said.add(key)
                yield Footnote(_describe_finding(finding, say), tuple(_record_links(finding, out, say)))


def _describe_finding(finding: ClaimFinding, say: Say) -> str:
    effect = say("none")
    if finding.estimate:
        effect = _format_effect(finding.estimate, finding.unit, say)
    elif finding.mean is not None:
        effect = _format_number(finding.mean, finding.unit, say)
    reason = say(f"reason_{finding.reason}") if finding.reason else say("reason_counts")
    return say("ledger_one", study=finding.study, arm=finding.what, difference=effect, verdict=reason)


def _record_links(finding: ClaimFinding, out: Path, say: Say) -> Iterator[tuple[str, tuple[tuple[str, str], ...]]]:
    if finding.bench:
        yield say("ledger_bench"), ((finding.bench.path.name, _relative(finding.bench.path, out)),)
    for arm in dict.fromkeys(item.arm for item in finding.evidence):
        items = [item for item in finding.evidence if item.arm == arm]
        yield arm, tuple((str(item.spec.seed), link_record(item.directory, out)) for item in items)


def _relative(path: Path, out: Path) -> str:
    return quote(Path(os.path.relpath(path, out)).as_posix())


def _claim_figure(entry: LedgerEntry, lang: Language) -> Figure:
    def panels(say: Say) -> list[ClaimPanel]:
        return [_claim_panel(part, say, several=len(entry.judged) > 1) for part in entry.judged]

    return draw_figure(f"claim-{entry.claim.name}", lambda voice: draw_claim_forest(panels(voice), voice), "", lang)


def _claim_panel(part: JudgedRule, say: Say, *, several: bool) -> ClaimPanel:
    rule = part.rule

    def drawn_at(value: float) -> float:
        return -value if rule.unit == "points" else scaled(value, rule.unit)

    def dot(label: str, estimate: Estimate, *, pooled: bool) -> ClaimDot:
        interval = estimate.interval(CONFIDENCE)
        low, high = sorted((drawn_at(interval.low), drawn_at(interval.high)))
        return ClaimDot(label, drawn_at(estimate.mean), low, high, pooled)

    dots = []
    for place in part.places:
        dots += [dot(item.study, item.estimate, pooled=False) for item in place.findings if item.estimate]
        if len(place.findings) > 1:
            dots.append(dot(say("claim_together", place=place.name), place.estimate, pooled=True))
    if part.pooled and part.pooled.places > 1:
        dots.append(dot(say("claim_pooled"), part.pooled.estimate, pooled=True))
    none = rule.no_effect
    return ClaimPanel(
        title=say(f"quantity_{rule.quantity}") if several else "",
        axis=say(f"claim_axis_{rule.unit}"),
        published=tuple(drawn_at(size.value) for size in rule.sizes),
        claimed=Band(*sorted((drawn_at(rule.claimed.low), drawn_at(rule.claimed.high)))),
        nothing=None if none is None else Band(*sorted((drawn_at(rule.zero - none), drawn_at(rule.zero + none)))),
        zero=drawn_at(rule.zero),
        dots=tuple(dots),
    )
