"""The process of a run: what it is given, and what it has said."""

import pytest

from oelm.record.folder import ERRORS, SPEC
from oelm.runs.local import Child, start_run


@pytest.fixture
def refused(study, tmp_path):
    """A process that complained of its spec and ended, in a folder where another one had complained before."""
    (tmp_path / ERRORS).write_text("oelm: what an earlier process said\n")
    (tmp_path / SPEC).write_text("{")
    child = start_run(study.runs()[0], tmp_path)
    assert child.process.wait() != 0
    return child


def test_the_last_words_are_those_of_its_own_process_and_earlier_ones_are_kept(refused):
    assert refused.last_words.startswith("oelm: ")
    assert "earlier" not in refused.last_words
    assert refused.errors.read_text().startswith("oelm: what an earlier process said\n")


def test_a_process_that_says_nothing_has_no_last_words_though_another_had(refused):
    silent = Child(refused.process, refused.errors, begins=refused.errors.stat().st_size)
    assert silent.last_words == ""


def test_a_process_has_the_threads_of_its_run_and_the_devices_it_was_given(study, tmp_path, monkeypatch):
    given = {}
    monkeypatch.setattr("oelm.runs.local.subprocess.Popen", lambda _line, env, **_: given.update(env))
    run = study.runs()[0]
    threads = run.train.model_copy(update={"threads": 3})
    start_run(run.model_copy(update={"train": threads}), tmp_path, {"CUDA_VISIBLE_DEVICES": "GPU-1"})
    assert given["OMP_NUM_THREADS"] == "3"
    assert given["CUDA_VISIBLE_DEVICES"] == "GPU-1"
