"""How often a test split was looked at, by which studies and arms.

A look is a complete record with a figure on the test split, or a line of `test_looks.jsonl`, which `oelm evaluate` adds
to a run's folder before it scores that split. A test split is known by the checksum of its data. A run that several
studies share is one look.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError

from oelm.errors import BadRecord, UsageError
from oelm.files import append_line
from oelm.record.archive import opened_with_neighbours
from oelm.record.environment import commit_of, source_tree
from oelm.record.schema import Record, RunRecord
from oelm.record.store import LOOKS, RECORD, STUDY, find_records, read_record


class LookRecord(Record):
    """One line of `test_looks.jsonl`."""

    time: str
    checksum: str
    """Of the data whose test split was scored."""
    checkpoint: str
    commit: str | None = None


@dataclass(frozen=True)
class Look:
    """One look at a test split."""

    study: str | None
    """The name of the study's folder; None: a run outside any study."""
    arm: str
    seed: int
    evaluation: bool
    """Whether `oelm evaluate` looked, and not the run itself when it ended."""


@dataclass(frozen=True)
class StudyLooks:
    """The looks of one study, or of runs outside any (`study` is None)."""

    study: str | None
    looks: tuple[Look, ...]

    @property
    def evaluations(self) -> int:
        """How many of them `oelm evaluate` did."""
        return sum(look.evaluation for look in self.looks)

    @property
    def arms(self) -> int:
        """How many arms looked."""
        return len({look.arm for look in self.looks})

    @property
    def seeds(self) -> int | None:
        """How many seeds every arm looked with, once each; None where the runs are not such a matrix."""
        runs = [(look.arm, look.seed) for look in self.looks if not look.evaluation]
        seeds = {seed for _, seed in runs}
        whole = len(runs) == len(set(runs)) == self.arms * len(seeds)
        return len(seeds) if whole and runs else None


@dataclass(frozen=True)
class SplitLooks:
    """All looks at one test split, those of the study in question first."""

    corpus: str
    checksum: str
    by: tuple[StudyLooks, ...]

    @property
    def total(self) -> int:
        """How many looks there were."""
        return sum(len(item.looks) for item in self.by)


def note_look(run: Path, checksum: str, checkpoint: str) -> None:
    """Write down that the test split is about to be scored, in the folder of the run (or of the checkpoint) scored.

    Raises:
        UsageError: the folder cannot be written to, so the look would not be counted.

    """
    folder = next((folder for folder in (run, *run.absolute().parents[:2]) if (folder / RECORD).is_file()), run)
    tree = source_tree()
    look = LookRecord(
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        checksum=checksum,
        checkpoint=checkpoint,
        commit=commit_of(tree) if tree else None,
    )
    try:
        append_line(folder / LOOKS, look.model_dump_json())
    except OSError as error:
        raise UsageError(
            f"Every look at the test split is written to {folder / LOOKS}, which cannot be written "
            f"({error.strerror}). Copy the run's folder to a place of yours, or use --split val."
        ) from error


def read_looks(run: Path) -> list[LookRecord]:
    """Read the looks that `oelm evaluate` has noted in a run's folder."""
    path = run / LOOKS
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise BadRecord(f"{path} cannot be read: {error.strerror}. Check who owns it.") from error
    try:
        return [LookRecord.model_validate_json(line) for line in lines]
    except ValidationError as error:
        raise BadRecord(f"{path} is not a list of looks at a test split: {error.errors()[0]['msg']}.") from error


def looks_at(root: Path, study: str, checksums: Collection[str], complaints: list[str]) -> list[SplitLooks]:
    """Count the looks at some test splits by the `study` in `root` and by its neighbours, the folders next to it.

    What cannot be read, and so may hide a look, is added to `complaints`.
    """
    found: dict[str, dict[tuple[object, ...], Look]] = {checksum: {} for checksum in checksums}
    corpora: dict[str, str] = {}
    with opened_with_neighbours(root) as own:
        for name, run, record in _neighbours(own, study, complaints):
            for checksum, key, look in _looks_of(name, run, record, complaints):
                if checksum in found:
                    found[checksum].setdefault(key, look)
                    corpora.setdefault(checksum, record.spec.data.corpus)
    return [SplitLooks(corpora.get(one, ""), one, _by_study(list(its.values()))) for one, its in found.items() if its]


def _by_study(looks: list[Look]) -> tuple[StudyLooks, ...]:
    names = dict.fromkeys(look.study for look in looks)
    return tuple(StudyLooks(name, tuple(look for look in looks if look.study == name)) for name in names)


def _neighbours(root: Path, study: str, complaints: list[str]) -> Iterator[tuple[str | None, Path, RunRecord]]:
    """Yield every record of the study in `root`, then those of the studies and single runs next to it."""
    for folder in (root, *sorted(folder for folder in root.parent.iterdir() if folder != root)):
        if folder == root or (folder / STUDY).is_file():
            found, bad = find_records(folder)
            complaints += map(str, bad)
            yield from ((study if folder == root else _name(folder), run, record) for run, record in found)
        elif (folder / RECORD).is_file():
            try:
                yield None, folder, read_record(folder)
            except BadRecord as error:
                complaints.append(str(error))


def _name(folder: Path) -> str:
    """Return the name of the study in a folder: the folder may have another one."""
    try:
        return str(json.loads((folder / STUDY).read_bytes())["name"])
    except (OSError, ValueError, KeyError, TypeError):
        return folder.name


def _looks_of(
    study: str | None, run: Path, record: RunRecord, complaints: list[str]
) -> Iterator[tuple[str, tuple[object, ...], Look]]:
    spec, result = record.spec, record.result
    if record.status == "complete" and record.data and result and result.test_loss is not None and not record.imported:
        yield (
            record.data.checksum,
            (record.fingerprint, record.finished),
            Look(study, spec.arm, spec.seed, evaluation=False),
        )
    try:
        for noted in read_looks(run):
            once = (record.fingerprint, noted.time, noted.checkpoint)
            yield noted.checksum, once, Look(study, spec.arm, spec.seed, evaluation=True)
    except BadRecord as error:
        complaints.append(str(error))
