"""`oelm train`: one run from named parts and overrides, or from a spec file."""

from __future__ import annotations

import json
import os
import sys
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from pydantic import ValidationError
from rich.console import Console

from oelm.cli import parse, train_task
from oelm.errors import INTERRUPTED, InvalidSpec, UsageError
from oelm.spec.base import in_words
from oelm.spec.data import DataSpec
from oelm.spec.model import GPTSpec, named_size
from oelm.spec.named import named_method
from oelm.spec.run import RunSpec
from oelm.spec.train import TrainSpec


@dataclass
class Arguments:
    """Carry out one run and leave its record, curve, samples and checkpoints in a folder.

    This trains our GPT on text. `oelm train --task sst2 --help` tells how a model is fine-tuned on labelled text. The
    same command again continues an interrupted run and leaves a complete one alone. Ctrl-C saves first.
    """

    size: str = "mini"
    """Named size of our GPT that the --model fields start from: nano, mini, medium-512."""
    method: str = "baseline"
    """Named method, e.g. oelm-freeze or oelm-every:10 (oelm inspect shows what each does)."""
    seed: int = 0
    """Of everything random in the run."""
    out: Path | None = None
    """The run's folder; by default runs/<method>-seed<seed>_<fingerprint>."""
    spec: Path | None = None
    """A run's spec as JSON (the `spec` of a record.json, say); the other fields are then left out."""
    quiet: bool = False
    """Print nothing; the files say it all."""
    json: bool = False
    """Print the record as JSON at the end."""
    model: Annotated[GPTSpec, tyro.conf.arg(name="model")] = GPTSpec()
    data: DataSpec = DataSpec()
    train: TrainSpec = TrainSpec()


def main(argv: list[str]) -> int:
    """Parse, run, report."""
    arguments, run = _labelled(argv) if _value_of("--task", argv) else _text(argv)

    from oelm.record.store import run_directory
    from oelm.runner.bind import bound
    from oelm.runner.run import execute
    from oelm.train.loop import Interrupted

    with Console(stderr=True, quiet=arguments.quiet).status(f"reading {run.data.corpus}"):
        run, data = bound(run)
    directory = arguments.out or run_directory(Path("runs"), run)
    try:
        with redirect_stdout(sys.stderr) if arguments.json else nullcontext():  # where progress is no JSON
            record = execute(run, data, directory, quiet=arguments.quiet)
    except Interrupted as wish:
        print(f"oelm: {wish}. The same command continues it.", file=sys.stderr)
        return INTERRUPTED
    if os.environ.get("RANK", "0") != "0":  # torchrun starts several of us, and one record is enough
        return 0
    if arguments.json:
        print(record.model_dump_json(indent=1))
    elif not arguments.quiet:
        print(f"record: {directory / 'record.json'}")
    return 0


def _text(argv: list[str]) -> tuple[Arguments, RunSpec]:
    size = _value_of("--size", argv) or Arguments.size
    model = named_size(size).model_copy(update={"vocab_size": None})  # that of the data
    asked = parse(Arguments, argv, "oelm train", default=Arguments(size=size, model=model))
    if asked.spec:
        return asked, _from_file(asked.spec)
    method, train = named_method(asked.method), train_task.steps_or_epochs(asked.train, argv)
    try:
        run = RunSpec(arm=asked.method, method=method, model=asked.model, data=asked.data, train=train, seed=asked.seed)
    except ValidationError as error:
        raise InvalidSpec(f"such a run cannot be: {in_words(error)}. `oelm train --help` explains.") from error
    return asked, run


def _labelled(argv: list[str]) -> tuple[train_task.Arguments, RunSpec]:
    asked = train_task.parsed(argv)
    return asked, train_task.run_of(asked)


def _value_of(flag: str, argv: list[str]) -> str | None:
    for place, word in enumerate(argv):
        if word == flag and place + 1 < len(argv):
            return argv[place + 1]
        if word.startswith(flag + "="):
            return word.partition("=")[2]
    return None


def _from_file(path: Path) -> RunSpec:
    try:
        plain = json.loads(path.read_text())
        return RunSpec.model_validate(plain.get("spec", plain) if isinstance(plain, dict) else plain)
    except OSError as error:
        raise UsageError(
            f"the spec file {path} cannot be read ({error.strerror}). Give a run's spec or record as JSON."
        ) from error
    except ValidationError as error:
        raise InvalidSpec(f"{path} does not hold a run's spec: {in_words(error)}.") from error
    except ValueError as error:
        raise InvalidSpec(f"{path} does not hold a run's spec: it is not whole JSON ({error}).") from error
