"""Which runs and studies a folder holds, kept up to date by looking again at what has changed.

There is no database: every look walks the directories, which costs milliseconds for a thousand runs, and reads
only the files whose time, size or identity differ from the last look. Each change gets the next revision, so that
a page asks for what is newer than the revision it has seen.
"""

from __future__ import annotations

import os
import secrets
import time
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, get_args

from oelm.errors import BadRecord, OelmError
from oelm.record.schema import MetricRecord, RunRecord, perplexity
from oelm.record.stages import StageName, by_declaration, is_settled, stage_of
from oelm.record.store import CLAIM, METRICS, RECORD, SPEC, STUDY, newest_metrics, read_record, read_study
from oelm.report.page import PAGE, report_folder
from oelm.report.server.folder import Folder
from oelm.report.wording import Language
from oelm.spec.run import fingerprint
from oelm.study import AnyStudy, Study

REPORTS = tuple(report_folder(Path(), lang).name for lang in get_args(Language))
LOOK_SECONDS = 1.0
"""Looks closer together than this see the same."""

Signature = tuple[int, int, int] | None
"""Time, size and identity of a file; None: there is none."""


@dataclass(frozen=True)
class Seen:
    """A run's directory as the walk met it."""

    directory: Path
    record: Signature
    metrics: Signature
    beat: float | None = None
    """When the process at it last touched its claim."""


@dataclass
class Run:
    """A run as the index knows it."""

    seen: Seen
    record: RunRecord | None
    reason: str | None
    """Why the record cannot be read, in words."""
    row: dict[str, Any]
    revision: int


@dataclass
class StudyFolder:
    """A folder that holds runs, the study declared in it, and its reports."""

    directory: Path
    signature: Signature = None
    study: AnyStudy | None = None
    reason: str | None = None
    stage: StageName | None = None
    """Which stage of two it has reached; None: it has but one."""
    declared: frozenset[str] | None = None
    """The runs it has, as far as that is known; None: nobody has declared any."""
    settled: frozenset[str] = frozenset()
    """The runs here that have ended with an answer."""
    done: int = 0
    """How many of them are declared: a study that was changed leaves others behind."""
    reports: tuple[str, ...] = ()
    """The folders of its reports, one for each language that has been written."""


@dataclass
class Walk:
    """What one walk over the folder met."""

    runs: dict[str, Seen] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


class Changes(NamedTuple):
    """What is newer than a revision."""

    rows: list[dict[str, Any]]
    gone: list[str]
    """Keys of runs that are no longer there."""
    whole: bool
    """Whether these are all rows there are."""
    revision: int
    """Of which all this is."""


