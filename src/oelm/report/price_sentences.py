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
    "heading_equal": ("Equal what?", "何者相等？"),
    "equal_note": (
        (
            "The runs saw equally many tokens. A cheaper step could train longer in the same time, a dearer one less "
            "long. Here both validation curves are read where the cheaper run ends. The curve that is cut there had "
            "a learning rate that had not decayed, so its side looks worse than a run planned for that budget."
        ),
        (
            "各次运行所见的词元数相同。单步更便宜的方法在同样时间内可以多训练，更昂贵的则少训练。"
            "这里在较便宜的一方结束处读取两条验证曲线。被截断的一方此时学习率尚未衰减，"
            "因此看起来比按该预算规划的运行更差。"
        ),
    ),
    "equal_caption": ("Validation loss over time and over FLOPs.", "验证损失随时间与浮点运算量的变化。"),
    "equal_what": ("equal", "相等的量"),
    "equal_share": ("budget of the whole run", "整次运行的预算"),
    "equal_difference": ("difference of validation loss", "验证损失之差"),
    "equal_cut": ("cut off", "被截断的一方"),
    "equal_cut_arm": ("the arm", "本组"),
    "equal_cut_reference": ("the reference", "参照组"),
    "equal_crossing": ("curves last cross at", "曲线最后相交于"),
    "equal_tokens": ("tokens", "词元数"),
    "equal_processor": ("processor time", "处理器时间"),
    "equal_seconds": ("wall time", "墙钟时间"),
    "equal_flops": ("FLOPs", "浮点运算量"),
    "equal_parameters": ("trained parameters, against {control}", "训练参数量，相对 {control}"),
    "equal_axis_processor": ("processor seconds", "处理器秒数"),
    "equal_axis_seconds": ("seconds", "秒"),
    "equal_axis_flops": ("FLOPs", "浮点运算量"),
}
