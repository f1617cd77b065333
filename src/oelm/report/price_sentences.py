"""The sentences about price: what each margin takes, and repairs given to both sides."""

from __future__ import annotations

PRICE: dict[str, tuple[str, str]] = {
    "heading_price": ("How little must be trained", "至少要训练多少"),
    "price_note": (
        (
            "For each margin the arm of each kind that is surely within it and trains the least of Q and K. Verdicts "
            "are corrected for all arms of the family, at each margin anew; arms outside it are judged by themselves. "
            "Trained Q and K of a smaller width are the control: what they reach with as few parameters needs no "
            "freezing."
        ),
        (
            "对每个界值，列出各类中确定在界值之内且训练 Q、K 最少的组。判定在每个界值上重新对同族各组校正，"
            "族外各组单独判定。宽度更小、但参与训练的 Q、K 是对照：它们用同样少的参数能达到的，并不需要冻结。"
        ),
    ),
    "price_kind": ("weights of Q and K", "Q、K 的权重"),
    "price_arm": ("cheapest arm within it", "界值内最省的组"),
    "price_none": ("none surely", "无可确定者"),
    "price_frozen": ("none trained", "全不训练"),
    "price_partly": ("some trained, or for a time", "部分训练或一段时间训练"),
    "price_trained": ("all trained", "全部训练"),
    "heading_same_repair": ("The repair alone, and freezing under it", "修补本身，以及修补之下的冻结"),
    "same_repair_note": (
        (
            "A repair that helps trained Q and K as much as frozen ones is no answer to freezing. So each frozen arm "
            "is compared with trained Q and K that have the same repair and the same model."
        ),
        (
            "若某项修补对可训练的 Q、K 同样有效，它就不能说明冻结的问题。"
            "因此每个冻结组都与具有相同修补、相同模型的可训练组比较。"
        ),
    ),
    "same_repair_control": ("trained, same repair", "可训练、相同修补"),
    "same_repair_repair": ("the repair against {reference}", "修补相对 {reference}"),
    "same_repair_freezing": ("freezing under it", "其下的冻结"),
}
