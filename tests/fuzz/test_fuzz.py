"""Generated inputs for every verb, spec, study file, text, table and result file: no traceback and no hang.

The normal suite runs a few inputs of each kind; `make test-fuzz` runs OELM_FUZZ times as many. Commands are called
inside this process. Each input ends with an exit code and, if it is not 0, with a message of our own.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from oelm.cli import VERBS, dispatch
from oelm.data.labelled import open_examples
from oelm.errors import OelmError
from oelm.files import parse_checked
from oelm.record.folder import METRICS, RECORD, STUDY, read_metrics, read_record, write_study
from oelm.spec.run import ExamplesSpec, RunSpec
from oelm.spec.study import Study

SCALE = int(os.environ.get("OELM_FUZZ", "1"))
COUNT = Path(os.environ["OELM_FUZZ_COUNTS"]) if "OELM_FUZZ_COUNTS" in os.environ else None
pytestmark = pytest.mark.timeout(300 * SCALE)


def fuzz(examples: int) -> Callable[[Any], Any]:
    """Return the settings of a test: the number of inputs in the normal suite."""
    return settings(
        max_examples=examples * SCALE,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


def count(kind: str) -> None:
    if COUNT is not None:
        with COUNT.open("a") as file:
            file.write(f"{kind}\n")


def ends_well(kind: str, *argv: str) -> None:
    """Run a command line. It must return an exit code, and say why if the code is not 0."""
    count(kind)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = dispatch(list(argv))
    assert code in (0, 1, 2, 130), argv
    assert code == 0 or "oelm: " in err.getvalue(), (argv, err.getvalue())
    assert "Traceback" not in err.getvalue(), argv


WEIRD_TEXT = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        ["\ud800", "\x1b[2J", "[/x]", "{x}", "a\nb", "../..", "/dev/null", "-", "%s", "\0", "x" * 300, "NaN"]
    ),
)
WEIRD_VALUE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.integers(),
    st.floats(),
    WEIRD_TEXT,
    st.sampled_from([10**400, -(10**400), 1e308, float("inf"), float("nan"), 2**63, 2**31]),
    st.lists(st.integers(-1, 2), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(-1, 2), max_size=2),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value inside JSON data."""
    yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from places(inner, (*path, key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from places(inner, (*path, number))


@st.composite
def damaged(draw: Any, plain: Any) -> Any:
    """Draw JSON data in which one to three values are replaced or removed."""
    plain = copy.deepcopy(plain)
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from([path for path in places(plain) if path] or [()]))
        if not path:
            return draw(WEIRD_VALUE)
        holder = plain
        for key in path[:-1]:
            holder = holder[key]
        if draw(st.integers(0, 4)) == 0:
            del holder[path[-1]]
        else:
            holder[path[-1]] = draw(WEIRD_VALUE)
    return plain


# ---- command lines

WORDS = (
    "--json",
    "--runs",
    "--out",
    "--only",
    "--seed",
    "--scale",
    "--force",
    "--lang",
    "zh",
    "--all",
    "--markdown",
    "--power",
    "--device",
    "cpu",
    "--split",
    "val",
    "--checkpoint",
    "best",
    "--temperature",
    "--top-k",
    "--tokens",
    "--method",
    "oelm-freeze",
    "baseline+bias",
    "oelm-every:3",
    "oelm-partial:-1",
    "--labels",
    "--length",
    "--batch",
    "nan",
    "-1",
    "0",
    "1e400",
    "nano",
    "bert-tiny",
    "missing",
    "bad.json",
    "deep.json",
    "study.py",
    "exit.py",
    "run",
    ".",
    "--",
    "--help",
    "--threads",
    "--errors",
    "--record",
    "--keep",
    "--data",
    "--prompt",
    "--step",
    "--vocab-size",
    "--from",
    "--task",
    "sst2",
)
LONG = {"serve", "run", "bench", "prepare", "train", "demo"}
"""Verbs that listen, train or write for long if a line happens to be right: they get a word that stops them."""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, study: Study, write_run: Any) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    (tmp_path / "bad.json").write_text('{"seed": ')
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "exit.py").write_text("import sys; sys.exit(3)")
    (tmp_path / "study.py").write_text(
        "from oelm import *\n"
        "study = Study(name='runs', question='[/x] \\x1b[2J', base=RunSpec(model=GPTSpec(), train=TrainSpec(steps=100, "
        "warmup_steps=10)), arms=('baseline', 'oelm-freeze'), seeds=(0, 1, 2))\n"
    )
    for run in study.runs():
        write_run(run)
    write_study(tmp_path / "runs", study)
    shutil.copytree(write_run(study.runs()[0]), tmp_path / "run")
    return tmp_path


