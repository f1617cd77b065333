from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oelm.record.folder import (
    STUDY,
    command_without_paths,
    read_study,
    record_without_paths,
    run_without_paths,
    study_without_paths,
    text_without_paths,
    write_study,
)
from oelm.spec.run import ExamplesSpec, RunSpec, fingerprint
from oelm.spec.study import Listing, Study

PART = st.text("abcXYZ019_-.+é", min_size=1, max_size=8).filter(lambda part: set(part) != {"."})
SPACED = st.lists(PART, min_size=1, max_size=3).map(" ".join)


def placed(run: RunSpec, **paths: str) -> RunSpec:
    return run.model_copy(
        update={"data": run.data.model_copy(update={name: Path(path) for name, path in paths.items()})}
    )


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("/usr/bin/python3 -m oelm train /home/me/x.json", "python3 -m oelm train x.json"),
        ("oelm train --out=/home/me/runs -o=/a", "oelm train --out=runs -o=a"),
        ("oelm run '/a b/spec.json' '--out=/a b/c d'", "oelm run spec.json '--out=c d'"),
        ("oelm run studies/fair.py --out runs/x ../y", "oelm run studies/fair.py --out runs/x ../y"),
        ("oelm run x.source=/home/me/text model.name=a/b", "oelm run x.source=text model.name=a/b"),
        ("oelm run 'never closed /home/me/x", "oelm run 'never closed x"),
    ],
)
def test_a_command_names_the_last_part_of_each_path(command: str, expected: str) -> None:
    assert command_without_paths(command) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('  File "/home/me/src/oelm/run.py", line 1', '  File "run.py", line 1'),
        ("No such file: '/home/me/a b/x.bin'", "No such file: 'x.bin'"),
        ("cannot open /home/me/x.bin: gone", "cannot open x.bin: gone"),
        ("[PosixPath('/a/b'), /c/d, (/e/f)]", "[PosixPath('b'), d, (f)]"),
        ("/a/b:/c/d and file:///home/me/x", "b:d and x"),
        (
            "see https://a.org/b/c, runs/x/y, ./z, 3/4 and/or ~/w",
            "see https://a.org/b/c, runs/x/y, ./z, 3/4 and/or ~/w",
        ),
    ],
)
def test_an_error_names_the_last_part_of_each_path(text: str, expected: str) -> None:
    assert text_without_paths(text) == expected


@given(st.lists(PART, min_size=1, max_size=4), st.sampled_from(["{}", "in {} it", "at {}, or", "x={}", "({})"]))
def test_no_bare_path_is_left_in_a_text(parts: list[str], around: str) -> None:
    assert text_without_paths(around.format("/" + "/".join(parts))) == around.format(parts[-1])


@given(st.lists(SPACED, min_size=1, max_size=4), st.sampled_from(["'", '"', "`"]))
def test_no_quoted_path_is_left_in_a_text(parts: list[str], quote: str) -> None:
    path = "/" + "/".join(parts)
    assert text_without_paths(f"at {quote}{path}{quote}: no") == f"at {quote}{parts[-1]}{quote}: no"


@given(st.lists(SPACED, min_size=1, max_size=4), st.sampled_from(["", "--out=", "-o="]))
def test_no_path_is_left_in_a_command(parts: list[str], option: str) -> None:
    command = shlex.join(["oelm", "run", option + "/" + "/".join(parts)])
    assert shlex.split(command_without_paths(command)) == ["oelm", "run", option + parts[-1]]


@given(st.lists(PART, min_size=1, max_size=4).map("/".join))
def test_relative_paths_stay(path: str) -> None:
    assert text_without_paths(f"at {path}: no") == f"at {path}: no"


def test_a_record_names_no_path_and_keeps_its_fingerprint(study: Study, make_record: Any) -> None:
    run = placed(study.runs()[0], directory="/home/me/data", source="texts/mine")
    record = make_record(run, error="RunFailed: /home/me/x is gone")
    environment = record.environment.model_copy(update={"command": "oelm train --out=/home/me/runs"})
    clean = record_without_paths(record.model_copy(update={"environment": environment}))
    assert "/home/me" not in clean.model_dump_json()
    assert (clean.spec.data.directory, clean.spec.data.source) == (None, Path("texts/mine"))
    assert fingerprint(clean.spec) == record.fingerprint


def test_a_study_names_no_path_in_its_base_or_its_listed_runs(study: Study, tmp_path: Path) -> None:
    examples = study.base.model_copy(update={"data": ExamplesSpec(source=Path("/home/me/sst2")), "label": "one"})
    listing = Listing(name="l", question="?", listed=(examples,))
    based = study.model_copy(update={"base": placed(study.base, source="/home/me/text", directory="/home/me/data")})
    for each in (based, listing):
        write_study(tmp_path, each)
        assert "/home/me" not in (tmp_path / STUDY).read_text()
        again = read_study(tmp_path)
        assert again == study_without_paths(each)
        assert [fingerprint(run) for run in again.runs()] == [fingerprint(run) for run in each.runs()]
    assert run_without_paths(study.base) == study.base
