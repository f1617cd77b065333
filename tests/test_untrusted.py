"""Files of other people are data: nothing in them runs, leaves its folder or acts on the terminal."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from oelm.cli import dispatch
from oelm.console import Console
from oelm.errors import BadRecord
from oelm.files import escape_controls
from oelm.record.folder import METRICS, RunFolder, find_records, run_directory, write_study
from oelm.record.keep import keep_archived, light_files
from oelm.record.record import commit_of, is_dirty
from oelm.runs.board import Board
from oelm.runs.board import _copy_run as copy_run
from oelm.runs.execute import execute
from oelm.runs.resolve import resolve
from oelm.spec.run import GPT_SIZES, RunSpec, SlurmSpec
from oelm.spec.study import Arm, Study

PACKAGE = Path(__file__).parents[1] / "src" / "oelm"
ATTACK = "\x1b]0;owned\x07\x1b[2J\x9b2J\u202e[/x][red]{x}"


def test_the_code_of_a_model_folder_does_not_run(tmp_path):
    ran = tmp_path / "ran"
    folder = tmp_path / "model"
    folder.mkdir()
    code = "auto_map", '{"AutoConfig": "evil.Evil", "AutoModel": "evil.Model"}'
    (folder / "config.json").write_text(f'{{"model_type": "evil", "{code[0]}": {code[1]}, "architectures": ["Model"]}}')
    (folder / "evil.py").write_text(f"open({str(ran)!r}, 'w')\n")
    done = subprocess.run(
        [sys.executable, "-m", "oelm", "inspect", str(folder)],
        input="y\ny\n",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "BadData" in done.stderr
    assert "Traceback" not in done.stderr
    assert not ran.exists()


@pytest.fixture
def checkout(tmp_path):
    """A git checkout with one committed file."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}

    def git(*words: str) -> None:
        who = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
        subprocess.run(["git", "-C", str(tmp_path), *who, *words], env=clean, check=True, capture_output=True)

    git("init", "--quiet")
    (tmp_path / "file.txt").write_text("one\n")
    git("add", "file.txt")
    git("commit", "--quiet", "-m", "one")
    return tmp_path, git


def test_the_configuration_of_a_checkout_does_not_run(checkout):
    tree, git = checkout
    ran = tree / "ran"
    program = tree / ".git" / "evil"
    program.write_text(f"#!/bin/sh\ntouch '{ran}'\ncat\n")
    program.chmod(0o755)
    (tree / ".gitattributes").write_text("*.txt filter=evil\n")
    git("add", ".gitattributes")
    git("commit", "--quiet", "-m", "two")
    for name in ("core.fsmonitor", "core.pager", "pager.status", "filter.evil.clean", "filter.evil.smudge",
                 "diff.external", "alias.status", "core.sshCommand"):  # fmt: skip
        git("config", name, f"{'!' if name.startswith('alias') else ''}{program}")
    os.utime(tree / "file.txt", (1, 1))  # so that git has to read the file, and would filter it
    git("status")
    assert ran.exists(), "plain git runs the program, so this test can fail"
    ran.unlink()
    assert is_dirty(tree) is False
    (tree / "file.txt").write_text("two\n")
    assert is_dirty(tree) is True
    assert not ran.exists()


def test_a_changed_worktree_is_dirty_and_an_unchanged_one_is_not(checkout):
    tree, git = checkout
    git("worktree", "add", "--quiet", str(tree / "other"))
    assert is_dirty(tree / "other") is False
    assert commit_of(tree / "other") == commit_of(tree)
    (tree / "other" / "file.txt").write_text("two\n")
    assert is_dirty(tree / "other") is True


@pytest.mark.parametrize("name", ["two\nlines", "bell\x07", "escape\x1b[2J", "nul\0", "half\ud800", "turned\u202e"])
def test_a_name_with_a_control_character_is_refused(name):
    base = RunSpec(model=GPT_SIZES["nano"])
    for make in (
        lambda: Study(name=name, question="?", base=base, arms=("baseline",)),
        lambda: Arm(name=name, method=base.method),
        lambda: RunSpec(model=GPT_SIZES["nano"], label=name),
        lambda: RunSpec(model=GPT_SIZES["nano"], arm=name),
        lambda: SlurmSpec(partition=name),
        lambda: SlurmSpec(account=name),
        lambda: SlurmSpec(gpu=name),
    ):
        with pytest.raises(ValidationError, match="control character"):
            make()


def test_the_console_shows_markup_and_escapes_as_text():
    file = io.StringIO()
    console = Console(file=file, width=200)
    console.print(ATTACK)
    console.print(ATTACK, soft_wrap=True)
    with console.status(ATTACK):
        pass
    shown = file.getvalue()
    assert shown.count(r"\x1b[2J\x9b2J\u202e[/x][red]{x}") >= 2
    assert not set("\x1b\x9b\u202e\x07") & set(shown)


