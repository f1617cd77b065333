"""`oelm train --task`: one run that fine-tunes a model on labelled text."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import tyro
from pydantic import ValidationError

from oelm.cli import parse
from oelm.errors import InvalidSpec
from oelm.spec.base import in_words
from oelm.spec.data import ExamplesSpec
from oelm.spec.model import GPT_SIZES, ForeignSpec, ModelSpec
from oelm.spec.named import named_method
from oelm.spec.run import RunSpec
from oelm.spec.train import TrainSpec

FINE_TUNING = TrainSpec(
    epochs=3, batch_size=32, learning_rate=5e-5, warmup_steps=50, decay="linear", eval_every="epoch"
)
"""What is customary for encoders; every field can be set, and --train.steps stands instead of the epochs."""


@dataclass
class Arguments:
    """Fine-tune a model on labelled text, and leave record, curve, predictions and checkpoints in a folder.

    The same command again continues an interrupted run and leaves a complete one alone. Ctrl-C saves first.
    """

    task: str = "sst2"
    """sst2, mnli, mnli-mismatched, xnli, ag_news, imdb, story-questions; owner/name from the hub or any name
    with --from, together with --texts and --label."""
    source: Annotated[Path | None, tyro.conf.arg(name="from")] = None
    """A file or folder of .tsv, .csv, .jsonl or .parquet; data/TASK if it is there, else the hub. Files named train,
    heldout or val, and test or dev keep their splits; what is missing is drawn from training."""
    texts: tuple[str, ...] = ()
    """The one or two columns with the text, if they are not the task's own."""
    label: str | None = None
    """The column with the label (names or numbers), if it is not the task's own."""
    language: str = "en"
    """Of XNLI; rows of files with a column `language` are taken by it."""
    rows: int | None = None
    """Train on so many rows only, drawn at random."""
    max_length: int = 128
    """Cut longer texts."""
    padding: Literal["longest", "max_length"] = "longest"
    """Pad to the longest text of a batch, or (as published) everything to the full length."""
    vocab_size: int | None = None
    """Train a byte-level BPE of this size on the texts, for a model from scratch."""
    model: str = "minilm"
    """minilm; a directory or hub name of transformers; a named configuration such as bert-tiny or a size of our GPT
    (nano, mini, medium-512), which start from scratch."""
    scratch: bool = False
    """Draw the weights instead of loading them."""
    method: str = "baseline"
    """Named method, e.g. oelm-from-current (oelm inspect shows what each does)."""
    seed: int = 0
    """Of everything random in the run."""
    out: Path | None = None
    """The run's folder; by default runs/<method>-seed<seed>_<fingerprint>."""
    quiet: bool = False
    """Print nothing; the files say it all."""
    json: bool = False
    """Print the record as JSON at the end."""
    train: TrainSpec = FINE_TUNING


def parsed(argv: list[str]) -> Arguments:
    """Read the command line."""
    asked = parse(Arguments, argv, "oelm train", config=(tyro.conf.FlagCreatePairsOff,))
    return replace(asked, train=steps_or_epochs(asked.train, argv))


def steps_or_epochs(train: TrainSpec, argv: list[str]) -> TrainSpec:
    """Let steps on the command line stand instead of epochs that are only the default; refuse both.

    Raises:
        InvalidSpec: both are on the line. A spec may hold both: binding fills in the steps that its epochs take.

    """
    given = {word.partition("=")[0] for word in argv}
    if "--train.steps" not in given or train.epochs is None:
        return train
    if "--train.epochs" in given:
        raise InvalidSpec(
            f"{train.steps} steps and {train.epochs} epochs were asked for, and a run has one length. Leave out "
            "--train.steps or --train.epochs."
        )
    return train.model_copy(update={"epochs": None})


def run_of(asked: Arguments) -> RunSpec:
    """Return the run that was asked for; raise InvalidSpec where its fields cannot be."""
    try:
        return _run_of(asked)
    except ValidationError as error:
        raise InvalidSpec(f"such a run cannot be: {in_words(error)}. `oelm train --task T --help` explains.") from error


def _run_of(asked: Arguments) -> RunSpec:
    return RunSpec(
        arm=asked.method,
        method=named_method(asked.method),
        model=_model(asked),
        data=ExamplesSpec(
            corpus=asked.task,
            language=asked.language,
            texts=asked.texts,
            label=asked.label,
            vocab_size=asked.vocab_size,
            max_length=asked.max_length,
            padding=asked.padding,
            rows=asked.rows,
            source=asked.source,
        ),
        train=asked.train,
        seed=asked.seed,
    )


def _model(asked: Arguments) -> ModelSpec:
    if asked.model in GPT_SIZES:
        return GPT_SIZES[asked.model].model_copy(update={"vocab_size": None})
    from oelm.models.configs import spec_of

    spec = spec_of(asked.model)
    return spec.model_copy(update={"pretrained": False}) if asked.scratch and isinstance(spec, ForeignSpec) else spec
