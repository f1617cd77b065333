from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from oelm.record.folder import (
    METRICS,
    NOTES,
    RECORD,
    NotesRecord,
    RunFolder,
    run_directory,
    write_record,
    write_study,
)
from oelm.record.record import MetricRecord
from oelm.server import index as module
from oelm.server.app import list_numbers, overview
from oelm.server.index import Folder, FolderIndex
from oelm.spec.study import Listing, Study


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FolderIndex:
    """An index that looks anew each time it is asked to."""
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.0)
    (tmp_path / "runs").mkdir(exist_ok=True)
    return FolderIndex(Folder(tmp_path / "runs"))


def rows(index: FolderIndex) -> dict[str, dict[str, Any]]:
    index.look()
    return {run.row["name"]: run.row for run in index.runs.values()}


def test_a_complete_run_has_the_numbers_of_its_record(index: FolderIndex, study: Study, write_run: Any) -> None:
    directory = write_run(study.runs()[1], 1.25)
    row = rows(index)[directory.name]
    assert (row["arm"], row["seed"], row["status"], row["step"], row["steps"]) == (
        "oelm-freeze",
        0,
        "complete",
        100,
        100,
    )
    assert (row["loss"], row["test_perplexity"]) == (1.26, pytest.approx(3.4903, abs=1e-4))
    assert row["study"] == ""


def test_a_classifier_is_judged_by_its_accuracy_and_has_no_perplexity(
    index: FolderIndex, study: Study, write_run: Any, make_record: Any
) -> None:
    run = study.runs()[0]
    result = make_record(run).result.model_copy(update={"val_accuracy": 0.875, "test_accuracy": 0.85})
    directory = write_run(run, result=result)
    row = rows(index)[directory.name]
    assert (row["accuracy"], row["test_accuracy"]) == (0.875, 0.85)
    assert (row["perplexity"], row["test_perplexity"]) == (None, None)


def test_a_running_run_has_the_newest_numbers_of_its_curve(index: FolderIndex, study: Study, write_run: Any) -> None:
    directory = write_run(study.runs()[0], status="running", result=None, step=0, finished=None)
    metric = MetricRecord(kind="train", step=77, loss=2.5, seconds=9, tokens_per_second=321.0)
    with (directory / METRICS).open("a") as file:
        file.write(metric.model_dump_json() + "\n" + '{"kind": "train", "st')
    row = rows(index)[directory.name]
    assert (row["train_loss"], row["tokens_per_second"]) == (2.5, 321.0)
    assert row["step"] == 100  # the validation at step 100 stands before it
    assert row["loss"] == pytest.approx(1.5 + 3 * 2.718281828**-5, abs=1e-6)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not whole JSON"),
        (b'{"schema_version": 1, "spec"', "not whole JSON"),
        (b"\xff\xfe", "not whole JSON"),
        (b"[]", "not a run's record"),
        (b'{"schema_version": 99}', "schema version 99"),
    ],
)
def test_a_record_that_cannot_be_read_is_shown_with_its_reason(index: FolderIndex, content: bytes, reason: str) -> None:
    (index.folder.root / "bad").mkdir()
    (index.folder.root / "bad" / RECORD).write_bytes(content)
    row = rows(index)["bad"]
    assert row["status"] == "unreadable"
    assert reason in row["reason"]
    assert str(index.folder.root) not in row["reason"]


def test_a_run_that_wrote_no_record_yet_is_shown_as_not_begun(index: FolderIndex) -> None:
    (index.folder.root / "new").mkdir()
    (index.folder.root / "new" / "spec.json").write_text("{}")
    assert rows(index)["new"]["status"] == "not_begun"


def test_links_out_are_named_and_not_followed(index: FolderIndex, study: Study, write_run: Any, tmp_path: Path) -> None:
    directory = write_run(study.runs()[0])
    outside = tmp_path / "outside"
    directory.rename(outside)
    (index.folder.root / "linked").symlink_to(outside)
    (index.folder.root / "inner").mkdir()
    (index.folder.root / "inner" / RECORD).symlink_to(outside / RECORD)
    found = rows(index)
    assert set(found) == {"inner"}
    assert found["inner"]["status"] == "unreadable"
    assert "leads out of" in found["inner"]["reason"]
    assert len(index.problems) == 1
    assert "linked" in index.problems[0]


