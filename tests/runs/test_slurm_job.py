"""The process that Slurm starts, without Slurm: how it carries a run out, and gives way."""

import json
import os
import pickle
import signal
import subprocess
import sys
import time

import cloudpickle
import pytest

from oelm.record.folder import CANCELLED, JobRecord, RunFolder, read_metrics, read_record
from oelm.runs.slurm import SlurmJob
from oelm.spec.run import declared_fingerprint

# As submitit does: a handler of SIGUSR2 calls checkpoint() in the middle of the call.
DRIVER = """
import pickle, signal, sys
from pathlib import Path
from oelm.runs.slurm import SlurmJob
job = SlurmJob(Path(sys.argv[1]))
def preempted(number, frame):
    Path(sys.argv[2]).write_bytes(pickle.dumps(job.checkpoint()))
    sys.exit(3)
signal.signal(signal.SIGUSR2, preempted)
job()
"""


@pytest.fixture
def job(tiny_run, tmp_path):
    """Start a long run's job; return its process and its directory."""
    directory = tmp_path / "run"
    directory.mkdir()
    (directory / "spec.json").write_text(tiny_run(steps=20_000, checkpoint_every=10_000).model_dump_json())
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(directory), str(tmp_path / "requeued")],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    yield process, directory
    process.kill()
    process.communicate()


def until_it_trains(process, directory):
    while not read_metrics(directory):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.05)


@pytest.mark.programs
def test_before_the_time_limit_the_run_saves_itself_and_a_fresh_job_is_handed_over(job, tmp_path):
    process, directory = job
    until_it_trains(process, directory)
    os.killpg(process.pid, signal.SIGUSR2)  # as Slurm may: to everything that belongs to the job
    assert process.wait(120) == 3
    record = read_record(directory)
    assert record.status == "interrupted"
    assert 0 < record.step < 20_000
    assert (directory / "checkpoints/latest/model.safetensors").exists()
    again = pickle.loads((tmp_path / "requeued").read_bytes())  # noqa: S301  (written above)
    assert again.function.directory == directory


@pytest.mark.programs
def test_a_wish_to_stop_that_everybody_hears_several_times_still_lets_the_run_save_itself(job):
    process, directory = job
    until_it_trains(process, directory)
    while process.poll() is None:  # up to its last moment: Python forgets its handlers before it ends
        os.killpg(process.pid, signal.SIGTERM)
        time.sleep(0.001)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "RunFailed" in errors
    assert read_record(directory).error.startswith("stopped by SIGTERM")


@pytest.mark.parametrize("told", ["by its job", "by the study's mark"])
def test_a_job_that_was_cancelled_before_it_could_hear_starts_nothing(tmp_path, tiny_run, told):
    directory = tmp_path / "run"
    directory.mkdir()
    (directory / "spec.json").write_text(tiny_run().model_dump_json())
    RunFolder(directory).write_job(JobRecord(job="7", run="print", cancelled=told == "by its job"))
    if told == "by the study's mark":
        (tmp_path / CANCELLED).write_text(json.dumps([declared_fingerprint(tiny_run())]))
    before = signal.getsignal(signal.SIGTERM)
    try:
        SlurmJob(directory)()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not (directory / "stderr.log").exists()


def test_what_is_pickled_names_a_class_and_a_path_only(tmp_path):
    pickled = cloudpickle.dumps(SlurmJob(tmp_path))
    assert len(pickled) < 200 + len(os.fsencode(tmp_path))
    assert b"oelm.runs.slurm" in pickled
