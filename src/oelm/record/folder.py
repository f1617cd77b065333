"""The folder of a run and the folder of a study: every file name, and every read and write of a run's files.

`RunFolder` owns the files of one run. No write leaves half a file. Functions below it read and write a study's own
declaration, and find the runs in a study's folder.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import shutil
import statistics
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Any, BinaryIO, Literal, Self, TextIO, TypeVar

from pydantic import ValidationError, model_validator

from oelm.errors import BadRecord, Damaged, UsageError
from oelm.files import (
    LINE_DIGITS,
    add_checksum,
    append_line,
    parse_checked,
    sha256_of,
    strip_checksum,
    write_atomically,
)
from oelm.record.archive import archives_below
from oelm.record.record import (
    SCHEMA,
    MetricRecord,
    Record,
    RunRecord,
    TimingRecord,
    read_if_present,
    refuse_link,
)
from oelm.spec import explain_validation
from oelm.spec.run import NUMERICS, RunSpec, Split, fingerprint
from oelm.spec.study import AnyStudy, Listing, Study

RECORD, METRICS, ATTENTION = "record.json", "metrics.jsonl", "attention.jsonl"
SPEC, SAMPLES, TIMING = "spec.json", "samples.txt", "timing_stats.json"
TEST_LOSSES, WINDOW_LOSSES, LOGIT_VARIANCE = "test_losses.json", "window_losses.json", "logit_variance.json"
LOG, ERRORS = "training.log", "stderr.log"
CHECKPOINTS = "checkpoints"
TOKENIZER = "tokenizer"
"""Folder with the run's own copy of its tokenizer: a vocabulary trained on a corpus is only in the data otherwise."""
LOOKS = "test_looks.jsonl"
"""When `oelm evaluate` scored a test split with the run's weights: see record/test_split.py."""
JOB = "job.json"
"""The Slurm job that the run was last given to."""
CLAIM = "claim."
"""Prefix of the lock files: see runs/lock.py."""
NOTES = "notes.json"
"""What a person wrote about the run: see `oelm note`. No result depends on it."""
STUDY = "study.json"
REGISTERED = "registered.json"
"""What a study declared before its first confirming run: see record/registration.py."""
PREDICTION = "prediction.json"
"""What a study predicted for its held-back sizes before any of their runs started."""
UNSEALED = "unsealed.json"
"""Scores of a study's final weights on a sealed split: see record/test_split.py."""
CANCELLED = "cancelled.json"
"""The runs of a study that no runner may start or continue until a runner is called for them again."""
_WRITTEN_BY_HOLDER = (RECORD, METRICS, ATTENTION, SAMPLES, TIMING, TEST_LOSSES, WINDOW_LOSSES, LOGIT_VARIANCE, LOG)
"""Files that only the process with the run's lock writes, so that their temporary files belong to it, too."""
PUBLISHED = ("best.pt", "latest.pt")
"""Checkpoints in the published layout, which the published command lines keep: see published/checkpoints.py."""
LISTED = _WRITTEN_BY_HOLDER[1:]
"""Files whose sha256 the record lists when the run has ended."""
_TAIL = 1 << 15
"""Number of bytes at the end of a curve in which its newest points are searched."""


class NotesRecord(Record):
    """What a person wrote about a run, for the results page."""

    text: str = ""
    tags: tuple[str, ...] = ()
    hidden: bool = False
    """Whether the results page leaves the run out unless asked."""


class AttentionRecord(Record):
    """A line of `attention.jsonl`: means over the tokens of some text, by layer and head, after a step."""

    step: int = 0
    entropy: tuple[tuple[float, ...], ...]
    """In nats: 0 for a head that attends to one token, log(T) for one that attends to all tokens equally."""
    distance: tuple[tuple[float, ...], ...]
    """Mean distance to the attended tokens, in tokens back."""


