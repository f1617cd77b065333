"""Check every file of a run, a study, prepared data or an archive against its checksum, and repair a copy.

The checks are those that every reader does (files.py); here they are done for all files at once, and damage is
listed instead of raised. A file is

    intact        it is what was written;
    unprotected   it was written by an earlier version, without a checksum, and can be read;
    damaged       it is not what was written, or cannot be read;
    missing       a document lists it, and it is not there.

`repair` never touches the original: it copies the folder and changes the copy.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from oelm.data.meta import META, read_meta
from oelm.data.tokenizer import TOKENIZER, load_tokenizer
from oelm.errors import CheckpointError, OelmError, UsageError
from oelm.files import has_checksum, sha256_of, strip_checksum
from oelm.record.archive import ARCHIVE, read_files
from oelm.record.folder import (
    ATTENTION,
    CANCELLED,
    CHECKPOINTS,
    CLAIM,
    JOB,
    LISTED,
    LOG,
    LOGIT_VARIANCE,
    LOOKS,
    METRICS,
    PREDICTION,
    RECORD,
    REGISTERED,
    SAMPLES,
    SPEC,
    STUDY,
    TEST_LOSSES,
    TIMING,
    UNSEALED,
    WINDOW_LOSSES,
    AttentionRecord,
    LookRecord,
    RunFolder,
    parse_lines,
    write_study,
)
from oelm.record.record import MetricRecord, Record
from oelm.record.registration import read_registration
from oelm.record.stages import CHOICE
from oelm.spec import explain_validation

State = Literal["intact", "unprotected", "damaged", "missing"]
Repair = Literal["use-previous", "drop-lines", "write-again", "from-registration", "leave-out", "accept"]

REPAIRS: dict[Repair, str] = {
    "use-previous": "the checkpoint before it takes its place; the same command then repeats some steps",
    "drop-lines": "the damaged lines are left out, and the record says so",
    "write-again": "it is left out; the next `oelm run` or `oelm train` writes it again",
    "from-registration": "it is written again from the registration",
    "leave-out": "it is left out, and the record says so; the result of the run does not depend on it",
    "accept": "it is kept as it is, and the record says so; no result depends on it",
}
"""What happens to a damaged file in the repaired copy."""

_LINES: dict[str, type[Record]] = {METRICS: MetricRecord, ATTENTION: AttentionRecord, LOOKS: LookRecord}
_DECLARATIONS = (STUDY, REGISTERED, CHOICE, PREDICTION, UNSEALED, CANCELLED)
_REPAIR_OF: dict[str, Repair] = {
    METRICS: "drop-lines", ATTENTION: "drop-lines", LOOKS: "drop-lines", SPEC: "write-again", JOB: "write-again",
    CHOICE: "write-again", CANCELLED: "write-again", TEST_LOSSES: "leave-out", WINDOW_LOSSES: "leave-out",
    LOGIT_VARIANCE: "leave-out", SAMPLES: "accept", TIMING: "accept", LOG: "accept",
}  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """The state of one file, and what a repair would do."""

    path: Path
    state: State
    detail: str = ""
    repair: Repair | None = None

    @property
    def is_bad(self) -> bool:
        """Whether the file is damaged or missing."""
        return self.state in ("damaged", "missing")


def verify(path: Path) -> list[Finding]:
    """Check every file at or below a path; raise UsageError if there is nothing that can be checked."""
    if not path.exists():
        raise UsageError(f"{path} does not exist. Give the folder of a run, a study or prepared data, or an archive.")
    found = [_check_archive(path)] if path.is_file() and path.name == ARCHIVE else list(_check_folder(path))
    if not found:
        raise UsageError(
            f"{path} holds no run, study, prepared data or archive. Give a folder that `oelm run`, `oelm train`, "
            "`oelm prepare` or `oelm archive` has written."
        )
    return found


def _check_folder(folder: Path) -> Iterator[Finding]:
    if not folder.is_dir():
        return
    if (folder / META).exists() or (folder / "train.bin").exists():
        yield from _check_data(folder)
    if any((folder / name).exists() for name in (RECORD, SPEC, CHECKPOINTS)):
        yield from _check_run(folder)
        return
    if (folder / "state.json").exists():
        yield from _check_checkpoint(folder)
        return
    for name in _DECLARATIONS:
        if (folder / name).is_file():
            yield _check_declaration(folder, name)
    if (folder / ARCHIVE).is_file():
        yield _check_archive(folder / ARCHIVE)
    for inner in sorted(folder.iterdir()):
        if inner.is_dir() and not inner.is_symlink() and not inner.name.startswith("."):
            yield from _check_folder(inner)


def _check_document(path: Path, read: Callable[[], object] = lambda: None) -> Finding:
    """Check a JSON document: its checksum, and whether `read` accepts it."""
    try:
        text = path.read_bytes().decode()
        json.loads(strip_checksum(text))
        read()
    except (OSError, OelmError, ValueError, RecursionError) as error:
        return Finding(path, "damaged", _explain(error), _REPAIR_OF.get(path.name))
    return Finding(path, "intact" if has_checksum(text) else "unprotected")


def _explain(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or explain_validation(error)


def _check_declaration(folder: Path, name: str) -> Finding:
    finding = _check_document(folder / name, lambda: read_registration(folder) if name == REGISTERED else None)
    if finding.is_bad and name == STUDY and (folder / REGISTERED).exists():
        return replace(finding, repair="from-registration")
    return finding


def _check_lines(path: Path) -> Finding:
    text = path.read_bytes().decode(errors="replace")
    _, problems = parse_lines(text, _LINES[path.name], path.name)
    if problems:
        return Finding(path, "damaged", " ".join(problems[:3]), "drop-lines")
    whole = text.split("\n")[:-1]
    return Finding(path, "intact" if all(map(has_checksum, whole)) else "unprotected")


def _check_run(folder: Path) -> Iterator[Finding]:
    checkpoints = list(_check_checkpoints(folder / CHECKPOINTS))
    listed: Mapping[str, str] = {}
    if (folder / RECORD).exists():
        finding = _check_document(folder / RECORD, RunFolder(folder).read_record)
        if finding.is_bad:
            usable = any(not each.is_bad for each in checkpoints if each.path.name == "state.json")
            finding = replace(finding, repair="write-again" if usable else None)
        else:
            listed = RunFolder(folder).read_record().files
        yield finding
    for name in (*LISTED, LOOKS, SPEC, JOB):
        if (folder / name).is_file() or (name in listed and name != LOG):  # logs are not archived
            yield _check_run_file(folder / name, listed.get(name))
    yield from _check_tokenizer(RunFolder(folder).tokenizer, listed)
    yield from checkpoints


def _check_tokenizer(folder: Path, listed: Mapping[str, str]) -> Iterator[Finding]:
    """Check the run's own tokenizer by the record. It is not archived, so it may be missing."""
    for path in sorted(folder.glob("[!.]*")):
        expected = listed.get(f"{folder.name}/{path.name}")
        if expected is None:
            yield Finding(path, "unprotected")
        elif sha256_of(path) == expected:
            yield Finding(path, "intact")
        else:
            yield Finding(path, "damaged", "it is not as the run left it (sha256)")


