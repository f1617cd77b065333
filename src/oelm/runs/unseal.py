"""Score the final weights of a finished, registered study on the sealed split of its data, once.

Everything that can be refused is refused before the seal is broken. Then the opening is written into the data folder,
and only then is the split read. A process that is killed in between loses nothing: the same study, with the same
weights, may finish.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from oelm.data.meta import SplitMeta, read_meta
from oelm.data.prepare import default_directory
from oelm.data.tokens import Opening, open_seal, open_tokens, refuse_opened, sealed_split, with_sealed_as_test
from oelm.errors import BadData, CheckpointError, Sealed
from oelm.files import add_checksum, write_once
from oelm.record.folder import UNSEALED, RunFolder
from oelm.record.record import RunRecord, has_source_changes, source_commit, utc_now
from oelm.record.registration import RegistrationRecord, read_registration, refuse_changed
from oelm.record.test_split import SealedScore, SealedSplit, UnsealedRecord, read_unsealed
from oelm.runs.board import Board
from oelm.runs.restore import load_run
from oelm.spec.run import DataSpec
from oelm.spec.study import AnyStudy, Study
from oelm.tasks import make_task
from oelm.train.checkpoint import MODEL, read_state

ENDED = ("complete", "diverged")


@dataclass(frozen=True)
class _Finished:
    """A confirming run with its final weights."""

    directory: Path
    record: RunRecord
    weights: str
    data: Path


def unseal(study: AnyStudy, root: Path, say: Callable[[str], None] = lambda _: None) -> UnsealedRecord:
    """Open the sealed split of a study's data, score every confirming run on it and write `unsealed.json`.

    Raises:
        Sealed: the study is not registered or not finished, its final weights are not kept, its data have no sealed
            split, or the split has been opened before.
        StudyChanged: the study is not the registered one.

    """
    registration = _require_registration(study, root)
    runs = _find_finished(study, root)
    sealed = {folder: sealed_split(folder) for folder in dict.fromkeys(run.data for run in runs)}
    _refuse_opened_nearby(root, sealed)
    openings = {folder: _make_opening(registration, sealed[folder], runs) for folder in sealed}
    begun = [found for folder, wanted in openings.items() if (found := refuse_opened(folder, wanted))]
    if begun:
        say(f"finishing the unsealing that began on {begun[0].opened}")
    openings = {folder: open_seal(folder, wanted) for folder, wanted in openings.items()}
    scores = []
    for run in runs:
        say(f"scoring {run.record.spec.arm}, seed {run.record.spec.seed}, on the sealed split")
        scores.append(_score(run, openings[run.data]))
    record = _record(registration, list(openings.values()), sealed, scores)
    write_once(root / UNSEALED, add_checksum(record.model_dump_json(indent=1) + "\n"))
    return read_unsealed(root) or record


def _require_registration(study: AnyStudy, root: Path) -> RegistrationRecord:
    """Return the registration of a study that may be unsealed."""
    refuse_changed(root, study)
    if (done := read_unsealed(root)) is not None:
        raise Sealed(f"{done.study} was unsealed on {done.opened[:10]}, and a sealed split is opened once. The report "
                     f"shows the figures of {root / UNSEALED}.")  # fmt: skip
    registration = read_registration(root)
    if registration is None:
        raise Sealed(
            f"{study.name} is not registered, so nothing shows what it declared before its runs. A sealed split is for "
            "studies that `oelm run` has registered; screens and listings are not."
        )
    return registration


def _find_finished(study: AnyStudy, root: Path) -> list[_Finished]:
    """Return the confirming runs with their weights; a diverged run cannot be scored."""
    assert isinstance(study, Study)  # noqa: S101  (only a Study is registered)
    entries = Board(study, root).confirming
    if open_runs := [f"{entry.name} ({entry.state})" for entry in entries if entry.state not in ENDED]:
        raise Sealed(
            f"a sealed split is opened once, when a study is done, and {len(open_runs)} runs are not: "
            f"{', '.join(open_runs[:5])}. `oelm run` completes them."
        )
    if not entries:
        raise Sealed(f"{study.name} is still tuning, so there is nothing to score. `oelm run` completes it.")
    if not any(entry.state == "complete" for entry in entries):
        raise Sealed(f"every confirming run of {study.name} diverged, so there is nothing to score.")
    done = [(entry.directory, entry.record) for entry in entries if entry.state == "complete"]
    return [
        _Finished(directory, record, _weights(directory, record), _data_folder(record))
        for directory, record in done
        if directory is not None and record is not None
    ]


def _weights(directory: Path, record: RunRecord) -> str:
    """Return the hash of the weights at the end of a run."""
    try:
        state = read_state(RunFolder(directory).checkpoints / "latest")
        step, found = state["progress"]["step"], str(state["sha256"][MODEL])
    except (FileNotFoundError, CheckpointError):
        step, found = None, ""
    if step != record.spec.train.steps:
        raise Sealed(
            f"{directory} does not hold the weights of the end of its run (checkpoints/latest), so it cannot be "
            "scored. Unseal a study where it ran, before its checkpoints are removed."
        )
    return found


def _data_folder(record: RunRecord) -> Path:
    data = record.spec.data
    if not isinstance(data, DataSpec):
        raise Sealed(f"{data.corpus!r} is labelled text, which has no sealed split; only prepared tokens have one.")
    folder = data.directory or default_directory(data)
    meta = read_meta(folder)
    if meta is not None and meta.checksum != data.checksum:
        raise BadData(
            f"the study ran on data with checksum {data.checksum}, and those in {folder} have {meta.checksum}. Restore "
            "the data."
        )
    return folder


def _refuse_opened_nearby(root: Path, sealed: dict[Path, SplitMeta]) -> None:
    """Refuse data whose sealed split a neighbouring study has opened, also in another copy of the data folder."""
    wanted = {split.sha256 for split in sealed.values()}
    for path in sorted(root.absolute().parent.glob(f"*/{UNSEALED}")):
        other = read_unsealed(path.parent)
        if other is not None and wanted & {split.sha256 for split in other.splits}:
            raise Sealed(
                f"the sealed split was opened by {other.study} on {other.opened[:10]} ({path}), and it is opened once. "
                "Prepare new data with --seal for a new study."
            )


def _make_opening(registration: RegistrationRecord, split: SplitMeta, runs: Sequence[_Finished]) -> Opening:
    return Opening(
        study=str(registration.study["name"]),
        digest=registration.digest,
        opened=utc_now(),
        commit=source_commit(),
        sha256=split.sha256,
        weights={run.record.fingerprint: run.weights for run in runs},
    )


def _score(run: _Finished, opening: Opening) -> SealedScore:
    restored = load_run(run.directory)
    torch.set_num_threads(restored.run.train.threads)
    tokens = with_sealed_as_test(open_tokens(run.data), opening)
    task = make_task(restored.run, tokens, torch.device("cpu"))
    measured = task.measure(restored.model, "test")
    spec = run.record.spec
    return SealedScore(
        fingerprint=run.record.fingerprint,
        arm=spec.arm,
        seed=spec.seed,
        loss=measured.loss,
        accuracy=measured.accuracy,
    )


def _record(
    registration: RegistrationRecord,
    openings: Sequence[Opening],
    sealed: dict[Path, SplitMeta],
    scores: Sequence[SealedScore],
) -> UnsealedRecord:
    splits = []
    for folder, split in sealed.items():
        meta = read_meta(folder)
        assert meta is not None  # noqa: S101  (it states the sealed split)
        splits.append(SealedSplit(corpus=meta.corpus, checksum=meta.checksum, sha256=split.sha256,
                                  documents=split.documents, tokens=split.num_tokens))  # fmt: skip
    return UnsealedRecord(
        study=str(registration.study["name"]),
        digest=registration.digest,
        opened=min(opening.opened for opening in openings),
        scored=utc_now(),
        commit=source_commit(),
        dirty=has_source_changes(),
        splits=tuple(splits),
        scores=tuple(scores),
    )