class LogitVarianceRecord(Record):
    """`logit_variance.json`: variances of a query's logits over its keys, by source, by layer and head.

    They are means over the queries of some validation windows, at the end of training.
    """

    tokens: int
    """Number of tokens in these windows."""
    content: tuple[tuple[float, ...], ...]
    """Variance of the product of queries and keys; rotary and learned positions act within it."""
    position: tuple[tuple[float, ...], ...]
    """Variance of position features and the position bias; zero where there are none."""

    @property
    def median_share(self) -> float | None:
        """The median over heads of content / (content + position); None where position is not a source of its own."""
        content, position = (list(itertools.chain.from_iterable(layers)) for layers in (self.content, self.position))
        if not any(position):
            return None
        pairs = zip(content, position, strict=True)
        return statistics.median(one / (one + other) for one, other in pairs if one + other)


class TestLossesRecord(Record):
    """`test_losses.json`: results on the single documents, examples or probes of the test split, in its order.

    Per document: summed nats and the number of predicted tokens. Per example: 1 if its label was predicted correctly.
    Per document of a probe: the number of correct answers, and of all answers. The bootstrap over the evaluation set
    reads this file.
    """

    __test__ = False  # a record, whatever pytest makes of its name

    kind: Literal["documents", "examples", "answers"]
    nats: tuple[float, ...] = ()
    tokens: tuple[int, ...] = ()
    correct: tuple[int, ...] = ()

    @model_validator(mode="after")
    def _require_fields_of_kind(self) -> Self:
        sizes = (len(self.nats), len(self.correct), len(self.tokens))
        size = max(sizes)
        asked = {"documents": (size, 0, size), "examples": (0, size, 0), "answers": (0, size, size)}[self.kind]
        if not size or sizes != asked:
            raise ValueError(
                "documents have as many nats as tokens, examples have `correct`, answers as many `correct` as tokens; "
                f"found nats, correct, tokens of lengths {sizes} for {self.kind}"
            )
        return self

    @property
    def size(self) -> int:
        """The number of documents or examples."""
        return len(self.nats) or len(self.correct)

    @property
    def share(self) -> float:
        """The share of examples or answers that are correct."""
        return sum(self.correct) / (sum(self.tokens) or self.size)


class TokenLosses(Record):
    """Summed nats and numbers of predicted tokens, by bin of positions."""

    nats: tuple[float, ...]
    tokens: tuple[int, ...]

    @property
    def mean(self) -> float | None:
        """The mean loss over all positions, in nats; None where there is no such token."""
        count = sum(self.tokens)
        return sum(self.nats) / count if count else None


class WindowLossesRecord(Record):
    """`window_losses.json`: the losses on one split, separately for repeats and other tokens, by bin of positions.

    A *repeat* completes a bigram that the window has already shown: the pair of the previous token and the token itself
    occurs earlier in the same window. Attention by content can predict it by looking up the earlier pair; attention by
    position cannot.
    """

    split: Split
    starts: tuple[int, ...]
    """First position of each bin; position 0 predicts the second token of a window from its first."""
    context: int
    """Positions in a window: the last bin ends here."""
    repeats: TokenLosses
    others: TokenLosses

    @model_validator(mode="after")
    def _require_a_value_for_each_bin(self) -> Self:
        sizes = {len(values) for each in (self.repeats, self.others) for values in (each.nats, each.tokens)}
        if sizes != {len(self.starts)}:
            raise ValueError(f"{len(self.starts)} bins of positions have values of lengths {sorted(sizes)}")
        return self

    @property
    def by_position(self) -> tuple[float | None, ...]:
        """The mean loss of each bin, repeats and others together."""
        both = zip(self.repeats.nats, self.others.nats, self.repeats.tokens, self.others.tokens, strict=True)
        return tuple((one + two) / (count + more) if count + more else None for one, two, count, more in both)

    @property
    def share_of_repeats(self) -> float:
        """The share of the predicted tokens that are repeats."""
        return sum(self.repeats.tokens) / max(1, sum(self.repeats.tokens) + sum(self.others.tokens))


class LookRecord(Record):
    """A line of `test_looks.jsonl`."""

    time: str
    checksum: str
    """Checksum of the data whose test split was scored."""
    checkpoint: str
    commit: str | None = None


