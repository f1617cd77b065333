"""An encoder-decoder that writes the answer to a text instead of choosing among labels."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oelm.errors import InvalidSpec
from oelm.models.build import build
from oelm.spec.model import ForeignSpec, ModelSpec

NOT_ASKED = -100
"""Stands in a target where an answer is shorter than the longest."""
SOMETHING_ELSE = -1
"""Stands for what is written where it is not the right answer."""


def build_writer(spec: ModelSpec, *, vocab_size: int | None, seed: int, device: torch.device) -> nn.Module:
    """Build an encoder-decoder with its own head; `vocab_size` is that of a model from scratch.

    Raises:
        InvalidSpec: the model has no decoder that reads what an encoder made of the text.

    """
    if isinstance(spec, ForeignSpec) and spec.labels is None:
        model = build(spec, seed=seed, vocab_size=vocab_size)
        if getattr(model.config, "is_encoder_decoder", False):
            return model.to(device)
    raise InvalidSpec(
        "answers are to be written as text (data.answers), which takes an encoder-decoder with its own head, such as "
        f"t5-tiny or bart-tiny; found {spec.kind!r} {getattr(spec, 'name', '')} with labels={spec.labels}. Name one "
        "without labels, or leave data.answers out."
    )


class Writer(nn.Module):
    """Calls an encoder-decoder with texts and the answers it is to write. Holds it and owns no weight."""

    def __init__(self, model: nn.Module, answers: list[list[int]]) -> None:
        super().__init__()
        self.model = model
        longest = max(map(len, answers))
        padded = [answer + [NOT_ASKED] * (longest - len(answer)) for answer in answers]
        self.targets_LS = torch.tensor(padded)
        """The tokens of each answer, by label."""

    def forward(self, ids_BT: Tensor, mask_BT: Tensor, kinds_BT: Tensor, labels_B: Tensor) -> Tensor:
        """Return the mean loss, in nats per answer."""
        return self.judge(ids_BT, mask_BT, kinds_BT, labels_B)[0].mean()

    def judge(self, ids_BT: Tensor, mask_BT: Tensor, _kinds_BT: Tensor, labels_B: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss of each answer, and its label where the model writes it, token by token.

        The decoder sees the right answer up to each token. Writing greedily gives that answer exactly if every token
        is the likeliest there: up to the first that is not, both have the same past.
        """
        targets_BS = self.targets_LS.to(ids_BT.device)[labels_B]
        config: Any = self.model.config
        before_BS = targets_BS.roll(1, 1).masked_fill(targets_BS.roll(1, 1) == NOT_ASKED, config.pad_token_id)
        before_BS[:, 0] = config.decoder_start_token_id
        logits_BSV = self.model(input_ids=ids_BT, attention_mask=mask_BT, decoder_input_ids=before_BS).logits.float()
        losses_BS = F.cross_entropy(logits_BSV.transpose(1, 2), targets_BS, ignore_index=NOT_ASKED, reduction="none")
        right_B = ((logits_BSV.argmax(-1) == targets_BS) | (targets_BS == NOT_ASKED)).all(1)
        return losses_BS.sum(1), torch.where(right_B, labels_B, SOMETHING_ELSE)
