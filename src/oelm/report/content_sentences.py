"""The sentences about what content is worth, whether a regime is representative, and where arms differ on text."""

from __future__ import annotations

CONTENT: dict[str, tuple[str, str]] = {
    # The first lines
    "regime_yes": ("This regime is representative: {reasons}.", "该实验条件具有代表性：{reasons}。"),
    "regime_no": ("This regime is not representative: {reasons}.", "该实验条件不具代表性：{reasons}。"),
    "regime_open": (
        "Whether this regime is representative is not known: {reasons}.",
        "该实验条件是否具有代表性尚不清楚：{reasons}。",
    ),
    "regime_at": ("At {place}: {sentence}", "在 {place} 处：{sentence}"),
    "regime_without_content": (
        (
            "So the target can be met here almost without attending by content. The margin that counts is half the "
            "lower "
            "bound of what content is worth: {half}."
        ),
        "因此在这里几乎不按内容注意也能达到目标。真正有意义的界值是内容价值下限的一半：{half}。",
    ),
    "regime_elsewhere": (
        "Measured by study {study}: same model, data and training, apart from the learning rate.",
        "由研究 {study} 测得：模型、数据与训练设置相同，仅学习率可能不同。",
    ),
    "regime_other_text": (
        (
            "On this text what content is worth was not measured: add {arms}. Study {study} measured it with the same "
            "model and training on another text:"
        ),
        "在本文本上未测量内容的价值：请加入 {arms}。研究 {study} 以相同的模型与训练设置在另一文本上测得：",
    ),
    "content_unmeasured": (
        "What content is worth was not measured: add {arms}.",
        "未测量内容的价值：请加入 {arms}。",
    ),
    "content_pending": (
        "What content is worth is not known yet: no seed is complete in both {trained} and {position}.",
        "内容的价值尚不清楚：没有任何种子在 {trained} 与 {position} 中都已完成。",
    ),
    "add_one": ("the arm {arms}", "{arms} 组"),
    "add_several": ("the arms {arms}", "{arms} 组"),
    "reason_join": ("; ", "；"),
    "reason_worth": (
        (
            "attending by content is worth {worth} of perplexity ({position} against {trained}; lower 95 % bound "
            "{bound}, "
            "required {required})"
        ),
        "按内容注意的价值为困惑度的 {worth}（{position} 相对 {trained}；95% 下限 {bound}，要求 {required}）",
    ),
    "reason_worth_two": (
        (
            "attending by content is worth {worth} of perplexity ({position} against {trained}; {behind} against "
            "{reference}; lower 95 % bound {bound}, required {required})"
        ),
        (
            "按内容注意的价值为困惑度的 {worth}（{position} 相对 {trained}；相对 {reference} 为 {behind}；95% 下限 "
            "{bound}，"
            "要求 {required}）"
        ),
    ),
    "reason_doubling": (
        "this value changed by {value} over the last doubling of tokens (required: less than {required})",
        "该值在词元数最后一次翻倍期间变化 {value}（要求小于 {required}）",
    ),
    "reason_doubling_unknown": (
        "how this value changes over the last doubling of tokens was not measured",
        "该值在词元数最后一次翻倍期间的变化未测量",
    ),
    "reason_repeats": (
        (
            "on tokens that complete a bigram already seen in the window {trained} beats {position} by {value} nats "
            "(required: {required})"
        ),
        "在补全窗口内已出现二元组的词元上，{trained} 比 {position} 低 {value} nat（要求 {required}）",
    ),
    "reason_repeats_unknown": (
        "the losses on tokens that complete a bigram already seen in the window were not measured",
        "补全窗口内已出现二元组的词元上的损失未测量",
    ),
    "target_content": (
        (
            "The target: a perplexity at most {margin} above that of {reference}. The margin is half the lower 95 % "
            "bound of what content was worth in tuning, fixed when tuning ended; it is 0 where tuning does not show "
            "content to be worth anything."
        ),
        (
            "目标：困惑度比 {reference} 最多高 {margin}。界值为调参阶段所测内容价值 95% 下限的一半，在调参结束时确定；"
            "若调参未显示内容有价值，则为 0。"
        ),
    ),
    "target_content_open": (
        "The target: half the lower 95 % bound of what content is worth, to be fixed when tuning ends.",
        "目标：内容价值 95% 下限的一半，在调参结束时确定。",
    ),
    # The table
    "heading_content": ("What content is worth", "内容的价值"),
    "content_role": ("role", "角色"),
    "content_cost": ("against trained Q/K", "相对训练的 Q/K"),
    "content_kept": ("content kept", "保留的内容"),
    "role_trained": ("T: trained", "T：训练"),
    "role_position": ("P: position", "P：仅位置"),
    "role_frozen": ("F: frozen", "F：冻结"),
    "kept_outside": ("below {low} or above {high}", "低于 {low} 或高于 {high}"),
    "kept_everything": ("unbounded", "无界"),
    "content_note": (
        (
            "All arms of this table have the same position scheme; T trains Q and K, F freezes them, P attends by "
            "position "
            "only. What content is worth is the difference of P to T, "
            "what "
            "freezing costs that of F to T; content kept is one minus the ratio of the two in log perplexity, with "
            "Fieller's 95 % set over paired seeds. Where content is not clearly worth anything, that set is unbounded."
        ),
        (
            "表中各组的位置方案相同；T 训练 Q、K，F 冻结 Q、K，P 仅按位置注意。内容的价值为 P 相对 T 的差异，"
            "冻结的代价为 F 相对 T 的差异；保留的内容为 1 "
            "减去两者对数"
            "困惑度之比，95% 置信集按 Fieller 方法由配对种子得出。若内容的价值不明显大于零，该集合无界。"
        ),
    ),
    "content_borrowed": (
        "T and P are from study {study}, paired with the arms here by seed.",
        "T 与 P 来自研究 {study}，按种子与此处各组配对。",
    ),
    "content_nearly": (
        (
            "{position} has Q and K, frozen and so small that their logits hardly count: it stands in for an arm that "
            "has none. What content is worth may be a little more."
        ),
        (
            "{position} 含有 Q 与 K，但被冻结且极小，其 logit 几乎不起作用，用以代替没有 Q、K 的组；"
            "内容的价值可能略高于此。"
        ),
    ),
    # Why
    "heading_why": ("Where the arms differ", "各组差异在何处"),
    "why_repeats": ("loss on repeats", "重复处损失"),
    "why_others": ("loss on others", "其余损失"),
    "why_repeats_difference": ("repeats against {reference}", "重复处相对 {reference}"),
    "why_others_difference": ("others against {reference}", "其余相对 {reference}"),
    "why_content": ("content in the logits", "logit 中的内容"),
    "why_note": (
        (
            "Losses in nats per token on the {split} split. A repeat completes a bigram already seen in the window "
            "({share} of the tokens): attention by content can look it up. Content in the logits is the median over "
            "heads "
            "of the share of a query's logit variance that comes from the product of queries and keys, not from "
            "position "
            "features or a bias; rotary and learned positions act within that product, so an arm with nothing else has "
            "no such share."
        ),
        (
            "损失单位为 nat/词元（{split}）。“重复”指补全窗口内已出现过的二元组（占词元的 {share}）："
            "按内容的注意可以查到它。"
            "“logit 中的内容”为每个查询的 logit 方差中来自查询与键之积（而非位置特征或偏置）的份额，取各头的中位数；"
            "旋转或可学习"
            "位置在该乘积内部起作用，因此没有其他位置来源的组不列此份额。"
        ),
    ),
    "why_caption": (
        "Loss against {reference} by position in the window, means over the seeds that both have.",
        "按窗口内位置，各组相对 {reference} 的损失（双方共有种子的均值）。",
    ),
    "why_axis": ("loss against {reference} (nats)", "相对 {reference} 的损失（nat）"),
    "why_position": ("tokens of past", "上文词元数"),
    "split_test": ("test", "测试集"),
    "split_val": ("validation", "验证集"),
    "file_window_losses": (
        "losses by position in the window, on repeated bigrams and on other tokens",
        "按窗口内位置、重复二元组与其余词元的损失",
    ),
    "file_logit_variance": (
        "variance of the logits of each head by content and by position, at the end",
        "训练结束时各头 logit 的方差，按内容与位置区分",
    ),
}