def test_a_folder_that_may_not_be_listed_is_told(
    index: FolderIndex, study: Study, write_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = write_run(study.runs()[0])
    (index.folder.root / "locked").mkdir()
    scandir = module.os.scandir

    def refusing(path: Path) -> Any:
        if Path(path).name == "locked":
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(module.os, "scandir", refusing)  # root may list everything
    assert set(rows(index)) == {directory.name}
    assert index.problems == [
        f"{index.folder.root / 'locked'} cannot be listed: Permission denied. Check its permissions."
    ]


def test_only_what_changed_has_a_newer_revision(
    index: FolderIndex, study: Study, write_run: Any, make_record: Any
) -> None:
    first, second = (write_run(run) for run in study.runs()[:2])
    index.look()
    before = index.revision
    index.look()
    assert index.changes(index.epoch, before) == ([], [], False, index.revision)
    with (second / METRICS).open("a") as file:
        file.write("\n")
    index.look()
    changed, gone, whole, _ = index.changes(index.epoch, before)
    assert ([row["name"] for row in changed], gone, whole) == ([second.name], [], False)
    for path in first.iterdir():
        path.unlink()
    first.rmdir()
    before = index.revision
    index.look()
    assert index.changes(index.epoch, before) == ([], [first.name], False, index.revision)


def test_a_page_that_outlived_the_server_gets_everything(index: FolderIndex, study: Study, write_run: Any) -> None:
    write_run(study.runs()[0])
    index.look()
    rows_, _, whole, _ = index.changes("another", index.revision)
    assert (len(rows_), whole) == (1, True)
    assert index.changes(index.epoch, 10**9).whole


def test_a_study_knows_how_many_runs_it_will_have(index: FolderIndex, study: Study, make_record: Any) -> None:
    root = index.folder.root / study.name
    write_study(root, study)
    record = make_record(study.runs()[0])
    write_record(run_directory(root, record.spec), record)
    index.look()
    found = index.studies["tiny"]
    assert (len(found.declared or ()), found.done, found.study, found.reports) == (6, 1, study, ())
    (root / "study.json").write_text(json.dumps({"name": "tiny"}))
    index.look()
    assert "does not hold a study" in (index.studies["tiny"].reason or "")


def test_a_study_that_tunes_grows_by_what_its_runs_say(index: FolderIndex, study: Study, make_record: Any) -> None:
    grid = {"tuned": {"train.decay": ("cosine", "linear")}, "tuning_seeds": (9,)}
    tuned = Study.model_validate(study.model_dump() | grid)
    root = index.folder.root / tuned.name
    write_study(root, tuned)
    runs = tuned.tuning({}, tuned.tuned)
    for number, run in enumerate(runs):
        index.look()
        if number:
            found = index.studies["tiny"]
            assert (found.stage, len(found.declared or ()), found.done) == ("tune", 4, number)
        failure = {"status": "failed", "failure": "diverged", "result": None} if number == 0 else {}
        record = make_record(run, **failure)  # a diverged run has its answer, too
        write_record(run_directory(root, record.spec), record)
    index.look()
    found = index.studies["tiny"]
    assert (found.stage, len(found.declared or ()), found.done) == ("confirm", 4 + 6, 4)


def test_a_listing_is_a_study_like_any_other(index: FolderIndex, study: Study, make_record: Any) -> None:
    listed = tuple(run.model_copy(update={"label": f"GPT-{n}"}) for n, run in enumerate(study.runs()))
    root = index.folder.root / "published"
    write_study(root, Listing(name="published", question="Do they hold?", listed=listed))
    write_record(root / "one", make_record(listed[0]))
    index.look()
    found = index.studies["published"]
    assert (len(found.declared or ()), found.done, found.stage) == (6, 1, None)


def test_runs_of_an_earlier_declaration_are_no_progress_of_the_study(
    index: FolderIndex, study: Study, make_record: Any
) -> None:
    root = index.folder.root / study.name
    shorter = study.base.train.model_copy(update={"steps": study.base.train.steps // 2})
    before = study.model_copy(update={"base": study.base.model_copy(update={"train": shorter})})
    write_study(root, study)
    for run in (*before.runs(), *study.runs()[:2]):
        record = make_record(run)
        write_record(run_directory(root, record.spec), record)
    (shown,) = overview(index, "", 0)["studies"]
    assert (shown["done"], shown["expected"]) == (2, 6)


def test_the_newest_claim_tells_when_a_run_last_gave_a_sign_of_life(
    index: FolderIndex, study: Study, write_run: Any
) -> None:
    directory = write_run(study.runs()[0], status="running")
    assert rows(index)[directory.name]["beat"] is None
    for number, seconds in enumerate((500, 2000)):
        (directory / f"claim.{number}").touch()
        os.utime(directory / f"claim.{number}", (seconds, seconds))
    assert rows(index)[directory.name]["beat"] == 2000


def test_looking_again_at_a_thousand_runs_costs_a_fraction_of_the_first_look(
    index: FolderIndex, study: Study, make_record: Any
) -> None:
    record = make_record(study.runs()[0])
    for number in range(1000):
        write_record(index.folder.root / "many" / f"run{number}", record)
    times = []
    for _ in range(4):
        began = time.perf_counter()
        index.look()
        times.append(time.perf_counter() - began)
    assert len(index.runs) == 1000
    assert min(times[1:]) < times[0] / 4


def test_runs_of_a_tuning_stage_say_what_they_try_and_hide_their_test_figures(
    index: FolderIndex, tmp_path: Path, tuned_study: Any, make_record: Any
) -> None:
    study = tuned_study()
    root = tmp_path / "runs" / study.name
    write_study(root, study)
    for rate in (1e-3, 4e-3):
        run = study.base.model_copy(update={"seed": 100, "arm": "baseline"})
        run = run.model_copy(update={"train": run.train.model_copy(update={"learning_rate": rate})})
        write_record(root / f"rate{rate}", make_record(run))
    found = rows(index)
    assert {row["tried"]["train.learning_rate"] for row in found.values()} == {"0.001", "0.004"}
    assert all(row["tunes"] and row["test_perplexity"] is None for row in found.values())
    for run in index.runs.values():
        assert not [name for name in list_numbers(run) if name.startswith("test")]


def test_a_row_is_sent_again_when_its_study_is_declared_later(
    index: FolderIndex, tmp_path: Path, tuned_study: Any, make_record: Any
) -> None:
    study = tuned_study()
    root = tmp_path / "runs" / study.name
    run = study.base.model_copy(update={"seed": 100, "arm": "baseline"})
    write_record(root / "one", make_record(run))
    index.look()
    before = index.revision
    write_study(root, study)
    index.look()
    (row,) = index.changes(index.epoch, before).rows
    assert row["tunes"]
    index.look()
    assert index.changes(index.epoch, index.revision).rows == []


def test_notes_are_part_of_the_row_and_unreadable_ones_are_named(
    index: FolderIndex, study: Study, write_run: Any
) -> None:
    directory = write_run(study.runs()[0])
    assert rows(index)[directory.name]["tags"] == ()
    RunFolder(directory).write_notes(NotesRecord(text="the good one", tags=("paper",), hidden=True))
    row = rows(index)[directory.name]
    assert (row["note"], row["tags"], row["hidden"]) == ("the good one", ("paper",), True)
    (directory / NOTES).write_text("{")
    assert "cannot be read as notes" in rows(index)[directory.name]["note"]


def test_a_running_run_says_how_long_it_still_needs(index: FolderIndex, study: Study, write_run: Any) -> None:
    directory = write_run(study.runs()[0], status="running", result=None, step=0, finished=None)
    (directory / METRICS).write_text(MetricRecord(kind="train", step=25, loss=2.5, seconds=10).model_dump_json() + "\n")
    assert rows(index)[directory.name]["seconds_left"] == pytest.approx(30)


def test_of_many_new_runs_each_update_reads_some_and_a_page_of_one_run_does_not_wait_for_a_second_call(
    tmp_path: Path, study: Study, write_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    directories = [write_run(run) for run in study.runs()]
    monkeypatch.setattr(module, "READ_SECONDS", -1.0)  # the time is over at once
    index = FolderIndex(Folder(tmp_path / "runs"))
    index.look()
    assert (len(index.runs), index.unread) == (0, len(directories))
    assert "6 new runs" in index.problems[0]
    monkeypatch.setattr(module, "READ_SECONDS", 60.0)
    assert index.find(directories[-1].name) is not None
    assert (len(index.runs), index.unread, index.problems) == (len(directories), 0, [])
