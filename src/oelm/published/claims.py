"""The published study: its figures and settings, what is known to be wrong with them, and the rules of its claims.

`published.json` holds the figures and all texts, in English and Chinese. Its figures are claims, not results of this
program. `published_claims` is the only place where the range or bound of a claim is written: the ledger judges by it
and the report prints it. Effects have the unit that the statistics use:

    percent   difference of log perplexity, shown as percent of perplexity; more is worse
    points    points of accuracy lost; more is worse
    share     share of the time or memory saved; more is better
    steps     steps to the baseline's final loss as a ratio; below 1 is sooner

A claim may have several rules, which must all hold. The verdict of a rule is the first of these that applies:

    supported      the 95 % interval of the effect is within the claimed range
    no effect      the effect is within +- `no_effect` of zero (two one-sided tests at 5 %)
    contradicted   the 95 % interval excludes every published size, on a side that does not support the claim
    undecided      none of these
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from oelm.analysis.budgets import CLOSE
from oelm.analysis.evidence import POINT_MARGIN
from oelm.analysis.statistics import MARGIN, percent
from oelm.errors import UnknownName
from oelm.spec import Spec
from oelm.spec.run import GPTSpec, RunSpec, named_size

ClaimName = Literal[
    "orthogonal-beats-random", "freezing-costs-10-to-15", "loss-grows-with-the-corpus",
    "classification-tolerates-freezing", "57-percent-faster-on-bert", "no-gain-on-gpt",
    "converges-in-fewer-epochs", "less-memory",
]  # fmt: skip
SettingBasis = Literal["report", "command", "code", "library", "ours", "assumed"]
"""Why a setting has its value: a report states it; the launch command sets it; the public code has it; a library that
the code uses has it as its default; only our program has it, and it changes nothing; nothing says it."""
Unit = Literal["percent", "points", "share", "steps"]
ClaimQuantity = Literal[
    "orthogonality", "freezing", "growth", "pretrained-encoder", "fresh-encoder", "encoder-time", "gpt-time",
    "encoder-steps", "gpt-memory",
]  # fmt: skip
"""What is measured, and on which arms and tasks: oelm.published.ledger has a function for each."""

LEAST_GAIN = 0.05
"""A saving of less than 5 % of the time is not called a gain."""
LEAST_GROWTH = 5
"""The larger part of a text must be at least this many times the smaller."""
MODEL_SHARE_OF_MEMORY = 0.5
"""Memory peaks count where weights, gradients and moments are at least this share of them."""
LEAST_PLACES_TO_POOL = 3
"""From this many places (corpora, models) on, the pooled interval decides. With two places the spread between them has
one degree of freedom and a t of 12.7, which decides nothing: there each place must reach the verdict by itself. A
single place has its own interval."""


@dataclass(frozen=True)
class Words:
    """A text in both languages."""

    en: str
    zh: str


class _FromFile(BaseModel):
    """A part of `published.json`."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class PublishedRun(_FromFile):
    """One experiment, as published."""

    id: str
    corpus: str
    method: str
    """The method that studies/published.py runs for it."""
    or_method: str | None = None
    """A second method that it may have been, because the public code contradicts itself. Both are run."""
    learning_rate: float
    perplexity: float | None = None
    accuracy: float | None = None
    steps: int | None = None
    train_seconds: float | None = None
    step_seconds: float | None = None
    flop_share: float | None = None
    """The most that freezing can save of a step, counted by this program."""
    note: str | None = None


class Contradiction(_FromFile):
    """What is known to be wrong, in both languages, and the runs that it is about (none: the study)."""

    runs: tuple[str, ...] = ()
    of_each: bool = False
    """Whether it is true of each run by itself, not between the runs."""
    en: str
    zh: str


class SettingSource(_FromFile):
    """Where the values of some settings of some runs come from (oelm.published.claims)."""

    fields: tuple[str, ...]
    runs: tuple[str, ...] = ("*",)
    """Patterns of ids, such as `GPT-*`. Of several entries for a setting of a run, the last counts."""
    basis: SettingBasis
    where: str
    """The file, flag or sentence."""
    differs: str | None = None
    """What the public code or a report says instead."""


class _ClaimTexts(_FromFile):
    name: ClaimName
    title: Words


class _RuleTexts(_FromFile):
    counts: Words
    experiment: Words
    runs: int