@fuzz(40)
@given(st.sampled_from([*VERBS, "x", ""]), st.lists(st.one_of(st.sampled_from(WORDS), WEIRD_TEXT), max_size=6))
def test_no_command_line_is_a_traceback(here: Path, verb: str, words: list[str]) -> None:
    if verb in LONG or "--calibrate" in words:
        words = [*words, "--no-such-flag"]
    ends_well("command lines", verb, *words)


# ---- specs and study files


@pytest.fixture(scope="module")
def plain_run() -> Any:
    from oelm.spec.run import GPT_SIZES

    return json.loads(RunSpec(model=GPT_SIZES["nano"]).model_dump_json())


@fuzz(50)
@given(st.data())
def test_no_spec_is_a_traceback(plain_run: Any, data: st.DataObject) -> None:
    count("specs")
    plain = data.draw(damaged(plain_run))
    with contextlib.suppress(ValidationError, OelmError):
        run = RunSpec.model_validate(plain)
        assert RunSpec.model_validate_json(run.model_dump_json()) == run


@fuzz(40)
@given(st.data())
def test_no_declaration_of_a_study_is_a_traceback(here: Path, data: st.DataObject) -> None:
    count("declarations")
    plain = data.draw(damaged(parse_checked((here / "runs" / STUDY).read_bytes())))
    with contextlib.suppress(ValidationError, OelmError):
        Study.model_validate(plain).runs()


FRAGMENTS = st.one_of(
    WEIRD_TEXT,
    st.sampled_from(
        [
            "study = 1",
            "study = None",
            "scales = 3",
            "scales = {}",
            "raise SystemExit",
            "import sys; sys.exit('x')",
            "1/0",
            "study = Study()",
            "study = Study(name='x')",
            "study = Study(name='a\\nb', question='', base=RunSpec(model=GPTSpec()), arms=('baseline',))",
            "raise KeyboardInterrupt",
            "raise MemoryError",
            "raise RecursionError",
            "def f(): f()\nf()",
            "study = Study(name='x', question='[/x]', base=RunSpec(model=GPTSpec()), arms=('baseline', 'baseline'))",
            "study = Study(name='x', question='q', base=RunSpec(model=GPTSpec()), arms='baseline')",
            "class X(Exception): pass\nraise X",
            "study = Study(name='x', question='', base=RunSpec(model=GPTSpec()), arms=(), axes={'seed': range(10**5)})",
            "raise BaseException('x')",
            "raise GeneratorExit",
            "study = type('S', (), {'__class__': 1})()",
            "import os; os.nothing",
            "scales = {'x': Study}",
            "study = Study",
            "exit()",
            "quit(0)",
            "assert False",
            "raise UnicodeError",
            "\tstudy = 1",
        ]
    ),
)


@fuzz(40)
@given(st.lists(FRAGMENTS, max_size=4), st.sampled_from(["status", "report", "compare", "cancel"]))
def test_no_study_file_is_a_traceback(here: Path, fragments: list[str], verb: str) -> None:
    lines = "\n".join(["from oelm import *", *fragments])
    (here / "fuzzed.py").write_bytes(lines.encode("utf-8", "surrogatepass"))
    ends_well("study files", verb, "fuzzed.py")


# ---- result files

COMMANDS = (
    ("show", "DIR"),
    ("compare", "DIR"),
    ("logs", "DIR"),
    ("inspect", "DIR"),
    ("generate", "DIR"),
    ("evaluate", "DIR"),
    ("export", "DIR", "out"),
    ("status", "study.py", "--runs", "."),
    ("plan", "study.py", "--runs", "."),
    ("compare", "runs"),
    ("compare", "runs", "--force", "--json"),
)


@fuzz(40)
@given(st.data(), st.sampled_from(COMMANDS), st.sampled_from([RECORD, METRICS, STUDY, "timing_stats.json", "claim.1"]))
def test_no_result_file_is_a_traceback(here: Path, data: st.DataObject, command: tuple[str, ...], name: str) -> None:
    root = here / "runs"
    directory = next(path for path in sorted(root.iterdir()) if path.is_dir())
    path = root / STUDY if name == STUDY else directory / name
    before = path.read_bytes() if path.exists() else None
    sample = json.loads(before.splitlines()[0] if name == METRICS else before) if before else {"pid": 1, "host": "x"}
    content = data.draw(
        st.one_of(damaged(sample).map(lambda plain: json.dumps(plain).encode()), st.binary(max_size=40))
    )
    path.write_bytes(content + b"\n")
    try:
        ends_well("result files", *(str(directory) if word == "DIR" else word for word in command))
        with contextlib.suppress(OelmError):
            read_record(directory)
            read_metrics(directory)
    finally:
        path.unlink()
        if before is not None:
            path.write_bytes(before)
        shutil.rmtree(here / "out", ignore_errors=True)


