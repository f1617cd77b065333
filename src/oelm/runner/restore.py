"""A trained model from the folder it was left in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import ValidationError
from torch import nn

from oelm import surgery
from oelm.data.meta import read_meta
from oelm.data.prepare import default_directory
from oelm.data.vocabulary import GPT2_SHA256
from oelm.errors import BadData, CheckpointError, UsageError
from oelm.models.gpt import GPT
from oelm.runner.bind import bound
from oelm.runner.tasks import build_model
from oelm.spec.base import in_words
from oelm.spec.data import DataSpec
from oelm.spec.model import GPTSpec
from oelm.spec.run import RunSpec
from oelm.train.checkpoint import STATE, Checkpoint, load_into, read_checkpoint

Which = Literal["latest", "best"]


@dataclass(frozen=True)
class Restored:
    """A model with the run it comes from."""

    model: nn.Module
    run: RunSpec
    state: dict[str, Any]

    @property
    def gpt(self) -> GPT:
        """The model, where it is our GPT and writes text."""
        if not isinstance(self.model, GPT) or self.model.classifier is not None:
            raise UsageError(
                f"the run's model is a classifier of {self.run.data.corpus!r}, and one that writes text was asked for. "
                "Give the folder of a run trained on text."
            )
        return self.model

    @property
    def data_directory(self) -> Path:
        """Where the token files of the run's text, and its tokenizer, lie."""
        if not isinstance(self.run.data, DataSpec):
            raise UsageError(f"the run was trained on labelled {self.run.data.corpus!r}, not on text to go on with.")
        directory = self.run.data.directory or default_directory(self.run.data)
        return directory.parent if directory.suffix == ".bin" else directory

    def refuse_other_vocabulary(self, folder: Path) -> None:
        """Refuse tokens that mean something else than those of the run, as far as the run's own are still there."""
        own, other = _vocabulary(self.data_directory), _vocabulary(folder)
        if None not in (own, other) and own != other:
            raise BadData(
                f"{folder} was made with another vocabulary than {self.data_directory}, from which the run has its "
                f"own: the same number is another token there. {_remedy(own)}"
            )


def _remedy(own: str | None) -> str:
    if own == GPT2_SHA256:
        return "Prepare the text again with GPT-2's, which `oelm prepare NAME --from TEXT` takes by default."
    return "A vocabulary trained on a corpus serves that corpus alone: measure on the run's own data."


def _vocabulary(folder: Path) -> str | None:
    """Return what names the vocabulary of a folder of tokens; bare ones have GPT-2's."""
    directory = folder.parent if folder.suffix == ".bin" else folder
    meta = read_meta(directory)
    if meta is not None:
        return meta.tokenizer.sha256
    return GPT2_SHA256 if (directory / "train.bin").exists() else None


def restore(path: Path, which: Which = "latest") -> Restored:
    """Load the model of a run's folder, or of one checkpoint's, with its method on it and its frozen weights proved.

    `which` of them is asked of a run's folder alone. A classifier takes its labels and its vocabulary from its data,
    which must be there.
    """
    directory = path if (path / STATE).exists() else path / "checkpoints" / which
    try:
        checkpoint = read_checkpoint(directory)
    except FileNotFoundError:
        raise CheckpointError(
            f"{path} holds no {which!r} checkpoint. Give the folder of a run that has saved one (oelm train), or a "
            "checkpoint's own folder."
        ) from None
    try:
        run = RunSpec.model_validate(checkpoint.state["spec"])
    except (KeyError, ValidationError) as error:
        raise CheckpointError(f"{directory} does not say what run it is of: {in_words(error)}") from error
    model = _built(run, checkpoint)
    surgery.apply(model, run.method, seed=run.seed_of("draw"))
    load_into(model, checkpoint.model, str(directory))
    step = checkpoint.state["progress"]["step"]
    surgery.FreezeSchedule(model, run.train.steps).restore(step - 1, checkpoint.state["freezing"])
    return Restored(model.eval(), run, checkpoint.state)


def _built(run: RunSpec, checkpoint: Checkpoint) -> nn.Module:
    """Build the model of a checkpoint."""
    if isinstance(run.data, DataSpec) and isinstance(run.model, GPTSpec):
        vocab_size = checkpoint.model["token_embedding.weight"].shape[0]
        return GPT(run.model.model_copy(update={"vocab_size": vocab_size}), run.seed_of("init"))
    return build_model(*bound(run), torch.device("cpu"))
