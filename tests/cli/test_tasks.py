"""Labelled text on the command line: checked, kept, trained on."""

import json

import pytest

from oelm.cli import dispatch
from oelm.record.store import read_record


@pytest.fixture
def reviews(tmp_path, monkeypatch):
    folder = tmp_path / "given"
    folder.mkdir()
    for name, count in (("train", 40), ("heldout", 10), ("dev", 10)):
        rows = [f"{('bad', 'good')[n % 2]} film {n}\t{n % 2}" for n in range(count)]
        (folder / f"{name}.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    monkeypatch.chdir(tmp_path)
    return folder


def test_prepare_keeps_a_task_where_runs_find_the_same_data(reviews, capsys):
    arguments = ["prepare", "--task", "sst2", "--from", str(reviews), "--model", "mini"]
    assert dispatch([*arguments, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["splits"]["train"]["rows"] == 40
    assert said["splits"]["val"]["labels"] == {"negative": 5, "positive": 5}
    assert said["notes"][0].startswith("10 val rows (100.0%) stand in the training split")
    assert dispatch(arguments) == 0
    assert "there already" in capsys.readouterr().out
    settings = ["--model", "nano", "--train.epochs", "1", "--train.warmup-steps", "0", "--quiet", "--max-length", "16"]
    for name, where in (("given", ["--from", str(reviews)]), ("kept", [])):
        assert dispatch(["train", "--task", "sst2", *where, *settings, "--out", name]) == 0
    given, kept = (read_record(reviews.parent / name) for name in ("given", "kept"))
    assert given.fingerprint == kept.fingerprint
    assert given.result.test_accuracy == kept.result.test_accuracy
    assert dispatch(["evaluate", "kept", "--json"]) == 0
    measured = json.loads(capsys.readouterr().out)
    assert measured["accuracy"] == kept.result.test_accuracy
    assert measured["rows"] == 10


def test_prepare_overwrites_nothing(reviews, capsys):
    (reviews.parent / "data" / "sst2").mkdir(parents=True)
    (reviews.parent / "data" / "sst2" / "mine.txt").write_text("precious")
    assert dispatch(["prepare", "--task", "sst2", "--from", str(reviews), "--model", "mini"]) == 2
    assert "nothing is overwritten" in capsys.readouterr().err


def test_bad_labels_leave_nothing_half_written(reviews, capsys):
    with (reviews / "dev.tsv").open("a") as file:
        file.write("odd\tperhaps\n")
    assert dispatch(["prepare", "--task", "sst2", "--from", str(reviews)]) == 2
    assert "has the label 'perhaps'" in capsys.readouterr().err
    assert dispatch(["train", "--task", "sst2", "--from", str(reviews), "--model", "nano", "--out", "run"]) == 2
    assert sorted(path.name for path in reviews.parent.iterdir()) == ["given"]
