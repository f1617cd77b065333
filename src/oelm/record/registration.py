"""Register what a study declares before its first confirming run: `registered.json`.

The file is written once, when the first confirming run is about to start, and never replaced. It contains the whole
study with the value of every field, the choice of the tuning stage, the commit and the time. A study that is edited
afterwards is another study: `oelm run` refuses it under the same name, and reports name every field that differs.

A screen confirms nothing and a listing compares nothing, so neither is registered.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, get_args

import oelm
from oelm.errors import BadRecord, StudyChanged
from oelm.files import add_checksum, digest, parse_checked, write_once
from oelm.record.folder import REGISTERED, study_without_paths, write_study
from oelm.record.record import Record, RunRecord, has_source_changes, source_commit, utc_now
from oelm.record.stages import ChoiceRecord
from oelm.spec import NoEffect, Spec, explain_validation
from oelm.spec.study import AnyStudy, Listing, Study

REGISTRATION_SCHEMA = 1
CLOCKS_APART = timedelta(seconds=60)
"""How far the clocks of two machines may disagree before a run counts as older than the registration."""

FieldDifference = tuple[str, Any, Any]
"""A dotted field of a study, its registered value and the other value. None: the field does not exist."""

(_NO_EFFECT,) = get_args(NoEffect)[1:]


class RegistrationRecord(Record):
    """The content of `registered.json`."""

    schema_version: int = REGISTRATION_SCHEMA
    digest: str
    """sha256 of the canonical JSON of `study`."""
    registered: str
    """Time of the registration, in UTC."""
    commit: str | None
    dirty: bool | None
    """Whether tracked files had uncommitted changes; None: unknown."""
    oelm: str
    study: dict[str, Any]
    """The whole declaration as plain data, without absolute paths."""
    choice: ChoiceRecord | None = None
    """What tuning chose for each arm and cell; None where nothing is tuned."""
    margin_resolved: float | None = None
    """The margin as a number, on the scale of the study's `margin` field, if the end of tuning decides it
    (`margin="content"`). None: the declared margin is a number, or the default."""

    @property
    def declared(self) -> Study:
        """The registered study as a value."""
        return Study.model_validate(self.study)

    @property
    def day(self) -> str:
        """The date of the registration."""
        return self.registered[:10]


def is_registrable(study: AnyStudy) -> bool:
    """Whether a study confirms something and is therefore registered."""
    return isinstance(study, Study) and not study.is_screen


def read_registration(root: Path) -> RegistrationRecord | None:
    """Read the registration in a study's folder; None if there is none."""
    path = root / REGISTERED
    try:
        plain = parse_checked(path.read_bytes())
        version = plain.get("schema_version") if isinstance(plain, dict) else None
        if isinstance(version, int) and version > REGISTRATION_SCHEMA:
            raise BadRecord(
                f"{path} has schema version {version}; this program knows up to {REGISTRATION_SCHEMA}. Update oelm."
            )
        record = RegistrationRecord.model_validate(plain)
        _ = record.declared
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BadRecord(f"{path} cannot be read: {error.strerror}. Check who owns it.") from error
    except ValueError as error:
        raise BadRecord(
            f"{path} is not a registration: {explain_validation(error)}. It is never rewritten: restore it."
        ) from error
    if record.digest != digest(record.study):
        raise BadRecord(
            f"{path} was edited: its study has the digest {digest(record.study)[:12]}, and {record.digest[:12]} was "
            "registered. Restore the file."
        )
    return record


def register_study(
    root: Path, study: Study, choice: ChoiceRecord | None, margin_resolved: float | None = None
) -> RegistrationRecord:
    """Register a study unless it is already registered; return the registration that counts.

    Several runners may call this at the same time: one file is written, and all of them return it.

    Raises:
        StudyChanged: another study, or another choice of settings, is registered in this folder.

    """
    record = read_registration(root)
    if record is None:
        plain = study_without_paths(study).model_dump(mode="json")
        mine = RegistrationRecord(
            digest=digest(plain),
            registered=utc_now(),
            commit=source_commit(),
            dirty=has_source_changes(),
            oelm=oelm.__version__,
            study=plain,
            choice=choice,
            margin_resolved=margin_resolved,
        )
        write_study(root, study)  # the same declaration for readers, also if the file was edited in the meantime
        write_once(root / REGISTERED, add_checksum(mine.model_dump_json(indent=1) + "\n"))
        record = read_registration(root) or mine
    refuse_changed(root, study, record)
    _refuse_other_choice(root, choice, record)
    return record