class Published(_FromFile):
    """The whole of `published.json`."""

    about: str
    runs: tuple[PublishedRun, ...]
    contradictions: tuple[Contradiction, ...]
    tuned: Words
    """What most rules ask of the evidence: `{tuned}` in their texts."""
    settings: tuple[SettingSource, ...]
    claims: tuple[_ClaimTexts, ...]
    rules: dict[ClaimQuantity, _RuleTexts]


@cache
def published() -> Published:
    """Read the figures and texts that come with the program."""
    return Published.model_validate_json((Path(__file__).parent / "published.json").read_bytes())


def published_run(run: RunSpec) -> PublishedRun | None:
    """Return the published experiment whose id begins the run's label, such as `GPT-01` or `GPT-01_baseline`."""
    label = (run.label or "").upper()
    return next((item for item in published().runs if re.match(rf"{re.escape(item.id)}(?![0-9])", label)), None)


def published_flop_share(run: RunSpec) -> float | None:
    """Return the most that freezing can save of a step, for a run that is labelled as a published experiment."""
    known = published_run(run)
    return known.flop_share if known else None


def is_at_published_size(run: RunSpec, there: PublishedRun) -> bool:
    """Whether a run has the text and the model of the published one, so that their figures can be compared."""
    if run.data.corpus != there.corpus:
        return False
    if isinstance(run.model, GPTSpec):
        return run.model.model_copy(update={"vocab_size": None}) == named_size("medium-512")
    return "bert-base" in run.model.name


def contradictions_about(ids: set[str]) -> list[Contradiction]:
    """Return what is known to be wrong with one of the runs, or between several of them."""
    return [
        item
        for item in published().contradictions
        if item.runs and (ids.intersection(item.runs) if item.of_each else ids.issuperset(item.runs))
    ]


@dataclass(frozen=True)
class ClaimSize:
    """A published effect and its source: runs of `published.json`, or words."""

    value: float
    source: Words


@dataclass(frozen=True)
class Range:
    """Two bounds of an effect; either may be infinite."""

    low: float = -math.inf
    high: float = math.inf


@dataclass(frozen=True)
class ClaimRule:
    """One measurable part of a claim."""

    quantity: ClaimQuantity
    unit: Unit
    sizes: tuple[ClaimSize, ...]
    claimed: Range
    no_effect: float | None
    """None where zero effect is itself within the claimed range."""
    counts: Words
    """Which arms, tasks and regimes are evidence."""
    experiment: Words
    """Which experiment would decide the rule where more seeds would not."""
    runs: int
    """How many runs that experiment needs."""

    def __post_init__(self) -> None:
        zero = self.zero
        claims_nothing = self.claimed.low <= zero <= self.claimed.high
        if claims_nothing != (self.no_effect is None):
            raise ValueError(f"{self.quantity}: only rules that claim an effect have a bound of no effect")
        if self.no_effect is not None:
            overlap = self.claimed.low < zero + self.no_effect and self.claimed.high > zero - self.no_effect
            if overlap:
                raise ValueError(f"{self.quantity}: the claimed range overlaps the range of no effect")

    @property
    def zero(self) -> float:
        """The value that means no effect."""
        return 1.0 if self.unit == "steps" else 0.0

    def is_open(self, side: int) -> bool:
        """Whether any effect above (side 1) or below (side -1) the published ones also supports the claim."""
        return math.isinf(self.claimed.high if side > 0 else self.claimed.low)

    @property
    def published(self) -> Range:
        """The smallest range that holds every published size."""
        values = [size.value for size in self.sizes]
        return Range(min(values), max(values))


@dataclass(frozen=True)
class PublishedClaim:
    """A claim in words, and the rules that decide it."""

    name: ClaimName
    title: Words
    rules: tuple[ClaimRule, ...]


