"""`oelm note`: notes, tags and marks in the folder of a run."""

import pytest

from oelm.cli import dispatch
from oelm.record.folder import NOTES, RECORD, RunFolder


def test_notes_are_kept_in_the_run_folder_and_the_record_is_not_touched(study, write_run, capsys):
    directory = write_run(study.runs()[0])
    record = (directory / RECORD).read_bytes()
    assert dispatch(["note", str(directory), "--text", "the good one", "--tag", "paper", "final"]) == 0
    assert dispatch(["note", str(directory), "--untag", "final", "--hide"]) == 0
    assert "#paper hidden the good one" in capsys.readouterr().out
    notes = RunFolder(directory).read_notes()
    assert (notes.text, notes.tags, notes.hidden) == ("the good one", ("paper",), True)
    assert dispatch(["note", str(directory), "--unhide", "--text", ""]) == 0
    assert not RunFolder(directory).read_notes().hidden
    assert (directory / RECORD).read_bytes() == record


def test_without_options_nothing_is_written(study, write_run, capsys):
    directory = write_run(study.runs()[0])
    assert dispatch(["note", str(directory)]) == 0
    assert "no notes" in capsys.readouterr().out
    assert not (directory / NOTES).exists()


@pytest.mark.parametrize(
    ("flags", "words"),
    [(["--tag", "two words"], "has spaces"), (["--hide", "--unhide"], "contradict each other")],
)
def test_a_tag_with_spaces_and_contradictions_are_refused(study, write_run, capsys, flags, words):
    directory = write_run(study.runs()[0])
    assert dispatch(["note", str(directory), *flags]) == 2
    assert words in capsys.readouterr().err
    assert not (directory / NOTES).exists()


def test_a_folder_that_is_not_a_run_is_refused(tmp_path, capsys):
    assert dispatch(["note", str(tmp_path), "--tag", "x"]) == 2
    assert "is not the folder of a run" in capsys.readouterr().err
