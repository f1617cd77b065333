"""The record of a run: everything that comparisons and reports need, with its environment and its timing.

`record.json` is a `RunRecord`; `metrics.jsonl` next to it has one `MetricRecord` per line. Both are plain JSON and are
read without torch. Losses are mean natural-log losses per predicted token.
"""

from __future__ import annotations

import math
import os
import platform
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, computed_field

import oelm
from oelm.cores import available_cores
from oelm.errors import BadRecord
from oelm.files import strip_checksum
from oelm.spec import explain_validation
from oelm.spec.run import NUMERICS, RunSpec

SCHEMA = 1
Status = Literal["running", "complete", "interrupted", "failed"]
Failure = Literal["diverged", "out-of-memory", "error"]


class Record(BaseModel):
    """Base of all records. Later versions may add fields; unknown fields are ignored when reading.

    JSON has no NaN and no infinity, but a diverged run has both: they are written as the strings "NaN" and "Infinity"
    and read back as floats.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="strings")


RecordType = TypeVar("RecordType", bound=Record)


def refuse_link(path: Path) -> None:
    """Raise BadRecord for a link inside a results folder: it would read, or overwrite, a file anywhere else."""
    if path.is_symlink():
        raise BadRecord(
            f"{path} is a symbolic link. Links inside a results folder are not followed, because they may lead "
            "anywhere. Replace it by what it links to, or remove it."
        )


def read_if_present(path: Path, kind: type[RecordType], content: str, advice: str) -> RecordType | None:
    """Read an optional file; None where there is none. Raise BadRecord for a damaged file or a link."""
    try:
        refuse_link(path)
        return kind.model_validate_json(strip_checksum(path.read_bytes().decode()))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BadRecord(f"{path} cannot be read: {error.strerror}. Check who owns it.") from error
    except ValueError as error:
        raise BadRecord(f"{path} does not hold {content}: {explain_validation(error)}. {advice}") from error


def perplexity(loss: float) -> float:
    """Return exp(loss); infinite where a diverged loss overflows."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


class EnvironmentRecord(Record):
    """The machine, the versions and the command of a run."""

    oelm: str
    python: str
    torch: str
    platform: str
    device: str
    cores: int
    commit: str | None
    dirty: bool | None
    command: str


class ParametersRecord(Record):
    """Numbers of scalar parameters at the start of the run."""

    total: int
    trainable: int
    frozen: int
    qk: int = 0
    """Weights of Q and K, frozen or not."""
    repair: int = 0
    """Parameters that repairs of the logits train, to be compared with `qk`."""


class CostRecord(Record):
    """FLOPs of one training step and bytes of memory, by part, computed from shapes."""

    forward_flops: dict[str, int]
    backward_flops: dict[str, int]
    removed_flops: int
    """FLOPs that the method saves compared with a step of the same model fully trained."""
    weight_bytes: int
    optimizer_bytes: int
    activation_bytes: int | None = None
    """An estimate; None in older records."""


class SecondsRecord(Record):
    """Where the time of a run went, in seconds."""

    total: float
    train: float
    validation: float
    checkpoint: float
    processor: float | None = None
    """Processor seconds of the leading process in training steps, over its threads; None in older records."""
    timed_steps: int | None = None
    """Number of steps in `train`: fewer than the run's if it continues another program's checkpoint. None: all."""


class DataRecord(Record):
    """The corpus of a run: tokens per split, and what is known about it."""

    corpus: str
    checksum: str
    tokens: dict[str, int]
    vocab_size: int
    floor: dict[str, float] = {}
    """The lowest possible loss in nats per token, by split, if the corpus is generated."""
    rows: dict[str, int] = {}
    """Number of labelled texts by split."""
    labels: tuple[str, ...] = ()
    guess: float | None = None
    """Accuracy without a model: from counts alone on a probe, of the most common label on labelled text."""
    notes: tuple[str, ...] = ()
    """What was left out, truncated or duplicated."""
    tokenizer: str | None = None
    """SHA-256 that identifies the tokenizer; None in records of earlier versions."""