@cache
def published_claims() -> tuple[PublishedClaim, ...]:
    """Return the eight claims in the order of the ledger."""
    gpt = (("GPT-01", "GPT-02"), ("GPT-04", "GPT-05"), ("GPT-06", "GPT-07"))
    bert = (("XNLI-01", "XNLI-02"), ("SST-2-01", "SST-2-02"), ("MNLI-01", "MNLI-02"))
    on_gpt = tuple(_perplexity(*pair) for pair in gpt)
    on_bert = tuple(_points(*pair) for pair in bert)
    costs = [size.value for size in on_gpt]
    freezing = _rule("freezing", "percent", on_gpt, Range(min(costs), max(costs)), CLOSE)
    small, large, _ = on_gpt
    growth = Words(f"{large.source.en} minus {small.source.en}", f"{large.source.zh} 减 {small.source.zh}")
    epochs = Words("stated in the text; no published table has it", "见于正文；没有表格给出")
    files = Words("checkpoint files of 514 and 490 MiB", "检查点文件 514 与 490 MiB")
    rules: dict[ClaimName, tuple[ClaimRule, ...]] = {
        "orthogonal-beats-random": (
            _rule("orthogonality", "percent", (_perplexity("GPT-03", "GPT-02"),), Range(high=-CLOSE), CLOSE),
        ),
        "freezing-costs-10-to-15": (freezing,),
        "loss-grows-with-the-corpus": (
            _rule("growth", "percent", (ClaimSize(large.value - small.value, growth),), Range(low=CLOSE), CLOSE),
        ),
        "classification-tolerates-freezing": (
            _rule("pretrained-encoder", "points", on_bert, Range(high=POINT_MARGIN)),
            _rule("fresh-encoder", "points", on_bert, Range(high=POINT_MARGIN)),
            replace(freezing, claimed=Range(low=MARGIN)),
        ),
        "57-percent-faster-on-bert": (
            _rule(
                "encoder-time", "share", (_seconds(*bert[0], "train_seconds"),), Range(low=0.5), no_effect=LEAST_GAIN
            ),
        ),
        "no-gain-on-gpt": (
            _rule(
                "gpt-time",
                "share",
                tuple(_seconds(*pair, "step_seconds") for pair in gpt),
                Range(-LEAST_GAIN, LEAST_GAIN),
            ),
        ),
        "converges-in-fewer-epochs": (
            _rule("encoder-steps", "steps", (ClaimSize(2.0 / 2.5, epochs),), Range(high=0.85), 0.05),
        ),
        "less-memory": (_rule("gpt-memory", "share", (ClaimSize(1 - 490 / 514, files),), Range(low=0.04), 0.01),),
    }
    return tuple(PublishedClaim(claim.name, claim.title, rules[claim.name]) for claim in published().claims)


def _rule(
    quantity: ClaimQuantity, unit: Unit, sizes: tuple[ClaimSize, ...], claimed: Range, no_effect: float | None = None
) -> ClaimRule:
    texts, tuned = published().rules[quantity], published().tuned
    bounds = {"growth": LEAST_GROWTH, "memory": f"{100 * MODEL_SHARE_OF_MEMORY:.0f}"}

    def fill(words: Words) -> Words:
        return Words(words.en.format(tuned=tuned.en, **bounds), words.zh.format(tuned=tuned.zh, **bounds))

    return ClaimRule(
        quantity, unit, sizes, claimed, no_effect, fill(texts.counts), fill(texts.experiment), texts.runs
    )  # fmt: skip


def _perplexity(before: str, after: str) -> ClaimSize:
    one, other = (_figure(name, "perplexity") for name in (before, after))
    return ClaimSize(math.log(other / one), _between(before, after))


def _points(before: str, after: str) -> ClaimSize:
    one, other = (_figure(name, "accuracy") for name in (before, after))
    return ClaimSize(100 * (one - other), _between(before, after))


def _seconds(before: str, after: str, field: Literal["train_seconds", "step_seconds"]) -> ClaimSize:
    one, other = (_figure(name, field) for name in (before, after))
    return ClaimSize(1 - other / one, _between(before, after))


def _figure(name: str, field: str) -> float:
    run = next(run for run in published().runs if run.id == name)
    value: float | None = getattr(run, field)
    if value is None:
        raise ValueError(f"a claim needs {field} of {name}, which published.json does not have")
    return value


def _between(before: str, after: str) -> Words:
    return Words(f"{before} → {after}", f"{before} → {after}")


def scaled(value: float, unit: Unit) -> float:
    """Turn an effect into the number that is shown: percent, points lost, percent saved, or times the steps."""
    if unit == "percent":
        return percent(value) if math.isfinite(value) else value
    return 100 * value if unit == "share" else value


# Every setting of a published run with the source of its value: a report, a command, the public code, or none. The
# values are those of the run itself, so they are never written twice. `published.json` says where each comes from, and
# a test refuses a setting without a source. `settings_page` writes docs/published-settings.md.

