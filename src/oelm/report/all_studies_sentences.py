"""The sentences of the report over all studies."""

from __future__ import annotations

ALL_STUDIES: dict[str, tuple[str, str]] = {
    "final_title": ("The final report", "总报告"),
    "final_question": ("How much of attention has to be learned?", "注意力有多少需要学习？"),
    "final_lead": (
        (
            "The folder {root} has {studies} studies with {runs} runs. Studies that are not finished are shown with "
            "the runs they have."
        ),
        "{root} 下有 {studies} 项研究，共 {runs} 次运行。未完成的研究按现有进度展示。",
    ),
    "final_nothing": (
        "The folder {root} has no study: there is nothing to report yet.",
        "{root} 下没有任何研究：暂无可报告的内容。",
    ),
    "claims_by_verdict": ("Published claims, {verdict}: {claims}.", "论文主张，{verdict}：{claims}。"),
    "heading_ledger": ("The published claims, one by one", "论文主张逐条核对"),
    "ledger_note": (
        (
            "Each claim is judged by the rules in the table below. Supported: the 95 % interval of the measured effect "
            "is within the claimed range. No effect: the effect is equivalent to nothing. Contradicted: the interval "
            "excludes every published size. Seeds of one corpus are one sample; {pooled} or more corpora are pooled by "
            "random effects, and of fewer each has to decide by itself. p-values are corrected for all {claims} claims "
            "(Holm)."
        ),
        (
            "每条主张按下表的规则判定。支持：实测效应的 95% 区间在主张的范围内。没有影响：效应与零等价。"
            "被否定：区间不含任何已发表的数值。同一语料的种子为一个样本；{pooled} 个及以上语料按随机效应合并，"
            "更少时须各自得出结论。p 值按全部 {claims} 条主张校正（Holm）。"
        ),
    ),
    "heading_rules": ("The rules of these verdicts", "判定规则"),
    "rules_note": (
        "The verdicts above were found with exactly this table (oelm.analysis.claims).",
        "以上判定完全依据此表（oelm.analysis.claims）。",
    ),
    "rules_claim": ("claim", "主张"),
    "rules_published": ("published", "已发表"),
    "rules_claimed": ("supported within", "支持的范围"),
    "rules_none": ("no effect within", "视为没有影响"),
    "rules_counts": ("what counts as evidence", "何为证据"),
    "supported": ("supported", "支持"),
    "no effect": ("no effect", "没有影响"),
    "contradicted": ("contradicted", "被否定"),
    "not yet tested": ("not yet tested", "尚未检验"),
    "claim_published": ("Published: {sizes}.", "已发表：{sizes}。"),
    "claim_size": ("{size} ({source})", "{size}（{source}）"),
    "claim_effect": ("{mean} ({interval})", "{mean}（{interval}）"),
    "claim_at": ("{place} {effect}", "{place} {effect}"),
    "claim_measured_one": ("Measured: {effect}.", "实测：{effect}。"),
    "claim_measured_two": (
        "Measured: {listed}; pooled {pooled}, from {places} places only.",
        "实测：{listed}；合并 {pooled}，仅来自 {places} 处。",
    ),
    "claim_measured_many": (
        "Measured, pooled over {places} places: {pooled} ({listed}).",
        "实测，{places} 处合并：{pooled}（{listed}）。",
    ),
    "claim_no_interval": ("Measured, but nothing that counts: {listed}.", "有实测，但均不计入：{listed}。"),
    "claim_unmeasured": ("Nothing is measured yet.", "尚无实测。"),
    "claim_part": ("{name}. {text}", "{name}。{text}"),
    "claim_part_verdict": ("By itself it is {verdict}.", "单独来看为{verdict}。"),
    "claim_flops": (
        "Freezing removes {share} of a step's FLOPs.",
        "冻结最多减少单步计算量的 {share}。",
    ),
    "claim_because_supported": (
        "The interval is within the claimed range (corrected p: {p}).",
        "区间在主张的范围内（校正后 p：{p}）。",
    ),
    "claim_because_no effect": (
        "The effect is equivalent to nothing (corrected p: {p}).",
        "效应与零等价（校正后 p：{p}）。",
    ),
    "claim_because_contradicted": (
        "The interval excludes every published size (corrected p: {p}).",
        "区间不含任何已发表的数值（校正后 p：{p}）。",
    ),
    "claim_corrected_away": (
        "Taken alone it would be {verdict}; corrected for all claims p is {p}, so it stays undecided.",
        "单独来看为{verdict}；按全部主张校正后 p 为 {p}，因此仍未定。",
    ),
    "regime_small": (
        (
            "Small regime, not representative: content is worth {worth} where that is measured, and is not shown to be "
            "worth {times} times the margin of {margin}."
        ),
        "小规模条件，不具代表性：内容在有测量之处值 {worth}，未能证明达到界值 {margin} 的 {times} 倍。",
    ),
    "regime_small_bound": (
        "Small regime, not representative: uniform attention loses less than {times} times the margin of {margin}.",
        "小规模条件，不具代表性：其中连均匀注意力的损失也不到界值 {margin} 的 {times} 倍。",
    ),
    "regime_unknown": (
        "The regime is unknown: no study there measures what content is worth.",
        "条件未知：没有研究测量其中内容的价值。",
    ),
    "to": (" to ", " 至 "),
    "need_seeds": (
        (
            "What would decide it, with {power} power if means and spreads stay: further seeds, {seeds} ({runs} runs, "
            "about {hours})."
        ),
        "若均值与离散程度不变，以 {power} 的把握得出结论需要更多种子：{seeds}（{runs} 次运行，约 {hours}）。",
    ),
    "need_seeds_at": ("{place} {count}", "{place} {count} 个"),
    "need_experiment": (
        "What would decide it: {experiment} ({runs} runs, about {hours} at the size on record).",
        "可得出结论的实验：{experiment}（{runs} 次运行，按现有规模约 {hours}）。",
    ),
    "need_bench": (
        "What would decide it: {experiment} (about {hours}).",
        "可得出结论的实验：{experiment}（约 {hours}）。",
    ),
    "core_hours": ("{value} core-hours", "{value} 核时"),
    "gpu_hours": ("{value} GPU-hours", "{value} GPU 时"),
    "range_below": ("at most {high}", "至多 {high}"),
    "range_above": ("at least {low}", "至少 {low}"),
    "claim_row_published": ("published", "已发表"),
    "claim_together": ("{place}, all seeds", "{place}，全部种子"),
    "claim_pooled": ("pooled", "合并"),
    "claim_band_claimed": ("supports the claim", "支持主张"),
    "claim_band_nothing": ("no effect", "没有影响"),
    "claim_axis_percent": ("difference of perplexity (%)", "困惑度差异（%）"),
    "claim_axis_points": ("difference of accuracy (points)", "准确率差异（百分点）"),
    "claim_axis_share": ("saved (%)", "节省（%）"),
    "claim_axis_steps": ("times the steps", "步数之比"),
    "quantity_pretrained-encoder": ("Pretrained encoders", "预训练编码器"),
    "quantity_fresh-encoder": ("Encoders from scratch", "从头训练的编码器"),
    "quantity_freezing": ("GPT from scratch", "从头训练的 GPT"),
    "ledger_evidence": ("The evidence: {count} findings and their runs", "证据：{count} 项发现及其运行"),
    "ledger_bench": ("result", "结果"),
    "ledger_one": ("{study}, {arm}: {difference}. {verdict}", "{study}，{arm}：{difference}。{verdict}"),
    "ledger_join": ("; ", "；"),
    "ledger_steps": ("{value} times the steps", "{value} 倍步数"),
    "reason_counts": ("It counts.", "计入。"),
    "reason_untuned": ("It does not count: the arms are not tuned.", "不计入：各组未经调参。"),
    "reason_repaired-baseline": ("It does not count: the baseline is not plain.", "不计入：基线带有修补。"),
    "reason_at-chance": ("It does not count: the baseline is at chance.", "不计入：基线与猜测无异。"),
    "reason_incomplete": ("It does not count: some declared seeds are not complete.", "不计入：部分声明的种子未完成。"),
    "reason_lost": ("It does not count: some runs failed or diverged.", "不计入：有运行失败或发散。"),
    "reason_scale-confounded": (
        "It does not count: the random arm has another scale.",
        "不计入：随机组的尺度不同。",
    ),
    "reason_no-counterpart": (
        "It does not count: no arm starts alike and trains.",
        "不计入：没有起点相同而继续训练的对照组。",
    ),
    "reason_unexplained": (
        "It does not count: more time is saved than freezing can explain.",
        "不计入：节省的时间超过冻结所能解释的范围。",
    ),
    "reason_little-of-the-memory": (
        "It does not count: the model is a small part of the memory.",
        "不计入：模型只占内存的一小部分。",
    ),
    "reason_bench-instead": (
        "It does not count: a bench measures this with both arms in turns.",
        "不计入：已有两组轮流执行的基准测试。",
    ),
    "reason_small-regime": (
        "It does not count: there is evidence from a representative regime.",
        "不计入：已有具代表性条件下的证据。",
    ),
    "reason_no-interval": (
        "It does not count: one pair, or pairs that are all equal, have no interval.",
        "不计入：仅一对，或各对完全相同，没有区间。",
    ),
    "heading_cross": ("Across architectures and corpora", "跨架构与语料"),
    "cross_note": (
        "Every comparison of an arm that freezes both Q and K with its study's reference.",
        "所有同时冻结 Q 与 K 的组相对其研究参照组的比较。",
    ),
    "study": ("study", "研究"),
    "architecture": ("architecture", "架构"),
    "kind": ("task", "任务"),
    "kind_text": ("language", "语言建模"),
    "kind_examples": ("classification", "分类"),
    "applies_met": ("The published method is within the margin: {where}", "论文方法在界值以内：{where}"),
    "applies_not_met": ("The published method is beyond the margin: {where}", "论文方法超出界值：{where}"),
    "applies_beside": (
        "{arm}; against {other}, which starts alike and trains, {difference}",
        "{arm}；与起点相同但参与训练的 {other} 相比 {difference}",
    ),
    "applies_undecided": ("The published method is undecided: {where}", "论文方法未定：{where}"),
    "takes": (
        "With all weights of Q and K frozen, the least that had to be trained to stay within the margin: {where}",
        "Q、K 权重全部冻结时，留在界值以内至少要训练：{where}",
    ),
    "takes_one": (
        "{study}: {arm}, {share} as many parameters as Q and K have, {difference} ({interval})",
        "{study}：{arm}，相当于 Q、K 参数量的 {share}，{difference}（{interval}）",
    ),
    "heading_studies": ("The studies", "各项研究"),
    "heading_project": ("The project in numbers", "项目统计"),
    "stat_runs": ("runs", "运行次数"),
    "stat_complete": ("of them complete", "其中已完成"),
    "stat_failed": ("of them failed or diverged", "其中失败或发散"),
    "stat_imported": ("of them imported", "其中导入"),
    "stat_hours": ("hours of training", "训练小时数"),
    "stat_tokens": ("tokens or examples seen", "训练词元或样本数"),
    "stat_largest": ("largest model (parameters)", "最大模型（参数量）"),
    "stat_bytes": ("size of the records", "记录文件大小"),
    "heading_timeline": ("Timeline", "时间线"),
    "timeline_study": ("{first} to {last}, {runs} runs", "{first} 至 {last}，{runs} 次运行"),
    "file_study": ("a study as it was declared", "研究的声明"),
    "file_record": ("a run: spec, result, environment, command", "一次运行：配置、结果、环境、命令"),
    "file_metrics": ("its curve", "训练曲线"),
    "file_timing": ("its step times, in the published study's terms", "单步时间（沿用论文的格式）"),
    "file_attention": ("what its heads look at, a line for each look at validation", "注意力头的统计，每次验证一行"),
    "file_samples": ("what it writes", "生成样本"),
    "file_losses": ("its loss on each document of the test split", "测试集每篇文档的损失"),
    "file_choice": ("what tuning chose, and the records it rests on", "调参的选择及其依据"),
    "file_report": ("this page, Markdown, LaTeX tables, CSV, figures", "本页面、Markdown、LaTeX 表格、CSV、图"),
    "whether": ("within the margin", "是否在界值内"),
    "heading_files": ("Where everything is", "文件位置"),
    "heading_citation": ("How to cite", "如何引用"),
    "citation": (
        (
            "The oelm developers, oelm {version}: freeze parts of a Transformer's attention, run the ablation, believe "
            "the answer. Cite the study's records with it: every number leads to one."
        ),
        (
            "oelm 开发者，oelm {version}：冻结 Transformer 注意力的一部分，做消融，相信结果。引用时请附上研究记录："
            "每个数字都有出处。"
        ),
    ),
    "heading_loose": ("Runs of no study", "不属于任何研究的运行"),
    "loose": (
        "{count} records lie below the folder in no study: they are counted above and compared nowhere.",
        "有 {count} 条记录不属于任何研究：只计入上面的统计，不参与比较。",
    ),
    "heading_refused": ("Studies that could not be compared", "无法比较的研究"),
}
