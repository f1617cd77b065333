"""An index of the runs and studies in a folder, updated on request.

There is no database. Every update walks the folders, which takes milliseconds for a thousand runs, and reads only the
files whose time, size or inode changed, for about a second: of thousands of new runs each update reads some, so that
the page answers at once and fills up. Each change gets the next revision, so that a page can ask for the changes since
the revision that it has.
"""

from __future__ import annotations

import os
import secrets
import stat
import time
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO, NamedTuple, get_args

from oelm.analysis.evidence import format_value, list_meaning
from oelm.errors import BadRecord, OelmError
from oelm.record.folder import (
    CLAIM,
    METRICS,
    NOTES,
    RECORD,
    SPEC,
    STUDY,
    RunFolder,
    newest_metrics,
    read_record,
    read_study,
)
from oelm.record.record import MetricRecord, RunRecord, perplexity
from oelm.record.stages import StageName, index_by_declaration, is_settled, stage_of
from oelm.report.wording import Language
from oelm.report.write import PAGE, report_folder
from oelm.spec.run import declared_fingerprint, fingerprint
from oelm.spec.study import AnyStudy, Study

# Requests never contain paths: they are keys of the index, which comes from walking the folder. `Folder` is the second
# protection. A file that is opened must be below the folder after all links have been followed, and it must be a plain
# file, because a pipe would wait for a writer forever.


