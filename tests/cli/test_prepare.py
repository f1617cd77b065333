"""`oelm prepare` as its users type it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from oelm.cli import prepare as verb
from oelm.data.tokens import open_tokens
from oelm.errors import InvalidSpec, UnknownName, UsageError

TEXT = "".join(f"Story {number}.\n<|endoftext|>\n" for number in range(40))


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text(TEXT)
    return Path("a.txt")


def test_a_corpus_goes_to_the_published_place(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verb.prepare_command(["tinystories", "--from", str(source)]) == 0
    assert open_tokens(Path("data/tinystories")).num_tokens("train") > 0
    shown = capsys.readouterr().out
    assert "data/tinystories: tinystories, documents are stories, one in 20 drawn for val and test" in shown
    assert "In a study: data=oelm.DataSpec(corpus='tinystories')" in shown
    assert verb.prepare_command(["tinystories", "--from", str(source)]) == 0
    assert "already prepared; nothing to do" in capsys.readouterr().err


def test_json_is_all_of_standard_output(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--out", "there", "--vocab-size", "258", "--documents", "lines", "--seed", "3", "--tokens", "100"]
    assert verb.prepare_command(["mine", "--from", str(source), *flags, "--json"]) == 0
    stated = json.loads(capsys.readouterr().out)
    assert (stated["directory"], stated["documents"]) == ("there", "lines")
    assert stated["request"]["seed"] == 3
    assert stated["tokenizer"]["vocab_size"] == 258
    assert set(stated["splits"]) == {"train", "val", "test"}


def test_impossible_requests_are_refused_and_write_nothing(source: Path) -> None:
    with pytest.raises(InvalidSpec, match=r"--vocab-size must be at least 257, found 10"):
        verb.prepare_command(["stories", "--vocab-size", "10"])
    with pytest.raises(InvalidSpec, match=r"'recall:999' is .*probe"):
        verb.prepare_command(["recall:999"])
    with pytest.raises(InvalidSpec, match=r"--seed must be at least 0, found -1"):
        verb.prepare_command(["--task", "sst2", "--seed", "-1"])
    with pytest.raises(UsageError, match="Give one of them"):
        verb.prepare_command(["stories", "--vocab-size", "300", "--vocabulary", str(source.parent)])
    with pytest.raises(UnknownName, match="Did you mean 'openwebtext'"):
        verb.prepare_command(["openwebtex"])
    with pytest.raises(UsageError, match="--tokens: 'many' is not a whole number"):
        verb.prepare_command(["stories", "--tokens", "many"])
    assert not Path("data").exists()


@pytest.mark.programs
def test_control_c_leaves_work_that_the_same_command_continues(source: Path) -> None:
    program = "import sys; from oelm.cli.prepare import prepare_command; sys.exit(prepare_command(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "stories", "--tokens", "300000000"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    journal = Path("data/stories-300000000/.preparing/journal.json")
    while not journal.exists() and process.poll() is None:
        time.sleep(0.05)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said.strip().endswith("interrupted; run the same command again to continue where it stopped")
    assert journal.exists()
    assert not Path("data/stories-300000000/meta.json").exists()


@pytest.mark.parametrize("watcher", [verb.ProgressBar, verb.ProgressLines])
def test_progress_shows_tokens_speed_and_time_left(
    watcher: type[verb.ProgressBar | verb.ProgressLines], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verb, "_LINE_SECONDS", 0.0)
    console = Console(record=True, force_terminal=watcher is verb.ProgressBar, width=120)
    shown = watcher(console)
    shown.begin("tokenising", 100, 10)
    time.sleep(0.02)
    shown.update(60, 5000)
    if isinstance(shown, verb.ProgressBar):
        assert shown._bar is not None
        shown._bar.refresh()
    shown.end()
    shown.note("done")
    text = console.export_text()
    assert "5,000 tokens" in text
    assert "60" in text
    assert ("M/s" if watcher is verb.ProgressBar else "s left") in text
