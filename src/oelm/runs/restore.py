"""Use finished runs: load a model and its tokenizer, predict the labels of new texts, export the model to Hugging Face.

The last use is of all runs of a study at once, and possible once: their final weights are scored on the sealed split.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import torch
from pydantic import ValidationError
from torch import nn

from oelm import __version__
from oelm.data.labelled import corpus_of, find_column
from oelm.data.meta import SplitMeta, read_meta
from oelm.data.prepare import default_directory
from oelm.data.sources import TABLE_FORMATS, read_table
from oelm.data.tokenizer import (
    GPT2_SHA256,
    TOKENIZER,
    TextEncoder,
    Tokenizer,
    from_file,
    gpt2_tokenizer,
    load_tokenizer,
)
from oelm.data.tokens import Opening, open_seal, open_tokens, refuse_opened, sealed_split, with_sealed_as_test
from oelm.errors import BadData, BadRecord, CheckpointError, Sealed, UsageError
from oelm.files import add_checksum, write_atomically, write_once
from oelm.interop.export import export, export_decoder, export_labelled
from oelm.models import apply as surgery
from oelm.models.gpt import GPT
from oelm.record.folder import UNSEALED, RunFolder
from oelm.record.record import RunRecord, has_source_changes, source_commit, utc_now
from oelm.record.registration import RegistrationRecord, read_registration, refuse_changed
from oelm.record.test_split import SealedScore, SealedSplit, UnsealedRecord, read_unsealed
from oelm.runs.board import Board
from oelm.runs.resolve import resolve
from oelm.spec import explain_validation
from oelm.spec.run import DataSpec, ExamplesSpec, HuggingFaceSpec, RunSpec, fingerprint
from oelm.spec.study import AnyStudy, Study
from oelm.tasks import make_task, refuse_changed_data, task_class
from oelm.tasks.classification import EVALUATION_BATCH, Classifier, encode_labelled, refuse_longer
from oelm.tasks.language import token_folder, vocabulary_of_data
from oelm.train.checkpoint import MODEL, STATE, load_into, read_checkpoint, read_state

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
    if path.suffix not in TABLE_FORMATS:
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


# The sealed split.
#
# Everything that can be refused is refused before the seal is broken. Then the opening is written into the data folder,
# and only then is the split read. A process that is killed in between loses nothing: the same study, with the same
# weights, may finish.

_ENDED = ("complete", "diverged")


@dataclass(frozen=True)
class _Finished:
    """A confirming run with its final weights."""

    directory: Path
    record: RunRecord
    weights: str
    data: Path


def unseal(study: AnyStudy, root: Path, say: Callable[[str], None] = lambda _: None) -> UnsealedRecord:
    """Open the sealed split of a study's data, score every confirming run on it and write `unsealed.json`.

    Raises:
        Sealed: the study is not registered or not finished, its final weights are not kept, its data have no sealed
            split, or the split has been opened before.
        StudyChanged: the study is not the registered one.

    """
    registration = _require_registration(study, root)
    runs = _find_finished(study, root)
    sealed = {folder: sealed_split(folder) for folder in dict.fromkeys(run.data for run in runs)}
    _refuse_opened_nearby(root, sealed)
    openings = {folder: _make_opening(registration, sealed[folder], runs) for folder in sealed}
    begun = [found for folder, wanted in openings.items() if (found := refuse_opened(folder, wanted))]
    if begun:
        say(f"finishing the unsealing that began on {begun[0].opened}")
    openings = {folder: open_seal(folder, wanted) for folder, wanted in openings.items()}
    scores = []
    for run in runs:
        say(f"scoring {run.record.spec.arm}, seed {run.record.spec.seed}, on the sealed split")
        scores.append(_score(run, openings[run.data]))
    record = _make_unsealed(registration, list(openings.values()), sealed, scores)
    write_once(root / UNSEALED, add_checksum(record.model_dump_json(indent=1) + "\n"))
    return read_unsealed(root) or record


def _require_registration(study: AnyStudy, root: Path) -> RegistrationRecord:
    """Return the registration of a study that may be unsealed."""
    refuse_changed(root, study)
    if (done := read_unsealed(root)) is not None:
        raise Sealed(f"{done.study} was unsealed on {done.opened[:10]}, and a sealed split is opened once. The report "
                     f"shows the figures of {root / UNSEALED}.")  # fmt: skip
    registration = read_registration(root)
    if registration is None:
        raise Sealed(
            f"{study.name} is not registered, so nothing shows what it declared before its runs. A sealed split is for "
            "studies that `oelm run` has registered; screens and listings are not."
        )
    return registration


def _find_finished(study: AnyStudy, root: Path) -> list[_Finished]:
    """Return the confirming runs with their weights; a diverged run cannot be scored."""
    assert isinstance(study, Study)  # noqa: S101  (only a Study is registered)
    entries = Board(study, root).confirming
    if open_runs := [f"{entry.name} ({entry.state})" for entry in entries if entry.state not in _ENDED]:
        raise Sealed(
            f"a sealed split is opened once, when a study is done, and {len(open_runs)} runs are not: "
            f"{', '.join(open_runs[:5])}. `oelm run` completes them."
        )
    if not entries:
        raise Sealed(f"{study.name} is still tuning, so there is nothing to score. `oelm run` completes it.")
    if not any(entry.state == "complete" for entry in entries):
        raise Sealed(f"every confirming run of {study.name} diverged, so there is nothing to score.")
    done = [(entry.directory, entry.record) for entry in entries if entry.state == "complete"]
    return [
        _Finished(directory, record, _final_weights(directory, record), _data_folder(record))
        for directory, record in done
        if directory is not None and record is not None
    ]


def _final_weights(directory: Path, record: RunRecord) -> str:
    """Return the hash of the weights at the end of a run."""
    try:
        state = read_state(RunFolder(directory).checkpoints / "latest")
        step, found = state["progress"]["step"], str(state["sha256"][MODEL])
    except (FileNotFoundError, CheckpointError):
        step, found = None, ""
    if step != record.spec.train.steps:
        raise Sealed(
            f"{directory} does not hold the weights of the end of its run (checkpoints/latest), so it cannot be "
            "scored. Unseal a study where it ran, before its checkpoints are removed."
        )
    return found


def _data_folder(record: RunRecord) -> Path:
    data = record.spec.data
    if not isinstance(data, DataSpec):
        raise Sealed(f"{data.corpus!r} is labelled text, which has no sealed split; only prepared tokens have one.")
    folder = data.directory or default_directory(data)
    meta = read_meta(folder)
    if meta is not None and meta.checksum != data.checksum:
        raise BadData(
            f"the study ran on data with checksum {data.checksum}, and those in {folder} have {meta.checksum}. Restore "
            "the data."
        )
    return folder


def _refuse_opened_nearby(root: Path, sealed: dict[Path, SplitMeta]) -> None:
    """Refuse data whose sealed split a neighbouring study has opened, also in another copy of the data folder."""
    wanted = {split.sha256 for split in sealed.values()}
    for path in sorted(root.absolute().parent.glob(f"*/{UNSEALED}")):
        other = read_unsealed(path.parent)
        if other is not None and wanted & {split.sha256 for split in other.splits}:
            raise Sealed(
                f"the sealed split was opened by {other.study} on {other.opened[:10]} ({path}), and it is opened once. "
                "Prepare new data with --seal for a new study."
            )


def _make_opening(registration: RegistrationRecord, split: SplitMeta, runs: Sequence[_Finished]) -> Opening:
    return Opening(
        study=str(registration.study["name"]),
        digest=registration.digest,
        opened=utc_now(),
        commit=source_commit(),
        sha256=split.sha256,
        weights={run.record.fingerprint: run.weights for run in runs},
    )


def _score(run: _Finished, opening: Opening) -> SealedScore:
    restored = load_run(run.directory)
    torch.set_num_threads(restored.run.train.threads)
    tokens = with_sealed_as_test(open_tokens(run.data), opening)
    task = make_task(restored.run, tokens, torch.device("cpu"))
    measured = task.measure(restored.model, "test")
    spec = run.record.spec
    return SealedScore(
        fingerprint=run.record.fingerprint,
        arm=spec.arm,
        seed=spec.seed,
        loss=measured.loss,
        accuracy=measured.accuracy,
    )


def _make_unsealed(
    registration: RegistrationRecord,
    openings: Sequence[Opening],
    sealed: dict[Path, SplitMeta],
    scores: Sequence[SealedScore],
) -> UnsealedRecord:
    splits = []
    for folder, split in sealed.items():
        meta = read_meta(folder)
        assert meta is not None  # noqa: S101  (it states the sealed split)
        splits.append(SealedSplit(corpus=meta.corpus, checksum=meta.checksum, sha256=split.sha256,
                                  documents=split.documents, tokens=split.num_tokens))  # fmt: skip
    return UnsealedRecord(
        study=str(registration.study["name"]),
        digest=registration.digest,
        opened=min(opening.opened for opening in openings),
        scored=utc_now(),
        commit=source_commit(),
        dirty=has_source_changes(),
        splits=tuple(splits),
        scores=tuple(scores),
    )
