"""Every sentence of the results page, in English and in Chinese, side by side as in `oelm.report.wording`.

The page's scripts say them too: they get the sentences of one language with the page.
"""

from __future__ import annotations

WORDS: dict[str, tuple[str, str]] = {
    # Around every page
    "title": ("Results", "实验结果"),
    "language": ("中文", "English"),
    "skip": ("Skip to the content", "跳到正文"),
    "needs_script": (
        "This page draws with JavaScript, which is switched off here. The files of a run can be read as they are.",
        "本页需要 JavaScript 绘制，而此处已被禁用。运行目录中的文件可以直接阅读。",
    ),
    "loading": ("Reading the folder ...", "正在读取目录……"),
    "lost": (
        "The server does not answer any more. What you see is from {ago} ago; the page tries again.",
        "服务器没有响应。所见内容来自{ago}前；页面会继续重试。",
    ),
    "refused": ("The server answers: {error}", "服务器回答：{error}"),
    "all_runs": ("All runs", "全部运行"),
    # Words for numbers
    "seconds": ("{n} s", "{n} 秒"),
    "minutes": ("{n} min", "{n} 分钟"),
    "hours": ("{n} h", "{n} 小时"),
    "days": ("{n} d", "{n} 天"),
    "none": ("–", "–"),
    # Overview
    "studies": ("Studies", "研究"),
    "runs": ("Runs", "运行"),
    "loose": ("runs without a study", "不属于研究的运行"),
    "progress": ("{done}/{all}, {percent} %", "{done}/{all}，{percent}%"),
    "report": ("Report", "报告"),
    "filter": ("Filter", "筛选"),
    "filter_hint": ("arm, study, seed:1, failed ...", "实验组、研究、seed:1、failed……"),
    "sort_by": ("Sort by", "排序"),
    "shown_of": ("{shown} of {all} runs", "{all} 次运行中的 {shown} 次"),
    "nothing_matches": ("No run matches this filter.", "没有符合筛选条件的运行。"),
    "no_runs": (
        "There is no run in this folder yet. oelm run studies/demo.py makes some; they appear here by themselves.",
        "该目录中还没有运行。执行 oelm run studies/demo.py 即可开始；新运行会自动出现在这里。",
    ),
    "problems": ("Places that were not read", "未读取的位置"),
    "chosen": ("{n} chosen", "已选 {n} 个"),
    "too_many": ("{n} chosen, at most {most} fit one comparison", "已选 {n} 个，一次最多比较 {most} 个"),
    "compare": ("Compare", "比较"),
    "clear": ("Clear", "清除"),
    "choose": ("Choose {run}", "选择 {run}"),
    "choose_all": ("Choose all shown", "选择所有显示的运行"),
    # Columns
    "run": ("run", "运行"),
    "arm": ("arm", "实验组"),
    "study": ("study", "研究"),
    "seed": ("seed", "种子"),
    "run_name": ("{name}, seed {seed}", "{name}，种子 {seed}"),
    "status": ("status", "状态"),
    "step": ("step", "步数"),
    "loss": ("validation loss", "验证损失"),
    "perplexity": ("perplexity", "困惑度"),
    "test_perplexity": ("test perplexity", "测试困惑度"),
    "tokens_per_second": ("tokens/s", "词元/秒"),
    "age": ("last written", "上次写入"),
    "ago": ("{time} ago", "{time}前"),
    # States
    "running": ("running", "运行中"),
    "silent": ("silent", "无响应"),
    "complete": ("complete", "完成"),
    "interrupted": ("interrupted", "中断"),
    "failed": ("failed", "失败"),
    "unreadable": ("unreadable", "无法读取"),
    "not_begun": ("not begun", "未开始"),
    "silent_note": (
        (
            "It says that it runs, but has written nothing for {time}. Perhaps its process was killed; running it "
            "again continues it."
        ),
        "记录显示正在运行，但已有{time}没有写入。进程可能已被终止；重新运行即可继续。",
    ),
    "dirty": ("from a source tree with uncommitted changes", "源代码含未提交的修改"),
    # Curves
    "curves": ("Curves", "曲线"),
    "validation": ("validation", "验证"),
    "training": ("training", "训练"),
    "axis_step": ("step", "步数"),
    "axis_seconds": ("training seconds", "训练秒数"),
    "linear": ("linear", "线性"),
    "log": ("logarithmic", "对数"),
    "steep": ("steep start", "起始陡降"),
    "whole": ("Show all", "显示全部"),
    "plot_loss": ("loss (nats per token)", "损失（nat/词元）"),
    "plot_hint": (
        "Drag to zoom, double-click to see all. With keys: arrows move, + and − zoom, 0 shows all.",
        "拖动缩放，双击还原。键盘：方向键移动，+ 和 − 缩放，0 还原。",
    ),
    "plot_label": ("Loss against {x}, {n} lines", "损失随{x}的变化，共 {n} 条线"),
    "no_curve": ("There is no curve yet.", "暂无曲线。"),
    "diverged": (
        "{run}: the {kind} loss is no finite number at step {step}",
        "{run}：第 {step} 步的{kind}损失不是有限的数",
    ),
    # Run
    "no_such_run": ("There is no such run.", "没有这个运行。"),
    "why_unreadable": ("Why it cannot be read", "无法读取的原因"),
    "why_failed": ("Why it failed", "失败原因"),
    "why_interrupted": ("Why it was interrupted", "中断原因"),
    "with_same_seed": ("Compare with the same seed ({n} runs)", "与相同种子的运行比较（{n} 个）"),
    "numbers": ("Numbers", "数字"),
    "facts": ("Where it was born", "出处"),
    "fingerprint": ("fingerprint", "指纹"),
    "folder": ("folder", "目录"),
    "command": ("command", "命令"),
    "commit": ("commit", "提交"),
    "no_commit": ("not known", "未知"),
    "machine": ("machine", "机器"),
    "versions": ("versions", "版本"),
    "started": ("started", "开始"),
    "finished": ("finished", "结束"),
    "time_spent": ("time", "用时"),
    "time_parts": (
        "{total}: training {train}, validation {validation}, checkpoints {checkpoint}",
        "{total}：训练 {train}，验证 {validation}，检查点 {checkpoint}",
    ),
    "parameters": ("parameters", "参数"),
    "parameters_parts": ("{total}: {trainable} trained, {frozen} frozen", "{total}：训练 {trainable}，冻结 {frozen}"),
    "data": ("data", "数据"),
    "data_parts": (
        "{corpus}, {tokens} training tokens, vocabulary {vocab}",
        "{corpus}，训练词元 {tokens}，词表 {vocab}",
    ),
    "frozen_hashes": ("frozen tensors", "冻结张量"),
    "frozen_verified": ("{n}, hashed when the run ended", "{n} 个，运行结束时已校验哈希"),
    "removed_flops": ("removed FLOPs", "省去的 FLOPs"),
    "removed_of": ("{percent} % of a training step", "占一个训练步的 {percent}%"),
    "files": ("files", "文件"),
    "log_heading": ("Log", "日志"),
    "follow": ("follow", "跟随"),
    "log_empty": ("This log is empty.", "日志为空。"),
    "log_cut": ("The end of the log; the whole is in {file}.", "日志末尾；全文见 {file}。"),
    "samples": ("What it writes", "生成样本"),
    "attention": ("What its heads look at", "注意力头关注什么"),
    "entropy": ("entropy (nats)", "熵（nat）"),
    "distance": ("distance (tokens back)", "距离（向前词元数）"),
    "attention_note": (
        "One cell per head: rows are layers, the first at the top. Little entropy: the head looks at few tokens.",
        "每格一个注意力头：行为层，第一层在最上。熵小：该头只关注少数词元。",
    ),
    "layer": ("layer {n}", "第 {n} 层"),
    "head": ("head {n}", "头 {n}"),
    "spec": ("Spec", "配置"),
    "spec_note": ("{n} fields", "{n} 个字段"),
    # Compare
    "comparison": ("{n} runs side by side", "{n} 个运行对比"),
    "nothing_chosen": ("No runs are chosen. Choose some on the overview.", "没有选择运行。请在总览中选择。"),
    "final_numbers": ("Final numbers", "最终数字"),
    "differing": ("Where their specs differ", "配置的不同之处"),
    "no_difference": ("Their specs are the same in every field.", "所有字段的配置都相同。"),
    "not_verdict": (
        (
            "This page shows; it does not judge. Whether a difference means anything is for oelm report, which pairs "
            "seeds and refuses unfair comparisons."
        ),
        "本页只作展示，不作判断。差异是否有意义，由 oelm report 判定：它按种子配对，并拒绝不公平的比较。",
    ),
    "field": ("field", "字段"),
    "remove": ("Remove {run}", "移除 {run}"),
}
