"""The sentences about what was declared before a study ran, and about its test split."""

from __future__ import annotations

REGISTRATION: dict[str, tuple[str, str]] = {
    "as_registered": ("As registered on {day} at commit {commit}.", "与 {day} 在提交 {commit} 处的登记一致。"),
    "registered_changed": (
        "Not as registered on {day} at commit {commit}: {changes}.",
        "与 {day} 在提交 {commit} 处的登记不一致：{changes}。",
    ),
    "registered_field": ("{field} was {before} and is {now}", "{field} 原为 {before}，现为 {now}"),
    "not_registered": (
        "Not registered: nothing shows that the study was declared before its runs.",
        "未登记：没有证据表明本研究在运行之前已经声明。",
    ),
    "commit_unknown": ("unknown", "未知"),
    "older_runs": (
        "{count} of the {whole} confirming runs started before the registration.",
        "{whole} 次确认运行中有 {count} 次早于登记开始。",
    ),
    "older_run": ("older than the registration", "早于登记"),
    "heading_registration": ("What was declared before", "事先声明了什么"),
    "registration_digest": (
        "The registered study has the digest {digest} ({file}).",
        "登记的研究摘要为 {digest}（{file}）。",
    ),
    "older_started": ("started {started}, before the registration", "开始于 {started}，早于登记"),
    # Looks at the test split
    "heading_looks": ("How often the test split was looked at", "测试集被查看的次数"),
    "looks": (
        "The test split of {corpus} ({checksum}) was looked at {total} times: {by}.",
        "{corpus}（{checksum}）的测试集被查看了 {total} 次：{by}。",
    ),
    "looks_once": (
        "The test split of {corpus} ({checksum}) was looked at once: {by}.",
        "{corpus}（{checksum}）的测试集被查看了一次：{by}。",
    ),
    "looks_by": ("{count} by {study} ({what})", "{study} {count} 次（{what}）"),
    "looks_this_study": ("this study", "本研究"),
    "looks_no_study": ("runs outside any study", "不属于任何研究的运行"),
    "looks_matrix": ("{arms} arms x {seeds} seeds", "{arms} 组 × {seeds} 个种子"),
    "looks_one_seed": ("{arms} arms, one seed each", "{arms} 组，各一个种子"),
    "looks_runs": ("{arms} arms, {runs} runs", "{arms} 组，{runs} 次运行"),
    "looks_evaluations": ("{count} by oelm evaluate", "oelm evaluate {count} 次"),
    "comma": (", ", "，"),
    "semicolon": ("; ", "；"),
    # Files
    "file_registered": (
        "what the study declared before its first confirming run, written once",
        "研究在首次确认运行之前的声明，只写一次",
    ),
    "file_looks": ("when oelm evaluate scored the test split", "oelm evaluate 在测试集上评分的时间"),
    "file_unsealed": ("the scores on a sealed split, opened once", "在封存划分上的得分，只开启一次"),
    # The sealed split
    "heading_sealed": ("On the sealed split", "在封存的划分上"),
    "sealed_note": (
        (
            "Opened once, on {day} at commit {commit}, with the final weights of the confirming runs. No run, tuning "
            "or comparison had seen this split. The verdicts above rest on the test split."
        ),
        (
            "于 {day} 在提交 {commit} 处开启一次，使用各确认运行的最终权重。此前任何运行、调参或比较都未见过该划分。"
            "上文的判定依据测试集。"
        ),
    ),
    "sealed_test": ("test", "测试集"),
    "sealed_sealed": ("sealed", "封存划分"),
    "sealed_difference": ("{split}, against {reference}", "{split}，相对 {reference}"),
    "sealed_interval": ("{split}, 95 % interval", "{split}，95% 区间"),
}