class ResultRecord(Record):
    """The results of a run. The figure to report is that of the test split at the end of training.

    It is `test_loss`, and for labelled text and probes `test_accuracy`. The `best` fields are secondary.
    """

    val_loss: float
    test_loss: float | None
    best_val_loss: float
    best_step: int
    val_accuracy: float | None = None
    """Share of labelled texts with the correct label, or of correct answers of a probe; also in the next two fields."""
    test_accuracy: float | None = None
    best_val_accuracy: float | None = None
    val_f1: float | None = None
    """Macro-averaged F1: the mean over the labels, each with the same weight."""
    test_f1: float | None = None
    train_tokens: int
    tokens_per_second: float
    flop_utilisation: float | None = None
    peak_memory_bytes: int

    @property
    def tuning_score(self) -> float:
        """What tuning minimises, on the whole validation split at the end of training: the loss, or the error rate.

        A millionth of the loss is added to the error rate, which only decides between equal error rates.
        """
        if self.val_accuracy is None:
            return self.val_loss
        return 1 - self.val_accuracy + 1e-6 * min(self.val_loss, 10.0)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def test_perplexity(self) -> float | None:
        """Perplexity of the test split; None for labels and for probes, whose other tokens are mostly random."""
        return None if self.test_loss is None or self.test_accuracy is not None else perplexity(self.test_loss)


class BranchRecord(Record):
    """The run whose checkpoint a run started from.

    A branch of a longer run has the weights and times of a run from scratch. A run that continues another one
    (`spec.continues`) does not.
    """

    fingerprint: str
    step: int


class RunRecord(Record):
    """One run, whether it succeeded or not."""

    schema_version: int = SCHEMA
    numerics: int = NUMERICS
    fingerprint: str
    status: Status
    spec: RunSpec
    environment: EnvironmentRecord
    started: str
    finished: str | None = None
    step: int = 0
    parameters: ParametersRecord | None = None
    cost: CostRecord | None = None
    data: DataRecord | None = None
    seconds: SecondsRecord | None = None
    result: ResultRecord | None = None
    frozen_hashes: dict[str, str] = {}
    """Frozen tensor -> sha256 of its bytes, verified at the end of the run."""
    failure: Failure | None = None
    """Kind of failure, if the status is `failed`."""
    error: str | None = None
    imported: bool = False
    """Whether another program made the run; this program only read its files and verified nothing."""
    branched_from: BranchRecord | None = None
    damage: tuple[str, ...] = ()
    """What was damaged and left out when the run was continued: lines of its curves."""
    files: dict[str, str] = {}
    """Name -> sha256 of the other files that the run left in its folder. Empty while it runs, and in older records."""

    @property
    def is_unscored(self) -> bool:
        """Whether a complete run was not scored on its test split because it is a tuning run.

        A study that uses the same run to confirm scores it first.
        """
        measured = self.result is not None and self.result.test_loss is not None
        has_test = self.data is not None and bool(self.data.tokens.get("test"))
        return self.status == "complete" and not self.spec.scores_test and has_test and not measured

    @property
    def last_words(self) -> str:
        """The last line of the error, which says what went wrong; empty without an error."""
        return (self.error or "").strip().rpartition("\n")[2]


class MetricRecord(Record):
    """One line of metrics.jsonl."""

    kind: Literal["train", "val"]
    step: Annotated[int, Field(lt=2**53)]
    loss: float
    seconds: float
    """Training seconds so far, without validation and checkpoints."""
    processor_seconds: float | None = None
    """Processor seconds of the leading process so far, in training steps, over its threads; None in older curves."""
    learning_rate: float | None = None
    tokens_per_second: float | None = None
    accuracy: float | None = None


# The environment of a run. It is read at the start of every run, so this is quick; what cannot be found out is None.

STATUS_SECONDS = 5.0
"""How long git may look for changes; a busy machine takes a while. After that `dirty` is None: unknown."""

_VECTORS = {"avx512f": "AVX-512", "avx2": "AVX2"}


def describe_environment(device: str, torch_version: str, command: str | None = None) -> EnvironmentRecord:
    """Describe this process. `device` is the name of the accelerator, or "cpu", whose model is looked up."""
    return EnvironmentRecord(
        oelm=oelm.__version__,
        python=platform.python_version(),
        torch=torch_version,
        platform=platform.platform(),
        device=cpu_model() if device == "cpu" else device,
        cores=available_cores(),
        commit=source_commit(),
        dirty=has_source_changes(),
        command=command if command is not None else command_line(sys.orig_argv),
    )


def command_line(words: Sequence[str], directory: Path | None = None) -> str:
    """Format a command as a person would type it, in the run's own `directory` if one is given.

    The path of the interpreter is left out, and paths into the run's folder and the working directory are relative.
    """
    rest = list(words[1:])
    program = [Path(words[0]).name] if words else []
    if rest[:2] == ["-m", "oelm"]:
        program, rest = ["oelm"], rest[2:]
    elif rest and Path(rest[0]).name == "oelm":
        program, rest = ["oelm"], rest[1:]
    return shlex.join([*program, *(_relative(word, directory) for word in rest)])


