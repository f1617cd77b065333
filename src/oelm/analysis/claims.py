"""The published claims: what was published, which range supports each, what is evidence, and what would decide.

This table is the only place where a size, range or bound of a claim is written. The ledger judges by it and the report
prints it. Effects are written the way the statistics use them:

    percent   difference of log perplexity, shown as percent of perplexity; more is worse
    points    points of accuracy lost; more is worse
    share     part of the time or memory saved; more is better
    steps     steps to the baseline's final loss as a ratio; below 1 is sooner

A claim may have several rules, which must all hold. The verdict of a rule, in this order:

    supported      the 95 % interval of the effect is within the claimed range
    no effect      the effect is within +- `no_effect` of nothing (two one-sided tests at 5 %)
    contradicted   the 95 % interval excludes every published size, on a side that does not support the claim
    undecided      none of these
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Literal

from oelm.analysis.measure import POINT_MARGIN
from oelm.analysis.price import CLOSE
from oelm.analysis.published import PublishedRun, published
from oelm.analysis.statistics import MARGIN, percent

Claim = Literal[
    "orthogonal-beats-random", "freezing-costs-10-to-15", "loss-grows-with-the-corpus",
    "classification-tolerates-freezing", "57-percent-faster-on-bert", "no-gain-on-gpt",
    "converges-in-fewer-epochs", "less-memory",
]  # fmt: skip
Unit = Literal["percent", "points", "share", "steps"]
Quantity = Literal[
    "orthogonality", "freezing", "growth", "pretrained-encoder", "fresh-encoder", "encoder-time", "gpt-time",
    "encoder-steps", "gpt-memory",
]  # fmt: skip
"""What is measured, and on which arms and tasks: oelm.analysis.findings has a function for each."""

LEAST_GAIN = 0.05
"""A saving of less than 5 % of the time is not called a gain."""
LEAST_GROWTH = 5
"""The larger part of a text must be at least this many times the smaller."""
MODEL_SHARE_OF_MEMORY = 0.5
"""Peaks of memory count where weights, gradients and moments are at least this part of them."""
LEAST_PLACES_TO_POOL = 3
"""From so many places (corpora, models) the pooled interval decides. Two places leave one degree of freedom for the
spread between them, whose t of 12.7 decides nothing: there each place has to reach the verdict by itself, and the
verdict is about these two. A single place has its own interval."""


@dataclass(frozen=True)
class Words:
    """A text in both languages."""

    en: str
    zh: str


@dataclass(frozen=True)
class Size:
    """A published effect and where it was published: runs of `published.json`, or another source in words."""

    value: float
    source: Words


@dataclass(frozen=True)
class Range:
    """Two bounds of an effect; either may be infinite."""

    low: float = -math.inf
    high: float = math.inf


@dataclass(frozen=True)
class Rule:
    """One measurable part of a claim."""

    quantity: Quantity
    unit: Unit
    sizes: tuple[Size, ...]
    claimed: Range
    no_effect: float | None
    """None where nothing is itself within the claimed range."""
    counts: Words
    """Which arms, tasks and regimes are evidence."""
    experiment: Words
    """What would decide it, where more seeds would not."""
    runs: int
    """How many runs that takes."""

    def __post_init__(self) -> None:
        zero = self.zero
        claims_nothing = self.claimed.low <= zero <= self.claimed.high
        if claims_nothing != (self.no_effect is None):
            raise ValueError(f"{self.quantity}: a bound of no effect is for claims of some effect, and only for them")
        if self.no_effect is not None:
            overlap = self.claimed.low < zero + self.no_effect and self.claimed.high > zero - self.no_effect
            if overlap:
                raise ValueError(f"{self.quantity}: the claimed range overlaps the range of no effect")

    @property
    def zero(self) -> float:
        """The effect that means nothing happens."""
        return 1.0 if self.unit == "steps" else 0.0

    def is_open(self, side: int) -> bool:
        """Whether any effect above (side 1) or below (side -1) the published ones supports the claim as well."""
        return math.isinf(self.claimed.high if side > 0 else self.claimed.low)

    @property
    def published(self) -> Range:
        """The smallest range that holds every published size."""
        values = [size.value for size in self.sizes]
        return Range(min(values), max(values))


@dataclass(frozen=True)
class PublishedClaim:
    """A claim in words, and the rules that decide it."""

    name: Claim
    title: Words
    rules: tuple[Rule, ...]


@cache
def published_claims() -> tuple[PublishedClaim, ...]:
    """Return the eight claims in the order of the ledger."""
    return (
        PublishedClaim(
            "orthogonal-beats-random", Words("Orthogonal beats random", "正交优于随机"), (_orthogonality(),)
        ),
        PublishedClaim(
            "freezing-costs-10-to-15", Words("Freezing costs 10-15 % on GPT", "在 GPT 上冻结使困惑度升高 10-15%"),
            (_freezing(),),
        ),
        PublishedClaim(
            "loss-grows-with-the-corpus", Words("The loss grows with the corpus", "劣化随语料增大"), (_growth(),)
        ),
        PublishedClaim(
            "classification-tolerates-freezing",
            Words("Classification tolerates freezing, generation does not", "分类任务能承受冻结，生成任务不能"),
            (_pretrained_encoder(), _fresh_encoder(), _generation()),
        ),
        PublishedClaim("57-percent-faster-on-bert", Words("57 % faster on BERT", "BERT 上快 57%"), (_encoder_time(),)),
        PublishedClaim("no-gain-on-gpt", Words("No gain of time on GPT", "GPT 上没有加速"), (_gpt_time(),)),
        PublishedClaim(
            "converges-in-fewer-epochs", Words("Converges in 2.0 instead of 2.5 epochs", "2.0 轮收敛而非 2.5 轮"),
            (_steps(),),
        ),
        PublishedClaim("less-memory", Words("4.7 % less memory", "内存减少 4.7%"), (_memory(),)),
    )  # fmt: skip


TUNED = Words(
    "Every arm is tuned on one grid, the baseline is plain, every declared seed is complete.",
    "各组在同一网格上调参，基线不加修补，声明的种子全部完成。",
)
ON_GPT = (("GPT-01", "GPT-02"), ("GPT-04", "GPT-05"), ("GPT-06", "GPT-07"))
ON_BERT = (("XNLI-01", "XNLI-02"), ("SST-2-01", "SST-2-02"), ("MNLI-01", "MNLI-02"))


def _orthogonality() -> Rule:
    return Rule(
        quantity="orthogonality",
        unit="percent",
        sizes=(_perplexity("GPT-03", "GPT-02"),),
        claimed=Range(high=-CLOSE),
        no_effect=CLOSE,
        counts=Words(
            f"GPT from scratch: frozen orthogonal Q/K against frozen Gaussian Q/K of the same scale. {TUNED.en}",
            f"从头训练的 GPT：冻结正交 Q/K 与同尺度的冻结高斯 Q/K 相比。{TUNED.zh}",
        ),
        experiment=Words(
            "baseline, oelm-freeze and oelm-random-matched on a further corpus (studies/fair.py), five learning rates "
            "and six seeds each",
            "在另一语料上运行 baseline、oelm-freeze 与 oelm-random-matched（studies/fair.py），各五个学习率、六个种子",
        ),
        runs=3 * (5 + 6),
    )


def _freezing() -> Rule:
    sizes = tuple(_perplexity(*pair) for pair in ON_GPT)
    return Rule(
        quantity="freezing",
        unit="percent",
        sizes=sizes,
        claimed=Range(min(size.value for size in sizes), max(size.value for size in sizes)),
        no_effect=CLOSE,
        counts=Words(
            f"GPT from scratch: frozen orthogonal Q/K in all layers against trained Q/K. {TUNED.en}",
            f"从头训练的 GPT：各层冻结正交 Q/K 与训练的 Q/K 相比。{TUNED.zh}",
        ),
        experiment=Words(
            "baseline and oelm-freeze on a further corpus (studies/fair.py), five learning rates and six seeds each",
            "在另一语料上运行 baseline 与 oelm-freeze（studies/fair.py），各五个学习率、六个种子",
        ),
        runs=2 * (5 + 6),
    )


def _growth() -> Rule:
    small, large = _perplexity(*ON_GPT[0]), _perplexity(*ON_GPT[1])
    source = Words(f"{large.source.en} minus {small.source.en}", f"{large.source.zh} 减 {small.source.zh}")
    return Rule(
        quantity="growth",
        unit="percent",
        sizes=(Size(large.value - small.value, source),),
        claimed=Range(low=CLOSE),
        no_effect=CLOSE,
        counts=Words(
            f"The cost of freezing on a part of a text, subtracted from that on a part at least {LEAST_GROWTH} times "
            f"as large: one GPT, the same steps. {TUNED.en}",
            f"同一文本至少 {LEAST_GROWTH} 倍大的部分上的冻结代价，减去较小部分上的代价：同一 GPT，步数相同。{TUNED.zh}",
        ),
        experiment=Words(
            f"baseline and oelm-freeze of one GPT on a part of a text and on a part at least {LEAST_GROWTH} times as "
            "large, three learning rates and six seeds for each arm and part",
            f"同一 GPT 的 baseline 与 oelm-freeze，分别在一份文本的一部分与至少 {LEAST_GROWTH} 倍大的部分上，"
            "每组每部分三个学习率、六个种子",
        ),
        runs=2 * 2 * (3 + 6),
    )


def _pretrained_encoder() -> Rule:
    return Rule(
        quantity="pretrained-encoder",
        unit="points",
        sizes=tuple(_points(*pair) for pair in ON_BERT),
        claimed=Range(high=POINT_MARGIN),
        no_effect=None,
        counts=Words(
            "Pretrained encoders: frozen against trained Q/K, both made orthogonal from the pretrained weights. "
            f"{TUNED.en}",
            f"预训练编码器：冻结与训练的 Q/K 相比，两者均由预训练权重正交化。{TUNED.zh}",
        ),
        experiment=Words(
            "orthogonal-from-current-trained and oelm-from-current on SST-2, MNLI and XNLI (studies/sst2.py), four "
            "learning rates and six seeds each",
            "在 SST-2、MNLI、XNLI 上运行 orthogonal-from-current-trained 与 oelm-from-current（studies/sst2.py），"
            "各四个学习率、六个种子",
        ),
        runs=3 * 2 * (4 + 6),
    )


def _fresh_encoder() -> Rule:
    return Rule(
        quantity="fresh-encoder",
        unit="points",
        sizes=tuple(_points(*pair) for pair in ON_BERT),
        claimed=Range(high=POINT_MARGIN),
        no_effect=None,
        counts=Words(
            "Encoders from scratch, the control without pretraining: frozen orthogonal against trained Q/K. "
            f"{TUNED.en}",
            f"从头训练的编码器（不含预训练的对照）：冻结正交与训练的 Q/K 相比。{TUNED.zh}",
        ),
        experiment=Words(
            "baseline and oelm-freeze of an encoder from scratch on a second labelled corpus (studies/sst2.py, "
            "--scale scratch), three learning rates and six seeds each",
            "从头训练的编码器 baseline 与 oelm-freeze，在第二个带标签的语料上（studies/sst2.py，--scale scratch），"
            "各三个学习率、六个种子",
        ),
        runs=2 * (3 + 6),
    )


def _generation() -> Rule:
    rule = _freezing()
    return Rule(
        quantity="freezing",
        unit="percent",
        sizes=rule.sizes,
        claimed=Range(low=MARGIN),
        no_effect=CLOSE,
        counts=rule.counts,
        experiment=rule.experiment,
        runs=rule.runs,
    )


def _encoder_time() -> Rule:
    return Rule(
        quantity="encoder-time",
        unit="share",
        sizes=(_seconds("XNLI-01", "XNLI-02", "train_seconds"),),
        claimed=Range(low=0.5),
        no_effect=LEAST_GAIN,
        counts=Words(
            "Encoders with labels: the time of a training step, by benches in which both arms take turns (processor "
            "time); where there is no bench, by the clocks of paired runs on one machine.",
            "带标签的编码器的单步训练时间：两组轮流执行的基准测试（处理器时间）；没有基准测试时用同一机器上成对运行的计时。",
        ),
        experiment=Words(
            "oelm bench methods --size bert-base --labels 3 --length 128 --arms baseline,oelm-freeze on a GPU",
            "在 GPU 上运行 oelm bench methods --size bert-base --labels 3 --length 128 --arms baseline,oelm-freeze",
        ),
        runs=1,
    )


def _gpt_time() -> Rule:
    return Rule(
        quantity="gpt-time",
        unit="share",
        sizes=tuple(_seconds(*pair, "step_seconds") for pair in ON_GPT),
        claimed=Range(-LEAST_GAIN, LEAST_GAIN),
        no_effect=None,
        counts=Words(
            "Our GPT: the time of a training step, by benches in which both arms take turns (processor time); where "
            "there is no bench, by the clocks of paired runs on one machine.",
            "本项目 GPT 的单步训练时间：两组轮流执行的基准测试（处理器时间）；没有时用同一机器上成对运行的计时。",
        ),
        experiment=Words(
            "oelm bench methods --size medium-512 --arms baseline,oelm-freeze",
            "oelm bench methods --size medium-512 --arms baseline,oelm-freeze",
        ),
        runs=1,
    )


def _steps() -> Rule:
    before, after = 2.5, 2.0
    return Rule(
        quantity="encoder-steps",
        unit="steps",
        sizes=(Size(after / before, Words("stated in the text; no published table has it", "见于正文；没有表格给出")),),
        claimed=Range(high=0.85),
        no_effect=0.05,
        counts=Words(
            "Pretrained encoders: steps to the final validation loss of the arm that starts alike and trains. A seed "
            f"that never reaches it counts with all its steps, which can contradict and not support. {TUNED.en}",
            "预训练编码器：达到起点相同而继续训练的对照组最终验证损失所需的步数。未达到的种子按全部步数计，"
            f"只能否定、不能支持。{TUNED.zh}",
        ),
        experiment=Words(
            "orthogonal-from-current-trained and oelm-from-current on a second labelled corpus (studies/sst2.py), four "
            "learning rates and six seeds each",
            "在第二个带标签的语料上运行 orthogonal-from-current-trained 与 oelm-from-current（studies/sst2.py），"
            "各四个学习率、六个种子",
        ),
        runs=2 * (4 + 6),
    )


def _memory() -> Rule:
    before, after = 514, 490
    files = Words(f"checkpoint files of {before} and {after} MiB", f"检查点文件 {before} 与 {after} MiB")
    return Rule(
        quantity="gpt-memory",
        unit="share",
        sizes=(Size(1 - after / before, files),),
        claimed=Range(low=0.04),
        no_effect=0.01,
        counts=Words(
            "Our GPT: the peak of memory while training, by benches of fresh processes; where there is none, by paired "
            f"runs whose weights, gradients and moments are at least {100 * MODEL_SHARE_OF_MEMORY:.0f} % of the peak.",
            "本项目 GPT 训练时的内存峰值：每次用新进程的基准测试；没有时用成对运行，且权重、梯度与动量至少占峰值的 "
            f"{100 * MODEL_SHARE_OF_MEMORY:.0f}%。",
        ),
        experiment=Words(
            "oelm bench methods --size medium-512 --batch 2 --arms baseline,oelm-freeze, with the peak of each block",
            "oelm bench methods --size medium-512 --batch 2 --arms baseline,oelm-freeze（记录每个区组的峰值）",
        ),
        runs=1,
    )  # fmt: skip


def _perplexity(before: str, after: str) -> Size:
    one, other = _run(before), _run(after)
    return Size(math.log(_known(other.perplexity) / _known(one.perplexity)), _between(before, after))


def _points(before: str, after: str) -> Size:
    one, other = _run(before), _run(after)
    return Size(100 * (_known(one.accuracy) - _known(other.accuracy)), _between(before, after))


def _seconds(before: str, after: str, field: Literal["train_seconds", "step_seconds"]) -> Size:
    one, other = (_known(getattr(_run(name), field)) for name in (before, after))
    return Size(1 - other / one, _between(before, after))


def _run(name: str) -> PublishedRun:
    return next(run for run in published().runs if run.id == name)


def _known(value: float | None) -> float:
    if value is None:
        raise ValueError("a claim names a published run without the figure it needs")
    return value


def _between(before: str, after: str) -> Words:
    return Words(f"{before} → {after}", f"{before} → {after}")


def scaled(value: float, unit: Unit) -> float:
    """Turn an effect into what is shown and drawn: percent, points lost, percent saved, times the steps."""
    if unit == "percent":
        return percent(value) if math.isfinite(value) else value
    return 100 * value if unit == "share" else value
