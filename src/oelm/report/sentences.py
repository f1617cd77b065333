"""The sentences about evidence beyond the main table: ablation, tuning, cost, listings, the final report."""

from __future__ import annotations

EVIDENCE: dict[str, tuple[str, str]] = {
    # Numbers
    "points": ("{value} points", "{value} 个百分点"),
    "range_points": ("{low} to {high} points", "{low} 至 {high} 个百分点"),
    "range_plain": ("{low} to {high}", "{low} 至 {high}"),
    "margin_accuracy": ("{points} point and 5 % of its own", "{points} 个百分点且 5%（相对）"),
    "seconds": ("{value} s", "{value} 秒"),
    "minutes": ("{value} min", "{value} 分钟"),
    "hours": ("{value} h", "{value} 小时"),
    "of": ("{part} of {whole}", "{part} / {whole}"),
    "accuracy_test": ("test accuracy", "测试准确率"),
    "accuracy_val": ("validation accuracy", "验证准确率"),
    # The answer
    "target_accuracy": (
        "The target: an accuracy at most {margin} below that of {reference}.",
        "目标：准确率比 {reference} 最多低 {margin}。",
    ),
    "distance_accuracy": (
        "Its accuracy is {difference} against {reference}, 95 % interval {interval}.",
        "准确率相对 {reference} 为 {difference}，95% 区间 {interval}。",
    ),
    "distance_accuracy_one_seed": (
        "Its accuracy is {difference} against {reference}, from one pair of seeds.",
        "准确率相对 {reference} 为 {difference}，仅来自一对种子。",
    ),
    "verdict_family": (
        "By itself it would be decided; among all arms that are compared together (Holm) it is not.",
        "单独看可以下结论；但与同时比较的各组一并校正（Holm）后不能。",
    ),
    "verdict_more": ("About {more} more seeds would decide.", "大约再加 {more} 个种子可以判定。"),
    "stage_tune": (
        "Tuning is not finished: {ended} of {whole} tuning runs have ended, and nothing is confirmed yet.",
        "调参尚未完成：共 {whole} 次调参运行，已结束 {ended} 次，尚无确认结果。",
    ),
    "stage_confirm": (
        "Every arm was tuned on the same grid ({fields}) with seeds of its own; the figures are of fresh seeds.",
        "每个组都在同一网格（{fields}）上用单独的种子调参；下列数字来自全新的种子。",
    ),
    "forced": (
        "This comparison was forced. It is not fair: {reason}",
        "此比较为强制进行，并不公平：{reason}",
    ),
    # Beside the table
    "noise": ("test-set noise", "测试集噪声"),
    "noise_note": (
        (
            "Test-set noise: the 95 % interval of the difference if the test split held other documents of its kind "
            "(paired bootstrap, seeds held fast)."
        ),
        "测试集噪声：若测试集换成同类的其他文档，差异的 95% 区间（配对自助法，种子固定）。",
    ),
    "noise_nested": (
        (
            "Test-set noise of arms that share ten seeds or more with the reference: the 95 % interval of the "
            "difference if the test split held other documents of its kind and training had other seeds (paired "
            "bootstrap, seeds and documents drawn)."
        ),
        (
            "与参照共有十个及以上种子的组的测试集噪声：若测试集换成同类的其他文档、训练也换成其他种子，差异的 95% "
            "区间（配对自助法，种子与文档均重新抽取）。"
        ),
    ),
    "table_note_accuracy": (
        (
            "Accuracies are means over seeds in points, at the end of training. Differences are paired by seed. The "
            "target has two margins, and the verdict rests on one-sided 95 % bounds."
        ),
        "准确率为各种子在训练结束时的平均（百分点）。差异按种子配对。目标有两个界限，判定依据单侧 95% 界限。",
    ),
    "mark_imported": (
        "{mark} imported from another program's files: this one vouches for nothing but having read them.",
        "{mark} 由其他程序的文件导入：本程序只保证如实读取。",
    ),
    "heading_statistics": ("How sure is that?", "有多确定？"),
    "pairs": ("pairs of seeds", "种子对数"),
    "p_none": ("p (no difference)", "p（无差异）"),
    "p_margin": ("p (on the margin), Holm", "p（恰在界限），Holm"),
    "pooled": ("pooled interval", "合并区间"),
    "more_seeds": ("seeds to add", "尚需种子"),
    "statistics_note": (
        (
            "The paired interval decides. p (no difference) is two-sided; p (on the margin) is one-sided and "
            "corrected by Holm for all arms of the family. The pooled interval is that of one arm + seed model with "
            "a common residual: narrower, and right only if all arms vary alike."
        ),
        (
            "以配对区间为准。p（无差异）为双侧；p（恰在界限）为单侧，并对同族各组做 Holm 校正。合并区间来自"
            "“组 + 种子”模型的共同残差：更窄，但仅当各组波动相同时才正确。"
        ),
    ),
    "heading_forest": ("The differences, with their intervals", "差异及其区间"),
    "forest_caption": (
        "Dots are mean differences to {reference}, lines their 95 % intervals; the dashed line is the margin.",
        "圆点为相对 {reference} 的平均差异，横线为 95% 区间；虚线为界限。",
    ),
    "forest_axis_perplexity": ("perplexity against the reference (%)", "相对参照的困惑度（%）"),
    "forest_axis_accuracy": ("accuracy lost against the reference (points)", "相对参照损失的准确率（百分点）"),
    "forest_margin": ("margin", "界限"),
    # Ablation
    "heading_ablation": ("What freezing, scale and orthogonality each do", "冻结、尺度与正交各起什么作用"),
    "ablation_note": (
        (
            "Each step changes one thing, so the steps add up to the whole way: freezing what the model drew, giving "
            "the draw the scale of orthogonal rows, making the rows orthogonal."
        ),
        "每一步只改变一件事，各步相加即为全程：先冻结模型原有的初值，再把尺度调到正交行的尺度，最后使行正交。",
    ),
    "ablation_apart": (
        (
            "A line of freezing that no other line continues compares two arms that start alike, one of them frozen. "
            "On a pretrained model it is no part of the way: a fresh draw also throws away what Q and K had learned, "
            "so fresh draws are compared with one another alone."
        ),
        (
            "单独成行的“冻结”比较起点相同的两组，其中一组被冻结。对预训练模型，它不属于全程：重新抽取的初值同时丢弃了"
            " Q 与 K 已学到的内容，因此只在重新抽取的各组之间比较。"
        ),
    ),
    "ablation_confounded": (
        (
            "The control of matched scale is missing, so scale and orthogonality cannot be told apart here. Add the "
            "arm oelm-random-matched."
        ),
        "缺少尺度匹配的对照组，因此这里无法区分尺度与正交的作用。请加入 oelm-random-matched 组。",
    ),
    "step": ("step", "步骤"),
    "step_from": ("from", "从"),
    "step_to": ("to", "到"),
    "step_difference": ("difference", "差异"),
    "step_freezing": ("freezing", "冻结"),
    "step_scale": ("scale", "尺度"),
    "step_orthogonality": ("orthogonality", "正交"),
    "step_freezing-and-scale": ("freezing and scale", "冻结与尺度"),
    "step_scale-and-orthogonality": ("scale and orthogonality", "尺度与正交"),
    "step_all": ("freezing, scale and orthogonality", "冻结、尺度与正交"),
    "step_whole": ("the whole way", "全程"),
    "ablation_caption": (
        "Each bar starts where the one before it ended; thin lines are 95 % intervals of the step.",
        "每一条从上一条的终点开始；细线为该步的 95% 区间。",
    ),
    # Convergence
    "area": ("mean height of the curve", "曲线平均高度"),
    "area_interval": ("95 % interval of its difference", "其差异的 95% 区间"),
    "reached": ("seeds that reach the reference", "追上参照的种子"),
    "steps_to_reach": ("steps to reach it", "所需步数"),
    "seconds_to_reach": ("time to reach it", "所需时间"),
    "convergence_note": (
        (
            "The mean height is the area under the validation curve over training, in nats. To reach the reference is "
            "to come down to its final validation loss with the same seed."
        ),
        "平均高度为验证曲线下面积除以训练长度（nat）。追上参照指验证损失降到相同种子参照组的最终值。",
    ),
    # Tuning
    "heading_tuning": ("How they were tuned", "调参过程"),
    "chosen": ("chosen", "选定"),
    "penalty": ("cost of the next value", "取邻值的代价"),
    "tuning_note": (
        (
            "Scores of validation at each value of {field}, means over the tuning seeds; less is better, ∞ diverged. "
            "The cost of the next value is what the worse neighbour on the grid loses."
        ),
        "{field} 各取值的验证得分（调参种子的均值）；越小越好，∞ 表示发散。取邻值的代价指网格上较差一侧邻值的损失。",
    ),
    "edge_note": (
        "* chosen at the end of the grid although it has grown as far as it may: the true optimum may lie beyond.",
        "* 选定值位于网格末端，且网格已扩展到上限：真正的最优值可能在网格之外。",
    ),
    "tuning_axis": ("validation score", "验证得分"),
    "tuning_caption": (
        "Validation score over the grid; the ring marks what was chosen, crosses at the top are diverged values.",
        "网格上的验证得分；圆圈为选定值，顶部的叉号为发散的取值。",
    ),
    # Cost
    "heading_cost": ("What it costs and saves", "成本与节省"),
    "optimizer_bytes": ("optimiser", "优化器"),
    "peak_memory": ("peak memory", "内存峰值"),
    "flop_bound": ("can save at most", "最多可省"),
    "time_saved": ("time saved", "节省时间"),
    "cost_note": (
        (
            "What it can save at most is the share of a training step's FLOPs that the method removes. Time saved is "
            "of the training seconds per step, paired by seed, as the runs had them: no benchmark, others may have "
            "shared the machine. `oelm bench methods` measures it fairly."
        ),
        (
            "最多可省指方法从一个训练步中去掉的计算量占比。节省时间为每步训练秒数按种子配对所得，为运行时的实测"
            "值，机器可能被共用，不是基准测试；公平的测量请用 `oelm bench methods`。"
        ),
    ),
    "unexplained": (
        "! {arm} saved more time than the method can explain. Look for another cause before believing it.",
        "! {arm} 节省的时间超过该方法所能解释的范围。请先查找其他原因，不要轻信。",
    ),
    # Heads
    "heading_heads": ("What the heads look at", "注意力头在看什么"),
    "heads_caption": (
        (
            "Entropy of attention by layer: each dot is a head (first seed), the line their mean. High entropy looks "
            "at everything alike, low entropy at few tokens."
        ),
        "各层注意力的熵：每个点为一个头（第一个种子），线为均值。熵高表示平均地看所有词元，熵低表示只看少数。",
    ),
    "heads_axis": ("entropy (nats)", "熵（nat）"),
    "heads_layer": ("layer", "层"),
    "heading_heads_training": ("What the heads look at, over training", "训练过程中注意力头在看什么"),
    "heads_training_caption": (
        (
            "Entropy and mean distance of attention at each look at validation (first seed), on the same few training "
            "windows: a thick line is the mean of a layer, a thin one a head. Where Q and K are frozen, only what "
            "flows into them can move these lines."
        ),
        (
            "每次验证时注意力的熵与平均距离（第一个种子），取自同一组训练窗口：粗线为一层的均值，细线为单个头。"
            "Q、K 冻结时，只有流入它们的内容能改变这些曲线。"
        ),
    ),
    "heads_distance": ("distance (tokens back)", "距离（向前的词元数）"),
    "heads_layer_number": ("layer {number}", "第 {number} 层"),
    # Published
    "heading_published": ("Beside the published figures", "与论文数字对照"),
    "published_note": (
        "The published figures are claims to compare with: one seed each, judged on the split they were tuned on.",
        "论文数字仅供对照：每项只有一个种子，且评判与调参用的是同一个划分。",
    ),
    "published_id": ("published run", "论文实验"),
    "published_here": ("here", "此处"),
    "published_there": ("published", "论文"),
    "published_ratio": ("here against published", "此处相对论文"),
    "heading_contradictions": ("What is known to be wrong with the published figures", "论文数字的已知问题"),
    "whole_study": ("the whole study", "整个研究"),
    # Listings
    "listing_lead": (
        (
            "{complete} of {expected} listed runs are complete. They are no matrix of arms and seeds, so each stands "
            "for itself."
        ),
        "共列出 {expected} 次运行，已完成 {complete} 次。它们不是“组 × 种子”的矩阵，各自独立。",
    ),
    "listing_refused": ("not compared", "不作比较"),
    "listing_refused_why": ("The runs on it are not fair to one another: {reason}", "其上的运行彼此不公平：{reason}"),
    "heading_listing": ("The listed runs", "列出的运行"),
    "corpus": ("corpus", "语料"),
    "status": ("state", "状态"),
    "run": ("run", "运行"),
    "figure": ("figure", "数值"),
    "measure": ("what it is", "指标"),
    "status_complete": ("complete", "已完成"),
    "listing_alone": ("nothing to compare with", "没有可比较的对象"),
}