def _check_run_file(path: Path, sha256: str | None) -> Finding:
    """Check a file of a run by the sha256 that the record lists, if it does, and by its own checksums."""
    repair = _REPAIR_OF[path.name]
    if not path.is_file():
        return Finding(path, "missing", "the record lists it", repair)
    if sha256 is not None and sha256_of(path) == sha256:
        return Finding(path, "intact")
    if path.name in _LINES:
        finding = _check_lines(path)
    elif path.suffix == ".json":
        finding = _check_document(path)
    else:
        finding = Finding(path, "unprotected")
    if sha256 is None or finding.is_bad:
        return finding
    return Finding(path, "damaged", "it is not as the run left it (sha256)", repair)


def _check_checkpoints(folder: Path) -> Iterator[Finding]:
    if not folder.is_dir():
        return
    findings = {
        inner.name: list(_check_checkpoint(inner))
        for inner in sorted(folder.iterdir())
        if inner.is_dir() and not inner.name.startswith(".")
    }
    has_previous = "previous" in findings and not any(each.is_bad for each in findings["previous"])
    for name, found in findings.items():
        for each in found:
            can_help = name == "latest" and has_previous and each.is_bad
            yield replace(each, repair="use-previous") if can_help else each


def _check_checkpoint(folder: Path) -> Iterator[Finding]:
    from oelm.train.checkpoint import STATE, read_state  # torch, which other folders do not need

    try:
        state: dict[str, Any] = read_state(folder)
    except CheckpointError as error:
        yield Finding(folder / STATE, "damaged", str(error))
        return
    text = (folder / STATE).read_text(encoding="utf-8")
    yield Finding(folder / STATE, "intact" if has_checksum(text) else "unprotected")
    for name, sha256 in state["sha256"].items():
        yield _check_hash(folder / Path(name).name, sha256)


