"""`oelm train`: one run from named parts and flags, from a spec file, or on labelled text (`--task`)."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from pydantic import ValidationError

from oelm.cli import say
from oelm.cli.terminal import Count, Seed, flags_in_errors, has_flag, parse
from oelm.console import Console
from oelm.errors import INTERRUPTED, Damaged, InvalidSpec, UsageError
from oelm.files import CHECKSUM_FIELD, parse_checked
from oelm.spec import explain_validation
from oelm.spec.method import named_method
from oelm.spec.run import (
    GPT_SIZES,
    DataSpec,
    ExamplesSpec,
    GPTSpec,
    HuggingFaceSpec,
    ModelSpec,
    RunSpec,
    TrackerName,
    TrainSpec,
    named_size,
    with_tracker,
)

FINE_TUNING = TrainSpec(
    epochs=3, batch_size=32, learning_rate=5e-5, warmup_steps=50, decay="linear", eval_every="epoch"
)
"""Customary settings for fine-tuning encoders. Every field can be set, and --train.steps replaces the epochs."""


@dataclass
class TrainArguments:
    """Train our GPT on text, and write record, curve, samples and checkpoints into a folder.

    The same command continues an interrupted run and does nothing for a complete one. Ctrl-C saves a checkpoint
    first. `oelm train --task sst2 --help` explains fine-tuning on labelled text, and `oelm train --continue-from RUN
    --help` more steps of a run.

      oelm train --size mini --method oelm-freeze --data.corpus stories --train.steps 800
      oelm train --spec runs/demo/baseline-seed0_1f0c/record.json --out again
    """

    size: str = "mini"
    """Size of our GPT (nano, mini, medium-512) that the --model fields start from."""
    method: str = "baseline"
    """Method to apply, for example oelm-freeze or oelm-every:10. `oelm inspect` shows what each does."""
    seed: Seed = 0
    """Random seed of the run."""
    out: Path | None = None
    """Folder to write. By default runs/<method>-seed<seed>_<fingerprint>."""
    spec: Path | None = None
    """JSON file with the spec of a run, for example a record.json. It replaces all other fields of the run."""
    track: TrackerName | None = None
    """Experiment tracker that gets the curve in addition to metrics.jsonl: wandb (offline, unless WANDB_MODE is set),
    trackio (local) or tensorboard."""
    quiet: bool = False
    """Print nothing."""
    json: bool = False
    """Print the record as JSON at the end."""
    model: GPTSpec = GPTSpec()
    data: DataSpec = DataSpec()
    train: TrainSpec = TrainSpec()


@dataclass
class TaskArguments:
    """Where labelled text comes from."""

    task: str = "sst2"
    """sst2, mnli, mnli-mismatched, xnli, ag_news, imdb or story-questions; owner/name from the hub or any name with
    --from, together with --texts and --label."""
    source: Annotated[Path | None, tyro.conf.arg(name="from")] = None
    """File or folder of .tsv, .csv, .jsonl or .parquet. By default data/TASK if it exists, otherwise the hub. Files
    named train, heldout or val, and test or dev keep their splits; missing splits are drawn from training."""
    texts: tuple[str, ...] = ()
    """Names of the one or two columns with the text, if they are not the task's own."""
    label: str | None = None
    """Name of the column with the label (names or numbers), if it is not the task's own."""
    language: str = "en"
    """Language of XNLI. Files with a column `language` are filtered by it."""


@dataclass
class TrainTaskArguments(TaskArguments):
    """Fine-tune a model on labelled text, and write record, curve, predictions and checkpoints into a folder.

    The same command continues an interrupted run and does nothing for a complete one. Ctrl-C saves a checkpoint first.

      oelm train --task sst2 --model minilm --method oelm-from-current --rows 4000
    """

    rows: int | None = None
    """Number of training rows to draw at random. By default all."""
    max_length: int = 128
    """Length in tokens at which texts are cut."""
    padding: Literal["longest", "max_length"] = "longest"
    """Pad to the longest text of a batch, or (as published) always to the full length."""
    vocab_size: int | None = None
    """Size of a byte-level BPE vocabulary to train on the texts, for a model from scratch."""
    model: str = "minilm"
    """minilm; folder or hub name of a transformers model; or a model from scratch: a configuration such as bert-tiny,
    or a size of our GPT (nano, mini, medium-512)."""
    scratch: bool = False
    """Draw the weights at random instead of loading them."""
    method: str = "baseline"
    """Method to apply, for example oelm-from-current. `oelm inspect` shows what each does."""
    seed: Seed = 0
    """Random seed of the run."""
    out: Path | None = None
    """Folder to write. By default runs/<method>-seed<seed>_<fingerprint>."""
    track: TrackerName | None = None
    """Experiment tracker that gets the curve in addition to metrics.jsonl: wandb (offline, unless WANDB_MODE is set),
    trackio (local) or tensorboard."""
    quiet: bool = False
    """Print nothing."""
    json: bool = False
    """Print the record as JSON at the end."""
    train: TrainSpec = FINE_TUNING


@dataclass
class ContinueArguments:
    """Train the model of a run for more steps, in a new folder.

    Weights and moments come from the run's last checkpoint, and all settings but the number of steps from the run. The
    learning rate follows the schedule of a run of the whole length.

      oelm train --continue-from runs/baseline-seed0_1f0c --steps 500
    """

    continue_from: Path
    """Folder of the run to continue. It is not changed."""
    steps: Count
    """Number of steps in addition to those of the run."""
    track: TrackerName | None = None
    """Also send the metrics to this experiment tracker: wandb (offline), trackio (local) or tensorboard."""
    out: Path | None = None
    """Folder to write. By default runs/<method>-seed<seed>_<fingerprint>."""
    quiet: bool = False
    """Print nothing."""
    json: bool = False
    """Print the record as JSON at the end."""