def _relative(word: str, directory: Path | None) -> str:
    path = Path(word)
    if not path.is_absolute():
        return word
    for folder in (directory.absolute() if directory else None, Path.cwd()):
        if folder and path.is_relative_to(folder):
            return path.relative_to(folder).as_posix()
    return word


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the kernel's name for the processor model with its widest vector instructions, else its architecture.

    One name may cover several generations, and the rounding of sums depends on the width of the vectors.
    """
    try:
        lines = [line.partition(":") for line in cpuinfo.read_text(errors="replace").splitlines()]
    except OSError:
        lines = []
    fields = {name.strip(): value.strip() for name, _, value in reversed(lines)}
    model = fields.get("model name") or platform.machine() or "cpu"
    flags = fields.get("flags", "").split()
    return next((f"{model} ({vectors})" for flag, vectors in _VECTORS.items() if flag in flags), model)


def source_tree() -> Path | None:
    """Return the checkout with this program's code, else the one around the working directory.

    An installed copy may be in a virtual environment inside some other checkout, which is not its source.
    """
    package = Path(oelm.__file__).resolve().parent
    own = checkout_around(package)
    if own and package == own / "src" / package.name:
        return own
    try:
        return checkout_around(Path.cwd())
    except OSError:  # the working directory has been removed
        return None


def source_commit() -> str | None:
    """Return the commit of this program's code; None if it is unknown."""
    tree = source_tree()
    return commit_of(tree) if tree else None


def has_source_changes() -> bool | None:
    """Whether tracked files of this program's code have uncommitted changes; None if it is unknown."""
    tree = source_tree()
    return is_dirty(tree) if tree and commit_of(tree) else None


def utc_now() -> str:
    """Return the present time in UTC, as records write it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def checkout_around(path: Path) -> Path | None:
    """Return the nearest folder at or above `path` that is a git checkout."""
    try:
        return next((folder for folder in (path, *path.parents) if (folder / ".git").exists()), None)
    except OSError:  # a folder above may not be readable
        return None


def commit_of(tree: Path) -> str | None:
    """Read the commit from git's files, which is faster and more reliable than starting git on a busy machine."""
    try:
        git, common = _git_folders(tree)
        head = (git / "HEAD").read_text().strip()
        if not head.startswith("ref: "):
            return head or None
        name = head.removeprefix("ref: ")
        for folder in (git, common):
            if (folder / name).is_file():
                return (folder / name).read_text().strip()
        packed = (common / "packed-refs").read_text().splitlines()
        return next((line.split()[0] for line in packed if line.endswith(f" {name}")), None)
    except (OSError, UnicodeDecodeError):
        return None


def _git_folders(tree: Path) -> tuple[Path, Path]:
    """Return the folder with HEAD and the index of a checkout, and the one with its objects and branches."""
    git = tree / ".git"
    if git.is_file():  # a worktree or submodule points to its directory
        git = tree / git.read_text().strip().removeprefix("gitdir: ")
    common = git / (git / "commondir").read_text().strip() if (git / "commondir").exists() else git
    return git, common


@cache
def history_of(tree: Path) -> frozenset[str] | None:
    """Return the checked-out commit and all its ancestors; None if git fails, or for a shallow clone."""
    if (tree / ".git" / "shallow").exists():
        return None
    listed = _git(tree, "rev-list", "HEAD")
    return frozenset(listed.split()) if listed else None


def is_outside_history(commit: str | None) -> bool:
    """Whether a commit is known not to be an ancestor of the present source, so that it cannot be looked up."""
    tree = source_tree()
    known = history_of(tree) if tree and commit else None
    return known is not None and commit not in known


def is_dirty(tree: Path) -> bool | None:
    """Ask git whether tracked files have changed; None if it does not answer in time."""
    changes = _git(tree, "status", "--porcelain", "--untracked-files=no", "--ignore-submodules=all")
    return None if changes is None else bool(changes.strip())


_PLAIN_SETTING = re.compile(
    r"^\s*(?:filemode|symlinks|ignorecase|autocrlf|eol)\s*=\s*\w+\s*$", re.MULTILINE | re.IGNORECASE
)
"""Settings of a checkout that decide whether a file has changed. None of them names a program."""


