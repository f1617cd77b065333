"""The table of verbs."""

import errno
import importlib
import subprocess
import sys

import pytest

import oelm
from oelm.cli import VERBS, dispatch
from oelm.cli.doctor import BENCHES
from oelm.record.folder import write_study


def test_help_names_every_verb_and_imports_neither_torch_nor_pydantic():
    code = (
        "import sys, oelm.cli; oelm.cli.dispatch(['--help'])\n"
        "print([name for name in ('torch', 'transformers', 'pydantic') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert all(f"  {verb} " in done.stdout for verb in VERBS)


@pytest.mark.parametrize("verb", [verb for verb, (module, _) in VERBS.items() if module])
def test_every_verb_has_a_module_and_its_own_help(verb, capsys):
    module = importlib.import_module(f"oelm.cli.{VERBS[verb][0]}")
    assert f"`oelm {verb}`" in module.__doc__
    assert dispatch([verb, "--help"]) == 0
    said = capsys.readouterr().out
    assert f"usage: oelm {verb}" in said
    assert f"\n  oelm {verb} " in said, "an example"
    assert dispatch(["help", verb]) == 0
    assert capsys.readouterr().out == said


@pytest.mark.parametrize("name", BENCHES)
def test_every_benchmark_has_its_own_help(name, capsys):
    assert dispatch(["bench", name, "--help"]) == 0
    assert f"oelm bench {name}" in capsys.readouterr().out


@pytest.mark.parametrize("word", ["version", "--version"])
def test_the_version_is_that_of_the_package(capsys, word):
    assert dispatch([word]) == 0
    assert capsys.readouterr().out.strip() == oelm.__version__


def test_an_unknown_verb_suggests_the_nearest_and_exits_with_2(capsys):
    assert dispatch(["reprot"]) == 2
    assert "Did you mean 'report'" in capsys.readouterr().err


def test_an_error_for_the_user_is_a_message_without_a_traceback(capsys):
    assert dispatch(["evaluate", "nowhere"]) == 1
    words = capsys.readouterr().err
    assert "CheckpointError" in words
    assert "Traceback" not in words


def test_a_folder_that_cannot_be_created_is_a_message_without_a_traceback(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert dispatch(["prepare", "recall:4", "--out", str(tmp_path / "file" / "data")]) != 0
    words = capsys.readouterr().err
    assert str(tmp_path / "file") in words
    assert "Traceback" not in words


def test_a_full_disk_is_a_message_without_a_traceback(monkeypatch, tmp_path, capsys):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")  # as write() has it: without a name

    monkeypatch.setattr("oelm.cli.prepare.prepare_command", full)
    assert dispatch(["prepare", "recall:4", "--out", str(tmp_path / "data")]) == 1
    assert "No space left on device" in capsys.readouterr().err


def test_the_error_for_an_unwritable_report_suggests_another_folder(monkeypatch, tmp_path, capsys, study, write_run):
    def refused(*_):
        raise PermissionError(13, "Permission denied", str(tmp_path / "runs" / "report"))

    for run in study.runs():
        write_run(run)
    write_study(tmp_path / "runs", study)
    monkeypatch.setattr("oelm.report.write.write_atomically", refused)
    assert dispatch(["report", str(tmp_path / "runs")]) == 2
    assert "--keep with a folder of yours" in capsys.readouterr().err
