"""`registered.json`: what a study declared before its first confirming run.

The file is written once, when the first confirming run is about to start, and never replaced. It holds the whole study
with every field at its value, what tuning chose, the commit and the time. A study that is edited afterwards is another
study: `oelm run` refuses it under the same name, and reports name every field that differs.

A screen confirms nothing and a listing compares nothing, so neither is registered.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

import oelm
from oelm.errors import BadRecord, StudyChanged
from oelm.files import write_once
from oelm.record.environment import commit_of, is_dirty, source_tree
from oelm.record.paths import study_without_paths
from oelm.record.schema import Record, RunRecord
from oelm.record.stages import ChoiceRecord
from oelm.record.store import REGISTERED, write_study
from oelm.spec.base import NoEffect, Spec, digest
from oelm.study import AnyStudy, Listing, Study

SCHEMA = 1
CLOCKS_APART = timedelta(seconds=60)
"""How far the clocks of two machines may disagree before a run counts as older than the registration."""

Difference = tuple[str, Any, Any]
"""A dotted field of a study, its registered value and the other value; None: there is no such field."""

(_NO_EFFECT,) = get_args(NoEffect)[1:]


class RegistrationRecord(Record):
    """The content of `registered.json`."""

    schema_version: int = SCHEMA
    digest: str
    """sha256 of the canonical JSON of `study`."""
    registered: str
    """When, in UTC."""
    commit: str | None
    dirty: bool | None
    """Whether tracked files had uncommitted changes; None: unknown."""
    oelm: str
    study: dict[str, Any]
    """The whole declaration as plain data, without paths of the machine."""
    choice: ChoiceRecord | None = None
    """What tuning chose for each arm and cell; None where nothing is tuned."""
    margin_resolved: float | None = None
    """The margin as a number, on the scale of the study's `margin` field, where the declaration leaves it to the end
    of tuning (`margin="content"`). None: the declared margin is a number, or the default."""

    @property
    def declared(self) -> Study:
        """The registered study as a value."""
        return Study.model_validate(self.study)

    @property
    def day(self) -> str:
        """The date of the registration."""
        return self.registered[:10]


def is_registrable(study: AnyStudy) -> bool:
    """Whether a study confirms something, so that it is registered before it does."""
    return isinstance(study, Study) and not study.is_screen


def read_registration(root: Path) -> RegistrationRecord | None:
    """Read the registration in a study's folder; None where there is none."""
    path = root / REGISTERED
    try:
        plain = json.loads(path.read_bytes())
        version = plain.get("schema_version") if isinstance(plain, dict) else None
        if isinstance(version, int) and version > SCHEMA:
            raise BadRecord(f"{path} has schema version {version}; this program knows up to {SCHEMA}. Update oelm.")
        record = RegistrationRecord.model_validate(plain)
        _ = record.declared
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BadRecord(f"{path} cannot be read: {error.strerror}. Check who owns it.") from error
    except ValueError as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise BadRecord(f"{path} is not a registration: {reason}. It is never rewritten: restore it.") from error
    if record.digest != digest(record.study):
        raise BadRecord(
            f"{path} was edited: its study has the digest {digest(record.study)[:12]}, and {record.digest[:12]} was "
            "registered. Restore the file."
        )
    return record


def register(
    root: Path, study: Study, choice: ChoiceRecord | None, margin_resolved: float | None = None
) -> RegistrationRecord:
    """Register a study unless it is registered already; return the registration that counts.

    Several runners may call this at once: one file is written, and all of them return it.

    Raises:
        StudyChanged: another study, or another choice of settings, is registered in this folder.

    """
    record = read_registration(root)
    if record is None:
        tree = source_tree()
        commit = commit_of(tree) if tree else None
        plain = study_without_paths(study).model_dump(mode="json")
        mine = RegistrationRecord(
            digest=digest(plain),
            registered=datetime.now(UTC).isoformat(timespec="seconds"),
            commit=commit,
            dirty=is_dirty(tree) if tree and commit else None,
            oelm=oelm.__version__,
            study=plain,
            choice=choice,
            margin_resolved=margin_resolved,
        )
        write_study(root, study)  # the same declaration for readers, also if the file was edited in the meantime
        write_once(root / REGISTERED, mine.model_dump_json(indent=1) + "\n")
        record = read_registration(root) or mine
    refuse_changed(root, study, record)
    _refuse_other_choice(root, choice, record)
    return record