class Index:
    """The runs and studies of a folder."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.runs: dict[str, Run] = {}
        self.studies: dict[str, StudyFolder] = {}
        self.problems: list[str] = []
        self.revision = 0
        self.epoch = secrets.token_hex(4)
        """Differs from server to server: a revision of another epoch means nothing here."""
        self._gone: dict[str, int] = {}
        self._looked = -LOOK_SECONDS
        self._lock = Lock()

    def look(self) -> None:
        """Bring the index up to date."""
        with self._lock:
            if time.monotonic() - self._looked < LOOK_SECONDS:
                return
            walk = Walk()
            _walk(self.folder, self.folder.root, walk)
            for key in self.runs.keys() - walk.runs.keys():
                del self.runs[key]
                self._gone[key] = self._next()
            for key, seen in walk.runs.items():
                known = self.runs.get(key)
                if known is None or known.seen != seen:
                    self.runs[key] = self._examined(key, seen, known)
                    self._gone.pop(key, None)
            self.problems = walk.problems
            self._look_at_studies()
            self._looked = time.monotonic()

    def find(self, key: str) -> Run | None:
        """Return the run of a key, looking again first."""
        self.look()
        return self.runs.get(key)

    def changes(self, epoch: str, since: int) -> Changes:
        """Return what is newer than a revision."""
        with self._lock:  # or another reader's look would come between the rows and the revision they are of
            whole = epoch != self.epoch or since > self.revision
            if whole:
                since = 0
            rows = [run.row for run in self.runs.values() if run.revision > since]
            gone = [] if whole else [key for key, revision in self._gone.items() if revision > since]
            return Changes(rows, gone, whole, self.revision)

    def _next(self) -> int:
        self.revision += 1
        return self.revision

    def _examined(self, key: str, seen: Seen, known: Run | None) -> Run:
        record, reason = (known.record, known.reason) if known else (None, None)
        if known is None or known.seen.record != seen.record:
            record, reason = _read(self.folder, seen.directory)
            reason = reason and reason.replace(f"{self.folder.root}{os.sep}", "")
        newest = _newest(self.folder, seen.directory)
        study = self.folder.key(seen.directory.parent) if key else ""
        row = {
            "id": key, "name": seen.directory.name, "study": study, "written": _written(seen), "beat": seen.beat,
            **(_row(record, newest) if record else {"status": _unread(seen), "reason": reason}),
        }  # fmt: skip
        return Run(seen, record, reason, row, self._next())

    def _look_at_studies(self) -> None:
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
                # A study that tunes grows by what its runs say; the others are expanded once.
                known, grown = _declared(self.folder, directory, signature, list(ended.values())), True
            if grown:
                known.settled, names = frozenset(ended), by_declaration(ended.values())
                known.done = len(ended) if known.declared is None else len(known.declared & names.keys())
            known.reports = tuple(name for name in REPORTS if _signature(directory / name / PAGE))
            studies[key] = known
        self.studies = studies
        for run in self.runs.values():  # who sees the test split while tuning begins to choose by it
            study = studies[run.row["study"]].study
            if run.record and isinstance(study, Study) and run.record.spec.seed in study.tuning_seeds:
                run.row |= {"test_perplexity": None, "test_accuracy": None}


def _walk(folder: Folder, directory: Path, walk: Walk) -> None:
    try:
        with os.scandir(directory) as found:
            entries = {entry.name: entry for entry in found}
    except OSError as error:
        walk.problems.append(f"{directory} cannot be listed: {error.strerror}. Check who owns it.")
        return
    if RECORD in entries or SPEC in entries:  # a run holds no runs
        record, metrics = (_signature(directory / name) if name in entries else None for name in (RECORD, METRICS))
        beats = [
            claim[0] / 1e9 for name in entries if name.startswith(CLAIM) and (claim := _signature(directory / name))
        ]
        walk.runs[folder.key(directory)] = Seen(directory, record, metrics, max(beats, default=None))
        return
    for name, entry in sorted(entries.items()):
        if entry.is_dir(follow_symlinks=False):
            if not name.startswith("."):
                _walk(folder, Path(entry.path), walk)
        elif entry.is_symlink() and entry.is_dir():
            try:
                folder.follow(Path(entry.path))  # what leads to another place in the folder is met there
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


def _unread(seen: Seen) -> str:
    return "unreadable" if seen.record else "not_begun"


def _written(seen: Seen) -> float | None:
    times = [signature[0] for signature in (seen.record, seen.metrics) if signature]
    return max(times) / 1e9 if times else None


def _read(folder: Folder, directory: Path) -> tuple[RunRecord | None, str | None]:
    try:
        folder.open(directory / RECORD).close()
        return read_record(directory), None
    except FileNotFoundError:
        return None, f"{directory} holds no {RECORD}: its run has not begun, or ended before it wrote one."
    except OSError as error:
        return None, f"{directory / RECORD} cannot be read: {error.strerror}. Check who owns it."
    except BadRecord as error:
        return None, str(error)


def _declared(folder: Folder, directory: Path, signature: Signature, ended: list[RunRecord]) -> StudyFolder:
    if signature is None:
        return StudyFolder(directory)
    try:
        folder.open(directory / STUDY).close()
        study = read_study(directory)
        stage = stage_of(study, by_declaration(ended))
        name = stage.name if isinstance(study, Study) and study.tuned else None
        return StudyFolder(directory, signature, study, stage=name, declared=frozenset(map(fingerprint, stage.runs)))
    except (OelmError, OSError) as error:
        return StudyFolder(directory, signature, reason=str(error))


def _newest(folder: Folder, directory: Path) -> dict[str, MetricRecord]:
    """Return the last point of each kind, reading only the end of the curve. Lines it cannot read are told later."""
    try:
        with folder.open(directory / METRICS) as file:
            return newest_metrics(file)
    except (OSError, BadRecord):
        return {}


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
