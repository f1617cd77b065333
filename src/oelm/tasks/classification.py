"""Classification: labelled texts in, accuracy out. Texts are encoded for the model and batched by length."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oelm.data.labelled import Examples, LabelledText, local_folder, open_examples, open_split
from oelm.data.tokenizer import TOKENIZER, TextEncoder, trained_encoder
from oelm.errors import BadData, BadShape, InvalidSpec
from oelm.files import digest
from oelm.interop.pretrained import encoder_of
from oelm.models.build import build, read_limits
from oelm.models.gpt import GPT
from oelm.record.folder import TestLossesRecord
from oelm.record.record import DataRecord
from oelm.spec.run import ExamplesSpec, GPTSpec, ModelSpec, RunSpec, Split, derived_seed
from oelm.tasks import Artefacts, SplitResult, refuse_changed_data
from oelm.train.device import autocast
from oelm.train.loop import Measured

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
    splits = {split: _encode_split(rows, encoder, max_length) for split, rows in examples.splits.items()}
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
    rows = {split: _encode_split(its, examples.encoder, examples.max_length) for split, its in other.splits.items()}
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


def _encode_split(rows: LabelledText, encoder: TextEncoder, max_length: int) -> EncodedSplit:
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


EVALUATION_BATCH = 64
NUM_SAMPLES = 12
"""Number of test rows that are written for people to read."""

Labels = npt.NDArray[np.int64]


class Classifier(nn.Module):
    """Call a model with a batch of texts. The model owns all weights."""

    def __init__(self, model: nn.Module, pad: int, *, token_types: bool = True) -> None:
        super().__init__()
        self.model = model
        config: Any = getattr(model, "config", None)
        # GPT-2 accepts token types too, but embeds them as words; RoBERTa has only one type.
        has_types = token_types and getattr(config, "type_vocab_size", 0) > 1
        self._takes_kinds = has_types and "token_type_ids" in inspect.signature(model.forward).parameters
        if config is not None and config.pad_token_id is None:
            config.pad_token_id = pad  # decoders classify at the last token that is not padding
        self._other_pad = None if config is None or config.pad_token_id == pad else config.pad_token_id
        """The model's padding token, if batches are padded with another one."""

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


