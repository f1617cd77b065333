"""Labelled text on the command line: checked, kept, trained on."""

import json
import shutil

import pytest

from oelm.cli import dispatch
from oelm.record.folder import read_record


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
    assert said["notes"][0].startswith("10 val rows (100.0%) are also in the training split")
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


@pytest.mark.parametrize("steps", [["--train.steps", "7"], ["--train.steps=7"]])
def test_steps_on_the_line_stand_instead_of_the_customary_epochs(reviews, steps):
    settings = ["--from", str(reviews), "--model", "nano", "--max-length", "16", "--train.warmup-steps", "0", "--quiet"]
    assert dispatch(["train", "--task", "sst2", *settings, *steps, "--out", "run"]) == 0
    record = read_record(reviews.parent / "run")
    assert (record.step, record.spec.train.epochs) == (7, None)


@pytest.mark.parametrize("task", [["--task", "sst2"], []])
def test_steps_and_epochs_together_are_refused(reviews, task, capsys):
    assert dispatch(["train", *task, "--train.steps", "7", "--train.epochs", "2", "--out", "run"]) == 2
    assert "7 steps and 2.0 epochs were asked for" in capsys.readouterr().err
    assert not (reviews.parent / "run").exists()


def mail(path, kinds, count):
    """Write a table of mails, `count` of each kind, whose words give the kind away."""
    rows = [f"{kind} {word} {n},{kind}" for n in range(count) for kind, word in kinds.items()]
    path.write_text("\n".join(["body,kind", *rows]) + "\n")


@pytest.fixture
def sorted_mail(tmp_path, monkeypatch):
    """Train a model to tell three kinds of mail apart, with a vocabulary of its own; return how it is evaluated."""
    (tmp_path / "mails").mkdir()
    kinds = {"ham": "friend", "meh": "newsletter", "spam": "lottery"}
    for name, count in (("train", 40), ("val", 5), ("test", 6)):
        mail(tmp_path / "mails" / f"{name}.csv", kinds, count)
    monkeypatch.chdir(tmp_path)
    settings = ["--train.epochs", "4", "--train.batch-size", "8", "--train.learning-rate", "3e-3", "--quiet"]
    columns = ["--from", "mails", "--texts", "body", "--label", "kind", "--vocab-size", "300", "--max-length", "32"]
    assert dispatch(["train", "--task", "mail", *columns, "--model", "nano", *settings, "--out", "run"]) == 0


def evaluated(capsys, *arguments):
    assert dispatch(["evaluate", "run", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_runs_own_test_file_given_by_name_measures_what_the_run_measured(sorted_mail, tmp_path, capsys):
    own = evaluated(capsys)
    assert own["accuracy"] == 1
    for path in ("mails/test.csv", "mails"):
        assert evaluated(capsys, "--data", path) == own
    validation = evaluated(capsys, "--data", "mails/test.csv", "--split", "val")
    assert (validation["rows"], validation["loss"]) == (18, own["loss"])


def test_one_file_is_measured_whole_with_the_labels_and_the_vocabulary_of_the_run(sorted_mail, tmp_path, capsys):
    mail(tmp_path / "more.csv", {"ham": "friend", "spam": "lottery"}, 10)
    more = evaluated(capsys, "--data", "more.csv")
    assert more["rows"] == 20
    assert more["accuracy"] == 1


def test_labels_that_the_run_does_not_know_and_splits_that_are_not_there_are_refused(sorted_mail, tmp_path, capsys):
    mail(tmp_path / "more.csv", {"ham": "friend", "scam": "prince"}, 3)
    assert dispatch(["evaluate", "run", "--data", "more.csv"]) == 2
    assert "label 'scam', which is not one of ham, meh, spam. The model was trained" in capsys.readouterr().err
    (tmp_path / "two").mkdir()
    for name in ("train", "test"):
        mail(tmp_path / "two" / f"{name}.csv", {"ham": "friend"}, 3)
    assert dispatch(["evaluate", "run", "--data", "two", "--split", "val"]) == 2
    assert "none of test.csv, train.csv is the" in capsys.readouterr().err
    mail(tmp_path / "mails" / "val.csv", {"ham": "friend"}, 3)
    assert dispatch(["evaluate", "run", "--data", "mails/test.csv"]) == 2
    assert "declared for data with checksum" in capsys.readouterr().err


def test_prepare_overwrites_nothing(reviews, capsys):
    (reviews.parent / "data" / "sst2").mkdir(parents=True)
    (reviews.parent / "data" / "sst2" / "mine.txt").write_text("precious")
    assert dispatch(["prepare", "--task", "sst2", "--from", str(reviews), "--model", "mini"]) == 2
    assert "nothing is overwritten" in capsys.readouterr().err


@pytest.mark.parametrize("where", [[], ["--from", "data/sst2"], ["--from", "data/../data/sst2"]])
@pytest.mark.parametrize("kind", ["tsv", "parquet"])
def test_prepare_shows_what_is_in_a_folder_of_ones_own_that_lies_where_runs_look(reviews, kind, where, capsys):
    own = reviews.parent / "data" / "sst2"
    if kind == "tsv":
        shutil.copytree(reviews, own)
    else:
        pyarrow = pytest.importorskip("pyarrow")
        own.mkdir(parents=True)
        rows = {"sentence": [f"film {n}" for n in range(60)], "label": [n % 2 for n in range(60)]}
        pytest.importorskip("pyarrow.parquet").write_table(pyarrow.table(rows), own / "train.parquet")
    before = {path.name: path.read_bytes() for path in own.iterdir()}
    assert dispatch(["prepare", "--task", "sst2", *where, "--model", "mini", "--json"]) == 0
    assert sum(split["rows"] for split in json.loads(capsys.readouterr().out)["splits"].values()) == 60
    assert {path.name: path.read_bytes() for path in own.iterdir()} == before


def test_prepare_names_files_of_any_kind_that_it_would_overwrite(reviews, capsys):
    (reviews.parent / "data" / "sst2").mkdir(parents=True)
    (reviews.parent / "data" / "sst2" / "train.parquet").write_bytes(b"PAR1\xff\xfe")
    assert dispatch(["prepare", "--task", "sst2", "--from", str(reviews), "--model", "mini"]) == 2
    assert "holds something else (train.parquet)" in capsys.readouterr().err


def test_bad_labels_leave_nothing_half_written(reviews, capsys):
    with (reviews / "dev.tsv").open("a") as file:
        file.write("odd\tperhaps\n")
    assert dispatch(["prepare", "--task", "sst2", "--from", str(reviews)]) == 2
    assert "has the label 'perhaps'" in capsys.readouterr().err
    assert dispatch(["train", "--task", "sst2", "--from", str(reviews), "--model", "nano", "--out", "run"]) == 2
    assert sorted(path.name for path in reviews.parent.iterdir()) == ["given"]