class JobRecord(Record):
    """`job.json`: the Slurm job that a run was last given to."""

    job: str
    """Slurm's number: 17, or 17_3 for the third job of an array."""
    run: str
    """Fingerprint of the run as the study declares it; a run that has not started has no record that says so."""
    cancelled: bool = False
    """Whether `oelm cancel` stopped it, so that no runner submits it again."""


_LineType = TypeVar("_LineType", bound=Record)


def is_open_elsewhere(path: Path) -> bool:
    """Whether another process of this machine has a file open for writing; False where the system does not say."""
    if not path.exists():
        return False
    target, own = str(path.resolve()), str(os.getpid())
    for handle in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if handle.parts[2] != own and str(handle.readlink()) == target:
                flags = (handle.parents[1] / "fdinfo" / handle.name).read_text().split("flags:")[1].split()[0]
                if int(flags, 8) & (os.O_WRONLY | os.O_RDWR):
                    return True
        except (OSError, IndexError, ValueError):  # the process has ended, or belongs to someone else
            continue
    return False


class RunFolder:
    """The folder of one run: knows every file name in it and does every read and write.

    `check` is called just before a write takes effect. The process that holds the run's lock passes the lock's check,
    which raises RunLocked once another process has taken over: a process that was suspended writes nothing afterwards.
    """

    def __init__(self, path: Path, check: Callable[[], None] = lambda: None) -> None:
        self.path, self.check = path, check

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints, which train/checkpoint.py reads and writes."""
        return self.path / CHECKPOINTS

    @property
    def tokenizer(self) -> Path:
        """The folder of the tokenizer; missing for runs with GPT-2's, which every machine can get."""
        return self.path / TOKENIZER

    @property
    def spec(self) -> Path:
        """The file with the spec, which the run's process is given on its command line."""
        return self.path / SPEC

    @property
    def errors(self) -> Path:
        """The file to which the run's process writes its standard error."""
        return self.path / ERRORS

    # The record and the spec

    def has_record(self) -> bool:
        """Whether the run has started here."""
        return (self.path / RECORD).exists()

    def read_record(self) -> RunRecord:
        """Read the record; raise BadRecord if it is missing, damaged or edited."""
        path = self._own(RECORD)
        try:
            plain = parse_checked(path.read_bytes())
        except FileNotFoundError:
            raise BadRecord(f"{self.path} has no {RECORD}: no run has started there.") from None
        except OSError as error:
            raise _unreadable(path, error) from error
        except Damaged as error:
            raise BadRecord(
                f"{path} was changed after it was written: {error}. Restore it; `oelm verify` says what else is "
                "damaged and what can be repaired."
            ) from error
        except ValueError as error:
            raise BadRecord(
                f"{path} is not whole JSON ({error}). Records are written in one step, so something else has "
                "changed it. Restore it, or run again."
            ) from error
        version = plain.get("schema_version") if isinstance(plain, dict) else None
        if isinstance(version, int) and version > SCHEMA:
            raise BadRecord(f"{path} has schema version {version}; this program knows up to {SCHEMA}. Update oelm.")
        try:
            record = RunRecord.model_validate(plain)
        except ValidationError as error:
            raise BadRecord(f"{path} is not a run's record: {explain_validation(error)}.") from error
        if record.numerics == NUMERICS and record.fingerprint != fingerprint(record.spec):
            raise BadRecord(
                f"{path} says it is run {record.fingerprint}, but its spec is that of {fingerprint(record.spec)}: "
                "one of the two was edited. Restore it, or move the folder away and run again."
            )
        return record

    def write_record(self, record: RunRecord) -> None:
        """Write the record."""
        self._write(RECORD, add_checksum(record.model_dump_json(indent=1) + "\n"))

    def hash_files(self) -> dict[str, str]:
        """Return the sha256 of every other file that the run has written, for its record."""
        own = [f"{TOKENIZER}/{path.name}" for path in sorted(self.tokenizer.glob("[!.]*"))]
        return {name: sha256_of(self.path / name) for name in (*LISTED, *own) if (self.path / name).is_file()}

    def read_spec(self) -> RunSpec:
        """Read the spec that a runner left for the run's process; raise BadRecord if it is damaged."""
        try:
            return RunSpec.model_validate(parse_checked(self.spec.read_bytes()))
        except ValueError as error:
            raise BadRecord(
                f"{self.spec} is not the spec of a run: {explain_validation(error)}. Run it again."
            ) from error

    def write_spec(self, run: RunSpec) -> None:
        """Write the spec for the run's process."""
        self._write(SPEC, add_checksum(run.model_dump_json(indent=1) + "\n"))

    def write_tokenizer(self, files: Mapping[str, bytes]) -> None:
        """Write the files of the tokenizer. A resumed run writes the same bytes again."""
        for name, content in files.items():
            self._write(f"{TOKENIZER}/{name}", content)

    # Curves and the log

    def read_metrics(self, complaints: list[str] | None = None) -> list[MetricRecord]:
        """Read the curve. A last line that a crash cut short is left out: the resumed run writes it again.

        Damaged and missing lines are reported in `complaints`; without it, they raise BadRecord.
        """
        return self._read_lines(METRICS, MetricRecord, complaints)

    def last_metric(self, kind: Literal["train", "val"]) -> MetricRecord | None:
        """Return the newest metric of a kind, reading only the end of the file."""
        try:
            with self._own(METRICS).open("rb") as file:
                return newest_metrics(file).get(kind)
        except FileNotFoundError:
            return None

    def read_attention(self, complaints: list[str] | None = None) -> list[AttentionRecord]:
        """Read the attention statistics, the last step last; empty where there are none. For damage see the curve."""
        return self._read_lines(ATTENTION, AttentionRecord, complaints)

    def append_metric(self, file: TextIO, metric: MetricRecord) -> None:
        """Add a line to the curve, which `open_curve` has opened."""
        self.check()
        print(_format_line(metric), file=file, flush=True)

    def append_attention(self, record: AttentionRecord) -> None:
        """Add a line to the attention statistics.

        The lock is checked before the file is created, and again once it is open: the next holder replaces the file, so
        a line that comes late goes nowhere.
        """
        self.check()
        with self._own(ATTENTION).open("a") as file:
            self.check()
            print(_format_line(record), file=file)

    def count_lines(self) -> dict[str, int]:
        """Count the lines of metrics and attention, to be saved with a checkpoint."""
        return {name: self._read_text(name).count("\n") for name in (METRICS, ATTENTION)}

    def drop_steps_after(self, step: int, saved: Mapping[str, int] | None = None) -> list[str]:
        """Remove the lines of metrics and attention for steps that a resumed run will do again.

        Damaged lines are removed as well. Return what is lost, also compared with the numbers of lines that were
        `saved` with the checkpoint.
        """
        lost: list[str] = []
        attention = [look for look in self.read_attention(lost) if look.step <= step]
        if (self.path / ATTENTION).exists():
            self._write_lines(ATTENTION, attention)
        metrics = [metric for metric in self.read_metrics(lost) if metric.step <= step]
        self._write_lines(METRICS, metrics)
        for name, lines in ((METRICS, metrics), (ATTENTION, attention)):
            missing = (saved or {}).get(name, 0) - len(lines)
            if missing > 0:
                lost.append(f"{name} has lost {missing} of the {len(lines) + missing} lines up to step {step}.")
        return lost

    def copy_curves_from(self, other: RunFolder) -> None:
        """Take over the curves of a run that this one branches off."""
        for name in (METRICS, ATTENTION):
            if (other.path / name).exists():
                self._write(name, other._own(name).read_bytes())

    def open_curve(self) -> TextIO:
        """Open the metrics to add lines; the caller calls `check` before each line."""
        return self._own(METRICS).open("a")

    def open_log(self) -> TextIO | None:
        """Open the log to add lines; the caller calls `check` before each line.

        The log is replaced by a copy first, so that a line of a holder that was succeeded goes nowhere. Return None if
        another process has the file open, as in `... 2>&1 | tee FOLDER/training.log`: that process writes everything
        that is printed, and two writers would overwrite each other's lines.
        """
        log = self._own(LOG)
        if is_open_elsewhere(log):
            return None
        if log.exists():
            self._write(LOG, log.read_bytes())
        return log.open("a")

    # Results next to the record

    def write_timing(self, timing: TimingRecord) -> None:
        """Write the statistics of the step times."""
        self._write(TIMING, timing.model_dump_json(indent=1) + "\n")

    def write_logit_variance(self, record: LogitVarianceRecord) -> None:
        """Write the variances of the logits."""
        self._write(LOGIT_VARIANCE, add_checksum(record.model_dump_json() + "\n"))

    def read_logit_variance(self) -> LogitVarianceRecord | None:
        """Read the variances of the logits; None where there are none. Raise BadRecord for a damaged file."""
        return self._read_listed(LOGIT_VARIANCE, LogitVarianceRecord, "variances of logits")

    def write_test_losses(self, losses: TestLossesRecord) -> None:
        """Write the losses by document or example; nats to four decimals, which keeps the file small."""
        rounded = losses.model_copy(update={"nats": tuple(round(value, 4) for value in losses.nats)})
        self._write(TEST_LOSSES, add_checksum(rounded.model_dump_json(exclude_defaults=True) + "\n"))

    def read_test_losses(self) -> TestLossesRecord | None:
        """Read the losses by document or example; None where there are none. Raise BadRecord for a damaged file."""
        return self._read_listed(TEST_LOSSES, TestLossesRecord, "losses by document or example")

    def write_window_losses(self, losses: WindowLossesRecord) -> None:
        """Write the losses by position; nats to four decimals, which keeps the file small."""
        rounded = {
            name: each.model_copy(update={"nats": tuple(round(value, 4) for value in each.nats)})
            for name, each in {"repeats": losses.repeats, "others": losses.others}.items()
        }
        self._write(WINDOW_LOSSES, add_checksum(losses.model_copy(update=rounded).model_dump_json() + "\n"))

    def read_window_losses(self) -> WindowLossesRecord | None:
        """Read the losses by position; None where there are none. Raise BadRecord for a damaged file."""
        return self._read_listed(WINDOW_LOSSES, WindowLossesRecord, "losses by position")

    def write_samples(self, text: str) -> None:
        """Write outputs of the model for people to read."""
        self._write(SAMPLES, text)

    # Looks at the test split, and the Slurm job

    def append_look(self, look: LookRecord) -> None:
        """Note that the test split is about to be scored; on the disk when this returns."""
        append_line(self._own(LOOKS), add_checksum(look.model_dump_json(), LINE_DIGITS))

    def read_looks(self) -> list[LookRecord]:
        """Read the looks at a test split that `oelm evaluate` has noted."""
        try:
            return [parse_line(line, LookRecord) for line in self._read_text(LOOKS, "strict").splitlines()]
        except ValueError as error:
            reason = explain_validation(error)
            raise BadRecord(f"{self.path / LOOKS} is not a list of looks at a test split: {reason}.") from error

    def read_job(self) -> JobRecord | None:
        """Read which Slurm job the run was given to; None without a job, or if the file cannot be read."""
        try:
            return JobRecord.model_validate(parse_checked((self.path / JOB).read_bytes()))
        except (OSError, ValueError):
            return None

    def write_job(self, job: JobRecord) -> None:
        """Write down which Slurm job the run was given to."""
        self._write(JOB, add_checksum(job.model_dump_json() + "\n"))

    def read_notes(self) -> NotesRecord:
        """Read what a person wrote about the run; empty notes if there are none. Raise BadRecord if unreadable."""
        path = self.path / NOTES
        try:
            return NotesRecord.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return NotesRecord()
        except (OSError, ValueError) as error:
            reason = explain_validation(error)
            raise BadRecord(f"{path} cannot be read as notes ({reason}). Correct it, or remove it.") from error

    def write_notes(self, notes: NotesRecord) -> None:
        """Write what a person says about the run."""
        self._write(NOTES, notes.model_dump_json(indent=1) + "\n")

    def remove_leftovers(self) -> None:
        """Remove the temporary files of processes that held the lock before.

        A process that was suspended between its last check and the rename of such a file then fails to rename it.
        """
        names = [f".{name}." for name in (*_WRITTEN_BY_HOLDER, *PUBLISHED)]
        leftovers = [path for path in self.path.iterdir() if path.name.startswith(tuple(names))]
        leftovers += self.tokenizer.glob(".*")
        leftovers += [path for path in self.checkpoints.glob(".*.*") if path.suffix[1:].isdigit()]
        self.check()  # what was listed before this check belongs to no later holder
        for path in leftovers:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    def refuse_links(self) -> None:
        """Raise BadRecord if a file or folder that a run writes is a link: see `refuse_link`."""
        for name in (*_WRITTEN_BY_HOLDER, ERRORS, LOOKS, CHECKPOINTS, TOKENIZER, "tensorboard"):
            self._own(name)

    def _own(self, name: str) -> Path:
        """Return the path of a file in this folder, which must not be a link."""
        refuse_link(self.path / name)
        return self.path / name

    def _write(self, name: str, content: str | bytes) -> None:
        try:
            write_atomically(self.path / name, content, self.check)
        except FileNotFoundError:  # the next holder of the lock has removed the temporary file
            self.check()
            raise

    def _write_lines(self, name: str, records: list[MetricRecord] | list[AttentionRecord]) -> None:
        self._write(name, "".join(_format_line(record) + "\n" for record in records))

    def _read_lines(self, name: str, kind: type[_LineType], complaints: list[str] | None) -> list[_LineType]:
        """Read the complete lines of a JSONL file that are not damaged, and report the others."""
        text = self._read_text(name)
        found, problems = parse_lines(text, kind, f"{self.path.name}: {name}")
        if not problems and self._is_changed(name):
            problems = [f"{self.path.name}: {name} is not as the run left it: lines are missing or were added."]
        if problems and complaints is None:
            raise BadRecord(problems[0])
        if complaints is not None:
            complaints += problems
        return found

    def _read_listed(self, name: str, kind: type[_LineType], content: str) -> _LineType | None:
        """Read an optional file; raise BadRecord if it is damaged, or not the file that the record lists."""
        advice = "Restore it; a copy by `oelm verify --repair` leaves it out and says so."
        found = read_if_present(self.path / name, kind, content, advice)
        if self._is_changed(name):
            state = "is not as the run left it" if found else "is missing, although the record lists it"
            raise BadRecord(f"{self.path / name} {state}. {advice}")
        return found

    def _is_changed(self, name: str) -> bool:
        """Whether a file is not the one that the record of an ended run lists."""
        try:
            listed = parse_checked((self.path / RECORD).read_bytes())["files"][name]
            return bool(sha256_of(self.path / name) != listed)
        except FileNotFoundError:
            return (self.path / RECORD).exists()
        except (OSError, ValueError, LookupError, TypeError, RecursionError):  # an older record, or a damaged one
            return False

    def _read_text(self, name: str, errors: str = "replace") -> str:
        """Return the text of an optional file; empty where there is none. Bytes that are not text are replaced."""
        try:
            return self._own(name).read_text(errors=errors)
        except FileNotFoundError:
            return ""
        except OSError as error:
            raise _unreadable(self.path / name, error) from error


