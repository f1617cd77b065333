"""The sentences about noise: what verdicts wait for, what intervals rest on, and what a study could have seen."""

from __future__ import annotations

NOISE: dict[str, tuple[str, str]] = {
    "undecided_seeds": ("undecided ({pairs} of {seeds} seeds)", "未定（{pairs}/{seeds} 个种子）"),
    "verdict_at_look": ("{verdict} (look {number} of {looks})", "{verdict}（第 {number}/{looks} 次查看）"),
    "verdict_awaits": (
        "{pairs} of {seeds} declared seeds are complete here and in the reference. The verdict waits for the others.",
        "已声明的 {seeds} 个种子中有 {pairs} 个在本组和参照组均已完成；须等其余种子完成后再判定。",
    ),
    "look_at": (
        (
            "Judged at look {number} of {looks}, after {seeds} of {all} seeds: a one-sided level of {level} at this "
            "look keeps the error over all looks at 5 %."
        ),
        (
            "在第 {number}/{looks} 次查看（{all} 个种子中的 {seeds} 个）时判定："
            "本次单侧水平为 {level}，使各次查看的总错误率不超过 5%。"
        ),
    ),
    "interval_moderated": (
        "The interval is moderated by {arms} like arms ({freedom} degrees of freedom); the plain t has {plain}.",
        "该区间由 {arms} 个同类组共同校准（自由度 {freedom}）；普通 t 区间为 {plain}。",
    ),
    "interval_declared": (
        "The interval uses the declared prior ({freedom} degrees of freedom); the plain t interval is {plain}.",
        "该区间使用预先声明的先验（自由度 {freedom}）；普通 t 区间为 {plain}。",
    ),
    "interval_own": (
        "It varies more over seeds than like arms, so its interval uses its own alone ({freedom} degrees of freedom).",
        "其种子间波动大于同类组，因此区间只依据本组的种子（自由度 {freedom}）。",
    ),
    "noise_skewed": (
        "The noise over seeds is skewed ({skewness}). The robust interval (signed ranks) is {robust}.",
        "种子间的噪声明显偏斜（{skewness}）。稳健区间（符号秩）为 {robust}。",
    ),
    "noise_skewed_few": (
        "The noise over seeds is skewed ({skewness}). There is no robust interval with fewer than six pairs.",
        "种子间的噪声明显偏斜（{skewness}）。少于六对种子时没有稳健区间。",
    ),
    "power_line": (
        (
            "What it could see with {pairs} pairs and this spread, with 80 % power: met if the truth is {met} or less, "
            "not met if it is {not_met} or more, any difference from {nonzero} on."
        ),
        (
            "以 {pairs} 对种子和当前离散程度，在 80% 功效下能看到：真实差异不高于 {met} 时判为达到，"
            "不低于 {not_met} 时判为未达到，差异达 {nonzero} 起可与零区分。"
        ),
    ),
    "power_line_accuracy": (
        (
            "What it could see with {pairs} pairs and this spread, with 80 % power: within the margin of points if the "
            "truth is {met} or better, beyond it if it is {not_met} or worse, any difference from {nonzero} on."
        ),
        (
            "以 {pairs} 对种子和当前离散程度，在 80% 功效下能看到：真实差异为 {met} 或更好时判为在百分点界值之内，"
            "为 {not_met} 或更差时判为超出，差异达 {nonzero} 起可与零区分。"
        ),
    ),
    "freedom": ("degrees of freedom", "自由度"),
    "plain_interval": ("plain t interval", "普通 t 区间"),
    "robust_interval": ("robust interval", "稳健区间"),
    "statistics_note": (
        (
            "The 95 % interval of the table above decides. Where a study has three like arms or more, their variances "
            "are moderated towards one another (Smyth 2004); the plain t interval uses the pairs of the arm alone. "
            "p (no difference) is two-sided; p (on the margin) is one-sided and corrected by Holm for all arms of the "
            "family. docs/statistics.md says how often intervals and verdicts of this kind are right."
        ),
        (
            "以上表的 95% 区间为准。若研究中有三个及以上同类组，其方差相互校准（Smyth 2004）；"
            "普通 t 区间只用本组的种子对。p（无差异）为双侧；p（恰在界值）为单侧，并对同族各组做 Holm 校正。"
            "docs/statistics.md 说明此类区间与判定的正确率。"
        ),
    ),
    "statistics_skewed": (
        (
            "The noise of some arms is skewed. Their interval uses at least the common variance of like arms, where "
            "there are three. The robust interval is of the median of all means of two seeds (Wilcoxon); it needs six "
            "pairs, and it is not an interval of the mean."
        ),
        (
            "部分组的噪声明显偏斜。若有三个同类组，其区间至少使用同类组的共同方差。稳健区间针对任意两个种子均值的中位数"
            "（Wilcoxon），需要六对种子，且不是均值的区间。"
        ),
    ),
}
