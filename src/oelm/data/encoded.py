"""Labelled text as a model reads it: ids, kinds of token and labels of every split, and what they measure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from oelm.data.examples import Examples, LabelledText
from oelm.data.text_encoder import TextEncoder
from oelm.errors import BadData
from oelm.spec.base import digest
from oelm.spec.data import Split

Batch = tuple[Tensor, Tensor, Tensor, Tensor]
"""ids, mask, kinds (all B x T) and labels (B)."""


@dataclass(frozen=True, eq=False)
class EncodedSplit:
    """The rows of a split side by side: row i lies between offsets i and i + 1."""

    ids: npt.NDArray[np.int32]
    kinds: npt.NDArray[np.uint8]
    """0 for tokens of the first text, 1 for those of the second."""
    offsets: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]
    cut: int
    """How many rows were longer than the limit."""

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Tokens of each row."""
        return np.diff(self.offsets)

    def batch(self, rows: npt.NDArray[np.int64], length: int | None, pad: int) -> Batch:
        """Return rows as tensors, padded to `length`, or to the longest of them."""
        lengths = self.lengths[rows]
        width = length or int(lengths.max())
        ids = np.full((len(rows), width), pad, dtype=np.int64)
        kinds = np.zeros((len(rows), width), dtype=np.int64)
        for place, (row, own) in enumerate(zip(rows, lengths, strict=True)):
            first = self.offsets[row]
            ids[place, :own] = self.ids[first : first + own]
            kinds[place, :own] = self.kinds[first : first + own]
        mask = (np.arange(width) < lengths[:, None]).astype(np.int64)
        return (
            torch.from_numpy(ids),
            torch.from_numpy(mask),
            torch.from_numpy(kinds),
            torch.from_numpy(self.labels[rows]),
        )


@dataclass(frozen=True)
class EncodedExamples:
    """A labelled corpus, encoded. `checksum` names every id and label, and the tokenizer they come from."""

    corpus: str
    labels: tuple[str, ...]
    splits: Mapping[Split, EncodedSplit]
    texts: Examples = field(repr=False)
    encoder: TextEncoder
    max_length: int
    checksum: str
    notes: tuple[str, ...]

    @property
    def num_tokens(self) -> dict[str, int]:
        """Tokens by split, without padding."""
        return {split: len(encoded.ids) for split, encoded in self.splits.items()}


def encode_examples(examples: Examples, encoder: TextEncoder, max_length: int) -> EncodedExamples:
    """Encode every split."""
    splits = {split: _encoded(rows, encoder, max_length) for split, rows in examples.splits.items()}
    return EncodedExamples(
        examples.corpus,
        examples.labels,
        splits,
        examples,
        encoder,
        max_length,
        _checksum(encoder, examples.labels, splits),
        (*examples.notes, *_cuts(splits, max_length)),
    )


def with_split(examples: EncodedExamples, other: Examples) -> EncodedExamples:
    """Return a corpus with splits of other rows instead of its own, which its own encoder reads.

    The notes are those of the other rows. The checksum is that of the corpus if the rows are, too.
    """
    rows = {split: _encoded(its, examples.encoder, examples.max_length) for split, its in other.splits.items()}
    splits = {**examples.splits, **rows}
    texts = replace(examples.texts, splits={**examples.texts.splits, **other.splits})
    checksum = _checksum(examples.encoder, examples.labels, splits)
    notes = (*other.notes, *_cuts(rows, examples.max_length))
    return replace(examples, splits=splits, texts=texts, checksum=checksum, notes=notes)


def _cuts(splits: Mapping[Split, EncodedSplit], max_length: int) -> list[str]:
    return [
        f"{its.cut:,} of {len(its):,} {split} rows ({its.cut / len(its):.1%}) are cut to {max_length} tokens."
        for split, its in splits.items()
        if its.cut
    ]


def _checksum(encoder: TextEncoder, labels: tuple[str, ...], splits: Mapping[Split, EncodedSplit]) -> str:
    sums = {split: _sum(its) for split, its in splits.items()}
    return digest({"tokenizer": encoder.sha256, "labels": labels, "splits": sums})


def _encoded(rows: LabelledText, encoder: TextEncoder, max_length: int) -> EncodedSplit:
    encodings = encoder.encode(rows.texts, max_length)
    lengths = [len(each) for each in encodings]
    if not min(lengths):
        raise BadData(
            f"{rows.texts[lengths.index(0)]!r} has no tokens at all in the vocabulary of {encoder.name}. Leave the row "
            "out, or take a model whose vocabulary knows its script."
        )
    return EncodedSplit(
        ids=np.fromiter((token for each in encodings for token in each.ids), np.int32, sum(lengths)),
        kinds=np.fromiter((kind for each in encodings for kind in each.type_ids), np.uint8, sum(lengths)),
        offsets=np.concatenate(([0], np.cumsum(lengths))),
        labels=np.array(rows.labels, dtype=np.int64),
        cut=sum(bool(each.overflowing) for each in encodings),
    )


def _sum(split: EncodedSplit) -> str:
    content = hashlib.sha256()
    arrays: Sequence[npt.NDArray[np.generic]] = (split.ids, split.kinds, split.offsets, split.labels)
    for array in arrays:
        content.update(np.ascontiguousarray(array).tobytes())
    return content.hexdigest()
