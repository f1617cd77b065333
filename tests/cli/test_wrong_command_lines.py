"""Hundreds of wrong command lines: each ends with an exit code and a message, and never with a traceback."""

from __future__ import annotations

import dataclasses
import importlib
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oelm.cli import VERBS, dispatch
from oelm.spec import Spec

NUMBERS = ("-1", "0", "nan", "inf", "1e400", "1.5", "9" * 20, "9" * 5000, "", "x", "\ud800")
FIELD_NUMBERS = ("-1", "nan", "9" * 20, "9" * 5000)
"""For the many fields of specs."""

# What makes each verb stop before it trains, listens or measures, whatever the number is.
STOPS = {
    "inspect": ["nano"],
    "cost": ["nano", "--length", "8"],
    "prepare": ["mine", "--from", "missing"],
    "prepare --task": ["--task", "sst2", "--from", "missing"],
    "train": ["--data.directory", "missing"],
    "train --task": ["--task", "sst2", "--from", "missing", "--model", "nano"],
    "plan": ["missing.py"],
    "run": ["missing.py"],
    "serve": ["missing"],
    "evaluate": ["missing"],
    "generate": ["missing"],
    "import-run": ["missing", "--learning-rate", "1e-3"],
    "bench step": ["--against", "keras"],
    "bench growth": ["--factors", "colour"],
    "bench methods": ["--arms", "baseline"],
    "bench prepare": ["--source", "missing"],
}
ARGUMENTS = {"prepare --task": "PrepareTaskArguments", "train --task": "TrainTaskArguments"}
FILES = {
    "empty.py": b"",
    "binary.py": bytes(range(256)),
    "latin.py": "study = 'caf\xe9'".encode("latin-1"),
    "nul.py": b"study = 1\0",
    "syntax.py": b"study = (",
    "exit.py": b"import sys; sys.exit('bye')",
    "exit0.py": b"raise SystemExit",
    "interrupt.py": b"raise RecursionError",
    "deep.json": b"[" * 100_000,
    "digits.json": b'{"seed": ' + b"9" * 5000 + b"}",
    "binary.json": b"\xff\xfe\x00{",
    "broken-record/record.json": b"{",
    "deep-record/record.json": b"[" * 100_000,
    "binary-record/record.json": b"\xff\xfe",
    "folder-record/record.json/inside": b"",
    "deep-data/meta.json": b"[" * 100_000,
    "broken-study/study.json": b"{",
    "binary-study/study.json": b"\xff\xfe",
    "broken-archive/runs.tar.xz": b"not an archive",
    "folder-archive/runs.tar.xz/inside": b"",
    "broken-results/step.json": b"[]",
    "checkpoint.pt": b"not a checkpoint",
    "config/config.json": b"[]",
}
FOLDERS = sorted({str(Path(name).parent) for name in FILES})
PATHS = ("missing", "", "empty", "no/such/thing", "a\nb", "x" * 5000, "\ud800", *FILES, *FOLDERS)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return tmp_path


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> None:
    """Run a command line that must end with an exit code and a message."""
    shown = " ".join(word[:40] for word in argv)
    try:
        code = dispatch(list(argv))
    except BaseException as error:
        raise AssertionError(f"oelm {shown!r} raised {error!r}") from error
    said = capsys.readouterr()
    assert isinstance(code, int), shown
    assert said.out or said.err, shown
    assert code == 0 or said.err.startswith("oelm: ") or "oelm: " in said.err, (shown, said.err)
    assert "Traceback" not in said.err, shown