class Folder:
    """Read access to a folder of runs and to nothing outside of it."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()

    def key(self, path: Path) -> str:
        """Return a path below the folder as text, also if its bytes are not valid UTF-8; the folder itself is ""."""
        relative = path.relative_to(self.root).as_posix()
        return "" if relative == "." else os.fsencode(relative).decode("utf-8", "backslashreplace")

    def follow(self, path: Path) -> Path:
        """Resolve a path. Raise BadRecord if it is outside the folder, FileNotFoundError if it does not exist."""
        try:
            real = path.resolve(strict=True)
        except RuntimeError:
            raise BadRecord(f"{path} is a link to itself. Remove it.") from None
        if not real.is_relative_to(self.root):
            raise BadRecord(
                f"{path} is a link that leads out of {self.root}, so this page does not read it. Start `oelm serve` "
                "on the target folder."
            )
        if real != path:
            raise BadRecord(
                f"{path} is a link. Links inside a results folder are not followed. Replace it by the file."
            )
        return real

    def open(self, path: Path) -> BinaryIO:
        """Open a plain file below the folder for reading."""
        real = self.follow(path)
        handle = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise BadRecord(f"{path} is not a plain file, so it cannot be read.")
        return os.fdopen(handle, "rb")

    def read(self, path: Path, limit: int) -> bytes:
        """Read at most `limit` bytes of a file."""
        with self.open(path) as file:
            return file.read(limit)


REPORTS = tuple(report_folder(Path(), lang).name for lang in get_args(Language))
LOOK_SECONDS = 1.0
"""Least time between two updates of the index."""
READ_SECONDS = 1.0
"""Processor time after which an update leaves the other new runs to the next one."""

MOST_BYTES = 1 << 26
"""Largest record or declaration that is read. Real ones have some kilobytes."""

Signature = tuple[int, int, int] | None
"""Time, size and inode of a file; None if it does not exist."""


@dataclass(frozen=True)
class Seen:
    """The state of a run folder during a walk."""

    directory: Path
    record: Signature
    metrics: Signature
    notes: Signature = None
    beat: float | None = None
    """When the process that runs it last touched its lock file."""


@dataclass
class Run:
    """A run in the index."""

    seen: Seen
    record: RunRecord | None
    reason: str | None
    """Why the record cannot be read."""
    row: dict[str, Any]
    revision: int


@dataclass
class StudyFolder:
    """A folder of runs, the study declared in it, and its reports."""

    directory: Path
    signature: Signature = None
    study: AnyStudy | None = None
    reason: str | None = None
    stage: StageName | None = None
    """The stage of a study that tunes; None if there is only one stage."""
    declared: frozenset[str] | None = None
    """The declared runs that are known so far; None without a declaration."""
    settled: frozenset[str] = frozenset()
    """The runs in the folder that have ended with a result."""
    done: int = 0
    """How many of them are declared. After a change of the study, some may not be."""
    reports: tuple[str, ...] = ()
    """The folders of its reports, one per language."""


@dataclass
class Walk:
    """The result of one walk over the folder."""

    runs: dict[str, Seen] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


class Changes(NamedTuple):
    """The changes since a revision."""

    rows: list[dict[str, Any]]
    gone: list[str]
    """Keys of removed runs."""
    whole: bool
    """Whether `rows` contains all rows."""
    revision: int
    """The revision that the rows describe."""


class FolderIndex:
    """The runs and studies of a folder."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.runs: dict[str, Run] = {}
        self.studies: dict[str, StudyFolder] = {}
        self.problems: list[str] = []
        self.revision = 0
        self.epoch = secrets.token_hex(4)
        """Random value of this server. Revisions of another epoch are ignored."""
        self._gone: dict[str, int] = {}
        self._looked = -LOOK_SECONDS
        self._lock = Lock()
        self.unread = 0
        """New runs and studies that the next update reads."""

    def look(self) -> None:
        """Update the index."""
        with self._lock:
            if not self.unread and time.monotonic() - self._looked < LOOK_SECONDS:
                return
            self.unread, until = 0, time.process_time() + READ_SECONDS
            walk = Walk()
            _walk(self.folder, self.folder.root, walk)
            for key in self.runs.keys() - walk.runs.keys():
                del self.runs[key]
                self._gone[key] = self._next()
            for key, seen in walk.runs.items():
                known = self.runs.get(key)
                if known is None or known.seen != seen:
                    if time.process_time() > until:
                        self.unread += 1
                        continue
                    self.runs[key] = self._examine(key, seen, known)
                    self._gone.pop(key, None)
            self._update_studies(until + READ_SECONDS / 2)
            waiting = [f"{self.unread:,} new runs and studies are still being read."] if self.unread else []
            self.problems = [*walk.problems, *waiting]
            self._looked = time.monotonic()

    def find(self, key: str) -> Run | None:
        """Update the index and return the run with a key."""
        self.look()
        while self.unread and key not in self.runs:
            self.look()
        return self.runs.get(key)

    def changes(self, epoch: str, since: int) -> Changes:
        """Return the changes since a revision."""
        with self._lock:  # so that no other update changes the revision meanwhile
            whole = epoch != self.epoch or since > self.revision
            if whole:
                since = 0
            rows = [run.row for run in self.runs.values() if run.revision > since]
            gone = [] if whole else [key for key, revision in self._gone.items() if revision > since]
            return Changes(rows, gone, whole, self.revision)

    def _next(self) -> int:
        self.revision += 1
        return self.revision

    def _examine(self, key: str, seen: Seen, known: Run | None) -> Run:
        record, reason = (known.record, known.reason) if known else (None, None)
        if known is None or known.seen.record != seen.record:
            record, reason = _read(self.folder, seen.directory)
            reason = reason and reason.replace(f"{self.folder.root}{os.sep}", "")
        newest = _newest(self.folder, seen.directory)
        study = self.folder.key(seen.directory.parent) if key else ""
        row = {
            "id": key, "name": seen.directory.name, "study": study, "written": _written(seen), "beat": seen.beat,
            **(_row(record, newest) if record else {"status": _status_without_record(seen), "reason": reason}),
            **_notes(self.folder, seen),
        }  # fmt: skip
        return Run(seen, record, reason, row, self._next())

    def _update_studies(self, until: float) -> None:
        folders = {
            run.row["study"]: run.seen.directory.parent if key else self.folder.root for key, run in self.runs.items()
        }
        members: dict[str, dict[str, RunRecord]] = {key: {} for key in folders}
        for name, run in self.runs.items():
            if run.record and is_settled(run.record):
                members[run.row["study"]][name] = run.record
        studies = {}
        for key, directory in folders.items():
            known, ended = self.studies.get(key) or StudyFolder(directory), members[key]
            signature = _signature(directory / STUDY)
            grown = known.settled != ended.keys()
            if known.signature != signature or (known.stage and grown):
                if time.process_time() > until:
                    self.unread += 1
                    studies[key] = known
                    continue
                # A study that tunes gets new runs from its results; other studies are expanded once.
                known, grown = _read_study_folder(self.folder, directory, signature, list(ended.values())), True
            if grown:
                known.settled, names = frozenset(ended), index_by_declaration(ended.values())
                known.done = len(ended) if known.declared is None else len(known.declared & names.keys())
            known.reports = tuple(name for name in REPORTS if _signature(directory / name / PAGE))
            studies[key] = known
        self.studies = studies
        for run in self.runs.values():
            self._describe_place(run, studies[run.row["study"]])

    def _describe_place(self, run: Run, found: StudyFolder) -> None:
        """Add to a row what the study of the run says about it: what it tries, whether it tunes, which run it is.

        Test results of tuning runs are hidden, so that they cannot influence choices.
        """
        study, row = found.study, run.row
        if run.record is None:
            return
        place: dict[str, Any] = {"tried": {}, "tunes": False, "declared": None}
        if study is not None:  # by this the page finds records of one run, of which only one counts
            place["declared"] = row.get("declared") or declared_fingerprint(run.record.spec)
        if isinstance(study, Study):
            varied = [*study.tuned, *study.axes, *(field for size in study.sizes.values() for field in size)]
            place["tried"] = {field: row["fields"][field] for field in varied if field in row["fields"]}
            place["tunes"] = row["seed"] in study.tuning_seeds
        if place["tunes"]:
            place |= {"test_perplexity": None, "test_accuracy": None}
        # The study may have been read after the page got the row.
        if any(row.get(name, self) != value for name, value in place.items()):
            row |= place
            run.revision = self._next()