NOT_SETTINGS = frozenset({"arm", "label", "scores_test"})
"""Fields of a run that are not settings: its names, and whether it is scored."""

BASES: dict[SettingBasis, str] = {
    "report": "a report states it",
    "command": "the launch command sets it",
    "code": "the public code has it",
    "library": "the default of a library",
    "ours": "only this program has it",
    "assumed": "assumed",
}


@dataclass(frozen=True)
class PublishedSetting:
    """One setting of a run, with the source of its value."""

    field: str
    value: str
    basis: SettingBasis
    where: str
    differs: str | None


def published_settings(run: RunSpec) -> tuple[PublishedSetting, ...]:
    """Return every setting of a run that is labelled as a published one; nothing for other runs.

    Raises:
        UnknownName: a setting has no source.

    """
    known = published_run(run)
    if known is None:
        return ()
    found = []
    for field, value in setting_values(run):
        source = _setting_source(field, known.id)
        found.append(PublishedSetting(field, value, source.basis, source.where, source.differs))
    return tuple(found)


def setting_values(run: RunSpec) -> Iterator[tuple[str, str]]:
    """Yield the name and value of each setting, defaults included: `train.steps`, `method.init`, `seed`."""
    for name in type(run).model_fields:
        value = getattr(run, name)
        if isinstance(value, Spec):
            for inner in type(value).model_fields:
                if inner == "kind":  # it only says which class of spec this is
                    continue
                yield f"{name}.{inner}", _format_setting(getattr(value, inner))
        elif name not in NOT_SETTINGS:
            yield name, _format_setting(value)


def _format_setting(value: object) -> str:
    if isinstance(value, Spec):
        changed = [f"{name}={_format_setting(inner)}" for name, inner in value.meaning().items()]
        return ", ".join(changed) or "default"
    if isinstance(value, list | tuple):
        return " ".join(map(_format_setting, value)) or "none"
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


def _setting_source(field: str, run: str) -> SettingSource:
    matching = [
        source
        for source in published().settings
        if field in source.fields and any(fnmatchcase(run, pattern) for pattern in source.runs)
    ]
    if not matching:
        raise UnknownName(
            f"source of {run}'s setting", field, {name for each in published().settings for name in each.fields}
        )
    return matching[-1]


def settings_page(runs: Sequence[RunSpec]) -> str:
    """Return docs/published-settings.md: every setting of every published run, in a table for each family."""
    sources = "; ".join(f"*{basis}* ({text})" for basis, text in BASES.items())
    lines = [
        "# The settings of the published runs",
        "",
        "Every setting of `studies/published.py`, where its value comes from, and what the public code or a report",
        "says instead. The file is generated from the study and from `src/oelm/published/published.json`; a test keeps",
        "it current. `oelm plan studies/published.py --only XNLI-02 --settings` prints the same for one run.",
        "",
        f"Sources: {sources}.",
    ]
    for title, is_gpt in (("GPT", True), ("BERT", False)):
        members = [run for run in runs if isinstance(run.model, GPTSpec) == is_gpt]
        lines += ["", f"## {title}", "", *_family_table(members)]
    return "\n".join(lines) + "\n"


def _family_table(runs: Sequence[RunSpec]) -> Iterator[str]:
    yield "| setting | runs | value here | source | differs |"
    yield "| --- | --- | --- | --- | --- |"
    for setting, whose in group_settings(runs):
        cells = (f"`{setting.field}`", whose, setting.value, f"*{setting.basis}*: {setting.where}", setting.differs)
        yield f"| {' | '.join((cell or '').replace('|', ',') for cell in cells)} |"


def group_settings(runs: Sequence[RunSpec]) -> Iterator[tuple[PublishedSetting, str]]:
    """Yield each setting of some published runs of one family, once for all runs that agree in value and source."""
    settings = {run.label or "": published_settings(run) for run in runs}
    for of_field in zip(*settings.values(), strict=True):
        groups: dict[PublishedSetting, list[str]] = {}
        for label, setting in zip(settings, of_field, strict=True):
            groups.setdefault(setting, []).append(_short(label))
        for setting, labels in groups.items():
            yield setting, "all" if len(groups) == 1 else ", ".join(labels)


def _short(label: str) -> str:
    """Return the id of a run, with its method if the id has two."""
    name, _, method = label.partition("_")
    known = next(run for run in published().runs if run.id == name)
    return f"{name} ({method})" if known.or_method else name
