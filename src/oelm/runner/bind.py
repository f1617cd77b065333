"""A run bound to its data: from there on its fingerprint names their bytes, and its steps are known."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from oelm.data.batches import num_windows
from oelm.data.encoded import EncodedExamples, encode_examples, with_split
from oelm.data.examples import Examples, local_folder, open_examples, open_split
from oelm.data.prepare import prepared
from oelm.data.text_encoder import trained_encoder
from oelm.data.tokens import TokenData, open_tokens
from oelm.errors import BadData, NotCarriedOut
from oelm.files import sha256_of
from oelm.interop.tokenization import encoder_of
from oelm.spec.base import digest
from oelm.spec.data import DataSpec, ExamplesSpec, Split
from oelm.spec.epochs import steps_of
from oelm.spec.model import ForeignSpec, GPTSpec, ModelSpec
from oelm.spec.run import RunSpec, in_precision
from oelm.train.precision import resolve_precision

Data = TokenData | EncodedExamples


def bound(run: RunSpec) -> tuple[RunSpec, Data]:
    """Bind a run to its data, prepared now if need be.

    Raises:
        BadData: the data, or the weights in a directory, are not what they should be, or not those that the run was
            declared for.
        NotCarriedOut: a foreign model on plain text.

    """
    data = _tokens(run) if isinstance(run.data, DataSpec) else encoded(run.data, run.model)
    if run.data.checksum not in (None, data.checksum):
        raise BadData(
            f"the run was declared for data with checksum {run.data.checksum}, but those of {run.data.corpus!r} have "
            f"{data.checksum}. Prepare the same data again, or declare the run without a checksum."
        )
    train = run.train
    if train.precision == "auto":
        train = in_precision(train, resolve_precision(train.device, train.precision))
    named = run.model_copy(
        update={
            "data": run.data.model_copy(update={"checksum": data.checksum}),
            "model": _identified(run.model),
            "train": train,
        }
    )
    if train.epochs is None:
        return named, data
    steps = steps_of(train.epochs, _steps_per_epoch(named, data))
    return named.model_copy(update={"train": train.model_copy(update={"steps": steps})}), data


def _identified(model: ModelSpec) -> ModelSpec:
    """Return a model that lies in a directory with the checksum of its files; any other is known by its name."""
    if not isinstance(model, ForeignSpec) or not Path(model.name).is_dir():
        return model
    kinds = ("config.json", "*.safetensors", "*.bin") if model.pretrained else ("config.json",)
    files = sorted(path for kind in kinds for path in Path(model.name).glob(kind))
    found = digest({path.name: _hashed(path, path.stat().st_size, path.stat().st_mtime_ns) for path in files})[:16]
    if model.checksum not in (None, found):
        raise BadData(
            f"the run was declared for the model with checksum {model.checksum}, but the files in {model.name} have "
            f"{found}. Put the same files back, or declare the run without a checksum."
        )
    return model.model_copy(update={"checksum": found})


@lru_cache(maxsize=64)  # the runs of a study begin with the same weights
def _hashed(path: Path, _size: int, _changed: int) -> str:
    return sha256_of(path)


def _tokens(run: RunSpec) -> TokenData:
    assert isinstance(run.data, DataSpec)  # noqa: S101  (its caller has looked)
    if not isinstance(run.model, GPTSpec):
        raise NotCarriedOut(
            f"{run.model.name!r} was to be trained on the text {run.data.corpus!r}, and language modelling is carried "
            "out for our GPT only. Give it labelled data (ExamplesSpec), or take a GPTSpec."
        )
    tokens = open_tokens(run.data.directory or prepared(run.data))
    _require_stated(run.data, tokens)
    return tokens


def _require_stated(spec: DataSpec, tokens: TokenData) -> None:
    """Refuse a folder of another corpus than the run names: its record would be of a text that it never saw."""
    made = tokens.meta.request if tokens.meta else None
    for field in ("corpus", "vocab_size", "tokens", "seal") if made else ():
        stated, held = getattr(spec, field), getattr(made, field)
        if stated not in (None, held):
            raise BadData(
                f"{tokens.directory} was made with {field} {held!r}, and the run says {stated!r}. "
                f"Say data.{field}={held!r}, or name another folder."
            )


def _steps_per_epoch(run: RunSpec, data: Data) -> float:
    if isinstance(data, EncodedExamples):
        return -(-len(data.splits["train"]) // run.train.batch_size)
    assert isinstance(run.model, GPTSpec)  # noqa: S101  (`_tokens` has refused all others)
    return num_windows(len(data.split("train")), run.model.context) / run.train.batch_size


def encoded(spec: ExamplesSpec, model: ModelSpec) -> EncodedExamples:
    """Return labelled text as a model reads it."""
    names_model = model if spec.vocab_size is None else None
    return _encoded(spec.model_copy(update={"checksum": None}), names_model, _files(spec))


@lru_cache(maxsize=2)  # the runs of a study are bound one after another, mostly to the same data
def _encoded(spec: ExamplesSpec, model: ModelSpec | None, _state: tuple[object, ...]) -> EncodedExamples:
    examples = open_examples(spec)
    if model is not None:
        encoder = encoder_of(model)
    else:
        assert spec.vocab_size is not None  # noqa: S101  (else there is a model)
        encoder = trained_encoder(_words(examples), spec.vocab_size)
    return encode_examples(examples, encoder, spec.max_length)


def on_files(run: RunSpec, path: Path, split: Split) -> EncodedExamples:
    """Return the labelled text of a run with the rows of other files as one split, and no other change.

    Its labels and its vocabulary are the run's: a head's outputs mean these labels, its embedding these tokens.

    Raises:
        BadData: the run's own data are not those it was trained on; the files have no such split, or labels or columns
            that the run does not know.

    """
    _, own = bound(run)
    assert isinstance(own, EncodedExamples)  # noqa: S101  (its caller has looked)
    assert isinstance(run.data, ExamplesSpec)  # noqa: S101  (examples come of nothing else)
    return with_split(own, open_split(run.data.model_copy(update={"source": path}), split, own.labels))


def _words(examples: Examples) -> Iterator[str]:
    """Yield what a vocabulary is trained on: the training texts, and the names of the labels, which may be written."""
    yield from (text for row in examples.splits["train"].texts for text in row)
    yield from examples.labels


def _files(spec: ExamplesSpec) -> tuple[object, ...]:
    """Name the state of the files that are read, so that changed ones are read again."""
    path = local_folder(spec)
    if path is None:
        return ()
    files = [path] if path.is_file() else sorted(path.glob("*"))
    return tuple((str(file.absolute()), file.stat().st_size, file.stat().st_mtime_ns) for file in files)