def _walk(folder: Folder, directory: Path, walk: Walk) -> None:
    try:
        with os.scandir(directory) as found:
            entries = {entry.name: entry for entry in found}
    except OSError as error:
        walk.problems.append(f"{directory} cannot be listed: {error.strerror}. Check its permissions.")
        return
    if RECORD in entries or SPEC in entries:  # a run folder contains no other runs
        files = (RECORD, METRICS, NOTES)
        record, metrics, notes = (_signature(directory / name) if name in entries else None for name in files)
        beats = [
            claim[0] / 1e9 for name in entries if name.startswith(CLAIM) and (claim := _signature(directory / name))
        ]
        walk.runs[folder.key(directory)] = Seen(directory, record, metrics, notes, max(beats, default=None))
        return
    for name, entry in sorted(entries.items()):
        if entry.is_dir(follow_symlinks=False):
            if not name.startswith("."):
                _walk(folder, Path(entry.path), walk)
        elif entry.is_symlink() and entry.is_dir():
            try:
                folder.follow(Path(entry.path))  # a link to another place in the folder: the walk gets there anyway
            except BadRecord as error:
                walk.problems.append(str(error))
            except OSError:
                continue


def _signature(path: Path) -> Signature:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _status_without_record(seen: Seen) -> str:
    return "unreadable" if seen.record else "not_begun"


def _written(seen: Seen) -> float | None:
    times = [signature[0] for signature in (seen.record, seen.metrics) if signature]
    return max(times) / 1e9 if times else None


