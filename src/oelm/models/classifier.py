"""A model as a classifier of texts: built with a head for the labels, called for its logits or its loss."""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oelm.errors import BadData, BadShape, InvalidSpec
from oelm.models.build import build
from oelm.models.gpt import GPT
from oelm.spec.model import GPTSpec, ModelSpec


def build_classifier(
    spec: ModelSpec,
    labels: tuple[str, ...],
    *,
    vocab_size: int,
    own_vocabulary: bool,
    max_length: int,
    seed: int,
    device: torch.device,
) -> nn.Module:
    """Build a model with a head for `labels`; what is not loaded is drawn from `seed`.

    The vocabulary is the data's where the model is drawn for them (`own_vocabulary`: it was trained on them).

    Raises:
        InvalidSpec: the spec asks for a head of another size than the data have labels.
        BadData: the tokens are of a larger vocabulary than the model's.
        BadShape: texts may be longer than the model's positions.

    """
    if spec.labels not in (None, len(labels)):
        raise InvalidSpec(
            f"model.labels={spec.labels} was asked for, but the data have {len(labels)} labels "
            f"({', '.join(labels)}). Set model.labels={len(labels)}, or leave it out."
        )
    fitted = spec.model_copy(update={"labels": len(labels)})
    if isinstance(fitted, GPTSpec) and fitted.vocab_size is None:
        fitted = fitted.model_copy(update={"vocab_size": vocab_size})
    model = build(fitted, seed=seed, vocab_size=vocab_size if own_vocabulary else None).to(device)
    known, _ = _limits(model)
    if known < vocab_size:
        raise BadData(
            f"the texts are encoded with a vocabulary of {vocab_size} entries, and the model's has {known}. Leave "
            "model.vocab_size out, or take the tokenizer that belongs to the model."
        )
    refuse_longer(model, max_length)
    return model


def refuse_longer(model: nn.Module, length: int) -> None:
    """Raise BadShape for texts of more tokens than a model has positions."""
    _, positions = _limits(model)
    if length > positions:
        raise BadShape(
            f"the texts have up to {length} tokens, but the model reads {positions} at most. Set data.max_length to "
            "that or less, take a model with more positions, or cut the texts."
        )


def _limits(model: nn.Module) -> tuple[int, float]:
    """Return how large a model's vocabulary is, and how many tokens it reads."""
    if isinstance(model, GPT):
        return model.token_embedding.num_embeddings, model.spec.context
    foreign: Any = model
    embedding = foreign.get_input_embeddings()
    positions = getattr(foreign.config, "max_position_embeddings", None) or float("inf")
    tables = (part for name, part in foreign.named_modules() if name.endswith("position_embeddings"))
    # RoBERTa and its kin count positions from behind the padding's, which their table of positions knows.
    padding = next((table.padding_idx for table in tables if isinstance(table, nn.Embedding)), None)
    if padding is not None:
        positions -= padding + 1
    return embedding.num_embeddings, positions


class Classifier(nn.Module):
    """Calls a model with a batch of texts. Holds it and owns no weight."""

    def __init__(self, model: nn.Module, pad: int) -> None:
        super().__init__()
        self.model = model
        config: Any = getattr(model, "config", None)
        # GPT-2 takes kinds as well, but looks them up among its words; RoBERTa has room for one kind only.
        knows_kinds = getattr(config, "type_vocab_size", 0) > 1
        self._takes_kinds = knows_kinds and "token_type_ids" in inspect.signature(model.forward).parameters
        if config is not None and config.pad_token_id is None:
            config.pad_token_id = pad  # decoders look for the last token that is none
        self._other_pad = None if config is None or config.pad_token_id == pad else config.pad_token_id
        """What the model takes for padding, where batches are padded with something else."""

    def logits(self, ids_BT: Tensor, mask_BT: Tensor, kinds_BT: Tensor) -> Tensor:
        """Return the logits of the labels."""
        if isinstance(self.model, GPT):
            return self.model(ids_BT, lengths_B=mask_BT.sum(1))  # type: ignore[no-any-return]
        if self._other_pad is not None:
            ids_BT = ids_BT.masked_fill(mask_BT == 0, self._other_pad)
        kinds = {"token_type_ids": kinds_BT} if self._takes_kinds else {}
        return self.model(input_ids=ids_BT, attention_mask=mask_BT, **kinds).logits  # type: ignore[no-any-return]

    def judge(self, ids_BT: Tensor, mask_BT: Tensor, kinds_BT: Tensor, labels_B: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss of each text, and the label that the model chooses."""
        logits_BL = self.logits(ids_BT, mask_BT, kinds_BT).float()
        return F.cross_entropy(logits_BL, labels_B, reduction="none"), logits_BL.argmax(1)

    def forward(self, ids_BT: Tensor, mask_BT: Tensor, kinds_BT: Tensor, labels_B: Tensor) -> Tensor:
        """Return the mean loss, in nats per text."""
        return F.cross_entropy(self.logits(ids_BT, mask_BT, kinds_BT).float(), labels_B)
