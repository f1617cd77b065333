"""Load a trained model from its run folder or from a checkpoint, with its tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from pydantic import ValidationError
from torch import nn

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
from oelm.models import apply as surgery
from oelm.models.gpt import GPT
from oelm.record.folder import RunFolder
from oelm.record.record import RunRecord
from oelm.runs.resolve import resolve
from oelm.spec.data import DataSpec, ExamplesSpec
from oelm.spec.run import RunSpec
from oelm.spec.value import explain_validation
from oelm.tasks import make_task, task_class
from oelm.tasks.classification import encode_labelled
from oelm.tasks.language import token_folder, vocabulary_of_data
from oelm.tasks.task import refuse_changed_data
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
