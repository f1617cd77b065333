"""The sections of a study's report that stand there only if its records have something to say about them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from oelm.analysis.ablation import Ablation, ablations
from oelm.analysis.compare import Comparison
from oelm.analysis.convergence import Curves, convergence_of
from oelm.analysis.evidence import Cell, Evidence
from oelm.analysis.published import contradictions_about, is_at_published_size, published_run
from oelm.analysis.rows import Row
from oelm.analysis.savings import savings
from oelm.analysis.tuning import Sensitivity, sensitivities
from oelm.errors import BadRecord
from oelm.record.attention import AttentionRecord, read_attention
from oelm.record.store import SAMPLES
from oelm.report.certificates import link, named
from oelm.report.document import Column, Figure, Fold, Line, Remark, Section, Table
from oelm.report.figures import Painter, Panel, convergence, curve, drawn
from oelm.report.numbers import ONE_SEED, shown_figure, shown_place, shown_setting, shown_share, without_minus_zero
from oelm.report.plots import Bar, Dot, Rank, forest, heads, heads_over_training, ranking, tuning_curves, waterfall
from oelm.report.tables import ablation_table, convergence_table, cost_table, statistics_table, tuning_table
from oelm.report.wording import Language, Say, wording

SAMPLE_BYTES = 4000
"""How much of a run's samples a report shows."""


def figure(name: str, painter: Painter, caption: str, lang: Language) -> Figure:
    """Draw something as SVG and as PNG."""
    svg, png = drawn(painter, lang)
    return Figure(name, svg, png, caption)


def places(comparison: Comparison) -> list[str]:
    """Return the arms in the order that gives each its colour: the reference first."""
    study = comparison.study
    return [study.reference, *(arm.name for arm in study.arms if arm.name != study.reference)]


def forest_section(comparison: Comparison, lang: Language) -> Iterator[Section]:
    """Draw the differences with their intervals and the margin, where there is an interval at all."""
    rows = [row for row in comparison.rows if row.difference and row.difference.interval]
    if not rows:
        return
    say, measure = wording(lang), comparison.measure
    scaled = measure.scaled
    dots = [
        Dot(row.arm, scaled(row.difference.mean), scaled(row.difference.interval.low),
            scaled(row.difference.interval.high), row.verdict or "undecided", shown_place(row.cell))
        for row in rows if row.difference and row.difference.interval
    ]  # fmt: skip
    caption = say("forest_caption", reference=comparison.study.reference)
    picture = figure(
        "forest", lambda voice: forest(dots, scaled(comparison.margin), voice(f"forest_axis_{measure.name}"), voice),
        caption, lang,
    )  # fmt: skip
    yield Section("forest", say("heading_forest"), figure=picture)


def statistics_section(comparison: Comparison, say: Say) -> Iterator[Section]:
    """Tell how sure the differences are."""
    if any(row.difference and row.difference.pairs > 1 for row in comparison.rows):
        yield Section("statistics", say("heading_statistics"), table=statistics_table(comparison, say))


def ablation_section(comparison: Comparison, lang: Language) -> Iterator[Section]:
    """Split the way to frozen orthogonal, where it has more than one step, and show freezing alone beside it."""
    found = [item for item in ablations(comparison) if len(item.steps) > 1 or item.apart]
    say, measure = wording(lang), comparison.measure
    if not found:
        return
    picture = None
    if any(step.difference for item in found for step in item.steps):
        axis = f"forest_axis_{measure.name}"
        picture = figure(
            "ablation",
            lambda voice: waterfall(_bars(found, voice), voice(axis), relative=measure.name == "perplexity"),
            say("ablation_caption"),
            lang,
        )
    notes = [say("ablation_note")]
    notes += [say("ablation_apart")] if any(item.apart for item in found) else []
    notes += [say("ablation_confounded")] if any(item.confounded for item in found) else []
    table = ablation_table(comparison, found, say)
    yield Section("ablation", say("heading_ablation"), tuple(notes), table=table, figure=picture)