def _unreadable(path: Path, error: OSError) -> BadRecord:
    return BadRecord(f"{path} cannot be read: {error.strerror}. Check who owns it.")


def _format_line(record: MetricRecord | AttentionRecord) -> str:
    return add_checksum(record.model_dump_json(exclude_none=True), LINE_DIGITS)


def parse_line(line: str, kind: type[_LineType]) -> _LineType:
    """Read one line of a JSONL file; raise ValueError if it is damaged."""
    return kind.model_validate_json(strip_checksum(line))


def parse_lines(text: str, kind: type[_LineType], source: str) -> tuple[list[_LineType], list[str]]:
    """Read the complete lines of a JSONL file; return them and what is wrong with the damaged ones.

    A last line that a crash cut short is left out.
    """
    found, problems = [], []
    for number, line in enumerate(text.split("\n")[:-1], 1):
        try:
            found.append(parse_line(line, kind))
        except ValueError as error:
            problems.append(
                f"{source}, line {number}, is damaged and left out ({explain_validation(error)}): {line[:80]!r}."
            )
    return found, problems


def newest_metrics(file: BinaryIO) -> dict[str, MetricRecord]:
    """Return the last point of each kind, from the end of an open curve. Damaged lines are skipped."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _TAIL))
    found: dict[str, MetricRecord] = {}
    for line in reversed(file.read().split(b"\n")[:-1]):
        with suppress(ValueError):
            metric = parse_line(line.decode(), MetricRecord)
            found.setdefault(metric.kind, metric)
        if len(found) == 2:  # training and validation
            break
    return found


# Shorthands for the methods of RunFolder that readers in other packages use most


def read_record(directory: Path) -> RunRecord:
    """Read the record in a run's folder."""
    return RunFolder(directory).read_record()


