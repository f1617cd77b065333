"""The sentences of the report over all studies."""

from __future__ import annotations

ALL_STUDIES: dict[str, tuple[str, str]] = {
    "final_title": ("The final report", "总报告"),
    "final_question": ("How much of attention has to be learned?", "注意力有多少需要学习？"),
    "final_lead": (
        (
            "{studies} studies with {runs} runs lie below {root}. Studies that are not finished are shown as far as "
            "they are."
        ),
        "{root} 下有 {studies} 项研究，共 {runs} 次运行。未完成的研究按现有进度展示。",
    ),
    "final_nothing": (
        "No study lies below {root}: there is nothing to report yet.",
        "{root} 下没有任何研究：暂无可报告的内容。",
    ),
    "heading_ledger": ("The published claims, one by one", "论文主张逐条核对"),
    "ledger_note": (
        (
            "Verdicts come from the records at hand, by rule; a claim that no study here tests is not yet tested. "
            "About quality only studies decide in which every arm was tuned and a plain baseline beats uniform "
            "attention by 10 %, or guessing. Orthogonal beats random: the interval of the step from the matched "
            "Gaussian lies on one side of nothing. 10-15 %: the interval lies within, or outside. Grows: intervals on "
            "parts of one text, one five times the other, lie apart. 57 %: the interval of time saved lies on one "
            "side of 50 %. No gain: on one side of 5 %. More time saved than freezing can explain decides neither. "
            "Fewer epochs: at most 0.85 of the steps; at least as many, or surely a higher loss at the end. On "
            "pretrained encoders freezing is judged against Q and K that were made orthogonal as well, and train. "
            "Memory: one side of 4 % of the peak, where the model is most of it."
        ),
        (
            "判定由现有记录按规则得出；没有研究检验过的主张标为“尚未检验”。关于质量，只有各组均经调参、且不加修补的基线比均匀"
            "注意力好 10% 以上（或优于猜测）的研究才作判定。正交优于随机：从同尺度高斯到正交一步的区间在零的一侧。"
            "10-15%：区间在其内或其外。随语料增大：同一文本、相差五倍以上的两部分的区间不相交。57%：节省时间的区间在"
            " 50% 的一侧。没有加速：区间在 5% 的一侧。节省的时间若超过冻结所能解释的范围，则两者均不作判定。"
            "更少轮数：步数至多 0.85 倍；或不少于对照，或最终损失确定更高。"
            "预训练编码器上，冻结与同样正交化但继续训练的 Q、K 相比。内存："
            "在模型占峰值大部分时，区间在 4% 的一侧。"
        ),
    ),
    "supported": ("supported", "支持"),
    "contradicted": ("contradicted", "被否定"),
    "not yet tested": ("not yet tested", "尚未检验"),
    "ledger_none": ("What it needs: {needs}", "所需：{needs}"),
    "ledger_one": (
        "{study}, {arm}: {difference} ({interval}), {verdict}",
        "{study}，{arm}：{difference}（{interval}），{verdict}",
    ),
    "ledger_one_plain": ("{study}, {arm}: {difference}, {verdict}", "{study}，{arm}：{difference}，{verdict}"),
    "ledger_join": ("; ", "；"),
    "ledger_steps": ("{value} times the steps", "{value} 倍步数"),
    "claim_orthogonal-beats-random": ("Orthogonal beats random", "正交优于随机"),
    "needs_orthogonal-beats-random": (
        "a frozen orthogonal arm beside a frozen Gaussian one of the same scale (oelm-random-matched).",
        "冻结正交组与同尺度的冻结高斯组（oelm-random-matched）。",
    ),
    "claim_freezing-costs-10-to-15": ("Freezing costs 10-15 % on GPT", "在 GPT 上冻结使困惑度升高 10-15%"),
    "needs_freezing-costs-10-to-15": (
        "a GPT from scratch with and without frozen orthogonal Q/K, several seeds.",
        "从头训练的 GPT，含与不含冻结正交 Q/K，多个种子。",
    ),
    "claim_loss-grows-with-the-corpus": ("The loss grows with the corpus", "劣化随语料增大"),
    "needs_loss-grows-with-the-corpus": (
        "the same GPT, tuned, on a small part of a text and on one at least five times as large.",
        "同一 GPT（经调参）分别在一份文本的小部分与至少五倍大的部分上训练。",
    ),
    "claim_classification-tolerates-freezing": (
        "Classification tolerates freezing, generation does not",
        "分类任务能承受冻结，生成任务不能",
    ),
    "needs_classification-tolerates-freezing": (
        "an encoder trained from scratch on a classification task, beside GPT: otherwise pretraining is confounded.",
        "从头训练的编码器做分类任务，与 GPT 对照；否则与预训练混淆。",
    ),
    "claim_57-percent-faster-on-bert": ("57 % faster on BERT", "BERT 上快 57%"),
    "needs_57-percent-faster-on-bert": (
        "a BERT with and without frozen Q/K, timed over several seeds on one machine.",
        "含与不含冻结 Q/K 的 BERT，在同一台机器上以多个种子计时。",
    ),
    "claim_no-gain-on-gpt": ("No gain of time on GPT", "GPT 上没有加速"),
    "needs_no-gain-on-gpt": ("a GPT with and without frozen Q/K, timed.", "含与不含冻结 Q/K 的 GPT 计时。"),
    "claim_converges-in-fewer-epochs": ("Converges in 2.0 instead of 2.5 epochs", "2.0 轮收敛而非 2.5 轮"),
    "needs_converges-in-fewer-epochs": (
        "the validation curves of a classification study.",
        "分类研究的验证曲线。",
    ),
    "claim_less-memory": ("4.7 % less memory", "内存减少 4.7%"),
    "needs_less-memory": (
        (
            "the measured peak of memory of a GPT with and without frozen Q/K (the published figure is of checkpoint "
            "files)."
        ),
        "含与不含冻结 Q/K 的 GPT 的实测内存峰值（论文数字实为检查点文件大小）。",
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
    "heading_trend": ("Does the loss grow with the corpus?", "劣化是否随语料增大？"),
    "trend_caption": (
        "Differences of frozen head-wise orthogonal arms to their references, on parts of one text, smallest on top.",
        "冻结的逐头正交组相对参照的差异，取自同一文本的各部分，自上而下由小到大。",
    ),
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