def _bars(found: Sequence[Ablation], say: Say) -> list[Bar]:
    """Return the steps as bars. One that stands apart begins anew, so it is named by its ends."""
    return [
        Bar(
            " ".join(
                [
                    f"{step.start} → {step.end}" if item.apart else say(f"step_{step.name}"),
                    *(value for _, value in item.cell),
                ]
            ),
            step.difference.mean,
            step.difference.interval,
            first=number == 0,
        )
        for item in found
        for number, step in enumerate(item.steps)
        if step.difference
    ]


def convergence_section(comparison: Comparison, curves: dict[tuple[str, Cell], Curves], lang: Language) -> Section:
    """Draw the way there, and measure it."""
    say, order = wording(lang), places(comparison)
    panels = []
    for cell in comparison.cells:
        rows = [row for row in comparison.rows if row.cell == cell]
        lines = [curve(row.arm, order.index(row.arm), list(curves[row.arm, cell].values())) for row in rows]
        present = tuple(line for line in lines if line)
        if present:
            panels.append(Panel(shown_place(cell), present, _validation_floor(rows)))
    if not panels:
        return Section("plot", say("heading_plot"), (say("plot_missing"),))
    picture = figure("convergence", lambda voice: convergence(panels, voice), say("plot_caption"), lang)
    table = convergence_table(comparison, convergence_of(comparison, curves), say)
    return Section("plot", say("heading_plot"), figure=picture, table=table)


def _validation_floor(rows: list[Row]) -> float | None:
    data = [item.record.data for row in rows for item in row.evidence if item.record.data]
    return next((found.floor["val"] for found in data if "val" in found.floor), None)


def tuning_section(comparison: Comparison, out: Path, lang: Language) -> Iterator[Section]:
    """Show the grid, and what it would cost each arm to miss its best value."""
    found, say = sensitivities(comparison), wording(lang)
    if not found:
        return
    order = places(comparison)
    picture = None
    numeric = all(isinstance(point.value, int | float) for item in found for point in item.points)
    if all(len(item.points) == 1 for item in found) and all(len(grid) == 1 for grid in comparison.study.tuned.values()):
        picture = _ranking(comparison, found, lang)
    elif numeric and any(point.scores for item in found for point in item.points):
        picture = figure("tuning", lambda voice: tuning_curves(found, order, voice), say("tuning_caption"), lang)
    table = tuning_table(comparison, found, out, say)
    yield Section("tuning", say("heading_tuning"), table=table, figure=picture)


def _ranking(comparison: Comparison, found: Sequence[Sensitivity], lang: Language) -> Figure | None:
    """Draw where arms stand that have one setting each, so that there is no curve to draw."""
    say, measure, reference = wording(lang), comparison.measure, comparison.study.reference
    bests = {item.cell: item.best for item in found if item.arm == reference}
    ranks = [
        Rank(named(item.arm, item.cell), measure.scaled(measure.of_scores(item.best - best)), shown_share(item.qk, say))
        for item in found
        if item.arm != reference and item.best is not None and (best := bests.get(item.cell)) is not None
    ]
    if not ranks:
        return None
    margin, axis = measure.scaled(comparison.margin), f"forest_axis_{measure.name}"
    caption = say("ranking_caption", reference=reference)
    return figure("ranking", lambda voice: ranking(ranks, margin, voice(axis), voice), caption, lang)


def cost_section(comparison: Comparison, say: Say) -> Iterator[Section]:
    """Show what the arms need beside what they can save."""
    if any(row.evidence for row in comparison.rows):
        yield Section("cost", say("heading_cost"), table=cost_table(comparison, savings(comparison), say))