def _read(folder: Folder, directory: Path) -> tuple[RunRecord | None, str | None]:
    try:
        _refuse_large(folder, directory / RECORD)
        return read_record(directory), None
    except FileNotFoundError:
        return None, f"{directory} has no {RECORD}: its run has not started, or it ended before it wrote one."
    except OSError as error:
        return None, f"{directory / RECORD} cannot be read: {error.strerror}. Check its permissions."
    except BadRecord as error:
        return None, str(error)


def _refuse_large(folder: Folder, path: Path) -> None:
    with folder.open(path) as file:
        size = os.fstat(file.fileno()).st_size
    if size > MOST_BYTES:
        raise BadRecord(
            f"{path} has {size:,} bytes, and at most {MOST_BYTES:,} are read. Something else has written it."
        )


def _read_study_folder(folder: Folder, directory: Path, signature: Signature, ended: list[RunRecord]) -> StudyFolder:
    if signature is None:
        return StudyFolder(directory)
    try:
        _refuse_large(folder, directory / STUDY)
        study = read_study(directory)
        stage = stage_of(study, index_by_declaration(ended))
        name = stage.name if isinstance(study, Study) and study.tuned else None
        return StudyFolder(directory, signature, study, stage=name, declared=frozenset(map(fingerprint, stage.runs)))
    except (OelmError, OSError, ValueError, ArithmeticError) as error:  # also if runs that it declares are not valid
        return StudyFolder(directory, signature, reason=str(error))


def _newest(folder: Folder, directory: Path) -> dict[str, MetricRecord]:
    """Return the last point of each kind, reading only the end of the curve. Unreadable lines are reported later."""
    try:
        with folder.open(directory / METRICS) as file:
            return newest_metrics(file)
    except (OSError, BadRecord):
        return {}


def _notes(folder: Folder, seen: Seen) -> dict[str, Any]:
    """Return the notes of a run for its row; what cannot be read is its note."""
    if seen.notes is None:
        return {"note": "", "tags": (), "hidden": False}
    try:
        folder.open(seen.directory / NOTES).close()
        notes = RunFolder(seen.directory).read_notes()
    except (OSError, BadRecord) as error:
        return {"note": str(error), "tags": (), "hidden": False}
    return {"note": notes.text, "tags": notes.tags, "hidden": notes.hidden}


def _format_field(value: Any) -> str:
    """Write the value of a field as a filter is typed: text without quotation marks."""
    return value if isinstance(value, str) else format_value(value)


def _seconds_left(record: RunRecord, train: MetricRecord | None) -> float | None:
    """Return the training seconds that a running run still needs at its mean speed; None if that is not known."""
    if record.status != "running" or train is None or not train.step or not record.spec.train.steps:
        return None
    return max(0.0, train.seconds / train.step * (record.spec.train.steps - train.step))


def _row(record: RunRecord, newest: dict[str, MetricRecord]) -> dict[str, Any]:
    spec, result, train, val = record.spec, record.result, newest.get("train"), newest.get("val")
    loss = result.val_loss if result else val.loss if val else None
    accuracy = result.val_accuracy if result else val.accuracy if val else None
    return {
        "arm": spec.arm,
        "label": spec.label,
        "seed": spec.seed,
        "corpus": spec.data.corpus,
        "status": record.status,
        "fields": {field: _format_field(value) for field, value in list_meaning(spec).items()},
        "checksum": spec.data.checksum,
        "seconds_left": _seconds_left(record, train),
        "step": max([record.step, *(metric.step for metric in newest.values())]),
        "steps": spec.train.steps,
        "loss": loss,
        "train_loss": train.loss if train else None,
        "perplexity": None if loss is None or accuracy is not None else perplexity(loss),
        "test_perplexity": result.test_perplexity if result and accuracy is None else None,
        "accuracy": accuracy,
        "test_accuracy": result.test_accuracy if result else None,
        "tokens_per_second": result.tokens_per_second if result else train.tokens_per_second if train else None,
        "started": record.started,
        "dirty": record.environment.dirty,
        "reason": record.last_words or None,
    }
