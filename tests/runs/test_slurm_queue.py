"""What is concluded from squeue's words, and from its silence."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oelm.errors import SlurmUnreachable
from oelm.record.folder import JOB, JobRecord, RunFolder, find_jobs
from oelm.runs.board import SlurmQueue, _parse, slurm


@pytest.fixture
def says(tmp_path, monkeypatch):
    """Let a command say something, and fail if asked to; return how often it was called."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")

    def make(command, text="", *, code=0, errors=""):
        path = tmp_path / "bin" / command
        path.write_text(
            f"#!/bin/sh\necho called >> {path}.calls\nprintf '%s' '{text}'\necho '{errors}' >&2\nexit {code}\n"
        )
        path.chmod(0o755)
        return lambda: len(path.with_suffix(".calls").read_text().splitlines())

    return make


def given_to_slurm(root, *jobs):
    directories = [root / f"run{job}" for job in jobs]
    for directory, job in zip(directories, jobs, strict=True):
        RunFolder(directory).write_job(JobRecord(job=job, run=f"print{job}"))
    return directories


def test_one_call_tells_what_has_become_of_every_job(says, tmp_path):
    calls = says("squeue", "7_0|RUNNING|None|node1\n7_1|PENDING|Priority|\n8|OUT_OF_MEMORY|OutOfMemory|node2\n")
    runs = given_to_slurm(tmp_path, "7_0", "7_1", "8", "9")
    queue = SlurmQueue(["7_0", "7_1", "8", "9"])
    running, pending, killed, gone = map(queue.of, runs)
    assert calls() == 1
    assert (running.is_live, running.is_waiting, str(running)) == (True, False, "job 7_0 starting (on node1)")
    assert (pending.is_live, pending.is_waiting, str(pending)) == (True, True, "job 7_1 pending (Priority)")
    assert (killed.is_live, killed.has_ended, killed.state) == (False, True, "OUT_OF_MEMORY")
    assert (gone.is_live, gone.has_ended, gone.state) == (False, True, "GONE")


def test_a_job_that_slurm_was_not_asked_about_has_not_ended(says, tmp_path):
    says("squeue", "7|PENDING|Priority|\n")
    queue = SlurmQueue(["7"])
    [other] = given_to_slurm(tmp_path, "8")
    assert (queue.of(other).is_live, queue.of(other).has_ended) == (False, False)
    assert queue.of(tmp_path / "never given") is None


def test_silence_changes_nothing_that_was_known(says, tmp_path):
    says("squeue", "7|PENDING|Priority|\n")
    [run] = given_to_slurm(tmp_path, "7")
    queue = SlurmQueue(["7"])
    says("squeue", code=1, errors="slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
    assert not queue.ask(["7"])
    assert "Unable to contact slurm controller" in queue.trouble
    assert queue.of(run).is_live
    says("squeue", "")
    assert queue.ask(["7"])
    assert (queue.trouble, queue.of(run).has_ended) == (None, True)


def test_a_study_that_never_met_slurm_does_not_ask_for_it(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert SlurmQueue([]).trouble is None


def test_a_job_that_slurm_has_forgotten_is_an_answer_and_a_missing_command_none(says, tmp_path, monkeypatch):
    says("squeue", code=1, errors="slurm_load_jobs error: Invalid job id specified")
    assert slurm("squeue") == ""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SlurmUnreachable, match="no command squeue"):
        slurm("squeue")


def test_runs_are_found_by_their_jobs_and_an_edited_note_is_no_job(tmp_path):
    one, two = given_to_slurm(tmp_path, "7", "8")
    assert {directory: job.run for directory, job in find_jobs(tmp_path).items()} == {one: "print7", two: "print8"}
    (two / JOB).write_text('{"job": ')
    assert find_jobs(tmp_path).keys() == {one}
    assert RunFolder(two).read_job() is None


@given(st.text())
def test_no_line_breaks_the_reading(line):
    job = _parse(line)
    assert job is None or line.count("|") == 3
