"""Encode labelled text for a model, and cut it into batches."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from oelm.data.labelled import Examples, LabelledText
from oelm.data.tokenizer import TextEncoder
from oelm.errors import BadData
from oelm.files import digest
from oelm.spec.data import Split
from oelm.spec.seeds import derived_seed

Batch = tuple[Tensor, Tensor, Tensor, Tensor]
"""ids, mask, kinds (all B x T) and labels (B)."""


@dataclass(frozen=True, eq=False)
class EncodedSplit:
    """The concatenated rows of a split: row i is between offsets i and i + 1."""

    ids: npt.NDArray[np.int32]
    kinds: npt.NDArray[np.uint8]
    """0 for tokens of the first text, 1 for those of the second."""
    offsets: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]
    cut: int
    """Number of rows that were longer than the limit."""

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """The number of tokens in each row."""
        return np.diff(self.offsets)

    def batch(self, rows: npt.NDArray[np.int64], length: int | None, pad: int) -> Batch:
        """Return rows as tensors, padded to `length` or to the longest row."""
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
    """An encoded labelled corpus. `checksum` covers every id and label, and the tokenizer."""

    corpus: str
    labels: tuple[str, ...]
    splits: Mapping[Split, EncodedSplit]
    texts: Examples = field(repr=False)
    encoder: TextEncoder
    max_length: int
    checksum: str
    notes: tuple[str, ...]

    def refuse_changes(self) -> None:
        """Do nothing: all texts are in memory."""

    @property
    def num_tokens(self) -> dict[str, int]:
        """The number of tokens by split, without padding."""
        return {split: len(encoded.ids) for split, encoded in self.splits.items()}


def encode_examples(examples: Examples, encoder: TextEncoder, max_length: int) -> EncodedExamples:
    """Encode every split."""
    splits = {split: _encode(rows, encoder, max_length) for split, rows in examples.splits.items()}
    return EncodedExamples(
        examples.corpus,
        examples.labels,
        splits,
        examples,
        encoder,
        max_length,
        _checksum(encoder, examples.labels, splits),
        (*examples.notes, *_note_cuts(splits, max_length)),
    )


def with_split(examples: EncodedExamples, other: Examples) -> EncodedExamples:
    """Return a corpus with splits replaced by other rows, encoded in the same way.

    The notes are those of the other rows. The checksum changes unless the rows are the same.
    """
    rows = {split: _encode(its, examples.encoder, examples.max_length) for split, its in other.splits.items()}
    splits = {**examples.splits, **rows}
    texts = replace(examples.texts, splits={**examples.texts.splits, **other.splits})
    checksum = _checksum(examples.encoder, examples.labels, splits)
    notes = (*other.notes, *_note_cuts(rows, examples.max_length))
    return replace(examples, splits=splits, texts=texts, checksum=checksum, notes=notes)


def _note_cuts(splits: Mapping[Split, EncodedSplit], max_length: int) -> list[str]:
    return [
        f"{its.cut:,} of {len(its):,} {split} rows ({its.cut / len(its):.1%}) are cut to {max_length} tokens."
        for split, its in splits.items()
        if its.cut
    ]


def _checksum(encoder: TextEncoder, labels: tuple[str, ...], splits: Mapping[Split, EncodedSplit]) -> str:
    sums = {split: _sum(its) for split, its in splits.items()}
    return digest({"tokenizer": encoder.sha256, "labels": labels, "splits": sums})


def _encode(rows: LabelledText, encoder: TextEncoder, max_length: int) -> EncodedSplit:
    encodings = encoder.encode(rows.texts, max_length)
    lengths = [len(each) for each in encodings]
    if not min(lengths):
        raise BadData(
            f"{rows.texts[lengths.index(0)]!r} has no tokens in the vocabulary of {encoder.name}. Remove the row, or "
            "use a model whose vocabulary has its script."
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


# Batches of rows of about equal length, each a pure function of (seed, step).
#
# The rows of an epoch are shuffled and cut into pools. Each pool is sorted by length and cut into batches, and the
# batches are shuffled. So there is little padding, and the rows of a batch still change from epoch to epoch. The last
# batch of an epoch is filled with rows from its beginning: no row is omitted, and a few are seen twice.

POOL_BATCHES = 50
"""Number of batches that are sorted together: enough for little padding, few enough for batches that differ."""

Rows = npt.NDArray[np.int64]


class GroupedBatches:
    """The batches of a training run. With `length`, everything is padded to it and rows are not grouped."""

    def __init__(self, split: EncodedSplit, *, batch_size: int, seed: int, pad: int, length: int | None = None) -> None:
        self.split, self.batch_size, self.seed, self.pad, self.length = split, batch_size, seed, pad, length
        self.steps_per_epoch = -(-len(split) // batch_size)
        self._order = lru_cache(maxsize=2)(self._shuffle)

    def rows(self, step: int) -> Rows:
        """Return the numbers of the rows that belong to a step."""
        epoch, place = divmod(step, self.steps_per_epoch)
        return self._order(epoch)[place]

    def batch(self, step: int, rows: slice = slice(None)) -> Batch:
        """Return the batch of a step, or some rows of it."""
        return self.split.batch(self.rows(step)[rows], self.length, self.pad)

    def _shuffle(self, epoch: int) -> list[Rows]:
        random = np.random.default_rng(derived_seed(self.seed, "batches", epoch))
        order = np.resize(random.permutation(len(self.split)), self.steps_per_epoch * self.batch_size)
        if self.length is not None:
            return np.split(order, self.steps_per_epoch)
        lengths = self.split.lengths
        batches: list[Rows] = []
        for first in range(0, len(order), POOL_BATCHES * self.batch_size):
            pool = order[first : first + POOL_BATCHES * self.batch_size]
            pool = pool[np.argsort(lengths[pool], kind="stable")]
            batches += np.split(pool, len(pool) // self.batch_size)
        return [batches[place] for place in random.permutation(len(batches))]


def in_order_of_length(
    split: EncodedSplit, *, batch_size: int, pad: int, limit: int | None = None
) -> Iterator[tuple[Rows, Batch]]:
    """Yield every row of a split once, or evenly spaced rows of about `limit` tokens, sorted by length."""
    chosen = np.arange(len(split))
    if limit is not None and limit < len(split.ids):
        count = max(1, limit * len(split) // len(split.ids))
        chosen = np.arange(count) * len(split) // count  # not the first ones, because rows may be sorted by label
    order = chosen[np.argsort(split.lengths[chosen], kind="stable")]
    for first in range(0, len(order), batch_size):
        rows = order[first : first + batch_size]
        yield rows, split.batch(rows, None, pad)
