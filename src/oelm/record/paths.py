"""What a file says once the paths of this machine are left out: they are of no use elsewhere, and nobody's business."""

from __future__ import annotations

import re
import shlex
from pathlib import Path, PurePath

from oelm.record.schema import RunRecord
from oelm.spec.run import RunSpec
from oelm.study import AnyStudy, Listing

_QUOTED = re.compile(r"""(["'`])(/[^"'`\n]*)\1""")
_BARE = re.compile(
    r"(?:(?<![\w./~:@%+-])(?:file:/+)?|(?<=:)(?=/[^/]))"  # not within a relative path, nor an address of the web
    r"""/(?:\\.|[^\s"'`,;:)\]}>\\])+"""
)
_OPTION = re.compile(r"(-[\w.-]+=)(/.*)", re.DOTALL)


def run_without_paths(run: RunSpec) -> RunSpec:
    """Return the spec without the absolute paths of its data; its fingerprint is the same, as they have no effect."""
    gone = {name: None for name in ("directory", "source") if _is_absolute(getattr(run.data, name, None))}
    return run.model_copy(update={"data": run.data.model_copy(update=gone)}) if gone else run


def study_without_paths(study: AnyStudy) -> AnyStudy:
    """Return the study with every run that it declares so."""
    if isinstance(study, Listing):
        return study.model_copy(update={"listed": tuple(map(run_without_paths, study.listed))})
    return study.model_copy(update={"base": run_without_paths(study.base)})


def record_without_paths(record: RunRecord) -> RunRecord:
    """Return the record so: its spec, its command, its error with any traceback."""
    command = command_without_paths(record.environment.command)
    return record.model_copy(
        update={
            "spec": run_without_paths(record.spec),
            "environment": record.environment.model_copy(update={"command": command}),
            "error": None if record.error is None else text_without_paths(record.error),
        }
    )


def command_without_paths(command: str) -> str:
    """Put the last part of each absolute path of a command in its place, the value of an option included."""
    try:
        words = shlex.split(command)
    except ValueError:  # a quote that is never closed: written by hand
        return text_without_paths(command)
    return shlex.join(map(_word, words))


def text_without_paths(text: str) -> str:
    """Put the last part of each absolute path in its place. An unquoted one ends at a space, as nobody can tell."""
    quoted = _QUOTED.sub(lambda found: f"{found[1]}{_last(found[2])}{found[1]}", text)
    return _BARE.sub(lambda found: _last(found[0]), quoted)


def _word(word: str) -> str:
    if word.startswith("/"):
        return _last(word)
    option = _OPTION.fullmatch(word)
    return option[1] + _last(option[2]) if option else text_without_paths(word)


def _last(path: str) -> str:
    return PurePath(path).name


def _is_absolute(path: Path | None) -> bool:
    return path is not None and path.is_absolute()
