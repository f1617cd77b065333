"""The sentences about sizes: what changes with them, what was predicted and what came out; and about the draw."""

from __future__ import annotations

SCALING: dict[str, tuple[str, str]] = {
    "heading_scaling": ("How it changes with size", "随规模的变化"),
    "scaling_note": (
        (
            "N is the number of block parameters. Loss is in nats. The cost of freezing (d) and what content is worth "
            "(C) are relative differences of perplexity to trained Q and K with the same position scheme; content lost "
            "is d/C, and content kept is the rest. Means over seeds."
        ),
        (
            "N 为各层参数量。损失单位为 nat。冻结的代价（d）与内容的价值（C）是相对于位置方案相同、Q、K 可训练的组的"
            "困惑度相对差；内容损失为 d/C，其余为保留的内容。均为各种子的平均。"
        ),
    ),
    "scaling_predicted": (
        (
            "The prediction of size {sizes} was written on {written} from {runs} runs of the other sizes. Each "
            "interval is the envelope of the forms that could be fitted (of {forms}), at 95 % each, for the mean of "
            "as many seeds as declared."
        ),
        (
            "规模 {sizes} 的预测写于 {written}，依据其他规模的 {runs} 次运行。每个区间是可拟合的各形式"
            "（{forms}）的 95% 预测区间的包络，针对所声明种子数的平均。"
        ),
    ),
    "scaling_held": (
        "{inside} of {count} outcomes are inside their predicted interval.",
        "{count} 个结果中有 {inside} 个落在预测区间内。",
    ),
    "scaling_waits": (
        "Size {sizes} is held back. Its prediction is written when all other runs have ended.",
        "规模 {sizes} 暂缓运行；其余运行全部结束后写入其预测。",
    ),
    "scaling_first": ("None of its runs had started before that.", "其任何一次运行均未早于此时开始。"),
    "scaling_early": (
        "But {runs} of its runs had started before that: for these it is not a prediction.",
        "但其中 {runs} 次运行在此之前已开始：对它们而言这不是预测。",
    ),
    "scaling_quantity": ("quantity", "量"),
    "scaling_size": (
        "{size} (N = {parameters}, {ratio} tokens each)",
        "{size}（N = {parameters}，每参数 {ratio} 个词元）",
    ),
    "scaling_prediction": ("predicted for {size}", "{size} 的预测"),
    "scaling_outcome": ("came out", "实际结果"),
    "scaling_loss": ("loss", "损失"),
    "scaling_freezing": ("cost of freezing, d", "冻结的代价 d"),
    "scaling_content": ("what content is worth, C", "内容的价值 C"),
    "scaling_lost": ("content lost, d/C", "内容损失 d/C"),
    "scaling_inside": ("{value} (inside)", "{value}（区间内）"),
    "scaling_outside": ("{value} (outside)", "{value}（区间外）"),
    "scaling_between": ("{low} to {high}", "{low} 至 {high}"),
    "scaling_axis": ("block parameters", "各层参数量"),
    "scaling_difference": ("difference of perplexity, %", "困惑度相对差，%"),
    "scaling_caption": (
        "The cost of freezing and what content is worth by size: single seeds, means, and predicted intervals as bars.",
        "冻结的代价与内容的价值随规模的变化：各种子、平均值，以及以竖线表示的预测区间。",
    ),
    "heading_draws": ("How much of the spread comes from the draw", "差异有多少来自抽取"),
    "draws_note": (
        (
            "Every draw was trained with the same seeds, so the variance of a run splits into draw, seed (data order "
            "and initial weights) and rest. p is the probability of so large a difference if there were none."
        ),
        (
            "每次抽取都用相同的种子训练，因此单次运行的方差可分为抽取、种子（数据顺序与初始权重）与其余部分。"
            "p 为抽取之间并无差异时出现如此大差异的概率。"
        ),
    ),
    "draws_share": ("from the draw", "来自抽取"),
    "draws_deviation": ("deviation of the draw", "抽取的标准差"),
    "draws_count": ("draws x seeds", "抽取 x 种子"),
}