def refuse_changed(root: Path, study: AnyStudy, record: RegistrationRecord | None = None) -> None:
    """Raise StudyChanged if another study is registered in a study's folder, and name every difference."""
    record = record or read_registration(root)
    if record is None:
        return
    if isinstance(study, Listing):
        raise StudyChanged(f"{root} is the folder of a registered study, and {study.name!r} is a listing. Rename it.")
    if found := differences(record, study):
        raise StudyChanged(
            f"study {study.name!r} was registered on {record.day} and has been changed since: {in_words(found)}. "
            f"Restore these fields to continue it, or give the changed study a new name. {root / REGISTERED} and all "
            "runs are as they were."
        )


def _refuse_other_choice(root: Path, choice: ChoiceRecord | None, record: RegistrationRecord) -> None:
    if found := choice_differences(record, choice):
        raise StudyChanged(
            f"study {record.study['name']!r} was registered on {record.day} with other settings than its tuning runs "
            f"give now: {in_words(found)}. Restore the tuning runs and the data they were made on, or give the study a "
            f"new name. {root / REGISTERED} and all runs are as they were."
        )


def differences(record: RegistrationRecord, study: Study) -> list[Difference]:
    """Return every field in which a study differs from the registered one.

    Fields that cannot change a number, such as where the data lie, are left out; so is the order of the arms.
    """
    before = dict(_fields(record.declared))
    now = dict(_fields(Study.model_validate(study_without_paths(study).model_dump(mode="json"))))
    return _differing(before, now)


def choice_differences(record: RegistrationRecord, choice: ChoiceRecord | None) -> list[Difference]:
    """Return the settings that tuning gives now and did not give when the study was registered."""
    return _differing(_settings(record.choice), _settings(choice))


def in_words(found: Iterable[Difference]) -> str:
    """Write differences as text."""
    return "; ".join(f"{field}: registered {_shown(before)}, now {_shown(now)}" for field, before, now in found)


def is_older(run: RunRecord, record: RegistrationRecord) -> bool:
    """Whether a run started before the registration; one that does not say when counts as older."""
    try:
        return datetime.fromisoformat(run.started) < datetime.fromisoformat(record.registered) - CLOCKS_APART
    except (ValueError, TypeError):
        return True


@dataclass(frozen=True)
class Registration:
    """What reports say of a study: as registered, changed since, or never registered."""

    record: RegistrationRecord | None
    changed: tuple[Difference, ...] = ()
    older: tuple[tuple[Path, RunRecord], ...] = ()
    """Confirming runs that started before the registration."""


def registration_of(
    root: Path, study: Study, choice: ChoiceRecord | None, confirming: Iterable[tuple[Path, RunRecord]]
) -> Registration:
    """Compare a study and its confirming runs with what is registered in its folder."""
    record = read_registration(root)
    if record is None:
        return Registration(None)
    changed = [*differences(record, study), *(choice_differences(record, choice) if choice else ())]
    older = [(directory, run) for directory, run in confirming if is_older(run, record)]
    return Registration(record, tuple(changed), tuple(older))


def _fields(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted fields of a study that can change what it says; arms go by their names."""
    if isinstance(value, Spec):
        for name, field in type(value).model_fields.items():
            if _NO_EFFECT not in field.metadata:
                yield from _fields(getattr(value, name), f"{prefix}.{name}" if prefix else name)
    elif isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _fields(inner, f"{prefix}[{name}]")
    elif isinstance(value, tuple | list) and value and all(isinstance(one, Spec) for one in value):
        for place, one in enumerate(value):
            yield from _fields(one, f"{prefix}[{getattr(one, 'name', place)}]")
    else:
        yield prefix, _plain(value)


def _plain(value: Any) -> Any:
    return [_plain(one) for one in value] if isinstance(value, tuple | list) else value


def _settings(choice: ChoiceRecord | None) -> dict[str, Any]:
    return {
        f"choice[{', '.join([arm.arm, *(f'{axis}={value}' for axis, value in cell.axes.items())])}].{field}": value
        for cell in (choice.cells if choice else ())
        for arm in cell.arms
        for field, value in arm.values.items()
    }


def _differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[Difference]:
    arms = {name for name in {*before} ^ {*now} if name.endswith("].name")}  # added or removed: one line for each
    whole = tuple(name.removesuffix("name") for name in arms)
    fields = dict.fromkeys(name for name in (*before, *now) if name in arms or not name.startswith(whole))
    return [(name, before.get(name), now.get(name)) for name in fields if before.get(name) != now.get(name)]


def _shown(value: Any) -> str:
    return "nothing" if value is None else json.dumps(value, ensure_ascii=False, default=str)
