"""`oelm import-checkpoint` and `oelm import-run`: read files of the published study."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import tyro
from pydantic import Field

from oelm.cli import say
from oelm.cli.terminal import Count, Seed, parse
from oelm.errors import UsageError
from oelm.published.runs import Settings, import_run
from oelm.record.folder import TIMING

CHECKPOINTS = ("best.pt", "latest.pt", "best_model.pt")
"""Files of a published run that contain its flags."""


@dataclass
class ImportCheckpointArguments:
    """Convert a published best.pt, latest.pt (GPT) or best_model.pt (BERT) into a checkpoint or model of ours.

    The arm is recognised from the flags in the file and checked against its weights. What was frozen is frozen and
    hashed again. The file is read without running any code in it.

      oelm import-checkpoint outputs/GPT-02/best.pt imported/GPT-02
    """

    file: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    """The .pt file to read."""
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")]
    """Folder to write. It must not exist yet."""


def import_checkpoint_command(argv: list[str]) -> int:
    """Read a published checkpoint and write one of ours."""
    arguments = parse(ImportCheckpointArguments, argv, "oelm import-checkpoint")
    if arguments.out.exists():
        raise UsageError(f"{arguments.out} exists, and nothing is overwritten. Give a new folder.")

    from oelm.published.bert import is_bert_file
    from oelm.published.checkpoints import read_plain

    is_bert = is_bert_file(read_plain(arguments.file))
    said = (_import_bert if is_bert else _import_gpt)(arguments.file, arguments.out)
    say("\n".join(said))
    return 0


def _import_gpt(file: Path, out: Path) -> list[str]:
    from oelm.models.apply import audit
    from oelm.published.checkpoints import import_published
    from oelm.spec.run import fingerprint
    from oelm.train.checkpoint import Checkpoints

    found = import_published(file)
    run, state = found.run, found.checkpoint.state
    kept = {name: state[name] for name in ("progress", "freezing", "scaler")}
    writer = Checkpoints(out.parent, fingerprint(run), run.model_dump(mode="json"))
    writer.write(out.name, found.model, kept, found.checkpoint.training)
    counted, train = audit(found.model), run.train
    return [
        (
            f"{out}: {run.arm}, {counted.total:,} parameters, {counted.frozen:,} of them frozen and hashed in "
            f"{len(state['freezing']['hashes'])} tensors, saved at step {state['progress']['step']} of {train.steps}"
        ),
        (
            f"learning rate {train.learning_rate:g}, seed {run.seed}, warm-up {train.warmup} steps, batch "
            f"{train.batch_size} x {found.context}, corpus {run.data.corpus}"
        ),
        *found.said,
    ]


def _import_bert(file: Path, out: Path) -> list[str]:
    from oelm.models.apply import audit
    from oelm.published.bert import import_bert

    found = import_bert(file)
    found.model.save_pretrained(out)
    counted = audit(found.model)
    hashes = found.model.config.oelm["hashes"]
    return [
        (
            f"{out}: {found.method}, {counted.total:,} parameters, {counted.frozen:,} of them frozen and hashed in "
            f"{len(hashes)} tensors; load it with oelm.load"
        ),
        *found.said,
    ]


@dataclass
class ImportRunArguments:
    """Convert folders of the published programs (timing_stats.json, training.log) into records marked imported.

    A timing file alone is read as well, such as those of the published BERT results. Settings are read from the best.pt
    or best_model.pt in the folder. Give those that no file contains. What is assumed (GPT: medium-512, 8 sequences a
    step, 1000 warm-up steps, validation every 1000 steps) is printed and stays in the record. `oelm compare` and
    `oelm report` compare imported runs with each other, not with runs of ours, because the exact training data is
    unknown.

      oelm import-run outputs/GPT-01 outputs/GPT-02 --learning-rate 1e-3
    """

    folders: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]
    """Output folders (--out_dir) of published runs, or timing files."""
    learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Learning rate (--max_lr) of the runs, if there is no checkpoint that contains it."""
    seed: Seed | None = None
    """Random seed (--seed) of the runs. By default that of the checkpoint, or 42 as published."""
    dataset: str | None = None
    """Data set (--dataset) of the runs, if their files do not contain it."""
    steps: Count | None = None
    """Number of steps (--max_steps) of the runs. By default the last step that their files mention."""
    out: Path = Path("runs/imported")
    """Folder to write. Each run becomes a folder with a record in it."""


def import_run_command(argv: list[str]) -> int:
    """Read published runs and write records."""
    arguments = parse(ImportRunArguments, argv, "oelm import-run")
    if not arguments.folders:
        raise UsageError("FOLDER is missing. Give the output folders of published runs.")
    given = Settings(arguments.learning_rate, arguments.seed, arguments.steps, arguments.dataset)
    for named in arguments.folders:
        folder = named.parent if named.name == TIMING else named
        done = import_run(folder, replace(given, flags=_flags_of(folder)), arguments.out)
        say(str(done.directory))
        for setting in done.assumed:
            say(f"  assumed: {setting}")
    return 0


def _flags_of(folder: Path) -> dict[str, Any]:
    """Return the flags in the checkpoint of a published run; empty if there is none."""
    found = next((path for name in CHECKPOINTS if (path := folder / name).is_file()), None)
    if found is None:
        return {}
    from oelm.published.checkpoints import read_args

    return read_args(found)
