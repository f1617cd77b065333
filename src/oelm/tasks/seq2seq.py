"""Labelled texts as a sequence-to-sequence task: an encoder-decoder writes the name of the label."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oelm.errors import InvalidSpec
from oelm.models.build import build
from oelm.spec.run import HuggingFaceSpec, RunSpec
from oelm.tasks.classification import ClassificationTask, Labels

NO_TARGET = -100
"""Target after the end of an answer that is shorter than the longest."""
WRONG = -1
"""Label of anything that is written instead of the right answer."""


@dataclass(frozen=True)
class Seq2SeqTask(ClassificationTask):
    """Write the name of a text's label."""

    @cached_property
    def _answers(self) -> list[list[int]]:
        """The tokens of each label's name."""
        encodings = self.examples.encoder.encode([(name,) for name in self.examples.labels], self._spec.max_length)
        return [encoding.ids for encoding in encodings]

    @property
    def answer_length(self) -> int:
        """Tokens of the longest answer, to which all are padded."""
        return max(map(len, self._answers))

    def build_model(self) -> nn.Module:
        """Build an encoder-decoder with its own head; a new one may get the vocabulary of the data.

        Raises:
            InvalidSpec: the model is not an encoder-decoder, or has a head for labels.

        """
        return self._build(self.run, self.examples.labels, self.examples.encoder.vocab_size).to(self.device)

    @classmethod
    def _build(cls, run: RunSpec, labels: tuple[str, ...], vocab_size: int) -> nn.Module:
        del labels  # the head writes tokens
        spec = run.model
        if isinstance(spec, HuggingFaceSpec) and spec.labels is None:
            model = build(spec, seed=run.seed_of("init"), vocab_size=vocab_size if run.data.vocab_size else None)
            if getattr(model.config, "is_encoder_decoder", False):
                return model
        raise InvalidSpec(
            "Writing answers as text (data.answers) takes an encoder-decoder with its original head, for example "
            f"t5-tiny, but the model is {spec.kind!r} {getattr(spec, 'name', '')} with labels={spec.labels}. Use such "
            "a model without labels, or leave data.answers out."
        )

    def module(self, model: nn.Module) -> nn.Module:
        """Return the model with the loss of its answers."""
        return Writer(model, self._answers)

    def _macro_f1(self, predicted: Labels, labels: Labels) -> None:
        """Return None: what is written may not be a label at all."""


class Writer(nn.Module):
    """Call an encoder-decoder with texts and the answers that it is to write. The model owns all weights."""

    def __init__(self, model: nn.Module, answers: list[list[int]]) -> None:
        super().__init__()
        self.model = model
        longest = max(map(len, answers))
        padded = [answer + [NO_TARGET] * (longest - len(answer)) for answer in answers]
        self.targets_LS = torch.tensor(padded)
        """The tokens of each answer, by label."""

    def forward(self, ids_BT: Tensor, mask_BT: Tensor, kinds_BT: Tensor, labels_B: Tensor) -> Tensor:
        """Return the mean loss, in nats per answer."""
        return self.judge(ids_BT, mask_BT, kinds_BT, labels_B)[0].mean()

    def judge(self, ids_BT: Tensor, mask_BT: Tensor, _kinds_BT: Tensor, labels_B: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss of each answer, and its label if the model writes it exactly, otherwise WRONG.

        The decoder sees the right answer up to each token. Greedy decoding writes exactly that answer if every token is
        the most likely one there, because up to the first other token both have the same past.
        """
        targets_BS = self.targets_LS.to(ids_BT.device)[labels_B]
        config: Any = self.model.config
        before_BS = targets_BS.roll(1, 1).masked_fill(targets_BS.roll(1, 1) == NO_TARGET, config.pad_token_id)
        before_BS[:, 0] = config.decoder_start_token_id
        logits_BSV = self.model(input_ids=ids_BT, attention_mask=mask_BT, decoder_input_ids=before_BS).logits.float()
        losses_BS = F.cross_entropy(logits_BSV.transpose(1, 2), targets_BS, ignore_index=NO_TARGET, reduction="none")
        right_B = ((logits_BSV.argmax(-1) == targets_BS) | (targets_BS == NO_TARGET)).all(1)
        return losses_BS.sum(1), torch.where(right_B, labels_B, WRONG)
