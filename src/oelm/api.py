"""The Python API of the second and third part of the tagline: run the ablation, believe the answer.

record = oelm.train(oelm.RunSpec(model=oelm.named_size("mini"), method=oelm.named_method("oelm-freeze")))
comparison = oelm.run(study)        # the same as `oelm run`, and again to continue
oelm.records("runs")                # every run below a folder, one row each
oelm.compare(study).plot()
model = oelm.load("runs/demo/baseline-seed0_1f0c")
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from oelm.errors import UsageError
from oelm.record.record import RunRecord
from oelm.spec.run import RunSpec
from oelm.spec.study import AnyStudy, Listing, Study, load_study

if TYPE_CHECKING:
    from torch import nn

    from oelm.report.notebook import ShownComparison
    from oelm.runs.restore import Prediction

Place = str | Path


def train(run: RunSpec, folder: Place | None = None, *, quiet: bool = False) -> RunRecord:
    """Carry out one run in this process and return its record. The same call continues an interrupted run.

    `folder` is the run folder, by default runs/<arm>-seed<seed>_<fingerprint>. A complete run is not trained again.

    Raises:
        BadData: the data are unavailable or damaged.
        Diverged: the loss is not a number, or has grown without bound.
        RunFailed: the run was interrupted (it has saved its state), or could not be written.

    """
    from oelm.errors import RunFailed
    from oelm.record.folder import run_directory
    from oelm.runs.execute import execute
    from oelm.runs.resolve import resolve
    from oelm.train.loop import Interrupted

    resolved, data = resolve(run)
    directory = Path(folder) if folder is not None else run_directory(Path("runs"), resolved)
    try:
        return execute(resolved, data, directory, quiet=quiet)
    except Interrupted as interruption:
        raise RunFailed(f"{interruption}. The same call continues the run in {directory}.") from interruption


def run(
    study: AnyStudy | Place, runs: Place = "runs", *, slots: int | None = None, quiet: bool = False
) -> ShownComparison | None:
    """Run a study on this machine, or continue it, and return its comparison (None for a listing of single runs).

    `study` is a Study or the file that declares one. Its runs are processes, `slots` at a time; by default as many as
    fit the cores or the free GPUs. The same call continues an interrupted study.

    Raises:
        RunFailed: some runs failed; their records say why.

    """
    from oelm.console import Console
    from oelm.errors import RunFailed
    from oelm.record.folder import write_study
    from oelm.record.registration import refuse_changed
    from oelm.runs.board import Board
    from oelm.runs.local import LocalRunner
    from oelm.runs.resolve import resolve

    declared = load_study(Path(study)) if isinstance(study, str | Path) else study
    root = Path(runs) / declared.name
    refuse_changed(root, declared)
    board = Board(declared, root, bind=lambda each: resolve(each).spec)
    if troubles := {entry.trouble for entry in board.entries if entry.trouble}:
        raise RunFailed(f"Some runs of {declared.name!r} cannot start: {' '.join(sorted(troubles))}")
    write_study(root, declared)
    undone = LocalRunner(board, slots=slots, retries=0, console=Console(quiet=quiet, file=sys.stdout)).run()
    if undone:
        raise RunFailed(
            f"{undone} of {len(board.entries)} runs of {declared.name!r} did not end. `oelm status {root}` shows why; "
            "the same call continues the others."
        )
    return None if isinstance(declared, Listing) else compare(declared, runs)


def records(folder: Place = "runs") -> Any:
    """Return every run at or below a folder, one row each: a pandas DataFrame if pandas is installed, else dicts.

    Archives (`runs.tar.xz`) are read, too. The column `record` has the whole RunRecord.
    """
    from oelm.analysis.compare import find_runs
    from oelm.record.archive import open_archives, original_path
    from oelm.report.notebook import as_frame

    with ExitStack() as stack:
        found, unreadable = find_runs([stack.enter_context(open_archives(Path(folder)))])
        rows = [{"folder": str(original_path(directory)), **_flatten(record)} for directory, record in found]
    for complaint in unreadable:
        print(complaint, file=sys.stderr)  # noqa: T201  (nothing is left out in silence)
    return as_frame(rows)


def _flatten(record: RunRecord) -> dict[str, Any]:
    spec, result, parameters, data = record.spec, record.result, record.parameters, record.data
    figures = ("val_loss", "test_loss", "test_perplexity", "val_accuracy", "test_accuracy", "tokens_per_second")
    return {
        "arm": spec.arm,
        "seed": spec.seed,
        "status": record.status,
        "corpus": spec.data.corpus,
        "learning_rate": spec.train.learning_rate,
        "steps": spec.train.steps,
        "step": record.step,
        **{name: getattr(result, name) if result else None for name in figures},
        "trainable": parameters.trainable if parameters else None,
        "frozen": parameters.frozen if parameters else None,
        "seconds": record.seconds.train if record.seconds else None,
        "vocab_size": data.vocab_size if data else None,
        "fingerprint": record.fingerprint,
        "record": record,
    }


def compare(study: AnyStudy | Place | Sequence[Place], runs: Place = "runs", *, force: bool = False) -> ShownComparison:
    """Compare the arms of a study seed by seed, or any runs on one corpus; refuse unfair comparisons.

    `study` is a Study, the file that declares one, the folder with its runs, or a list of run folders. `runs` is where
    `oelm.run` has put the runs. With `force`, an unfair comparison says what is unfair instead.

    Raises:
        IncomparableRuns: runs differ in more than the study declares; the message names the field.
        UsageError: there are no such runs, or they are on several corpora.

    """
    from oelm.analysis.compare import compare_folder, find_runs, find_study, gather
    from oelm.record.archive import open_archives
    from oelm.report.notebook import ShownComparison

    with ExitStack() as stack:
        if isinstance(study, Study | Listing):
            source: AnyStudy | Path = study
        elif isinstance(study, str | Path) and not _has_undeclared_runs(Path(study)):
            source = Path(study)
        else:
            places = [study] if isinstance(study, str | Path) else study
            found, unreadable = find_runs([stack.enter_context(open_archives(Path(place))) for place in places])
            gathered = gather(found, force=force, unreadable=unreadable).comparisons
            if len(gathered) != 1:
                names = ", ".join(each.study.name for each in gathered)
                raise UsageError(f"These runs are on several corpora ({names}). Compare the runs of one at a time.")
            return ShownComparison.of(gathered[0])
        declared, root = find_study(source, Path(runs))
        if isinstance(declared, Listing):
            raise UsageError(f"{declared.name!r} lists single runs, which have no reference. Give their folders.")
        return ShownComparison.of(compare_folder(declared, stack.enter_context(open_archives(root)), force=force))


def _has_undeclared_runs(path: Path) -> bool:
    """Whether a path is a folder without the declaration of a study, so that its runs are compared as they are."""
    from oelm.record.folder import STUDY

    return path.is_dir() and not (path / STUDY).is_file()


def load(path: Place, *, checkpoint: Literal["latest", "best"] = "latest", **options: Any) -> nn.Module:
    """Load a model with its method: from a run folder of any kind, or from what save_pretrained has written.

    A run's model is our GPT or the fine-tuned Hugging Face model, as it was at a checkpoint. For other folders and hub
    names, `options` are passed to `from_pretrained` (dtype, device_map, ...). Frozen weights are verified.

    Raises:
        BadData: there is no model, or it cannot be read.
        CheckpointError: it has no method, or a frozen weight has changed.

    """
    from oelm.record.folder import CHECKPOINTS, RECORD
    from oelm.train.checkpoint import STATE

    folder = Path(path)
    if any((folder / name).exists() for name in (RECORD, CHECKPOINTS, STATE)):
        from oelm.runs.restore import load_run

        return load_run(folder, checkpoint).model
    from oelm.interop.pretrained import load_pretrained

    return load_pretrained(path, **options)


def predict(path: Place, texts: Sequence[str | tuple[str, ...]]) -> list[Prediction]:
    """Predict the labels of texts with a fine-tuned run, or let an encoder-decoder write its answers.

    A row is one text, or a pair of texts for a task of pairs.
    """
    from oelm.runs.restore import load_run, predict_texts

    return predict_texts(load_run(Path(path)), [(row,) if isinstance(row, str) else tuple(row) for row in texts])