def write_record(directory: Path, record: RunRecord) -> None:
    """Write the record into a run's folder."""
    RunFolder(directory).write_record(record)


def read_metrics(directory: Path, complaints: list[str] | None = None) -> list[MetricRecord]:
    """Read the curve in a run's folder; see `RunFolder.read_metrics` for damaged lines."""
    return RunFolder(directory).read_metrics(complaints)


def read_attention(directory: Path, complaints: list[str] | None = None) -> list[AttentionRecord]:
    """Read the attention statistics in a run's folder; see `RunFolder.read_metrics` for damaged lines."""
    return RunFolder(directory).read_attention(complaints)


def read_logit_variance(directory: Path) -> LogitVarianceRecord | None:
    """Read the variances of the logits in a run's folder."""
    return RunFolder(directory).read_logit_variance()


def read_test_losses(directory: Path) -> TestLossesRecord | None:
    """Read the losses by document or example in a run's folder."""
    return RunFolder(directory).read_test_losses()


def read_window_losses(directory: Path) -> WindowLossesRecord | None:
    """Read the losses by position in a run's folder."""
    return RunFolder(directory).read_window_losses()


# The runs of a study, and its declaration


def run_directory(root: Path, run: RunSpec) -> Path:
    """Return the folder of a run: its label, or its arm and seed, for people; its fingerprint to be unique."""
    name = run.label or f"{run.arm}-seed{run.seed}"
    return root / f"{name.replace(':', '_').replace('/', '_')}_{fingerprint(run)}"


