"""How often each test split was used, by which studies and arms; and the scores on a sealed split.

A look is a complete record with a score on the test split, or a line of `test_looks.jsonl`, which `oelm evaluate` adds
to a run's folder before it scores that split. The checksum of its data identifies a test split. A run that several
studies share is one look.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from oelm.errors import BadRecord, UsageError
from oelm.files import parse_checked
from oelm.record.archive import open_archives_with_neighbours
from oelm.record.folder import LOOKS, STUDY, UNSEALED, LookRecord, RunFolder, find_records, read_record
from oelm.record.record import Record, RunRecord, read_if_present, source_commit, utc_now


@dataclass(frozen=True)
class TestLook:
    """One look at a test split."""

    study: str | None
    """The study's name; None for a run outside any study."""
    arm: str
    seed: int
    evaluation: bool
    """Whether it was `oelm evaluate`, and not the run itself at its end."""


@dataclass(frozen=True)
class StudyLooks:
    """The looks of one study, or of runs outside any (`study` is None)."""

    study: str | None
    looks: tuple[TestLook, ...]

    @property
    def evaluations(self) -> int:
        """Number of looks by `oelm evaluate`."""
        return sum(look.evaluation for look in self.looks)

    @property
    def arms(self) -> int:
        """Number of arms."""
        return len({look.arm for look in self.looks})

    @property
    def seeds(self) -> int | None:
        """Number of seeds, if every arm has one run with every seed; else None."""
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
        """Number of looks."""
        return sum(len(item.looks) for item in self.by)


def note_look(run: Path, checksum: str, checkpoint: str) -> None:
    """Write into the folder of a run (or of a checkpoint) that its test split is about to be scored.

    Raises:
        UsageError: the folder cannot be written to, so the look would not be counted.

    """
    folder = next((folder for folder in (run, *run.absolute().parents[:2]) if RunFolder(folder).has_record()), run)
    look = LookRecord(time=utc_now(), checksum=checksum, checkpoint=checkpoint, commit=source_commit())
    try:
        RunFolder(folder).append_look(look)
    except OSError as error:
        raise UsageError(
            f"Every look at the test split is written to {folder / LOOKS}, which cannot be written "
            f"({error.strerror}). Copy the run's folder to a writable place, or use --split val."
        ) from error


def looks_at(root: Path, study: str, checksums: Collection[str], complaints: list[str]) -> list[SplitLooks]:
    """Count the looks at some test splits by the `study` in `root`, and by the studies and runs in folders next to it.

    Files that cannot be read, and so may hide a look, are added to `complaints`.
    """
    found: dict[str, dict[tuple[object, ...], TestLook]] = {checksum: {} for checksum in checksums}
    corpora: dict[str, str] = {}
    with open_archives_with_neighbours(root) as own:
        for name, run, record in _neighbours(own, study, complaints):
            for checksum, key, look in _looks_of(name, run, record, complaints):
                if checksum in found:
                    found[checksum].setdefault(key, look)
                    corpora.setdefault(checksum, record.spec.data.corpus)
    return [SplitLooks(corpora.get(one, ""), one, _by_study(list(its.values()))) for one, its in found.items() if its]


def _by_study(looks: list[TestLook]) -> tuple[StudyLooks, ...]:
    names = dict.fromkeys(look.study for look in looks)
    return tuple(StudyLooks(name, tuple(look for look in looks if look.study == name)) for name in names)


def _neighbours(root: Path, study: str, complaints: list[str]) -> Iterator[tuple[str | None, Path, RunRecord]]:
    """Yield every record of the study in `root`, then those of the studies and single runs next to it."""
    for folder in (root, *sorted(folder for folder in root.parent.iterdir() if folder != root)):
        if folder == root or (folder / STUDY).is_file():
            found, bad = find_records(folder)
            complaints += map(str, bad)
            yield from ((study if folder == root else _name(folder), run, record) for run, record in found)
        elif RunFolder(folder).has_record():
            try:
                yield None, folder, read_record(folder)
            except BadRecord as error:
                complaints.append(str(error))


def _name(folder: Path) -> str:
    """Return the name of the study in a folder, which may differ from the folder's name."""
    try:
        return str(parse_checked((folder / STUDY).read_bytes())["name"])
    except (OSError, ValueError, KeyError, TypeError):
        return folder.name


def _looks_of(
    study: str | None, run: Path, record: RunRecord, complaints: list[str]
) -> Iterator[tuple[str, tuple[object, ...], TestLook]]:
    spec, result = record.spec, record.result
    if record.status == "complete" and record.data and result and result.test_loss is not None and not record.imported:
        yield (
            record.data.checksum,
            (record.fingerprint, record.finished),
            TestLook(study, spec.arm, spec.seed, evaluation=False),
        )
    try:
        for noted in RunFolder(run).read_looks():
            once = (record.fingerprint, noted.time, noted.checkpoint)
            yield noted.checksum, once, TestLook(study, spec.arm, spec.seed, evaluation=True)
    except BadRecord as error:
        complaints.append(str(error))


class SealedScore(Record):
    """The score of one run on the sealed split."""

    fingerprint: str
    arm: str
    seed: int
    loss: float
    """Mean natural-log loss per token, as on the test split."""
    accuracy: float | None = None
    """Share of correct answers of a probe."""


class SealedSplit(Record):
    """The sealed split of one data folder."""

    corpus: str
    checksum: str
    """Checksum of the data it belongs to."""
    sha256: str
    documents: int
    tokens: int


class UnsealedRecord(Record):
    """`unsealed.json`: the scores of a study's final weights on a sealed split, written once."""

    schema_version: int = 1
    study: str
    digest: str
    """Digest of the registered study."""
    opened: str
    """When the split was opened, in UTC."""
    scored: str
    """When all runs had been scored."""
    commit: str | None
    dirty: bool | None
    splits: tuple[SealedSplit, ...]
    scores: tuple[SealedScore, ...]


def read_unsealed(root: Path) -> UnsealedRecord | None:
    """Read the scores of a study on its sealed split; None if it has not been opened."""
    return read_if_present(root / UNSEALED, UnsealedRecord, "scores on a sealed split", "Restore it.")