@dataclass(frozen=True)
class ClassificationTask:
    """Choose the label of a text."""

    run: RunSpec
    examples: EncodedExamples
    device: torch.device
    reports_perplexity = False

    @classmethod
    def open_data(cls, run: RunSpec) -> EncodedExamples:
        """Open the labelled texts of a run, as its model reads them."""
        return encode_labelled(_examples_spec(run), run.model)

    @classmethod
    def open_other_data(cls, run: RunSpec, path: Path, split: Split, tokenizer: str | None) -> EncodedExamples:  # noqa: ARG003
        """Return the data of a run with the rows of other files as one split.

        Labels and vocabulary stay those of the run, because its head and its embedding are made for them.

        Raises:
            BadData: the run's own data have changed, or the other files lack the split, or have labels or columns that
                the run does not have.

        """
        own = cls.open_data(run)
        refuse_changed_data(run, own)
        spec = _examples_spec(run).model_copy(update={"source": path})
        return with_split(own, open_split(spec, split, own.labels))

    @classmethod
    def build_without_data(
        cls, run: RunSpec, weights: Mapping[str, Tensor], data: DataRecord | None
    ) -> nn.Module | None:
        """Build the model for the labels and the vocabulary of the run's record; None without a record."""
        del weights
        return None if data is None else cls._build(run, data.labels, data.vocab_size)

    def tokenizer_files(self) -> Mapping[str, bytes]:
        """Return the tokenizer of the model, or the one that was trained on the texts."""
        return {TOKENIZER: self.examples.encoder.to_json()}

    @property
    def _spec(self) -> ExamplesSpec:
        return _examples_spec(self.run)

    @property
    def _pad(self) -> int:
        return self.examples.encoder.pad

    def build_model(self) -> nn.Module:
        """Build the model with a head for the labels of the data. New weights are drawn from the seed of the run.

        A model with new weights gets the vocabulary of the data if that was trained on the data.

        Raises:
            InvalidSpec: the spec sets another number of labels than the data have.
            BadData: the vocabulary of the data is larger than the model's.
            BadShape: texts may be longer than the model's positions.

        """
        vocab_size = self.examples.encoder.vocab_size
        model = self._build(self.run, self.examples.labels, vocab_size).to(self.device)
        known, _ = read_limits(model)
        if known < vocab_size:
            raise BadData(
                f"the texts are encoded with a vocabulary of {vocab_size} entries, but the model has {known}. Leave "
                "model.vocab_size out, or use the tokenizer of the model."
            )
        longest = self._spec.max_length
        if self._spec.padding == "longest":
            longest = min(longest, max(int(each.lengths.max()) for each in self.examples.splits.values()))
        refuse_longer(model, longest)
        return model

    @classmethod
    def _build(cls, run: RunSpec, labels: tuple[str, ...], vocab_size: int) -> nn.Module:
        spec = run.model
        if spec.labels not in (None, len(labels)):
            raise InvalidSpec(
                f"model.labels={spec.labels} was given, but the data have {len(labels)} labels "
                f"({', '.join(labels)}). Set model.labels={len(labels)}, or leave it out."
            )
        fitted = spec.model_copy(update={"labels": len(labels)})
        if isinstance(fitted, GPTSpec) and fitted.vocab_size is None:
            fitted = fitted.model_copy(update={"vocab_size": vocab_size})
        own_vocabulary = vocab_size if _examples_spec(run).vocab_size is not None else None
        return build(fitted, seed=run.seed_of("init"), vocab_size=own_vocabulary)

    def refuse_unreadable(self, model: nn.Module, split: Split) -> None:
        """Raise BadShape for texts of more tokens than the model has positions."""
        refuse_longer(model, int(self.examples.splits[split].lengths.max()))

    @cached_property
    def _batches(self) -> GroupedBatches:
        return GroupedBatches(
            self.examples.splits["train"],
            batch_size=self.run.train.batch_size,
            seed=self.run.seed_of("data"),
            pad=self._pad,
            length=self._spec.max_length if self._spec.padding == "max_length" else None,
        )

    @property
    def splits(self) -> tuple[Split, ...]:
        """Labelled text always has all three."""
        return tuple(self.examples.splits)

    @property
    def length(self) -> int:
        """Tokens of a row on average, or `max_length` if everything is padded to it."""
        return self._batches.length or round(self._mean_length)

    @property
    def _mean_length(self) -> float:
        return float(self.examples.splits["train"].lengths.mean())

    @property
    def answer_length(self) -> int | None:
        """None: nothing is written."""
        return None

    @property
    def units_per_step(self) -> int:
        """Tokens of a step on average, without padding."""
        return round(self.run.train.batch_size * self._mean_length)

    @property
    def steps_per_epoch(self) -> float:
        """Number of steps that see every row."""
        return self._batches.steps_per_epoch

    def batch(self, step: int, rows: slice) -> tuple[Tensor, ...]:
        """Return some rows of a step."""
        return self._batches.batch(step, rows)

    def module(self, model: nn.Module) -> nn.Module:
        """Return the model with the loss of its labels."""
        return Classifier(model, self._pad, token_types=self._spec.token_types)

    def validate(self, model: nn.Module) -> Measured:
        """Measure the fixed part of validation for the learning curve."""
        loss, predicted, labels = self._judge(model, "val", self.run.train.eval_tokens)
        return Measured(loss, float((predicted == labels).mean()), self._macro_f1(predicted, labels))

    def measure(self, model: nn.Module, split: Split) -> SplitResult:
        """Measure a whole split, and keep the predicted label of every row."""
        loss, predicted, labels = self._judge(model, split)
        correct = np.equal(predicted, labels)
        return SplitResult(
            loss,
            float(correct.mean()),
            self._macro_f1(predicted, labels),
            losses=TestLossesRecord(kind="examples", correct=tuple(correct.astype(int).tolist())),
            predicted=tuple(predicted.tolist()),
        )

    @torch.no_grad()
    def _judge(self, model: nn.Module, split: Split, limit: int | None = None) -> tuple[float, Labels, Labels]:
        """Return the mean loss of a split, or of about `limit` tokens of it, with its predicted and true labels."""
        encoded = self.examples.splits[split]
        found: list[tuple[Labels, Tensor, Tensor]] = []
        was_training = model.training
        module: Any = self.module(model).eval()
        try:
            for rows, batch in in_order_of_length(encoded, batch_size=EVALUATION_BATCH, pad=self._pad, limit=limit):
                with autocast(self.device, self.run.train.precision):
                    losses, answers = module.judge(*(tensor.to(self.device) for tensor in batch))
                found.append((rows, losses.cpu(), answers.cpu()))
        finally:
            model.train(was_training)
        rows = np.concatenate([each[0] for each in found])
        order = np.argsort(rows)
        loss = torch.cat([each[1] for each in found]).double().mean().item()
        return loss, torch.cat([each[2] for each in found]).numpy()[order], encoded.labels[rows[order]]

    def _macro_f1(self, predicted: Labels, labels: Labels) -> float | None:
        return macro_f1(predicted, labels)

    def describe(self, result: SplitResult, split: Split) -> dict[str, float | int | None]:
        """Return accuracy, macro F1, and the number of rows."""
        rows = len(self.examples.splits[split])
        return {"accuracy": result.accuracy, "macro_f1": result.macro_f1, "rows": rows}

    def data_record(self) -> DataRecord:
        """Return the corpus, what was left out of it, and the accuracy of always choosing the most common label."""
        _, counts = np.unique(self.examples.splits["test"].labels, return_counts=True)
        return DataRecord(
            corpus=self.examples.corpus,
            checksum=self.examples.checksum,
            vocab_size=self.examples.encoder.vocab_size,
            tokens=self.examples.num_tokens,
            rows={split: len(encoded) for split, encoded in self.examples.splits.items()},
            labels=self.examples.labels,
            guess=float(counts.max() / counts.sum()),
            notes=self.examples.notes,
            tokenizer=self.examples.encoder.sha256,
        )

    def artefacts(self, model: nn.Module, val: SplitResult, test: SplitResult | None) -> Artefacts:  # noqa: ARG002
        """Return which test rows are right, for paired comparisons, and some of them as text."""
        return Artefacts(test_losses=test.losses, samples=self._samples(test)) if test else Artefacts()

    def _samples(self, test: SplitResult) -> str:
        """Show some test rows, with up to half of them wrong ones."""
        texts, names = self.examples.texts.splits["test"].texts, (*self.examples.labels, "something else")
        correct, labels = test.losses.correct, self.examples.splits["test"].labels
        wrong_first = [int(row) for row in np.argsort(correct, kind="stable")[: NUM_SAMPLES // 2]]
        others = [row for row in range(min(NUM_SAMPLES, len(texts))) if row not in wrong_first]
        lines = [
            f"{'right' if correct[row] else 'WRONG'}: {' | '.join(texts[row])}\n"
            f"  label {names[labels[row]]}, predicted {names[test.predicted[row]]}"
            for row in [*wrong_first, *others][:NUM_SAMPLES]
        ]
        return "\n".join(lines) + "\n"


def macro_f1(predicted: Labels, labels: Labels) -> float:
    """Return the mean over the labels that occur of 2 TP / (2 TP + FP + FN)."""
    scores = []
    for label in np.union1d(labels, predicted):
        both = np.sum((predicted == label) & (labels == label))
        scores.append(2 * both / (np.sum(predicted == label) + np.sum(labels == label)))
    return float(np.mean(scores))


def refuse_longer(model: nn.Module, length: int) -> None:
    """Raise BadShape for texts of more tokens than a model has positions."""
    _, positions = read_limits(model)
    if length > positions:
        raise BadShape(
            f"the texts have up to {length} tokens, but the model reads {positions} at most. Set data.max_length to "
            "that or less, use a model with more positions, or shorten the texts."
        )


# The labelled texts of a run as its model reads them.


def _examples_spec(run: RunSpec) -> ExamplesSpec:
    assert isinstance(run.data, ExamplesSpec)  # noqa: S101  (the table of tasks has chosen by it)
    return run.data


def encode_labelled(spec: ExamplesSpec, model: ModelSpec) -> EncodedExamples:
    """Return labelled text, encoded with the model's vocabulary or with one that is trained on the text."""
    vocabulary_of = model if spec.vocab_size is None else None
    return _encode(spec.model_copy(update={"checksum": None}), vocabulary_of, _state_of_files(spec))


@lru_cache(maxsize=2)  # the runs of a study are resolved one after another, mostly with the same data
def _encode(spec: ExamplesSpec, model: ModelSpec | None, _state: tuple[object, ...]) -> EncodedExamples:
    examples = open_examples(spec)
    if model is not None:
        encoder = encoder_of(model)
    else:
        assert spec.vocab_size is not None  # noqa: S101  (otherwise there is a model)
        encoder = trained_encoder(_words(examples), spec.vocab_size)
    return encode_examples(examples, encoder, spec.max_length)


def _words(examples: Examples) -> Iterator[str]:
    """Yield what a vocabulary is trained on: the training texts, and the names of the labels, which may be written."""
    yield from (text for row in examples.splits["train"].texts for text in row)
    yield from examples.labels


def _state_of_files(spec: ExamplesSpec) -> tuple[object, ...]:
    """Return path, size and time of every file that is read, so that changed files are read again."""
    path = local_folder(spec)
    if path is None:
        return ()
    files = [path] if path.is_file() else sorted(path.glob("*"))
    return tuple((str(file.absolute()), file.stat().st_size, file.stat().st_mtime_ns) for file in files)