def _check_hash(path: Path, sha256: str) -> Finding:
    try:
        if sha256_of(path) == sha256:
            return Finding(path, "intact")
    except FileNotFoundError:
        return Finding(path, "missing", "it is listed with a checksum")
    except OSError as error:
        return Finding(path, "damaged", _explain(error))
    return Finding(path, "damaged", "it is not the file that was written (sha256)")


def _check_data(folder: Path) -> Iterator[Finding]:
    if not (folder / META).exists():
        yield from (Finding(path, "unprotected") for path in sorted(folder.glob("*.bin")))
        return
    finding = _check_document(folder / META, lambda: read_meta(folder))
    yield finding
    meta = None if finding.is_bad else read_meta(folder)
    if meta is not None:
        for split, its in meta.files.items():
            yield _check_hash(folder / f"{split}.bin", its.sha256)
    try:
        load_tokenizer(folder)
    except OelmError as error:
        yield Finding(folder / TOKENIZER, "damaged", str(error))
    else:
        if (folder / TOKENIZER).exists():
            yield Finding(folder / TOKENIZER, "intact")
    for path in sorted(folder.glob("*.opened.json")):
        yield _check_document(path)


def _check_archive(path: Path) -> Finding:
    try:
        files = read_files(path)
        for name, content in files.items():
            if name.endswith(".json"):
                json.loads(strip_checksum(content.decode()))
    except (OelmError, ValueError, RecursionError) as error:
        return Finding(path, "damaged", _explain(error))
    return Finding(path, "intact")


def repair(root: Path, findings: list[Finding], target: Path) -> list[Finding]:
    """Write a copy of a folder in which everything that can be repaired is repaired; return what is still wrong in it.

    Locks and temporary files are not copied. Files that cannot be repaired are copied as they are.

    Raises:
        UsageError: the target exists, or is inside the folder, or the path is not a folder.

    """
    if not root.is_dir():
        raise UsageError(f"{root} is a file, which cannot be repaired. Restore it, for example with `git checkout`.")
    if target.exists() or target.resolve().is_relative_to(root.resolve()):
        raise UsageError(f"{target} exists or is inside {root}. Give a new folder for the repaired copy.")
    shutil.copytree(root, target, symlinks=True, ignore=shutil.ignore_patterns(f"{CLAIM}*", ".*"))
    changed: dict[Path, list[str]] = {}
    for finding in findings:
        if finding.is_bad and finding.repair:
            place = target / finding.path.relative_to(root)
            _repair_file(place, finding.repair)
            if place.name in LISTED:
                changed.setdefault(place.parent, []).append(f"{place.name} was damaged: {REPAIRS[finding.repair]}.")
    for folder, notes in changed.items():
        _note_repairs(RunFolder(folder), notes)
    return [finding for finding in verify(target) if finding.is_bad]


def _repair_file(place: Path, kind: Repair) -> None:
    if kind == "use-previous":
        previous = place.parent.with_name("previous")
        if previous.is_dir():  # else it has been used already, for another file of the same checkpoint
            shutil.rmtree(place.parent)
            previous.rename(place.parent)
    elif kind == "drop-lines":
        if place.exists():
            lines = place.read_bytes().decode(errors="replace").split("\n")[:-1]
            kept = [line for line in lines if not parse_lines(f"{line}\n", _LINES[place.name], "")[1]]
            place.write_text("".join(f"{line}\n" for line in kept))
    elif kind == "from-registration":
        place.unlink()
        registration = read_registration(place.parent)
        if registration is not None:
            (place.parent / REGISTERED).rename(aside := place.parent / f".{REGISTERED}")
            write_study(place.parent, registration.declared)  # which leaves the study of a registered folder alone
            aside.rename(place.parent / REGISTERED)
    elif kind in ("write-again", "leave-out"):
        place.unlink(missing_ok=True)


def _note_repairs(folder: RunFolder, notes: list[str]) -> None:
    """Bring the list of files in the record up to date; a run whose record is lost lists them when it ends again."""
    if folder.has_record():
        record = folder.read_record()
        files = folder.hash_files() if record.files else {}
        folder.write_record(record.model_copy(update={"damage": (*record.damage, *notes), "files": files}))
