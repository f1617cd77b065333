"""Use a finished run: load its model and tokenizer, predict the labels of new texts, and export it to Hugging Face."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import torch
from pydantic import ValidationError
from torch import nn

from oelm import __version__
from oelm.data.labelled import corpus_of, find_column
from oelm.data.tables import FORMATS, read_table
from oelm.data.tokenizer import (
    GPT2_SHA256,
    TOKENIZER,
    TextEncoder,
    Tokenizer,
    from_file,
    gpt2_tokenizer,
    load_tokenizer,
)
from oelm.errors import BadData, BadRecord, CheckpointError, UsageError
from oelm.files import write_atomically
from oelm.interop.export import export, export_decoder, export_labelled
from oelm.models import apply as surgery
from oelm.models.gpt import GPT
from oelm.record.folder import RunFolder
from oelm.record.record import RunRecord
from oelm.runs.resolve import resolve
from oelm.spec import explain_validation
from oelm.spec.run import DataSpec, ExamplesSpec, HuggingFaceSpec, RunSpec, fingerprint
from oelm.tasks import make_task, refuse_changed_data, task_class
from oelm.tasks.classification import EVALUATION_BATCH, Classifier, encode_labelled, refuse_longer
from oelm.tasks.language import token_folder, vocabulary_of_data
from oelm.train.checkpoint import STATE, load_into, read_checkpoint

Which = Literal["latest", "best"]
_AnyTokenizer = TypeVar("_AnyTokenizer", Tokenizer, TextEncoder)


@dataclass(frozen=True)
class Restored:
    """A trained model, its run, the state of its checkpoint, and the record and folder of the run."""

    model: nn.Module
    run: RunSpec
    state: dict[str, Any]
    folder: RunFolder
    record: RunRecord | None
    """None for a checkpoint outside of its run folder."""

    @property
    def gpt(self) -> GPT:
        """The model, if it is our GPT and generates text; else raise UsageError."""
        if not isinstance(self.model, GPT) and isinstance(self.run.data, DataSpec):
            raise UsageError(
                f"The run trained the Hugging Face model {type(self.model).__name__}, and this is for our GPT. Write "
                "it with `oelm export`, and use it with oelm.load or transformers."
            )
        if not isinstance(self.model, GPT) or self.model.classifier is not None:
            raise UsageError(
                f"The run's model is a classifier of {self.run.data.corpus!r} and cannot generate text. Give the "
                "folder of a run trained on text."
            )
        return self.model

    @property
    def tokenizer_sha256(self) -> str | None:
        """What identifies the run's tokenizer; None if the record does not say."""
        return self.record.data.tokenizer if self.record and self.record.data else None

    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer of the run's text: the run's own copy, or that of its unchanged data.

        Raises:
            BadData: the copy is not the run's, or there is none and the data are gone or have changed.

        """
        if not isinstance(self.run.data, DataSpec):
            raise UsageError(f"The run was trained on labelled {self.run.data.corpus!r}, not on plain text.")
        if self.folder.tokenizer.is_dir():
            return self._require_own(load_tokenizer(self.folder.tokenizer), self.folder.tokenizer)
        known = self.tokenizer_sha256 or vocabulary_of_data(self.run.data)
        if known == GPT2_SHA256:
            return gpt2_tokenizer()
        folder = token_folder(self.run.data)
        if known is None or known != vocabulary_of_data(self.run.data):
            raise BadData(
                f"The tokenizer of this run is not known: {self.folder.path} has no copy of it, and the data in "
                f"{folder} are gone or are not those of the run. Restore the data that it was trained on."
            )
        return load_tokenizer(folder)

    def text_encoder(self) -> tuple[TextEncoder, tuple[str, ...]]:
        """Return the tokenizer of labelled text, and the names of the labels.

        Raises:
            BadData: the run's copy has been changed; or there is none, and the data are gone or have changed.

        """
        spec = self.run.data
        if not isinstance(spec, ExamplesSpec):
            raise UsageError(
                f"The run was trained on the text {spec.corpus!r}, which has no labels. Use `oelm generate`."
            )
        file = self.folder.tokenizer / TOKENIZER
        if file.is_file() and self.record and self.record.data:
            return self._require_own(from_file(file), file), self.record.data.labels
        examples = encode_labelled(spec, self.run.model)
        refuse_changed_data(self.run, examples)
        return examples.encoder, examples.labels

    def _require_own(self, tokenizer: _AnyTokenizer, place: Path) -> _AnyTokenizer:
        if self.tokenizer_sha256 not in (None, tokenizer.sha256):
            raise BadData(
                f"The tokenizer in {place} is not the one that the run was trained with (checksum). Restore it, or "
                "delete it to use that of the data."
            )
        return tokenizer


def load_run(path: Path, which: Which = "latest") -> Restored:
    """Load the model of a run's folder or of one checkpoint, with its method applied and its frozen weights verified.

    `which` selects a checkpoint in a run's folder. A classifier needs the record, or its data, for its labels and its
    vocabulary.
    """
    is_checkpoint = (path / STATE).exists()
    folder = RunFolder(path.parents[1] if is_checkpoint and len(path.parts) > 1 else path)
    directory = path if is_checkpoint else folder.checkpoints / which
    try:
        checkpoint = read_checkpoint(directory)
    except FileNotFoundError:
        raise CheckpointError(
            f"{path} has no {which!r} checkpoint. Give the folder of a run that has saved one (oelm train), or the "
            "folder of a checkpoint."
        ) from None
    try:
        run = RunSpec.model_validate(checkpoint.state["spec"])
    except (KeyError, ValidationError) as error:
        raise CheckpointError(
            f"{directory} does not say which run it belongs to: {explain_validation(error)}"
        ) from error
    record = _own_record(folder, checkpoint.state)
    model = task_class(run).build_without_data(run, checkpoint.model, record.data if record else None)
    if model is None:
        model = make_task(*resolve(run), torch.device("cpu")).build_model()
    surgery.apply(model, run.method, seed=run.seed_of("draw"), scheduled=True)
    load_into(model, checkpoint.model, str(directory))
    step = checkpoint.state["progress"]["step"]
    surgery.FreezeSchedule(model, run.train.steps).restore(step - 1, checkpoint.state["freezing"])
    return Restored(model.eval(), run, checkpoint.state, folder, record)


def _own_record(folder: RunFolder, state: dict[str, Any]) -> RunRecord | None:
    """Return the record of a checkpoint's run; None if the checkpoint is not in its run folder."""
    try:
        record = folder.read_record()
    except BadRecord:
        return None
    return record if record.fingerprint == state.get("fingerprint") else None


