"""Where every run of a study stands: done, at work (here or elsewhere), queued in Slurm, waiting, failed.

Nothing is kept but the run directories; the board is made from them and can be made again at any time.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, cast

from oelm.analysis.content import content_margin
from oelm.analysis.prediction import PREDICTION, write_prediction
from oelm.errors import BadRecord, OelmError, UnknownName, UsageError
from oelm.files import write_atomically
from oelm.record.registration import is_registrable, register
from oelm.record.schema import RunRecord
from oelm.record.stages import CHOICE, Stage, in_order_of_counting, is_settled, of_these_numerics, stage_of
from oelm.record.store import RECORD, find_records, read_record, run_directory
from oelm.runner.adopt import Neighbours
from oelm.runner.claim import Claim, holder
from oelm.runner.slurm_queue import Job, SlurmQueue, find_jobs
from oelm.spec.run import NUMERICS, RunSpec, declared, fingerprint, in_precision_of
from oelm.study import AnyStudy, Study, at

SHORTEST = 6
"""So many digits of a fingerprint tell which run is meant."""
State = Literal["complete", "diverged", "running", "queued", "interrupted", "failed", "waiting"]


@dataclass(frozen=True)
class Entry:
    """One run of the study as it stands."""

    run: RunSpec
    directory: Path | None
    """None: nothing has begun, and where it will be is not known before the run is bound to its data."""
    record: RunRecord | None = None
    claim: Claim | None = None
    job: Job | None = None
    """What it was given to Slurm as, if it was."""
    trouble: str | None = None
    """Why its record cannot be read, or its data not be had. Nothing is started then, least of all over a record."""
    trial: tuple[object, ...] = ()
    """The values that it tries, if it is one of those that a study is tuned by."""

    @property
    def name(self) -> str:
        """What people call it."""
        tried = " at " + ", ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in self.trial)
        return self.run.label or f"{self.run.arm}, seed {self.run.seed}{tried if self.trial else ''}"

    @property
    def owes_test(self) -> bool:
        """Whether the run confirms this study, and is complete but for its figure on the test split."""
        return self.run.scores_test and self.record is not None and self.record.is_unscored

    @property
    def state(self) -> State:
        """What to do with it: a run that says it is running and has no live process was killed, and is to go on."""
        if self.trouble:
            return "failed"
        if self.record and is_settled(self.record) and not self.owes_test:
            return "complete" if self.record.status == "complete" else "diverged"
        if self.claim:
            return "running"
        if self.job and self.job.is_live:
            return "queued"
        if self.record is None:
            return "waiting"
        return "failed" if self.record.status == "failed" else "interrupted"


class Board:
    """The runs of a study's stage, looked up once and then one by one as they change."""

    def __init__(
        self,
        study: AnyStudy,
        root: Path,
        *,
        only: tuple[str, ...] = (),
        bind: Callable[[RunSpec], RunSpec] | None = None,
    ) -> None:
        self.study, self.root, self.only, self._bind = study, root, only, bind
        found, bad = find_records(root) if root.is_dir() else ([], [])
        self.troubles = tuple(map(str, bad))
        given = find_jobs(root)
        found = in_order_of_counting(found, lambda item: item[1])
        keys = {directory: fingerprint(declared(record.spec)) for directory, record in found}
        self._directories = {keys[directory]: directory for directory, record in found if record.numerics == NUMERICS}
        complete = {directory for directory, record in found if record.status == "complete"}
        for directory, job in given.items():  # a job that has not begun has left no record yet
            if directory not in keys and self._directories.get(job.run) not in complete:
                self._directories[job.run] = directory
        self._fresh = dict(found)
        settled = {directory for directory, record in found if is_settled(record)}
        self.slurm = SlurmQueue([job.job for directory, job in given.items() if directory not in settled])
        self._records = of_these_numerics((keys[directory], record) for directory, record in found)
        self._neighbours = Neighbours(root)
        self.stage: Stage
        self.entries: list[Entry]
        self.advance()
        self._fresh.clear()  # read once already, for this first look; from here on the files say what is
        if only and not self.entries:
            raise UnknownName(
                "run", ", ".join(only), {run.label or run.arm for run in self.stage.runs}, "--only takes patterns, too."
            )

    def advance(self) -> bool:
        """Expand the stage that the records have reached; return whether there are runs that were not there before."""
        before = len(self.entries) if hasattr(self, "stage") else 0
        expanded = None
        while expanded != self._judged():  # until the stage is that of the records which its runs have
            expanded = self._judged()
            self._expand()
            for entry in self.entries:
                if self._is_stale(entry):  # of other bytes than the data have now: what it says of this study is void
                    del self._records[fingerprint(declared(entry.run))]
            if self._predicts():
                write_prediction(cast("Study", self.study), self.root)
                expanded = None  # the held-back sizes may be run now
        if self.stage.choice is not None:
            path, text = self.root / CHOICE, self.stage.choice.model_dump_json(indent=1) + "\n"
            if self._bind and (not path.exists() or path.read_text() != text):  # those who only look write nothing
                write_atomically(path, text)
        return len(self.entries) > before

    def _expand(self) -> None:
        self.stage = stage_of(self.study, self._records)
        keyed = [(fingerprint(run), run) for run in self.stage.runs]
        self.entries = [
            replace(self._entry(key, run), trial=self._trial(run))
            for key, run in keyed
            if self._wanted(key, run) and not self.is_held_back(run)
        ]

    def is_held_back(self, run: RunSpec) -> bool:
        """Whether a run waits for the prediction of its size. For those who only look it is a run like any other."""
        study = self.study
        if not self._bind or not isinstance(study, Study) or not study.held_back:
            return False
        return study.size_of(run) in study.held_back and not (self.root / PREDICTION).exists()

    def _predicts(self) -> bool:
        """Whether every other confirming run has ended, so that the held-back sizes can be predicted."""
        held = [self.is_held_back(run) for run in self.stage.confirm]
        if not any(held):
            return False
        others = [fingerprint(run) for run, waits in zip(self.stage.confirm, held, strict=True) if not waits]
        return all(key in self._records and is_settled(self._records[key]) for key in others)

    def _trial(self, run: RunSpec) -> tuple[object, ...]:
        study = self.study
        if not isinstance(study, Study) or run.seed not in study.tuning_seeds:  # confirmed is by other seeds
            return ()
        return tuple(at(run, field) for field in study.tuned)

    def _judged(self) -> dict[str, str]:
        """Return which record stands for each declared run."""
        return {key: record.fingerprint for key, record in self._records.items()}

    def _is_stale(self, entry: Entry) -> bool:
        if not self._bind:
            return False
        known = self._records.get(fingerprint(declared(entry.run)))
        return bool(not entry.trouble and known and known.fingerprint != fingerprint(entry.run))

    @property
    def news(self) -> str:
        """What it means that there are runs which were not there before."""
        study = self.study
        if isinstance(study, Study) and study.held_back and (self.root / PREDICTION).exists():
            return f"{PREDICTION} says what to expect of the held-back sizes, so their runs start now."
        if self.stage.name == "tune":
            return "Some arm is best at an end of the grid, so the grid grows there for every arm."
        return f"Tuning has ended: {len(self.stage.confirm)} runs confirm the choice, each arm at its best ({CHOICE})."

    def refresh(self, entry: Entry) -> Entry:
        """Look at one run again."""
        place = next(place for place, known in enumerate(self.entries) if known.directory == entry.directory)
        fresh = replace(self._looked_up(entry.run, entry.directory), trial=entry.trial)
        self.entries[place] = fresh
        if fresh.record:
            self._records[fingerprint(declared(entry.run))] = fresh.record
        return fresh

    def register(self, entry: Entry) -> None:
        """Register the study before a confirming run of it starts; raise StudyChanged if another one is registered."""
        study = self.study
        if isinstance(study, Study) and is_registrable(study) and self._confirms(entry):
            # A margin that depends on what content is worth is fixed by the tuning runs, before any confirming run.
            margin = content_margin(study, self._records.values()) if study.margin == "content" else None
            register(self.root, study, self.stage.choice, margin)

    @property
    def confirming(self) -> list[Entry]:
        """The runs of the last stage; none while a study is tuned."""
        return [entry for entry in self.entries if self._confirms(entry)]

    def _confirms(self, entry: Entry) -> bool:
        key = fingerprint(declared(entry.run))
        return any(fingerprint(run) == key for run in self.stage.confirm)

    def count(self, *states: State) -> int:
        """Count the runs in some states."""
        return sum(entry.state in states for entry in self.entries)

    @property
    def lost(self) -> int:
        """How many runs of the last stage diverged: answers where a rate is tuned, holes where it is confirmed."""
        confirming = {fingerprint(run) for run in self.stage.confirm}
        diverged = (entry.run for entry in self.entries if entry.state == "diverged")
        return sum(fingerprint(declared(run)) in confirming for run in diverged)

    @property
    def progress(self) -> str:
        """How much of what is known to be run is done: "5/7, 71 %"."""
        done, total = self.count("complete", "diverged"), len(self.entries)
        stage = f"{self.stage.name} stage: " if self.stage.tune else ""
        return f"{stage}{done}/{total}, {100 * done // max(1, total)} %"

    def _wanted(self, key: str, run: RunSpec) -> bool:
        """Whether a run is asked for: by id, label or arm, or by the beginning of a fingerprint, declared or bound."""
        known = self._directories.get(key)
        hashes = [key, known.name.rpartition("_")[2] if known else ""]
        names = (run.label or "", (run.label or "").partition("_")[0], run.arm)
        return (
            not self.only
            or any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in self.only)
            or any(len(word) >= SHORTEST and found.startswith(word) for found in hashes for word in self.only)
        )

    def _entry(self, key: str, run: RunSpec) -> Entry:
        if self._bind:
            try:
                begun = self._records.get(key)
                run = self._bind(in_precision_of(run, begun.spec if begun else None))
            except OelmError as error:  # its data are not to be had: told, while the other runs go on
                return Entry(run, None, trouble=str(error))
            known = self._directories.get(key)
            mine = known is not None and known.name.endswith(f"_{fingerprint(run)}")
            directory = known if known is not None and mine else run_directory(self.root, run)
            if not mine and not directory.exists():
                self._neighbours.adopt(fingerprint(run), directory)
            entry = self._looked_up(run, directory)
            if entry.record and entry.record.fingerprint == fingerprint(run):  # not one of other bytes, if there is one
                self._records[key] = entry.record
            return entry
        return self._looked_up(run, self._directories.get(key))

    def _looked_up(self, run: RunSpec, directory: Path | None) -> Entry:
        if directory is None:
            return Entry(run, None)
        if directory in self._fresh and is_settled(self._fresh[directory]):
            return Entry(run, directory, self._fresh[directory])  # nobody comes back to what is done
        return _looked_up(run, directory, self.slurm)


def _looked_up(run: RunSpec, directory: Path, slurm: SlurmQueue) -> Entry:
    claim = holder(directory)  # before the record: one that ends between the two looks has then written its end
    job = slurm.of(directory)
    if not (directory / RECORD).exists():
        return Entry(run, directory, claim=claim, job=job)
    try:
        return Entry(run, directory, read_record(directory), claim, job)
    except BadRecord as error:
        return Entry(run, directory, claim=claim, job=job, trouble=str(error))


def directory_of(entry: Entry) -> Path:
    """Return a run's directory, which it has once it is bound to its data."""
    if entry.directory is None:
        raise UsageError(f"{entry.name} is not bound to its data, so it has no folder to run in.")
    return entry.directory


def checked(slots: int | None, retries: int) -> tuple[int | None, int]:
    """Refuse a number of slots, or of retries, with which nothing could start."""
    if slots is not None and slots < 1:
        raise UsageError(f"--slots {slots} leaves no run to start; give 1 or more, or leave it out.")
    if retries < 0:
        raise UsageError(f"--retries {retries} leaves no run to start; give 0 to start each once, or more.")
    return slots, retries