def heads_sections(comparison: Comparison, complaints: list[str], lang: Language) -> list[Section]:
    """Draw what the heads of the first seed of each arm look at: at the end, and on the way there for each cell."""
    order, say = places(comparison), wording(lang)
    found = [
        (row, seen)
        for row in comparison.rows
        if (seen := next(filter(None, (_attention(item, complaints) for item in row.evidence)), []))
    ]
    if not found:
        return []
    ends = [
        (
            shown_place(cell),
            [(row.arm, order.index(row.arm), seen[-1].entropy) for row, seen in found if row.cell == cell],
        )
        for cell in dict.fromkeys(row.cell for row, _ in found)
    ]
    picture = figure("heads", lambda voice: heads(ends, voice), say("heads_caption"), lang)
    sections = [Section("heads", say("heading_heads"), figure=picture)]
    for number, cell in enumerate(comparison.cells, 1):
        ways = [(row.arm, seen) for row, seen in found if row.cell == cell and len(seen) > 1]
        if ways:
            name = "heads-training" if len(comparison.cells) == 1 else f"heads-training-{number}"
            title = ": ".join([say("heading_heads_training"), *(value for _, value in cell)])
            picture = figure(name, partial(heads_over_training, ways), say("heads_training_caption"), lang)
            sections.append(Section(name, title, figure=picture))
    return sections


def _attention(item: Evidence, complaints: list[str]) -> list[AttentionRecord]:
    try:
        return read_attention(item.directory)
    except BadRecord as error:
        complaints.append(str(error))
        return []


def samples_section(comparison: Comparison, say: Say) -> Iterator[Section]:
    """Show what the models write."""
    folds = [
        Fold(say("samples_of", arm=named(row.arm, row.cell), seed=item.spec.seed), text)
        for row in comparison.rows
        for item in row.evidence
        if (text := sample_of(item))
    ]
    if folds:
        yield Section("samples", say("heading_samples"), folds=tuple(folds), first_open=True)


def sample_of(item: Evidence) -> str | None:
    """Return what a run wrote at its end, if it wrote anything."""
    path = item.directory / SAMPLES
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return file.read(SAMPLE_BYTES).decode(errors="replace").strip()


def published_section(comparison: Comparison, out: Path, say: Say, lang: Language) -> Iterator[Section]:
    """Set runs beside the published ones whose ids their labels carry, with what is known to be wrong there."""
    yield from beside_published([(row, item) for row in comparison.rows for item in row.evidence], out, say, lang)


def beside_published(evidence: list[tuple[Row, Evidence]], out: Path, say: Say, lang: Language) -> Iterator[Section]:
    """Set any runs beside the published ones."""
    lines, ids = [], set()
    for row, item in evidence:
        there = published_run(item.spec)
        cost = row.measure.cost(item.record.result)
        if there is None or cost is None:
            continue
        ids.add(there.id)
        here = row.measure.figure(cost)
        claimed = there.perplexity if row.measure.name == "perplexity" else 100 * (there.accuracy or 0)
        ratio = say("none")
        if claimed and is_at_published_size(item.spec, there):
            ratio = (
                say("percent", value=f"{without_minus_zero(round(100 * (here / claimed - 1), 1)):+.1f}")
                if row.measure.name == "perplexity"
                else say("points", value=f"{without_minus_zero(here - claimed):+.2f}")
            )
        lines.append(Line(
            (there.id, item.spec.arm, shown_setting(item.spec.train.learning_rate),
             shown_figure(here, row.measure, say) + ONE_SEED * (len(row.evidence) == 1),
             shown_figure(claimed, row.measure, say), ratio),
            links={3: link(item.directory, out)},
        ))  # fmt: skip
    if not lines:
        return
    headings = {"name": "published_id", "arm": "arm", "rate": "learning_rate", "here": "published_here",
                "there": "published_there", "ratio": "published_ratio"}  # fmt: skip
    columns = tuple(Column(name, say(key)) for name, key in headings.items())
    yield Section("published", say("heading_published"), (say("published_note"),),
                  table=Table("published", columns, tuple(lines)))  # fmt: skip
    known = contradictions_about(ids)
    if known:
        remarks = tuple(Remark(", ".join(item.runs), item.en if lang == "en" else item.zh) for item in known)
        yield Section("contradictions", say("heading_contradictions"), remarks=remarks)
