"""Every sentence that a reader of results meets, in English and in Chinese.

The two stand side by side, so that none is changed alone. Names of arms, fields and files are not translated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

from oelm.errors import UnknownName
from oelm.report.all_studies_sentences import ALL_STUDIES
from oelm.report.content_sentences import CONTENT
from oelm.report.noise_sentences import NOISE
from oelm.report.price_sentences import PRICE
from oelm.report.registration_sentences import REGISTRATION
from oelm.report.scaling_sentences import SCALING
from oelm.report.sentences import EVIDENCE

Language = Literal["en", "zh"]
HTML_LANGUAGES: dict[str, str] = {"en": "en", "zh": "zh-CN"}
Say = Callable[..., str]
"""Call with a sentence's key and the values of its gaps."""

SENTENCES: dict[str, tuple[str, str]] = {
    # Numbers
    "percent": ("{value} %", "{value}%"),
    "range": ("{low} to {high} %", "{low}% 至 {high}%"),
    "none": ("–", "–"),
    "join": (" ", ""),
    # What the answer is
    "heading_verdict": ("The answer", "结论"),
    "target": (
        "The target: a perplexity at most {margin} above that of {reference}.",
        "目标：困惑度比 {reference} 最多高 {margin}。",
    ),
    "distance": (
        "Its perplexity is {difference} against {reference}, 95 % interval {interval}.",
        "困惑度相对 {reference} 为 {difference}，95% 区间 {interval}。",
    ),
    "distance_one_seed": (
        "Its perplexity is {difference} against {reference}, from one pair of seeds.",
        "困惑度相对 {reference} 为 {difference}，仅来自一对种子。",
    ),
    "verdict_met": (
        "With 95 % confidence it loses less than {margin} (one-sided bound {bound}): the target is met.",
        "在 95% 置信度下劣化低于 {margin}（单侧置信限 {bound}）：达到目标。",
    ),
    "verdict_not_met": (
        "With 95 % confidence it loses more than {margin} (one-sided bound {bound}): the target is not met.",
        "在 95% 置信度下劣化高于 {margin}（单侧置信限 {bound}）：未达到目标。",
    ),
    "verdict_undecided": (
        "{pairs} pairs of seeds do not settle whether it stays within {margin}.",
        "{pairs} 对种子不足以判断劣化是否在 {margin} 以内。",
    ),
    "verdict_one_seed": (
        "One pair has no interval, so it decides nothing; add seeds.",
        "一对种子没有置信区间，不能说明问题；请增加种子。",
    ),
    "verdict_lost": (
        "But some runs failed or diverged, and those that are left are no fair sample.",
        "但有运行失败或发散，剩下的种子不是公平的样本。",
    ),
    "verdict_no_pairs": (
        "There is no figure yet: no seed is complete both here and in {reference}.",
        "暂无数字：没有任何种子在本组和 {reference} 中都已完成。",
    ),
    "met": ("met", "达到"),
    "not met": ("not met", "未达到"),
    "undecided": ("undecided", "未定"),
    "reference": ("reference", "参照"),
    "progress": (
        "{complete} of {expected} runs are complete.",
        "共 {expected} 次运行，已完成 {complete} 次。",
    ),
    "judged_on_validation": (
        (
            "These data have no test split, so the figures are of the validation split, which is also "
            "looked at during training. Take them as flattering."
        ),
        "该数据没有测试集，因此数字来自验证集；训练过程中也会查看验证集，结果可能偏乐观。",
    ),
    # The table
    "left_out": ("Left out: {columns} (a wider terminal shows them).", "未显示：{columns}（更宽的终端会显示）。"),
    "heading_table": ("The arms side by side", "各组对比"),
    "arm": ("arm", "实验组"),
    "seeds": ("seeds", "种子数"),
    "perplexity_test": ("test perplexity", "测试困惑度"),
    "perplexity_val": ("validation perplexity", "验证困惑度"),
    "difference": ("against {reference}", "相对 {reference}"),
    "interval": ("95 % interval", "95% 区间"),
    "verdict": ("within {margin}", "是否在 {margin} 内"),
    "trained": ("trained", "训练参数"),
    "frozen": ("frozen", "冻结参数"),
    "speed": ("tokens/s", "词元/秒"),
    "learning_rate": ("learning rate", "学习率"),
    "table_note_perplexity": (
        (
            "Perplexities are geometric means over seeds, at the end of training. Differences are paired "
            "by seed: the same data order, and the same initial weights wherever the method does not touch "
            "them. The verdict rests on one-sided 95 % bounds, which are narrower than the two-sided "
            "interval."
        ),
        (
            "困惑度为各种子在训练结束时的几何平均。差异按种子配对：数据顺序相同，方法未改动之处初始权重也相"
            "同。判定依据单侧 95% 置信限，比双侧区间窄。"
        ),
    ),
    "mark_one_seed": (
        "{mark} from one seed: no interval, and another seed may say otherwise.",
        "{mark} 仅一个种子：没有置信区间，换一个种子结果可能不同。",
    ),
    "mark_dirty": (
        ("{mark} from a source tree with uncommitted changes: its commit alone does not give this number back."),
        "{mark} 源代码含未提交的修改：仅凭提交号无法复现该数字。",
    ),
    "mark_unknown_tree": (
        "{mark} git did not answer in time, so it is unknown whether the source tree had uncommitted changes.",
        "{mark} git 未及时回答，因此不知道源代码是否含未提交的修改。",
    ),
    "mark_outside_history": (
        "{mark} from a commit that is not in this repository's history, so its source cannot be looked up.",
        "{mark} 所在提交不在本仓库的历史中，无法查到其源代码。",
    ),
    "mixed": (
        "The runs differ in {field} ({values}): do not compare their speeds.",
        "各次运行的 {field} 不同（{values}）：请勿比较其速度。",
    ),
    # The floor
    "heading_floor": ("How low can it go?", "最低能到多少？"),
    "floor_note": (
        (
            "This corpus is generated, so the perplexity that no model can beat is known exactly: {floor}. "
            "That floor is for a reader who knows the generator and has read the story from its first "
            "word. Context cuts raise it: a window sees only part of the story, so the floor itself is not "
            "reachable."
        ),
        (
            "该语料由程序生成，因此任何模型都无法超越的困惑度是精确已知的：{floor}。这个下界针对了解生成规则"
            "、并从故事第一个词读起的读者。截断上下文会抬高它：一个窗口只能看到故事的一部分，所以下界本身无法"
            "达到。"
        ),
    ),
    "heading_guess": ("What does guessing get?", "猜测能得多少？"),
    "guess_note": (
        (
            "Right answers of a model that finds nothing and answers as well as it can without: {guessed}. Whoever is "
            "not clearly above that has not learned the task."
        ),
        "什么也没有找到、只凭已知信息尽量作答的模型的正确率：{guessed}。没有明显高于它的，就没有学会这个任务。",
    ),
    # The plot
    "heading_plot": ("How they got there", "收敛过程"),
    "plot_step": ("step", "训练步数"),
    "plot_loss": ("validation loss (nats)", "验证损失（nat）"),
    "plot_floor": ("floor", "下界"),
    "plot_caption": (
        (
            "Validation loss along training: the line is the mean over seeds, the band reaches from the "
            "lowest seed to the highest. The axis leaves out the steep fall of the first fifth of training."
        ),
        ("训练过程中的验证损失：线为各种子的均值，色带为最低到最高的种子。纵轴略去了训练前五分之一的急剧下降。"),
    ),
    "plot_missing": ("There is no curve yet.", "暂无曲线。"),
    # The text
    "heading_samples": ("What they write", "生成样本"),
    "samples_of": ("{arm}, seed {seed}", "{arm}，种子 {seed}"),
    # The evidence
    "heading_evidence": ("Where each number was born", "每个数字的出处"),
    "evidence_note": (
        "Every figure above leads here, and from here to the record of its run.",
        "上文每个数字都链接到这里，再由这里链接到对应运行的记录。",
    ),
    "evidence_show": (
        "The records are in this folder's archive; `oelm show RECORD` prints one: `oelm show {example}`.",
        "各条记录保存在本文件夹的归档中；`oelm show 记录号` 显示其中一条：`oelm show {example}`。",
    ),
    "show_run": ("{text} (`oelm show {run}`)", "{text}（查看：`oelm show {run}`）"),
    "figure_on_demand": (
        "`oelm report` on this folder draws the figure. {caption}",
        "对本文件夹运行 `oelm report` 可绘制此图。{caption}",
    ),
    "seed": ("seed", "种子"),
    "perplexity": ("perplexity", "困惑度"),
    "accuracy": ("accuracy", "准确率"),
    "file": ("file", "文件"),
    "and_more": ("{count} more are not listed here.", "另有 {count} 条未列出。"),
    "contents": ("Contents", "目录"),
    "record": ("record", "记录"),
    "spec": ("spec", "配置"),
    "commit": ("commit", "提交"),
    "command": ("command", "命令"),
    "machine": ("machine", "机器"),
    "no_commit": ("no commit known", "提交号未知"),
    "tree_unknown": ("unknown whether with uncommitted changes", "是否含未提交的修改未知"),
    "not_in_history": ("not in this repository's history", "不在本仓库的历史中"),
    "uncommitted": ("with uncommitted changes", "含未提交的修改"),
    # What is not in the table
    "heading_gaps": ("Runs without a figure", "没有数字的运行"),
    "gap_missing": ("has not been run", "尚未运行"),
    "gap_running": ("has not ended: it is at work, or was killed without a word", "尚未结束：正在运行，或被强行终止"),
    "gap_interrupted": ("was interrupted at step {step}", "在第 {step} 步中断"),
    "gap_failed": ("failed at step {step}: {error}", "在第 {step} 步失败：{error}"),
    "gap_diverged": ("diverged: {error}", "已发散：{error}"),
    "gap_unmeasured": ("ended without a loss to judge it by", "结束时没有可供评判的损失"),
    "not_finite": ("its loss is not a finite number", "损失不是有限的数"),
    "no_reason": ("no reason recorded", "未记录原因"),
    "heading_ignored": ("Records that are not of this study", "不属于本研究的记录"),
    "ignored_differs": ("{field} is {found}; the study has {meant}", "{field} 为 {found}；本研究为 {meant}"),
    "ignored_twin": ("repeats the run in {other}", "与 {other} 中的运行重复"),
    "heading_unreadable": ("Files that cannot be read", "无法读取的文件"),
    # The page itself
    "made_by": (
        "Made by oelm {version} from the records below {root}.",
        "由 oelm {version} 根据 {root} 下的记录生成。",
    ),
    **EVIDENCE,
    **PRICE,
    **REGISTRATION,
    **CONTENT,
    **NOISE,
    **SCALING,
    **ALL_STUDIES,
}


def wording(language: str, sentences: Mapping[str, tuple[str, str]] = SENTENCES) -> Say:
    """Return the speaker of a language: key and values in, sentence out."""
    languages = get_args(Language)
    if language not in languages:
        raise UnknownName("language", language, languages)
    column = languages.index(language)

    def say(key: str, **values: Any) -> str:
        return sentences[key][column].format(**values)

    return say