def numeric_flags(verb: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield every flag of a verb that takes a number, with wrong values for it."""
    name, _, rest = verb.partition(" ")
    if name == "bench":
        arguments = getattr(importlib.import_module(f"oelm.bench.{rest}"), f"{rest.title()}Bench")
    else:
        module = importlib.import_module(f"oelm.cli.{VERBS[name][0]}")
        arguments = getattr(module, ARGUMENTS.get(verb, "".join(map(str.title, name.split("-"))) + "Arguments"))
    hints = typing.get_type_hints(arguments)
    for field in dataclasses.fields(arguments):
        if isinstance(field.default, Spec):
            for inner, info in type(field.default).model_fields.items():
                if takes_number(info.annotation):
                    yield f"--{field.name}.{inner.replace('_', '-')}", FIELD_NUMBERS
        elif takes_number(hints[field.name]):
            yield f"--{field.name.replace('_', '-')}", NUMBERS


def takes_number(annotation: object) -> bool:
    return annotation in (int, float) or any(map(takes_number, typing.get_args(annotation)))


@pytest.mark.parametrize("verb", STOPS)
def test_no_number_for_any_flag_is_a_traceback(verb: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = list(numeric_flags(verb))
    words = ["bench", verb.partition(" ")[2]] if verb.startswith("bench") else [verb.partition(" ")[0]]
    for flag, values in flags:
        for value in values:
            # An equals sign, because a separate -1 would be taken for a flag.
            refused(capsys, *words, *STOPS[verb], f"{flag}={value}")
    refused(capsys, *words, *STOPS[verb], "--no-such-flag")


@pytest.mark.parametrize(
    "command",
    [
        "inspect PATH", "cost PATH", "prepare PATH", "prepare mine --from PATH", "prepare --task sst2 --from PATH",
        "prepare stories --vocabulary PATH", "train --spec PATH", "train --data.directory PATH",
        "train --task sst2 --model nano --from PATH", "plan PATH", "plan PATH --power", "run PATH", "status PATH",
        "logs PATH", "logs nothing --runs PATH", "cancel PATH", "compare PATH", "compare PATH --force --json",
        "report PATH", "report PATH --all", "report PATH --markdown", "show PATH", "show nothing --runs PATH",
        "archive PATH --out out", "unpack PATH --out out", "serve PATH --port 99999", "evaluate PATH",
        "generate PATH", "export PATH out", "import-checkpoint PATH out", "import-run PATH --learning-rate 1e-3",
        "bench report --results PATH --out out", "bench prepare --megabytes 1 --rounds 0 --source PATH",
    ],
)  # fmt: skip
def test_no_path_is_a_traceback(command: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in PATHS:
        if path == "empty" and command.startswith("report PATH --all"):
            continue  # a report over no studies is a report
        refused(capsys, *(path if word == "PATH" else word for word in command.split()))


@pytest.mark.parametrize("verb", [*VERBS, "no-such-verb", "--no-such-flag", ""])
def test_a_bare_verb_or_too_many_words_are_refused(verb: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [f"word{number}" for number in range(9)]
    if verb not in ("compare", "help", "version"):
        refused(capsys, verb, *words)
    if verb not in ("demo", "doctor", "serve", "train"):  # these have defaults for everything
        refused(capsys, verb)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    verb=st.sampled_from(["status", "logs", "cancel", "compare", "show", "archive", "unpack", "evaluate", "generate"]),
    words=st.lists(
        st.one_of(st.text(max_size=6), st.sampled_from(["--runs", "--out", "--only", "--json", "--seed", "--"])),
        max_size=5,
    ),
)
def test_random_words_are_never_a_traceback(
    verb: str, words: list[str], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(capsys, verb, *words)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["generate", "run", "--temperature", "nan"], "--temperature must be a finite number, found nan"),
        (["generate", "run", "--top-p", "2"], "--top-p must be less than or equal to 1, found 2.0"),
        (["run", "exit.py"], "line 1 of exit.py raised SystemExit"),
        (["inspect", "nano", "--method", "oelm"], "Did you mean 'oelm-freeze'?"),
        (["statsu", "demo.py"], "Did you mean 'status'?"),
        (["status", "demo.py", "--jsno"], "Did you mean --json?"),
        (["report"], "STUDY is missing"),
    ],
)
def test_the_message_names_the_flag_and_suggests_the_nearest_name(
    argv: list[str], words: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dispatch(argv) == 2
    assert words in capsys.readouterr().err