# ---- text and tables


@fuzz(8)
@given(
    st.one_of(st.binary(max_size=300), st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass"))),
    st.sampled_from([".txt", ".jsonl", ".md", ""]),
    st.sampled_from([(), ("--tokens", "50"), ("--seal", "0.5")]),
)
def test_no_text_is_a_traceback(tmp_path: Path, content: bytes, suffix: str, more: tuple[str, ...]) -> None:
    shutil.rmtree(tmp_path, ignore_errors=True)
    tmp_path.mkdir()
    (tmp_path / f"text{suffix}").write_bytes(content)
    source, out = str(tmp_path / f"text{suffix}"), str(tmp_path / "out")
    ends_well("texts", "prepare", "mine", "--from", source, "--out", out, "--vocab-size", "260", *more)


CELL = st.one_of(WEIRD_VALUE, st.sampled_from(["good", "bad", 0, 1, "0", "1"]))


@fuzz(40)
@given(
    st.lists(st.dictionaries(st.sampled_from(["text", "label", "other"]), CELL, max_size=3), max_size=12),
    st.sampled_from(["jsonl", "csv", "tsv", "bytes"]),
    st.binary(max_size=60),
)
def test_no_table_is_a_traceback(tmp_path: Path, rows: list[dict[str, Any]], kind: str, content: bytes) -> None:
    count("tables")
    if kind == "jsonl":
        content = "\n".join(map(json.dumps, rows)).encode()
    elif kind != "bytes":
        between = "," if kind == "csv" else "\t"
        lines = [between.join(str(row.get(name, "")) for name in ("text", "label")) for row in rows]
        content = "\n".join([between.join(("text", "label")), *lines]).encode("utf-8", "surrogatepass")
    path = tmp_path / f"train.{'csv' if kind == 'bytes' else kind}"
    path.write_bytes(content)
    with contextlib.suppress(OelmError, ValidationError):
        open_examples(ExamplesSpec(corpus="mine", source=path, texts=("text",), label="label", vocab_size=300))
    path.unlink()


@fuzz(8)
@given(
    st.lists(st.one_of(st.none(), st.integers(), st.floats(), st.binary(max_size=4), st.text(max_size=5)), max_size=8)
)
def test_no_parquet_text_is_a_traceback(tmp_path: Path, values: list[Any]) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    count("parquet tables")
    path = tmp_path / "train.parquet"
    try:
        table = arrow.table({"text": values, "label": [number % 2 for number in range(len(values))]})
    except (arrow.ArrowException, OverflowError, UnicodeError):
        return  # values of several types do not make a column
    parquet.write_table(table, path)
    with contextlib.suppress(OelmError, ValidationError):
        open_examples(ExamplesSpec(corpus="mine", source=path, texts=("text",), label="label", vocab_size=300))
    shutil.rmtree(tmp_path / "out", ignore_errors=True)
    ends_well(
        "parquet texts", "prepare", "mine", "--from", str(path), "--out", str(tmp_path / "out"), "--vocab-size", "260"
    )


# ---- checkpoints of the published study

LAYERS = ("layers.0.ffn.0.weight", "layers.99999999999.ffn.0.weight", "layers.0.self_attn.W_q.weight")
WEIGHTS = {name: torch.zeros(4, 4) for name in (*LAYERS, "token_embedding.weight", "position_embedding.weight")}
FLAGS = {
    "model_type": "baseline",
    "dataset": "tinystories",
    "num_heads": 2,
    "d_model": 4,
    "num_layers": 1,
    "vocab_size": 4,
}


@fuzz(25)
@given(st.data())
def test_no_checkpoint_of_the_published_study_is_a_traceback(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "best.pt"
    whole = {"model": {name: name for name in WEIGHTS}, "optimizer": {}, "step": 3, "best_val_loss": 1.0, "args": FLAGS}
    plain = data.draw(st.one_of(damaged(whole), st.just(whole)))
    if isinstance(plain, dict) and isinstance(plain.get("model"), dict):
        plain["model"] = {
            name: WEIGHTS.get(value, value) if isinstance(value, str) else value
            for name, value in plain["model"].items()
        }
    torch.save(plain, path)
    content = path.read_bytes()
    if data.draw(st.booleans()):
        place = data.draw(st.integers(0, len(content) - 1))
        content = content[:place] + data.draw(st.binary(max_size=3)) + content[place + data.draw(st.integers(0, 3)) :]
        path.write_bytes(content)
    ends_well("published checkpoints", "import-checkpoint", str(path), str(tmp_path / "out"))
    shutil.rmtree(tmp_path / "out", ignore_errors=True)