# Labels of new texts.

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


# Export as a Hugging Face folder with a model card.


def export_run(restored: Restored, directory: Path) -> str:
    """Write the model of any run; return the Python expression that loads it."""
    data = restored.run.data
    if isinstance(data, ExamplesSpec):
        encoder, labels = restored.text_encoder()
        own_labels = labels if data.answers == "label" else ()
        export_labelled(restored.model, directory, encoder, own_labels, data.max_length)
    else:
        tokenizer = None if data.probe else restored.tokenizer()
        if isinstance(restored.run.model, HuggingFaceSpec):
            export_decoder(restored.model, directory, tokenizer)
        else:
            export(restored.gpt, directory, tokenizer)
    how = _how_to_load(directory)
    write_atomically(directory / "README.md", "\n".join(_card(restored, how)) + "\n")
    return how


def _how_to_load(directory: Path) -> str:
    config = json.loads((directory / "config.json").read_text())
    if config.get("model_type") == "oelm-gpt" or config.get("attn_implementation"):
        return f"oelm.load({str(directory.name)!r})"
    cls = config["architectures"][0]
    kinds = {"Classification": "SequenceClassification", "ConditionalGeneration": "Seq2SeqLM"}
    auto = next((name for end, name in kinds.items() if cls.endswith(end)), "CausalLM")
    return f"transformers.AutoModelFor{auto}.from_pretrained({str(directory.name)!r})"


def _card(restored: Restored, how: str) -> Iterator[str]:
    """Yield the lines of a model card: method, results, data, frozen tensors, and how to load it."""
    run = restored.run
    yield from ("---", "library_name: transformers", "tags:", "- oelm", f"- {run.data.task}", "---", "")
    yield from (f"# {run.arm} on {run.data.corpus}", "")
    yield f"Trained with oelm {__version__}, run `{fingerprint(run)}`, seed {run.seed}, {_length(restored)}."
    yield from ("", "## Load it", "", f"```python\n{how}\n```", "")
    if how.startswith("transformers") and run.method.freeze.roles:
        again = "" if isinstance(restored.model, GPT) else " `oelm.load` freezes the same tensors again."
        yield from (f"Nothing is frozen in the loaded model: plain transformers trains all weights.{again}", "")
    yield from ("## Method", "", "```json", run.method.model_dump_json(indent=1, exclude_defaults=True), "```", "")
    if restored.record is not None:
        yield from _results(restored.record, run)
    hashes = surgery.verify_frozen(restored.model)
    yield from (
        "## Frozen tensors",
        "",
        f"{len(hashes)} tensors are frozen. SHA-256 of their bytes during training:",
        "",
    )
    yield from (f"- `{name}` {digest}" for name, digest in hashes.items())


def _length(restored: Restored) -> str:
    return f"step {restored.state['progress']['step']} of {restored.run.train.steps}"


def _results(record: RunRecord, run: RunSpec) -> Iterator[str]:
    yield from ("## Results", "")
    if record.result is None:
        yield from (f"The run is {record.status} and has no results.", "")
    else:
        names = ("val_loss", "test_loss", "test_perplexity", "val_accuracy", "test_accuracy", "test_f1")
        values = {name: getattr(record.result, name) for name in names}
        yield from ("| figure at the end of training | value |", "| --- | --- |")
        yield from (
            f"| {name.replace('_', ' ')} | {value:.4f} |" for name, value in values.items() if value is not None
        )
        yield ""
    if record.parameters is not None:
        yield f"{record.parameters.trainable:,} of {record.parameters.total:,} parameters were trained."
    if record.data is not None:
        labels = f" Labels: {', '.join(record.data.labels)}." if record.data.labels else ""
        yield f"Data: {run.data.corpus}, checksum `{record.data.checksum[:16]}`.{labels}"
    yield ""