def find_records(root: Path) -> tuple[list[tuple[Path, RunRecord]], list[BadRecord]]:
    """Read every record below a folder; also return an error for each one that cannot be read.

    Folders whose names begin with a dot are skipped: they are incomplete, or a killed process left them.
    """
    found: list[tuple[Path, RunRecord]] = []
    bad: list[BadRecord] = []
    for path in sorted(root.glob(f"**/{RECORD}")):
        if any(part.startswith(".") for part in path.relative_to(root).parts):
            continue
        try:
            found.append((path.parent, read_record(path.parent)))
        except BadRecord as error:
            bad.append(error)
    # Archives are opened before they are read. Without this line an archived study would look like one without runs.
    bad += [BadRecord(f"{path} is an archive. Unpack it with `oelm unpack`.") for path in archives_below(root)]
    return found, bad


def find_jobs(root: Path) -> dict[Path, JobRecord]:
    """Return the runs of a study that were given to Slurm: their folders and the jobs."""
    found = {path.parent: RunFolder(path.parent).read_job() for path in root.glob(f"*/{JOB}")}
    return {directory: record for directory, record in found.items() if record}


def write_study(root: Path, study: AnyStudy) -> None:
    """Write a study's declaration next to its runs, so that it can be reported without the file that declared it.

    Absolute paths are left out: reports are committed, and no run depends on where its data are. The declaration of a
    registered study is never replaced.
    """
    text = study_without_paths(study).model_dump_json(indent=1) + "\n"
    path = root / STUDY
    if path.exists() and (root / REGISTERED).exists():
        return
    checked = add_checksum(text)
    if not path.exists() or path.read_text(errors="replace") not in (text, checked):  # the first is of an older version
        write_atomically(path, checked)