FINAL: dict[str, tuple[str, str]] = {
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
        "Verdicts come from the records at hand, by rule; a claim that no study here tests is not yet tested.",
        "判定由现有记录按规则得出；没有研究检验过的主张标为“尚未检验”。",
    ),
    "supported": ("supported", "支持"),
    "contradicted": ("contradicted", "不支持"),
    "not yet tested": ("not yet tested", "尚未检验"),
    "ledger_none": ("What it needs: {needs}", "所需：{needs}"),
    "ledger_one": ("{study}, {arm}: {difference} ({interval})", "{study}，{arm}：{difference}（{interval}）"),
    "ledger_one_plain": ("{study}, {arm}: {difference}", "{study}，{arm}：{difference}"),
    "ledger_join": ("; ", "；"),
    "ledger_steps": ("{value} times the steps", "{value} 倍步数"),
    "claim_orthogonal-beats-random": ("Orthogonal beats random", "正交优于随机"),
    "needs_orthogonal-beats-random": (
        "a frozen orthogonal arm beside a frozen Gaussian one of the same scale (oelm-random-matched).",
        "冻结正交组与同尺度的冻结高斯组（oelm-random-matched）。",
    ),
    "claim_freezing-costs-10-to-15": ("Freezing costs 10-15 % on GPT", "在 GPT 上冻结损失 10-15%"),
    "needs_freezing-costs-10-to-15": (
        "a GPT from scratch with and without frozen orthogonal Q/K, several seeds.",
        "从头训练的 GPT，含与不含冻结正交 Q/K，多个种子。",
    ),
    "claim_loss-grows-with-the-corpus": ("The loss grows with the corpus", "损失随语料增大"),
    "needs_loss-grows-with-the-corpus": (
        "the same GPT on a small and on a large corpus.",
        "同一 GPT 分别在小语料与大语料上训练。",
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
        "a BERT with and without frozen Q/K, timed over several seeds or by oelm bench methods.",
        "含与不含冻结 Q/K 的 BERT，多个种子计时，或用 oelm bench methods 测量。",
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
    "heading_trend": ("Does the loss grow with the corpus?", "损失是否随语料增大？"),
    "trend_caption": (
        "Differences of frozen head-wise orthogonal arms to their references, smallest corpus on top.",
        "冻结的逐头正交组相对参照的差异，自上而下语料由小到大。",
    ),
    "heading_applies": ("Where OELM applies", "OELM 适用于何处"),
    "applies_met": ("within the margin: {where}", "在界限以内：{where}"),
    "applies_not_met": ("beyond the margin: {where}", "超出界限：{where}"),
    "applies_undecided": ("undecided: {where}", "未定：{where}"),
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
    "whether": ("within the margin", "是否在界限内"),
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
