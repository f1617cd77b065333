"""The sentences about evidence beyond the main table: ablation, tuning, cost, listings."""

from __future__ import annotations

EVIDENCE: dict[str, tuple[str, str]] = {
    # Numbers
    "points": ("{value} points", "{value} 个百分点"),
    "range_points": ("{low} to {high} points", "{low} 至 {high} 个百分点"),
    "range_plain": ("{low} to {high}", "{low} 至 {high}"),
    "margin_accuracy": ("{points} point and 5 % of the reference's", "{points} 个百分点且不超过参照准确率的 5%"),
    "margin_points": ("{points} point", "{points} 个百分点"),
    "margin_relative": ("5 % of the reference's accuracy", "参照准确率的 5%"),
    "and": (" and ", "以及"),
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
    "verdict_more": (
        (
            "Seeds to add for a decision: about {more}, judged once, when they are all there. Whoever looks after each "
            "of them and stops at a pleasing answer is wrong more often than 5 %."
        ),
        "大约再加 {more} 个种子可以判定；须等全部完成后一次判定：若逐个查看并在满意时停止，出错率会超过 5%。",
    ),
    "verdict_at_chance": (
        "But {reference} itself hardly does better than guessing, so keeping up with it means nothing.",
        "但 {reference} 本身几乎不优于猜测，与之持平没有意义。",
    ),
    "distance_no_spread": (
        "Its perplexity is {difference} against {reference}.",
        "困惑度相对 {reference} 为 {difference}。",
    ),
    "distance_accuracy_no_spread": (
        "Its accuracy is {difference} against {reference}.",
        "准确率相对 {reference} 为 {difference}。",
    ),
    "verdict_no_spread": (
        "All {pairs} pairs of seeds differ by exactly as much, so there is no spread to judge by.",
        "{pairs} 对种子的差异完全相同，没有可供判断的离散。",
    ),
    "stage_tune": (
        "Tuning is not finished: {ended} of {whole} tuning runs have ended, and nothing is confirmed yet.",
        "调参尚未完成：共 {whole} 次调参运行，已结束 {ended} 次，尚无确认结果。",
    ),
    "stage_screen": (
        (
            "A screen: every candidate on the same grid ({fields}), on the validation split, with {seeds} seed(s). It "
            "tells what to look at next and decides nothing."
        ),
        "筛选：各候选在同一网格（{fields}）上、以 {seeds} 个种子在验证集上比较；只提示下一步看什么，不作判定。",
    ),
    "stage_confirm": (
        (
            "Every arm was tuned on the same grid ({fields}) with seeds of its own; the figures are of fresh seeds. "
            "Intervals are of the difference at the chosen settings: luck in the choice is not in them."
        ),
        (
            "每个组都在同一网格（{fields}）上用单独的种子调参；下列数字来自全新的种子。区间针对所选取值处的差异，"
            "不含选取本身的偶然性。"
        ),
    ),
    "stage_untuned": (
        "No arm was tuned: at other settings the order may be another.",
        "各组均未调参：换一组设置，次序可能不同。",
    ),
    "forced": (
        "This comparison was forced. It is not fair: {reason}",
        "此比较为强制进行，并不公平：{reason}",
    ),
    # Beside the table
    "noise": ("test-set noise", "测试集噪声"),
    "noise_note": (
        (
            "Test-set noise: the 95 % interval of the difference if the test split held {texts} other texts of "
            "its kind (paired bootstrap, seeds held fast)."
        ),
        "测试集噪声：若测试集换成 {texts} 篇同类的其他文档，差异的 95% 区间（配对自助法，种子固定）。",
    ),
    "noise_nested": (
        (
            "Test-set noise of arms that share ten seeds or more with the reference: the 95 % interval of the "
            "difference if the test split held {texts} other texts of its kind and training had other seeds "
            "(paired bootstrap, seeds and documents drawn)."
        ),
        (
            "与参照共有十个及以上种子的组的测试集噪声：若测试集换成 {texts} 篇同类的其他文档、训练也换成其他种子，"
            "差异的 95% 区间（配对自助法，种子与文档均重新抽取）。"
        ),
    ),
    "table_note_accuracy": (
        (
            "Accuracies are means over seeds in points, at the end of training. Differences are paired by seed. The "
            "target has two margins, and the verdict rests on one-sided 95 % bounds."
        ),
        "准确率为各种子在训练结束时的平均（百分点）。差异按种子配对。目标有两个界值，判定依据单侧 95% 置信限。",
    ),
    "mark_imported": (
        "{mark} imported from another program's files: this one vouches for nothing but having read them.",
        "{mark} 由其他程序的文件导入：本程序只保证如实读取。",
    ),
    "heading_statistics": ("How sure is that?", "有多确定？"),
    "pairs": ("pairs of seeds", "种子对数"),
    "p_none": ("p (no difference)", "p（无差异）"),
    "p_margin": ("p (on the margin), Holm", "p（恰在界值），Holm"),
    "more_seeds": ("seeds to add", "尚需种子"),
    "statistics_family": (
        "The family: {family}. The p of other arms is not corrected.",
        "同族各组：{family}。其余各组的 p 未校正。",
    ),
    "heading_forest": ("The differences, with their intervals", "差异及其区间"),
    "forest_caption": (
        (
            "Dots are mean differences to {reference}, lines their 95 % intervals; the dashed line is the margin. "
            "Arrows point to what is far beyond it."
        ),
        "圆点为相对 {reference} 的平均差异，横线为 95% 区间；虚线为界值。箭头指向远超界限者。",
    ),
    "forest_axis_perplexity": ("perplexity against the reference (%)", "相对参照的困惑度（%）"),
    "forest_axis_accuracy": ("accuracy lost against the reference (points)", "相对参照损失的准确率（百分点）"),
    "forest_margin": ("margin", "界值"),
    # Ablation
    "heading_ablation": ("What freezing, scale and orthogonality each do", "冻结、尺度与正交各起什么作用"),
    "ablation_note": (
        (
            "Each step changes one thing, so in log perplexity, or in points, the steps add up to the whole way: "
            "freezing what the model drew, giving the draw the scale of orthogonal rows, making the rows orthogonal. "
            "Another order of the steps would split it otherwise."
        ),
        (
            "每一步只改变一件事，各步（按对数困惑度或百分点）相加即为全程：先冻结模型原有的初值，再把尺度调到正交行的"
            "尺度，最后使行正交。换一种顺序，各步的份额会不同。"
        ),
    ),
    "ablation_apart": (
        (
            "What stands behind the whole way compares two arms that differ in one thing: freezing where both start "
            "alike, or the form of the orthogonal rows, which is one QR for all heads, or slices, against one a head. "
            "On a pretrained model it is no part of the way: a fresh draw also throws away what Q and K had learned, "
            "so fresh draws are compared with one another alone."
        ),
        (
            "全程之后的各行比较只有一处不同的两组：起点相同时的冻结，或正交行的形式（全部头共一次 QR 或切片，"
            "与逐头 QR 相比）。对预训练模型，冻结不属于全程：重新抽取的初值同时丢弃了"
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
    "step_form": ("another form of orthogonal", "另一种正交形式"),
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
    "qk_trained": ("of Q/K trained", "Q/K 训练占比"),
    "tuning_note": (
        (
            "Scores of validation at each value of {field}, means over the tuning seeds; less is better, ∞ diverged. "
            "The cost of the next value is what the worse neighbour on the grid loses. The difference is that of each "
            "arm at its best to the reference at its best."
        ),
        (
            "{field} 各取值的验证得分（调参种子的均值）；越小越好，∞ 表示发散。取邻值的代价指网格上较差一侧邻值的损失。"
            "差异为各组最佳取值相对参照最佳取值。"
        ),
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
    "ranking_caption": (
        "Validation against {reference}, each arm at its only setting; arrows stand for what is far beyond the margin.",
        "各组在其唯一取值下的验证结果，与 {reference} 相比；箭头表示远超界限者。",
    ),
    # Cost
    "heading_cost": ("What it costs and saves", "成本与节省"),
    "optimizer_bytes": ("optimiser", "优化器"),
    "peak_memory": ("peak memory", "内存峰值"),
    "flop_bound": ("FLOPs removed", "减少的计算量"),
    "time_saved": ("time saved", "节省时间"),
    "cost_note": (
        (
            "Of Q/K trained: what is trained of Q and K at any time, repairs included, as a share of the reference's Q "
            "and K. FLOPs removed are of a training step of the reference, as the run begins. Time "
            "saved is of the training seconds per step, paired by seed where both ran on one machine, as the runs had "
            "them: no benchmark, others may have shared it. `oelm bench methods` measures it fairly."
        ),
        (
            "Q/K 训练占比：训练过的 Q、K 参数（含修补参数）占参照 Q、K 参数之比。"
            "减少的计算量指相对参照的一个训练步（按运行开始时计）。节省时间为每步训练秒数按种子配对所得（仅限在同一"
            "机器上的运行），为运行时的实测值，机器可能被共用，不是基准测试；公平的测量请用 `oelm bench methods`。"
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
    "heads_distance": ("distance (tokens back)", "距离（回溯词元数）"),
    "heads_layer_number": ("layer {number}", "层 {number}"),
    # Published
    "heading_published": ("Beside the published figures", "与论文数字对照"),
    "published_note": (
        (
            "The published figures are claims to compare with: one seed each, the best look at the split they were "
            "tuned on. Those here are of the end of training, on the test split where there is one."
        ),
        "论文数字仅供对照：每项只有一个种子，取自调参所用划分上的最好一次；此处为训练结束时的数字，有测试集则用测试集。",
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