def read_study(root: Path) -> AnyStudy:
    """Read the declaration with which a study was last run or reported."""
    path = root / STUDY
    refuse_link(path)
    try:
        plain = parse_checked(path.read_bytes())
        return (Listing if "listed" in plain else Study).model_validate(plain)
    except FileNotFoundError:
        raise UsageError(
            f"{root} is not the folder of a study: it has no {STUDY}. Give the Python file that declares the study; "
            "`oelm run` and `oelm report` then write its declaration next to the runs."
        ) from None
    except OSError as error:
        raise _unreadable(path, error) from error
    except (ValueError, TypeError) as error:
        reason = explain_validation(error)
        raise BadRecord(
            f"{path} does not hold a study: {reason}. `oelm run` or `oelm report` with the study's file writes it "
            "again."
        ) from error


def study_folders(root: Path) -> list[Path]:
    """Return the folders of studies at or below a folder."""
    return sorted(path.parent for path in root.glob(f"**/{STUDY}"))


def read_cancelled(root: Path) -> set[str]:
    """Return the fingerprints of the declared runs of a study that were cancelled."""
    try:
        plain = parse_checked((root / CANCELLED).read_bytes())
        return set(plain["runs"] if isinstance(plain, dict) else plain)  # a list in an earlier version
    except (OSError, ValueError, LookupError, TypeError):  # a missing or edited file holds nothing back
        return set()