def test_escaping_keeps_lines_and_other_languages():
    for text in ("one\ntwo\tthree", "正交", "سلام\u200cها", "e\u0301", "a\u00a0b"):
        assert escape_controls(text) == text


def test_every_module_prints_with_our_own_console():
    found = [
        path.relative_to(PACKAGE)
        for path in PACKAGE.rglob("*.py")
        if path.name != "console.py"
        and re.search(r"(?<!Rich)Console\(", path.read_text())
        and re.search(r"from rich.console import (.*\b)?Console\b(?! as)", path.read_text())
    ]
    assert found == [Path("report/render.py")]  # it measures widths there and prints nothing


def test_a_question_with_markup_and_escapes_is_printed_as_it_is(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    question = "Is [/x] or \x1b[2J [bold]safe[/bold]?"
    Path("study[1].py").write_text(
        "from oelm import Study, RunSpec, GPTSpec\n"
        f"study = Study(name='s[red]', question={question!r}, base=RunSpec(model=GPTSpec()), arms=('baseline',))\n"
    )
    assert dispatch(["status", "study[1].py"]) == 0
    assert "s[red]" in capsys.readouterr().out
    assert dispatch(["plan", "study[1].py"]) == 0
    shown = capsys.readouterr().out
    assert r"Is [/x] or \x1b[2J [bold]safe[/bold]?" in " ".join(shown.split())


def test_links_in_a_results_folder_are_neither_followed_nor_written_through(tmp_path, study, write_run, make_record):
    runs = study.runs()
    secret = tmp_path / "secret"
    secret.write_text("secret\n")
    directory = write_run(runs[0])
    for name in ("samples.txt", METRICS, "training.log", "attention.jsonl", "test_looks.jsonl"):
        (directory / name).unlink(missing_ok=True)
        (directory / name).symlink_to(secret)
    folder = RunFolder(directory)
    for touch in (
        folder.read_metrics, folder.open_curve, folder.open_log, folder.read_attention, folder.read_looks,
        folder.refuse_links, lambda: folder.last_metric("val"),
        lambda: light_files(directory.parent, [(directory, make_record(runs[0]))]),
    ):  # fmt: skip
        with pytest.raises(BadRecord, match="symbolic link"):
            touch()
    folder.write_samples("mine")  # it replaces the link
    assert (directory / "samples.txt").read_text() == "mine"
    assert secret.read_text() == "secret\n"


def test_a_report_is_not_written_through_a_link(tmp_path, study, write_run, monkeypatch, capsys):
    for run in study.runs():
        write_run(run)
    root = tmp_path / "runs"
    write_study(root, study)
    outside = tmp_path / "outside"
    outside.mkdir()
    (root / "report").symlink_to(outside)
    assert dispatch(["report", str(root)]) == 1
    assert "symbolic link" in capsys.readouterr().err
    assert not list(outside.iterdir())


def test_a_link_is_not_adopted_with_a_run(tmp_path, write_run, study):
    (tmp_path / "secret").write_text("secret")
    source = write_run(study.runs()[0])
    (source / "training.log").symlink_to(tmp_path / "secret")
    copy_run(source, tmp_path / "copy", shutil.copy2)
    assert (tmp_path / "copy" / METRICS).is_file()
    assert not (tmp_path / "copy" / "training.log").exists()


def test_a_run_is_not_written_through_a_linked_folder(tmp_path, study, tiny_run):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "tokenizer.json").write_text("precious")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "tokenizer").symlink_to(outside)
    with pytest.raises(BadRecord, match="symbolic link"):
        execute(*resolve(tiny_run(steps=2)), folder, quiet=True)
    assert [path.read_text() for path in outside.iterdir()] == ["precious"]

    root = tmp_path / "runs" / study.name
    root.mkdir(parents=True)
    first, *others = study.runs()
    bound = first.model_copy(update={"data": first.data.model_copy(update={"checksum": "c0ffee"})})
    run_directory(root, bound).symlink_to(outside)
    board = Board(study, root, bind=lambda run: run.model_copy(update={"data": bound.data}))
    states = {entry.name: entry for entry in board.entries}
    assert "symbolic link" in states[f"{first.arm}, seed {first.seed}"].trouble
    assert [entry.state for entry in board.entries] == ["failed"] + ["waiting"] * len(others)
    assert len(list(outside.iterdir())) == 1


@pytest.mark.parametrize("name", ["choice.json", "prediction.json", "registered.json"])
def test_a_linked_file_is_not_copied_into_an_archive(name, tmp_path, study, write_run):
    root = write_run(study.runs()[0]).parent
    (tmp_path / "secret").write_text("{}")
    (root / name).symlink_to(tmp_path / "secret")
    with pytest.raises(BadRecord):
        keep_archived(study, root, find_records(root)[0], tmp_path / "kept")
    assert not [path for path in tmp_path.glob("kept/*") if path.name == name]