def train_command(argv: list[str]) -> int:
    """Train one model and print where its record is."""
    arguments, run = _read_request(argv)
    run = with_tracker(run, arguments.track)

    from oelm.record.folder import run_directory
    from oelm.runs.execute import execute
    from oelm.runs.resolve import resolve
    from oelm.train.loop import Interrupted

    with Console(stderr=True, quiet=arguments.quiet).status(f"reading {run.data.corpus}"):
        run, data = resolve(run)
    directory = arguments.out or run_directory(Path("runs"), run)
    try:
        # With --json standard output is only the record, so progress goes to standard error.
        with redirect_stdout(sys.stderr) if arguments.json else nullcontext():
            record = execute(run, data, directory, quiet=arguments.quiet)
    except Interrupted as interruption:
        say(f"oelm: {interruption}. The same command continues it.", stderr=True)
        return INTERRUPTED
    if os.environ.get("RANK", "0") != "0":  # torchrun starts several processes, and the first prints the record
        return 0
    if arguments.json:
        say(record.model_dump_json(indent=1))
    elif not arguments.quiet:
        say(f"record: {directory / 'record.json'}")
    return 0


def _read_request(argv: list[str]) -> tuple[TrainArguments | TrainTaskArguments | ContinueArguments, RunSpec]:
    if has_flag("--continue-from", argv):
        from oelm.runs.execute import continue_run

        asked = parse(ContinueArguments, argv, "oelm train --continue-from RUN")
        return asked, continue_run(asked.continue_from, asked.steps)
    return _read_task_run(argv) if has_flag("--task", argv) else _read_run(argv)


def _read_run(argv: list[str]) -> tuple[TrainArguments, RunSpec]:
    # The size comes first, because it sets the defaults of the --model fields.
    sizes = [after for word, after in zip(argv, [*argv[1:], ""], strict=True) if word == "--size"]
    sizes += [word.partition("=")[2] for word in argv if word.startswith("--size=")]
    size = sizes[-1] if sizes and sizes[-1] else TrainArguments.size
    model = named_size(size)
    asked = parse(TrainArguments, argv, "oelm train", default=TrainArguments(size=size, model=model))
    if asked.spec:
        return asked, _read_spec(asked.spec)
    with flags_in_errors("oelm train"):
        return asked, RunSpec(
            arm=asked.method,
            method=named_method(asked.method),
            model=asked.model,
            data=asked.data,
            train=steps_or_epochs(asked.train, argv),
            seed=asked.seed,
        )


def _read_task_run(argv: list[str]) -> tuple[TrainTaskArguments, RunSpec]:
    prog = "oelm train --task NAME"
    asked = parse(TrainTaskArguments, argv, prog)
    with flags_in_errors(prog, source="from", corpus="task"):
        data = ExamplesSpec(
            corpus=asked.task,
            language=asked.language,
            texts=asked.texts,
            label=asked.label,
            vocab_size=asked.vocab_size,
            max_length=asked.max_length,
            padding=asked.padding,
            rows=asked.rows,
            source=asked.source,
        )
        return asked, RunSpec(
            arm=asked.method,
            method=named_method(asked.method),
            model=_choose_model(asked),
            data=data,
            train=steps_or_epochs(asked.train, argv),
            seed=asked.seed,
        )


def steps_or_epochs(train: TrainSpec, argv: list[str]) -> TrainSpec:
    """Let --train.steps replace the default epochs, and refuse both flags together.

    Raises:
        InvalidSpec: both flags are given. A spec may hold both: resolving a run fills in the steps of its epochs.

    """
    if not has_flag("--train.steps", argv) or train.epochs is None:
        return train
    if has_flag("--train.epochs", argv):
        raise InvalidSpec(
            f"{train.steps} steps and {train.epochs} epochs were asked for, and a run has one length. Leave out "
            "--train.steps or --train.epochs."
        )
    return train.model_copy(update={"epochs": None})


def _choose_model(asked: TrainTaskArguments) -> ModelSpec:
    if asked.model in GPT_SIZES:
        return named_size(asked.model)
    from oelm.models.build import parse_model_name

    spec = parse_model_name(asked.model)
    return (
        spec.model_copy(update={"pretrained": False}) if asked.scratch and isinstance(spec, HuggingFaceSpec) else spec
    )


def _read_spec(path: Path) -> RunSpec:
    try:
        plain = parse_checked(path.read_bytes())
        return RunSpec.model_validate(plain.get("spec", plain) if isinstance(plain, dict) else plain)
    except OSError as error:
        raise UsageError(
            f"the spec file {path} cannot be read ({error.strerror}). Give the spec or record of a run as JSON."
        ) from error
    except ValidationError as error:
        raise InvalidSpec(f"{path} does not hold the spec of a run: {explain_validation(error)}.") from error
    except Damaged as error:
        raise InvalidSpec(
            f"{path} was changed after it was written: {error}. If you have edited it, remove its last field, "
            f"{CHECKSUM_FIELD}."
        ) from error
    except ValueError as error:
        raise InvalidSpec(f"{path} does not hold the spec of a run: it is not whole JSON ({error}).") from error