def _git(tree: Path, *arguments: str) -> str | None:
    """Return git's output; None if it fails or takes too long.

    The configuration of a checkout can name programs to run: a monitor of files, filters, hooks, a pager. A run may
    start inside a checkout that someone else made. So git gets the objects and the index of the checkout in an empty
    repository of our own, whose configuration has nothing but plain settings of the checkout.
    """
    try:
        git, common = _git_folders(tree)
        with tempfile.TemporaryDirectory(prefix="oelm-git-") as own:
            _write_plain_repository(Path(own), commit_of(tree), common / "config")
            where = {
                "GIT_DIR": own,
                "GIT_WORK_TREE": str(tree),
                "GIT_INDEX_FILE": str(git / "index"),
                "GIT_OBJECT_DIRECTORY": str(common / "objects"),
            }
            # Inside a hook, GIT_DIR and similar variables point to another repository.
            clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
            command = ["git", "--no-optional-locks", "--no-pager", "-C", str(tree), *arguments]
            done = subprocess.run(  # noqa: S603  (fixed arguments)
                command,
                env=clean | where,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=STATUS_SECONDS,
                check=True,
            )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace")


def _write_plain_repository(folder: Path, commit: str | None, config: Path) -> None:
    for name in ("objects", "refs"):
        (folder / name).mkdir()
    (folder / "HEAD").write_text(f"{commit}\n")
    settings = _PLAIN_SETTING.findall(config.read_text(errors="replace"))
    (folder / "config").write_text("\n".join(["[core]", *settings, "fsmonitor = false"]) + "\n")


# Statistics of the step times, as the published study defines them: `timing_stats.json`. The first steps (compilation,
# caches, the growing allocator) and steps over three times the median (other load on the machine) are not typical, so
# both are left out; the record says how many steps remain.

InitMethod = Literal["orthogonal", "normal", "n/a"]
WARMUP_STEPS = 100
OUTLIER = 3.0
"""Steps longer than this many medians are left out."""


class TimingRecord(Record):
    """`timing_stats.json`, with the published fields. Times are in seconds; None: nothing was measured."""

    model_type: str
    init_method: InitMethod
    dataset: str
    total_wall_time: float
    total_formatted: str
    num_steps_measured: int
    warmup_steps: int
    mean_step_time: float | None
    std_step_time: float | None
    median_step_time: float | None
    min_step_time: float | None
    max_step_time: float | None
    p95_step_time: float | None
    p99_step_time: float | None
    total_validation_time: float
    mean_validation_time: float | None
    num_validations: int
    epoch_times: tuple[float, ...]
    final_perplexity: float | None
    """exp(best_val_loss), as published; the figure to report is the record's test perplexity."""
    best_val_loss: float | None


def timing_stats(
    step_seconds: Sequence[float],
    *,
    model_type: str,
    init_method: InitMethod,
    dataset: str,
    total_wall_time: float,
    validation_seconds: Sequence[float] = (),
    epoch_seconds: Sequence[float] = (),
    best_val_loss: float | None = None,
) -> TimingRecord:
    """Compute the statistics of a run's step times, without its first ones."""
    warmup = warmup_of(len(step_seconds))
    kept = drop_outliers(step_seconds[warmup:])
    validation = math.fsum(validation_seconds)
    return TimingRecord(
        model_type=model_type,
        init_method=init_method,
        dataset=dataset,
        total_wall_time=total_wall_time,
        total_formatted=format_published_duration(total_wall_time),
        num_steps_measured=len(kept),
        warmup_steps=warmup,
        mean_step_time=statistics.fmean(kept) if kept else None,
        std_step_time=statistics.pstdev(kept) if kept else None,
        median_step_time=statistics.median(kept) if kept else None,
        min_step_time=kept[0] if kept else None,
        max_step_time=kept[-1] if kept else None,
        p95_step_time=quantile(kept, 0.95) if kept else None,
        p99_step_time=quantile(kept, 0.99) if kept else None,
        total_validation_time=validation,
        mean_validation_time=validation / len(validation_seconds) if validation_seconds else None,
        num_validations=len(validation_seconds),
        epoch_times=tuple(epoch_seconds),
        final_perplexity=None if best_val_loss is None else perplexity(best_val_loss),
        best_val_loss=best_val_loss,
    )


def warmup_of(steps: int) -> int:
    """Return the number of first steps to leave out: the published number, but at most a tenth of the run."""
    return min(WARMUP_STEPS, steps // 10)


def drop_outliers(step_seconds: Sequence[float]) -> list[float]:
    """Sort the times and leave out those over `OUTLIER` times the median."""
    if not step_seconds:
        return []
    limit = OUTLIER * statistics.median(step_seconds)
    return sorted(seconds for seconds in step_seconds if seconds <= limit)


def quantile(ordered: Sequence[float], share: float) -> float:
    """Interpolate between the two nearest sorted values (numpy's default rule)."""
    position = share * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


def format_published_duration(seconds: float) -> str:
    """Format a duration as published: "4h 31m 27s", "31m 27s", "27s"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h {minutes}m {rest}s"
    return f"{minutes}m {rest}s" if minutes else f"{rest}s"
