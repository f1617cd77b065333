"""Language modelling: token files in, a loss per token out; with our GPT, or with a decoder of `transformers`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oelm.data.meta import read_meta
from oelm.data.prepare import default_directory, find_or_prepare
from oelm.data.tokenizer import GPT2_SHA256, TOKENIZER, Tokenizer, load_tokenizer
from oelm.data.tokens import FILES, TokenData, TrainingBatches, evaluation_batches, open_tokens
from oelm.errors import BadData, BadShape, InvalidSpec, NotCarriedOut, OelmError
from oelm.interop.pretrained import tokenizer_of
from oelm.models.build import build, read_limits
from oelm.models.gpt import GPT, attention_summary, generate_tokens, logit_variances
from oelm.models.loss import token_cross_entropy
from oelm.record.folder import LogitVarianceRecord, TestLossesRecord, TokenLosses, WindowLossesRecord
from oelm.record.record import DataRecord, perplexity
from oelm.spec.run import GPT2_VOCAB_SIZE, DataSpec, GPTSpec, HuggingFaceSpec, RunSpec, Split, derived_seed
from oelm.tasks import Artefacts, SplitResult
from oelm.train.loop import HeadAttention, Measured, mean_loss

MAX_WEIGHTS = 1 << 26
"""Largest number of attention weights of a layer to compute in a validation; training never holds whole squares."""
VARIANCE_WINDOWS = 4
"""Number of validation windows in which the variances of logits are measured."""
NUM_SAMPLES, PROMPT_TOKENS, SAMPLE_TOKENS, TEMPERATURE = 3, 24, 96, 0.8
NO_SAMPLES = "no samples: {}\n"

TokenLossFunction = Callable[[nn.Module, Tensor, Tensor], tuple[Tensor, Tensor]]
"""Map a model, inputs and targets to the mean loss and the loss of every token."""


@dataclass(frozen=True)
class LanguageTask:
    """Predict the next token of a corpus with our GPT."""

    run: RunSpec
    tokens: TokenData
    device: torch.device
    reports_perplexity = True
    answer_length = None

    @classmethod
    def open_data(cls, run: RunSpec) -> TokenData:
        """Open the token files of a run, and prepare them if necessary."""
        assert isinstance(run.data, DataSpec)  # noqa: S101  (the table of tasks has chosen by it)
        if not isinstance(run.model, GPTSpec):
            raise NotCarriedOut(
                f"{run.model.name!r} cannot be trained on the probe {run.data.corpus!r}, whose answers are counted "
                "for our GPT only. Use text or labelled data, or a GPTSpec."
            )
        return cls._open(run.data, run.model.vocab_size)

    @classmethod
    def _open(cls, data: DataSpec, vocab_size: int | None) -> TokenData:
        folder = data.directory or find_or_prepare(data, tokenizer_of=tokenizer_of)
        tokens = open_tokens(folder, vocab_size=vocab_size)
        _refuse_other_corpus(data, tokens)
        return tokens

    @classmethod
    def open_other_data(cls, run: RunSpec, path: Path, split: Split, tokenizer: str | None) -> TokenData:  # noqa: ARG003
        """Open other token files that have the vocabulary of the run."""
        refuse_other_vocabulary(run, tokenizer, path)
        return open_tokens(path)

    @classmethod
    def build_without_data(cls, run: RunSpec, weights: Mapping[str, Tensor], data: DataRecord | None) -> GPT:  # noqa: ARG003
        """Build the GPT of a checkpoint, whose embedding has the size of the vocabulary."""
        assert isinstance(run.model, GPTSpec)  # noqa: S101  (`open_data` has refused all others)
        vocab_size = weights["token_embedding.weight"].shape[0]
        return GPT(run.model.model_copy(update={"vocab_size": vocab_size}), run.seed_of("init"))

    def build_model(self) -> nn.Module:
        """Build the GPT with the vocabulary of the data.

        The weights are drawn on the CPU, so that they are the same on every device.
        """
        vocab_size = self._spec.vocab_size or self.tokens.vocab_size
        self._refuse_larger_vocabulary(vocab_size)
        return GPT(self._spec.model_copy(update={"vocab_size": vocab_size}), self.run.seed_of("init")).to(self.device)

    def refuse_unreadable(self, model: nn.Module, split: Split) -> None:  # noqa: ARG002
        """Raise BadData for tokens that the embedding of the model does not have."""
        self._refuse_larger_vocabulary(as_gpt(model).token_embedding.num_embeddings)

    def _refuse_larger_vocabulary(self, vocab_size: int) -> None:
        tokens = self.tokens
        if vocab_size < tokens.vocab_size:
            raise BadData(
                f"the tokens in {tokens.directory} come from a vocabulary of {tokens.vocab_size}, but the model has "
                f"one of {vocab_size}. Prepare the data with the vocabulary of the model, or leave model.vocab_size "
                "out for a new model."
            )

    @property
    def _spec(self) -> GPTSpec:
        assert isinstance(self.run.model, GPTSpec)  # noqa: S101  (`open_data` has refused all others)
        return self.run.model

    @cached_property
    def _batches(self) -> TrainingBatches:
        return TrainingBatches(
            self.tokens.split("train"),
            context=self.length,
            batch_size=self.run.train.batch_size,
            seed=self.run.seed_of("data"),
        )

    @property
    def splits(self) -> tuple[Split, ...]:
        """The splits of the data; token files without a meta.json may have no test split."""
        return self.tokens.splits

    @property
    def length(self) -> int:
        """Tokens of a window."""
        return self._spec.context

    @property
    def units_per_step(self) -> int:
        """Tokens of a step."""
        return self.run.train.batch_size * self.length

    @property
    def steps_per_epoch(self) -> float:
        """Number of steps that see every window once."""
        return self._batches.steps_per_epoch

    def batch(self, step: int, rows: slice) -> tuple[Tensor, ...]:
        """Return inputs and targets of some rows of a step."""
        return self._batches.batch(step, rows)

    def module(self, model: nn.Module) -> nn.Module:
        """Return the model itself: called with targets it returns the loss."""
        return model

    def validate(self, model: nn.Module) -> Measured | None:
        """Measure the fixed part of validation for the learning curve, with the attention of every head.

        Return None if a training file came without a validation file.
        """
        if "val" not in self.splits:
            return None
        gpt = as_gpt(model)
        measured = self._measure_start(gpt)
        rows = max(1, min(4, MAX_WEIGHTS // (gpt.spec.num_heads * gpt.spec.context**2)))
        ids, _ = self._batches.batch(0, slice(0, rows))
        summary = attention_summary(gpt, ids.to(self.device))
        return replace(measured, attention=HeadAttention(summary.entropy, summary.distance))

    def _measure_start(self, model: GPT) -> Measured:
        """Measure the first `eval_tokens` tokens of validation."""
        return Measured(self._mean_loss(model, "val", self.run.train.eval_tokens))

    def _mean_loss(self, model: nn.Module, split: Split, limit: int | None = None) -> float:
        train = self.run.train
        batches = evaluation_batches(
            self.tokens.split(split),
            context=self.length,
            limit=limit,
            batch_size=max(1, train.batch_size // train.accumulation),
        )
        return mean_loss(model, batches, self.device, train.precision)

    def measure(self, model: nn.Module, split: Split) -> SplitResult:
        """Measure a whole split: its mean, its documents, and its losses by position."""
        kept = DocumentLosses(model, self._token_losses)
        loss = self._mean_loss(kept, split)
        losses, windows = kept.records(self.tokens, split, self.length)
        return SplitResult(loss, losses=losses, windows=windows)

    @staticmethod
    def _token_losses(model: nn.Module, ids_BT: Tensor, targets_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean loss, and the loss of every token."""
        gpt = as_gpt(model)
        return token_cross_entropy(gpt.hidden(ids_BT), gpt.token_embedding.weight, targets_BT)

    def describe(self, result: SplitResult, split: Split) -> dict[str, float | int | None]:
        """Return the perplexity, and the number of tokens that were predicted."""
        return {"perplexity": perplexity(result.loss), "tokens": self.tokens.num_tokens(split) - 1}

    def data_record(self) -> DataRecord:
        """Return the corpus and its size."""
        return DataRecord(
            corpus=self.run.data.corpus,
            checksum=self.tokens.checksum,
            vocab_size=self.tokens.vocab_size,
            floor=dict(self.tokens.floor),
            tokens={split: self.tokens.num_tokens(split) for split in self.tokens.splits},
            tokenizer=self._tokenizer_sha256,
        )

    @property
    def _tokenizer_sha256(self) -> str:
        meta = self.tokens.meta
        return GPT2_SHA256 if meta is None else meta.tokenizer.sha256

    def tokenizer_files(self) -> Mapping[str, bytes]:
        """Return the vocabulary that was trained on the corpus; none for GPT-2's and for probes, which have no text."""
        if self._tokenizer_sha256 == GPT2_SHA256 or not (self.tokens.directory / TOKENIZER).is_file():
            return {}
        return load_tokenizer(self.tokens.directory).files

    def artefacts(self, model: nn.Module, val: SplitResult, test: SplitResult | None) -> Artefacts:
        """Return losses by document and by position, variances of logits, and continuations of validation text."""
        gpt = as_gpt(model)
        ids_BT = self._validation_windows()
        variances = asdict(logit_variances(gpt, ids_BT.to(self.device)))
        try:
            samples = self._samples(gpt, load_tokenizer(self.tokens.directory))
        except OelmError as error:  # training does not need a tokenizer, only the text for people does
            samples = NO_SAMPLES.format(error)
        return Artefacts(
            test_losses=test.losses if test else None,
            window_losses=(test or val).windows,
            logit_variance=LogitVarianceRecord.model_validate({"tokens": ids_BT.numel(), **variances}),
            samples=samples,
        )

    def _validation_windows(self) -> Tensor:
        """Return a few whole windows, evenly spread over validation; they are the same for every run on these data."""
        tokens = self.tokens.split("val")
        length = min(self.length, len(tokens))
        count = len(tokens) // length
        rows = min(VARIANCE_WINDOWS, count)
        starts = [number * count // rows * length for number in range(rows)]
        return torch.from_numpy(np.stack([tokens[start : start + length] for start in starts]).astype(np.int64))

    def _samples(self, model: GPT, tokenizer: Tokenizer) -> str:
        texts = []
        for number, ids in enumerate(self._prompts()):
            seed = self.run.seed + number
            new = list(generate_tokens(model, ids, new_tokens=SAMPLE_TOKENS, temperature=TEMPERATURE, seed=seed))
            texts.append(f"{tokenizer.decode(ids)} [...]{tokenizer.decode(new)}")
        return "\n\n".join(texts) + "\n"

    def _prompts(self) -> list[list[int]]:
        """Return the beginnings that samples continue, evenly spread over validation."""
        tokens = self.tokens.split("val")
        prompt = min(PROMPT_TOKENS, len(tokens), self.length)
        starts = [number * ((len(tokens) - prompt) // NUM_SAMPLES) for number in range(NUM_SAMPLES)]
        return [[int(token) for token in tokens[start : start + prompt]] for start in starts]


def as_gpt(model: nn.Module) -> GPT:
    """Return a model of this task as the GPT that it is."""
    assert isinstance(model, GPT)  # noqa: S101  (`build_model` returns nothing else)
    return model


# Which token files belong to a run.


def _refuse_other_corpus(spec: DataSpec, tokens: TokenData) -> None:
    """Refuse a folder of another corpus than the run names: its record would name a text that it never saw."""
    made = tokens.meta.request if tokens.meta else None
    for field in ("corpus", "vocab_size", "tokenizer", "tokens", "seal") if made else ():
        stated, held = getattr(spec, field), getattr(made, field)
        if stated not in (None, held):
            raise BadData(
                f"{tokens.directory} was made with {field} {held!r}, and the run says {stated!r}. "
                f"Set data.{field}={held!r}, or give another folder."
            )


def token_folder(spec: DataSpec) -> Path:
    """Return the folder of a run's token files and tokenizer."""
    directory = spec.directory or default_directory(spec)
    return directory.parent if directory.suffix in FILES else directory


def refuse_other_vocabulary(run: RunSpec, own: str | None, folder: Path) -> None:
    """Refuse tokens of another vocabulary than the run's, whose SHA-256 is `own`; None: look at its unchanged data."""
    assert isinstance(run.data, DataSpec)  # noqa: S101  (the table of tasks has chosen by it)
    own = own or vocabulary_of_data(run.data)
    other = _vocabulary(folder)
    if own is None and run.data.checksum is None:
        return  # an imported checkpoint, whose data were never known; the size of the vocabulary is checked later
    if own is None:
        raise BadData(
            f"Whether {folder} has the run's vocabulary cannot be known: the run has no copy of its tokenizer, and its "
            f"data in {token_folder(run.data)} are gone or have changed. Restore them."
        )
    if other in (None, own):  # nothing is there: opening it says so
        return
    remedy = "A vocabulary trained on a corpus works for that corpus only: measure on the run's own data."
    if own == GPT2_SHA256:
        remedy = "Prepare the text again with GPT-2's vocabulary, the default of `oelm prepare NAME --from TEXT`."
    raise BadData(
        f"{folder} was made with another vocabulary than the run's data {run.data.corpus!r}: the same number is "
        f"another token. {remedy}"
    )


def vocabulary_of_data(spec: DataSpec) -> str | None:
    """Return the SHA-256 of the vocabulary of a run's data; None if they are gone or not those of the run."""
    folder = token_folder(spec)
    meta = read_meta(folder)
    if meta is not None and spec.checksum not in (None, meta.checksum):
        return None
    return _vocabulary(folder)


def _vocabulary(folder: Path) -> str | None:
    """Return the SHA-256 of the vocabulary of a folder of tokens; folders without meta.json have GPT-2's."""
    directory = folder.parent if folder.suffix in FILES else folder
    meta = read_meta(directory)
    if meta is not None:
        return meta.tokenizer.sha256
    return GPT2_SHA256 if (directory / "train.bin").exists() else None


# Losses of a split by document, by position and on repeats, kept while the split is measured.


class DocumentLosses(nn.Module):
    """A model that keeps the loss of every token. It is called with targets and returns the mean."""

    def __init__(self, model: nn.Module, token_losses: TokenLossFunction) -> None:
        super().__init__()
        self.model, self.token_losses = model, token_losses
        self.kept: list[Tensor] = []
        self.train(model.training)

    def forward(self, ids_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """Return the mean loss, and keep the loss of every token."""
        mean, losses_BT = self.token_losses(self.model, ids_BT, targets_BT)
        self.kept.append(losses_BT.flatten().cpu())
        return mean

    def records(self, tokens: TokenData, split: Split, context: int) -> tuple[TestLossesRecord, WindowLossesRecord]:
        """Sum the kept losses by document, and by position and repeats. They must be of a whole split, in order."""
        ends = GPT2_VOCAB_SIZE - 1 if tokens.meta is None else tokens.meta.tokenizer.end_of_text
        losses, ids = torch.cat(self.kept).numpy(), np.asarray(tokens.split(split))
        return by_document(losses, ids, ends), by_window(losses, ids, context, split)


def by_document(losses: npt.NDArray[np.float32], tokens: npt.NDArray[np.uint16], end_of_text: int) -> TestLossesRecord:
    """Sum the losses of tokens 1, 2, ... by document. An end-of-text token belongs to the document that it ends."""
    numbers = np.cumsum(tokens[:-1] == end_of_text)
    _, places = np.unique(numbers, return_inverse=True)
    nats = np.bincount(places, weights=losses.astype(np.float64))
    counts = np.bincount(places)
    return TestLossesRecord(kind="documents", nats=tuple(nats.tolist()), tokens=tuple(counts.tolist()))


def by_window(
    losses: npt.NDArray[np.float32], tokens: npt.NDArray[np.uint16], context: int, split: Split
) -> WindowLossesRecord:
    """Sum the losses of tokens 1, 2, ... by position in windows of `context`, separately for repeats and other tokens.

    Bins of positions double (0, 1, 2-3, 4-7, ...), because each further token of the past adds less.
    """
    repeats = is_repeat(tokens, context)
    starts = [0, *(1 << power for power in range((context - 1).bit_length()))]
    bins = np.searchsorted(starts, np.arange(len(losses)) % context, side="right") - 1

    def sums(chosen: npt.NDArray[np.bool_]) -> TokenLosses:
        nats = np.bincount(bins[chosen], weights=losses[chosen].astype(np.float64), minlength=len(starts))
        counts = np.bincount(bins[chosen], minlength=len(starts))
        return TokenLosses(nats=tuple(nats.tolist()), tokens=tuple(counts.tolist()))

    return WindowLossesRecord(
        split=split, starts=tuple(starts), context=context, repeats=sums(repeats), others=sums(~repeats)
    )


def is_repeat(tokens: npt.NDArray[np.uint16], context: int) -> npt.NDArray[np.bool_]:
    """Return for each of tokens 1, 2, ... whether it completes a bigram that occurs earlier in its window."""
    pairs = tokens[:-1].astype(np.uint64) << np.uint64(16) | tokens[1:].astype(np.uint64)
    keys = (np.arange(len(pairs), dtype=np.uint64) // np.uint64(context)) << np.uint64(32) | pairs
    order = np.argsort(keys, kind="stable")  # puts equal bigrams of a window next to each other, the earliest first
    found = np.zeros(len(pairs), dtype=np.bool_)
    found[order[1:]] = keys[order[1:]] == keys[order[:-1]]
    return found


NEW_TOKENS = 32
"""Length of a sample: these models are larger than our GPT, and sampling is not to take longer than measuring."""


class Decoder(nn.Module):
    """Call a decoder with targets. The model owns all weights."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.train(model.training)

    def forward(self, ids_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """Return the mean loss, in nats per token."""
        return token_losses(self.model, ids_BT, targets_BT)[0]


def token_losses(model: nn.Module, ids_BT: Tensor, targets_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean loss, and the loss of every token.

    The logits are those of the whole model, because some families scale or cap them after the last matrix.
    """
    logits_BTV = model(input_ids=ids_BT, use_cache=False).logits.float()
    losses_BT = F.cross_entropy(logits_BTV.transpose(1, 2), targets_BT, reduction="none")
    return losses_BT.mean(), losses_BT.detach()


@dataclass(frozen=True)
class DecoderTask(LanguageTask):
    """Predict the next token of a corpus with a decoder of `transformers`."""

    @classmethod
    def open_data(cls, run: RunSpec) -> TokenData:
        """Open the token files of a run, and prepare them if necessary.

        Raises:
            InvalidSpec: a pretrained model is to read tokens of another vocabulary than its own.

        """
        data, model = run.data, run.model
        assert isinstance(data, DataSpec)  # noqa: S101  (the table of tasks has chosen by both)
        assert isinstance(model, HuggingFaceSpec)  # noqa: S101
        if model.pretrained and data.tokenizer != model.name:
            raise InvalidSpec(
                f"{model.name!r} was pretrained with its own vocabulary, and the text {data.corpus!r} is to be read "
                f"with another one. Set data.tokenizer={model.name!r}, or model.pretrained=False."
            )
        return cls._open(data, None)

    @classmethod
    def build_without_data(cls, run: RunSpec, weights: Mapping[str, Tensor], data: DataRecord | None) -> Any:  # noqa: ARG003
        """Build the model with the vocabulary of the run's record; None if a new model has no record."""
        spec = run.model
        assert isinstance(spec, HuggingFaceSpec)  # noqa: S101
        return None if data is None and not spec.pretrained else cls._build(run, data.vocab_size if data else None)

    def build_model(self) -> nn.Module:
        """Build the model; a new one gets the vocabulary of the data."""
        model = self._build(self.run, self.tokens.vocab_size).to(self.device)
        self.refuse_unreadable(model, "train")
        return model

    @classmethod
    def _build(cls, run: RunSpec, vocab_size: int | None) -> nn.Module:
        spec = run.model
        assert isinstance(spec, HuggingFaceSpec)  # noqa: S101
        model: Any = build(spec, seed=run.seed_of("init"), vocab_size=None if spec.pretrained else vocab_size)
        if not model.can_generate() or model.config.is_encoder_decoder:
            raise InvalidSpec(
                f"{spec.name!r} is a {type(model).__name__}, which does not predict the next token of a text. Use a "
                "decoder such as smollm2 or gpt2-tiny, or labelled data (ExamplesSpec)."
            )
        return model  # type: ignore[no-any-return]

    def refuse_unreadable(self, model: nn.Module, split: Split) -> None:  # noqa: ARG002
        """Raise BadData for tokens that the embedding lacks, and BadShape for windows longer than the positions."""
        known, positions = read_limits(model)
        if known < self.tokens.vocab_size:
            raise BadData(
                f"the tokens in {self.tokens.directory} come from a vocabulary of {self.tokens.vocab_size}, but the "
                f"model has one of {known}. Prepare the data with the vocabulary of the model."
            )
        if self.length > positions:
            raise BadShape(
                f"the windows have {self.length} tokens, but the model reads {positions} at most. Set model.context to "
                "that or less."
            )

    @property
    def length(self) -> int:
        """Tokens of a window."""
        return self.run.model.context

    def module(self, model: nn.Module) -> nn.Module:
        """Return the model with the loss of its targets."""
        return Decoder(model)

    def validate(self, model: nn.Module) -> Measured | None:
        """Measure the fixed part of validation for the learning curve."""
        if "val" not in self.splits:
            return None
        return Measured(self._mean_loss(Decoder(model), "val", self.run.train.eval_tokens))

    _token_losses = staticmethod(token_losses)

    def artefacts(self, model: nn.Module, val: SplitResult, test: SplitResult | None) -> Artefacts:
        """Return losses by document and by position, and continuations of validation text."""
        try:
            samples = self._write_samples(model)
        except OelmError as error:  # training does not need a tokenizer, only the text for people does
            samples = NO_SAMPLES.format(error)
        return Artefacts(
            test_losses=test.losses if test else None, window_losses=(test or val).windows, samples=samples
        )

    def _write_samples(self, model: nn.Module) -> str:
        tokenizer = load_tokenizer(self.tokens.directory)
        prompts = torch.tensor(self._prompts(), device=self.device)
        was_training = model.training
        hugging_face: Any = model.eval()
        try:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(derived_seed(self.run.seed, "samples"))
                written = hugging_face.generate(
                    prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=NEW_TOKENS, do_sample=True,
                    temperature=TEMPERATURE, top_k=0, top_p=1.0, pad_token_id=tokenizer.end_of_text,
                )  # fmt: skip
        finally:
            model.train(was_training)
        length = prompts.shape[1]
        texts = [(tokenizer.decode(row[:length]), tokenizer.decode(row[length:])) for row in written.tolist()]
        return "\n\n".join(f"{start} [...]{new}" for start, new in texts) + "\n"