def write_cancelled(root: Path, fingerprints: set[str]) -> None:
    """Write which declared runs of a study are cancelled."""
    if fingerprints:
        write_atomically(root / CANCELLED, add_checksum(json.dumps({"runs": sorted(fingerprints)}) + "\n"))
    else:
        (root / CANCELLED).unlink(missing_ok=True)


# Values without the absolute paths of this machine, which mean nothing elsewhere and are private.

_QUOTED = re.compile(r"""(["'`])(/[^"'`\n]*)\1""")
_BARE = re.compile(
    r"(?:(?<![\w./~:@%+-])(?:file:/+)?|(?<=:)(?=/[^/]))"  # not within a relative path, nor an address of the web
    r"""/(?:\\.|[^\s"'`,;:)\]}>\\])+"""
)
_OPTION = re.compile(r"(-[\w.-]+=)(/.*)", re.DOTALL)


def run_without_paths(run: RunSpec) -> RunSpec:
    """Return the spec without absolute paths of its data. They have no effect, so the fingerprint is the same."""
    absolute = {
        name: None
        for name in ("directory", "source")
        if (path := getattr(run.data, name, None)) is not None and path.is_absolute()
    }
    changed: dict[str, Any] = {"data": run.data.model_copy(update=absolute)} if absolute else {}
    if run.continues and run.continues.folder and run.continues.folder.is_absolute():
        changed["continues"] = run.continues.model_copy(update={"folder": None})
    return run.model_copy(update=changed) if changed else run


def study_without_paths(study: AnyStudy) -> AnyStudy:
    """Return the study without absolute paths in any run that it declares."""
    if isinstance(study, Listing):
        return study.model_copy(update={"listed": tuple(map(run_without_paths, study.listed))})
    return study.model_copy(update={"base": run_without_paths(study.base)})


def record_without_paths(record: RunRecord) -> RunRecord:
    """Return the record without absolute paths in its spec, its command and its error with any traceback."""
    command = command_without_paths(record.environment.command)
    return record.model_copy(
        update={
            "spec": run_without_paths(record.spec),
            "environment": record.environment.model_copy(update={"command": command}),
            "error": None if record.error is None else text_without_paths(record.error),
        }
    )


def command_without_paths(command: str) -> str:
    """Replace each absolute path in a command by its last part, also in the values of options."""
    try:
        words = shlex.split(command)
    except ValueError:  # a quote that is never closed: written by hand
        return text_without_paths(command)
    return shlex.join(map(_shorten_word, words))


def text_without_paths(text: str) -> str:
    """Replace each absolute path in a text by its last part. An unquoted path is taken to end at a space."""
    quoted = _QUOTED.sub(lambda found: f"{found[1]}{PurePath(found[2]).name}{found[1]}", text)
    return _BARE.sub(lambda found: PurePath(found[0]).name, quoted)


def _shorten_word(word: str) -> str:
    if word.startswith("/"):
        return PurePath(word).name
    option = _OPTION.fullmatch(word)
    return option[1] + PurePath(option[2]).name if option else text_without_paths(word)
