"""Predict the labels of new texts with a fine-tuned run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch

from oelm.data.labelled import corpus_of, find_column
from oelm.data.tables import FORMATS, read_table
from oelm.data.tokenizer import TextEncoder
from oelm.errors import BadData, UsageError
from oelm.runs.restore import Restored
from oelm.spec.data import ExamplesSpec
from oelm.tasks.classification import EVALUATION_BATCH, Classifier, refuse_longer

Texts = tuple[str, ...]
ANSWER_TOKENS = 32
"""Largest number of tokens of an answer that an encoder-decoder writes."""


@dataclass(frozen=True)
class Prediction:
    """The label of a row of one or two texts. A written answer has no probabilities, and need not be a label."""

    texts: Texts
    label: str
    probabilities: dict[str, float] = field(default_factory=dict)


def read_texts(restored: Restored, path: Path) -> list[Texts]:
    """Read texts from a table with the run's columns (labels are not needed), or one text per line."""
    spec = _spec(restored)
    if path.suffix not in FORMATS:
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeError) as error:
            raise BadData(f"{path} cannot be read ({error}). Give a text file in UTF-8, or a table.") from error
        return [(line,) for line in lines if line.strip()]
    rows, corpus = read_table(path), corpus_of(spec)
    columns = [find_column(rows[0], names, str(path), corpus) for names in corpus.texts]
    return [tuple(str(row[column] or "") for column in columns) for row in rows]


def group_texts(restored: Restored, texts: Sequence[str]) -> list[Texts]:
    """Return texts as rows of as many texts as the run reads."""
    size = len(corpus_of(_spec(restored)).texts)
    return [tuple(texts[first : first + size]) for first in range(0, len(texts), size)]


def predict_texts(restored: Restored, rows: Sequence[Texts]) -> list[Prediction]:
    """Predict the label of each row, in order.

    Raises:
        UsageError: the run was trained on plain text, or on another number of texts per row.
        BadShape: a text is longer than the model can read.

    """
    spec = _spec(restored)
    wanted = len(corpus_of(spec).texts)
    if wrong := [row for row in rows if len(row) != wanted]:
        raise UsageError(
            f"The run reads {wanted} text{'s' if wanted > 1 else ''} per row, but {wrong[0]!r} has {len(wrong[0])}. "
            "Give as many as the task has."
        )
    encoder, labels = restored.text_encoder()
    found: list[Prediction] = []
    for first in range(0, len(rows), EVALUATION_BATCH):
        chosen = list(rows[first : first + EVALUATION_BATCH])
        batch = _batch(encoder, chosen, spec.max_length)
        refuse_longer(restored.model, batch[0].shape[1])
        found += _write(restored, encoder, chosen, batch) if spec.answers == "text" else _choose(
            restored, encoder, chosen, batch, labels
        )  # fmt: skip
    return found


def _spec(restored: Restored) -> ExamplesSpec:
    if not isinstance(restored.run.data, ExamplesSpec):
        raise UsageError(
            f"The run was trained on the text {restored.run.data.corpus!r} and predicts no labels. Use `oelm generate`."
        )
    return restored.run.data


def _batch(encoder: TextEncoder, rows: list[Texts], max_length: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    encodings = encoder.encode(rows, max_length)
    width = max(1, *(len(each) for each in encodings))
    ids = torch.full((len(rows), width), encoder.pad)
    mask, kinds = torch.zeros_like(ids), torch.zeros_like(ids)
    for place, each in enumerate(encodings):
        if not len(each):
            raise BadData(f"{rows[place]!r} has no tokens in the vocabulary of {encoder.name}. Leave it out.")
        ids[place, : len(each)], mask[place, : len(each)] = torch.tensor(each.ids), 1
        kinds[place, : len(each)] = torch.tensor(each.type_ids)
    return ids, mask, kinds


@torch.no_grad()
def _choose(
    restored: Restored, encoder: TextEncoder, rows: list[Texts], batch: tuple[torch.Tensor, ...], labels: Texts
) -> list[Prediction]:
    classifier = Classifier(restored.model, encoder.pad).eval()
    shares_BL = classifier.logits(*batch).float().softmax(1)
    return [
        Prediction(row, labels[int(shares.argmax())], dict(zip(labels, shares.tolist(), strict=True)))
        for row, shares in zip(rows, shares_BL, strict=True)
    ]


@torch.no_grad()
def _write(
    restored: Restored, encoder: TextEncoder, rows: list[Texts], batch: tuple[torch.Tensor, ...]
) -> list[Prediction]:
    """Let an encoder-decoder write its answers by greedy decoding, as in training."""
    model = cast("Any", restored.model)
    start, pad = model.config.decoder_start_token_id, model.config.pad_token_id
    written_BS = torch.full((len(rows), 1), start)
    ends = {encoder.tokenizer.token_to_id(word) for word in ("</s>", "<|endoftext|>", "[SEP]")} - {None}
    done_B = torch.zeros(len(rows), dtype=torch.bool)
    for _ in range(ANSWER_TOKENS):
        logits = model(input_ids=batch[0], attention_mask=batch[1], decoder_input_ids=written_BS).logits
        token_B = logits[:, -1].argmax(-1).masked_fill(done_B, pad)
        written_BS = torch.cat((written_BS, token_B[:, None]), dim=1)
        done_B |= torch.tensor([int(token) in ends for token in token_B])
        if bool(done_B.all()):
            break
    texts = [encoder.tokenizer.decode(row.tolist(), skip_special_tokens=True).strip() for row in written_BS[:, 1:]]
    return [Prediction(row, text) for row, text in zip(rows, texts, strict=True)]
