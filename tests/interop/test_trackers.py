"""Experiment trackers: they get the curve, continue with the run, and cannot end it."""

import importlib.util
import json
import sqlite3

import pytest

from oelm.errors import UsageError
from oelm.interop import trackers
from oelm.interop.trackers import Tracker
from oelm.runs.execute import execute
from oelm.runs.resolve import resolve
from oelm.spec.run import TrainSpec, fingerprint


def carried_out(run, folder):
    run, data = resolve(run)
    return execute(run, data, folder, quiet=True)


def needs(name):
    return pytest.mark.skipif(
        importlib.util.find_spec(name) is None, reason=f"{name} is an extra that is not installed"
    )


class Broken:
    """A tracker whose service goes away after some calls."""

    calls = 0

    def __init__(self, *_):
        pass

    def log(self, *_):
        Broken.calls += 1
        raise ConnectionError("the service went away\nwith a long trace")

    def close(self):
        raise ConnectionError("again")


def test_a_tracker_that_fails_is_reported_once_and_the_run_goes_on(tiny_run, tmp_path, monkeypatch):
    monkeypatch.setitem(trackers._SINKS, "tensorboard", Broken)
    monkeypatch.setattr(Broken, "calls", 0)
    record = carried_out(tiny_run(steps=4, track="tensorboard"), tmp_path)
    assert record.status == "complete"
    assert Broken.calls == 1
    log = (tmp_path / "training.log").read_text()
    assert log.count("tensorboard failed (ConnectionError: the service went away)") == 1
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) >= 4


def test_a_tracker_that_cannot_start_is_reported_and_nothing_is_sent(tiny_run, tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError("no space")

    monkeypatch.setitem(trackers._SINKS, "wandb", refuse)
    said = []
    tracker = Tracker(tiny_run(track="wandb"), tmp_path, 0, said.append)
    tracker.log(1, {"loss/train": 1.0})
    tracker.close()
    assert len(said) == 1
    assert "no space" in said[0]


@pytest.mark.parametrize("name", ["wandb", "trackio", "tensorboard"])
def test_a_tracker_that_is_not_installed_is_refused_before_the_run_begins(tiny_run, tmp_path, monkeypatch, name):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(UsageError, match=f"{name} is not installed"):
        carried_out(tiny_run(track=name), tmp_path)
    assert not (tmp_path / "record.json").exists()


def test_older_records_with_the_field_tensorboard_stay_readable_and_mean_the_same(tiny_run):
    run = tiny_run()
    for value, track in ((True, "tensorboard"), (False, None)):
        fields = json.loads(run.model_dump_json())
        del fields["train"]["track"]
        fields["train"]["tensorboard"] = value
        old = type(run).model_validate(fields)
        assert old.train.track == track
        assert fingerprint(old) == fingerprint(run)
    assert TrainSpec(track="wandb").meaning() == {}


@needs("tensorboard")
def test_tensorboard_files_are_written_on_request(tiny_run, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    carried_out(tiny_run(track="tensorboard"), tmp_path)
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("loss/val")] == [10, 20, 30]
    assert len(events.Scalars("learning_rate")) == 30


@needs("trackio")
def test_trackio_continues_the_same_run_in_its_local_database(tiny_run, tmp_path, monkeypatch):
    import trackio.sqlite_storage
    import trackio.utils

    for module in (trackio.utils, trackio.sqlite_storage):
        monkeypatch.setattr(module, "TRACKIO_DIR", tmp_path)
    run = tiny_run(track="trackio")
    for resumed_at in (0, 1):
        tracker = Tracker(run, tmp_path / "study" / "run", resumed_at, pytest.fail)
        tracker.log(resumed_at + 1, {"loss/train": 1.5, "accuracy": None})
        tracker.close()
    with sqlite3.connect(tmp_path / "oelm.db") as database:
        rows = database.execute("SELECT run_name, step, metrics FROM metrics ORDER BY step").fetchall()
    assert [step for _, step, _ in rows] == [1, 2]
    assert {name for name, *_ in rows} == {f"baseline-seed0_{fingerprint(run)}"}


@needs("wandb")
def test_wandb_is_offline_by_default_and_continues_under_the_fingerprint(tiny_run, tmp_path, monkeypatch):
    monkeypatch.delenv("WANDB_MODE", raising=False)
    run = tiny_run(track="wandb")
    for resumed_at in (0, 1):
        tracker = Tracker(run, tmp_path, resumed_at, pytest.fail)
        tracker.log(resumed_at + 1, {"loss/train": 1.5, "accuracy": None})
        tracker.close()
    files = list(tmp_path.glob("wandb/offline-run-*/*.wandb"))
    assert files
    assert {file.stem for file in files} == {f"run-{fingerprint(run)}"}