def refuse_changed(root: Path, study: AnyStudy, record: RegistrationRecord | None = None) -> None:
    """Raise StudyChanged, naming every difference, if another study is registered in a study's folder."""
    record = record or read_registration(root)
    if record is None:
        return
    if isinstance(study, Listing):
        raise StudyChanged(f"{root} is the folder of a registered study, and {study.name!r} is a listing. Rename it.")
    if found := study_differences(record, study):
        raise StudyChanged(
            f"study {study.name!r} was registered on {record.day} and has been changed since: "
            f"{format_differences(found)}. Restore these fields to continue it, or give the changed study a new name. "
            f"{root / REGISTERED} and all runs are as they were."
        )


def _refuse_other_choice(root: Path, choice: ChoiceRecord | None, record: RegistrationRecord) -> None:
    if found := choice_differences(record, choice):
        raise StudyChanged(
            f"study {record.study['name']!r} was registered on {record.day} with other settings than its tuning runs "
            f"give now: {format_differences(found)}. Restore the tuning runs and the data they were made on, "
            f"or give the study a new name. {root / REGISTERED} and all runs are as they were."
        )


def study_differences(record: RegistrationRecord, study: Study) -> list[FieldDifference]:
    """Return every field in which a study differs from the registered one.

    Fields that cannot change a result, such as the path of the data, are left out; so is the order of the arms.
    """
    before = dict(_fields(record.declared))
    now = dict(_fields(Study.model_validate(study_without_paths(study).model_dump(mode="json"))))
    return _compare(before, now)


def choice_differences(record: RegistrationRecord, choice: ChoiceRecord | None) -> list[FieldDifference]:
    """Return the settings in which tuning differs now from the registered choice."""
    return _compare(_settings(record.choice), _settings(choice))


def format_differences(found: Iterable[FieldDifference]) -> str:
    """Format differences as text."""
    return "; ".join(f"{field}: registered {_format(before)}, now {_format(now)}" for field, before, now in found)


def is_older(run: RunRecord, record: RegistrationRecord) -> bool:
    """Whether a run started before the registration. A run without a readable time counts as older."""
    try:
        return datetime.fromisoformat(run.started) < datetime.fromisoformat(record.registered) - CLOCKS_APART
    except (ValueError, TypeError):
        return True


@dataclass(frozen=True)
class Registration:
    """The state of a study for reports: as registered, changed since, or never registered."""

    record: RegistrationRecord | None
    changed: tuple[FieldDifference, ...] = ()
    older: tuple[tuple[Path, RunRecord], ...] = ()
    """Confirming runs that started before the registration."""


def registration_of(
    root: Path, study: Study, choice: ChoiceRecord | None, confirming: Iterable[tuple[Path, RunRecord]]
) -> Registration:
    """Compare a study and its confirming runs with what is registered in its folder."""
    record = read_registration(root)
    if record is None:
        return Registration(None)
    changed = [*study_differences(record, study), *(choice_differences(record, choice) if choice else ())]
    older = [(directory, run) for directory, run in confirming if is_older(run, record)]
    return Registration(record, tuple(changed), tuple(older))


def _fields(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted fields of a study that can change its results; arms are identified by their names."""
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


def _compare(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[FieldDifference]:
    arms = {name for name in {*before} ^ {*now} if name.endswith("].name")}  # added or removed: one line for each
    whole = tuple(name.removesuffix("name") for name in arms)
    fields = dict.fromkeys(name for name in (*before, *now) if name in arms or not name.startswith(whole))
    return [(name, before.get(name), now.get(name)) for name in fields if before.get(name) != now.get(name)]


def _format(value: Any) -> str:
    return "nothing" if value is None else json.dumps(value, ensure_ascii=False, default=str)
