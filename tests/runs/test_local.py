"""Studies on this machine: killed, shared, continued; slots filled and GPUs waited for."""

import io
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from oelm.errors import UsageError
from oelm.record import registration
from oelm.record.folder import RECORD, RunFolder, find_records, read_metrics
from oelm.runs import local
from oelm.runs import local as child
from oelm.runs.board import Board, cancel, cancelled_runs, withdraw_cancellation
from oelm.runs.local import Gpus, LocalRunner, child_command
from oelm.runs.lock import hold_lock
from oelm.runs.slurm import SlurmRunner
from oelm.spec.run import SlurmSpec, TrainSpec

from .test_devices import BUSY, IDLE, FakeNvml

STUDY = """
from pathlib import Path
from oelm import DataSpec, GPTSpec, RunSpec, Study, TrainSpec
study = Study(
    name="many",
    question="Is anything lost?",
    base=RunSpec(
        model=GPTSpec(context=32, model_dim=32, num_layers=1, num_heads=4),
        data=DataSpec(corpus="stories", directory=Path({data!r})),
        train=TrainSpec(steps={steps}, batch_size=2, warmup_steps=3, eval_every=20, eval_tokens=256,
                        checkpoint_every=10),
    ),
    arms=("baseline", "oelm-freeze", "uniform"),
    seeds=tuple(range({seeds})),
)
"""


@pytest.fixture
def declare(tmp_path, tiny_data):
    def make(seeds, steps=60):
        path = tmp_path / "many.py"
        path.write_text(STUDY.format(data=str(tiny_data), steps=steps, seeds=seeds))
        return path

    return make


def start(study, out):
    """Start `oelm run` as the leader of a process group of its own, as a shell does."""
    line = [sys.executable, "-m", "oelm", "run", str(study), "--out", str(out), "--slots", "2"]
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True, text=True)


def results(out):
    """Everything a run is to give again: losses and the whole curve, by arm and seed."""
    found, bad = find_records(out)
    assert bad == []
    return {
        (record.spec.arm, record.spec.seed): (
            record.status,
            record.result.test_loss if record.result else None,
            record.frozen_hashes,
            [(metric.kind, metric.step, metric.loss) for metric in read_metrics(directory)],
        )
        for directory, record in found
    }


def completions(out):
    """Count how often each run came to its end: its log says so each time, a moment before the record does."""
    return {path.parent: path.read_text().count("whole validation split") for path in out.glob("*/*/training.log")}


def complete(out):
    """Return the bytes of the records that say complete."""
    return {path: (path / RECORD).read_bytes() for path, record in find_records(out)[0] if record.status == "complete"}


def campaign(declare, tmp_path, *, seeds, kills, runners=1):
    study = declare(seeds)
    undisturbed = start(study, tmp_path / "calm")
    output, _ = undisturbed.communicate(timeout=600)
    assert undisturbed.returncode == 0, output
    generator = random.Random(0)
    done, said = {}, {}
    for _ in range(kills):
        processes = [start(study, tmp_path / "stormy") for _ in range(runners)]
        time.sleep(generator.uniform(4, 12))
        for process in processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        done, said = complete(tmp_path / "stormy") | done, completions(tmp_path / "stormy")
    processes = [start(study, tmp_path / "stormy") for _ in range(runners)]
    for process in processes:
        output, _ = process.communicate(timeout=600)
        assert process.returncode == 0, output
    calm, stormy = results(tmp_path / "calm"), results(tmp_path / "stormy")
    assert len(stormy) == 3 * seeds
    assert {status for status, *_ in stormy.values()} == {"complete"}
    assert stormy == calm
    # What was complete when the killing ended is left alone, and the rest comes to its end once.
    assert {directory: (directory / RECORD).read_bytes() for directory in done} == done
    again = {directory: times - said.get(directory, 0) for directory, times in completions(tmp_path / "stormy").items()}
    assert again == {directory: int(directory not in done) for directory in again}
    assert len(again) == 3 * seeds


@pytest.mark.programs
def test_two_runners_that_are_killed_lose_nothing_and_repeat_nothing(declare, tmp_path):
    campaign(declare, tmp_path, seeds=1, kills=1, runners=2)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("runners", [1, 2])
def test_twelve_runs_survive_five_kills_of_their_runners(declare, tmp_path, runners):
    campaign(declare, tmp_path, seeds=4, kills=5, runners=runners)


@pytest.mark.programs
def test_ctrl_c_saves_the_runs_and_the_same_command_continues(declare, tmp_path):
    study = declare(1, steps=3000)
    process = start(study, tmp_path / "runs")
    deadline = time.monotonic() + 120
    while not list((tmp_path / "runs").glob("*/*/checkpoints/latest")) and time.monotonic() < deadline:
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "the same command continues" in output
    found, _ = find_records(tmp_path / "runs")
    assert found
    assert {record.status for _, record in found} == {"interrupted"}
    status = subprocess.run(
        [sys.executable, "-m", "oelm", "status", str(study), "--runs", str(tmp_path / "runs"), "--json"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert {run["state"] for run in json.loads(status.stdout)["runs"]} <= {"interrupted", "waiting"}


def bound_to_coffee(run):
    """Bind a run to the data that the records of conftest are of."""
    return run.model_copy(update={"data": run.data.model_copy(update={"checksum": "c0ffee"})})


class Played:
    """A process that ends when told to."""

    pid = 1 << 30  # which no process has

    def __init__(self):
        self.returncode = None

    def poll(self):
        return self.returncode


@pytest.fixture
def stage(study, tmp_path, monkeypatch, write_run):
    """A runner whose processes are played: the scheduling alone, with its clock at hand."""

    class Stage:
        def __init__(self, nvml=None, **train):
            changed = study.model_copy(
                update={"base": study.base.model_copy(update={"train": TrainSpec(**{"steps": 100, **train})})}
            )
            self.board = Board(changed, tmp_path / "runs", bind=bound_to_coffee)
            self.started = []
            self.text = io.StringIO()
            self.runner = LocalRunner(
                self.board, console=Console(file=self.text), gpus=lambda: Gpus(nvml, {}), **self.options
            )
            self.runner._cores = 4
            monkeypatch.setattr(child.subprocess, "Popen", self.start)
            monkeypatch.setattr(registration, "has_source_changes", lambda: False)  # git is a process as well
            monkeypatch.setattr(local, "GPU_SECONDS", 0.0)
            monkeypatch.setattr(local, "ELSEWHERE_SECONDS", 0.0)

        options: dict = {}

        def looks_seldom(self):
            """From here on so much time lies between two looks that none is due, unless something has happened."""
            monkeypatch.setattr(local, "GPU_SECONDS", 1e9)
            monkeypatch.setattr(local, "ELSEWHERE_SECONDS", 1e9)

        def start(self, line, env, **_):
            played = Played()
            self.started.append((line, env, played))
            return played

        def end(self, number, code=0, **fields):
            line, _, played = self.started[number]
            spec = line[line.index("--spec") + 1]
            run = RunFolder(Path(spec).parent).read_spec()
            if fields or code == 0:
                write_run(run, **fields)
            played.returncode = code

    return Stage


def test_cores_are_never_oversubscribed_and_a_freed_slot_is_filled_at_the_next_look(stage):
    play = stage(threads=2)
    play.runner._step()
    assert len(play.started) == 2, "two runs of two threads fill four cores"
    play.runner._step()
    assert len(play.started) == 2
    play.end(0)
    play.runner._step()
    assert len(play.started) == 3
    assert play.started[2][1]["OMP_NUM_THREADS"] == "2"


def test_a_run_with_more_threads_than_cores_gets_the_machine_to_itself(stage):
    play = stage(threads=8)
    play.runner._step()
    play.runner._step()
    assert len(play.started) == 1


def test_a_failed_run_does_not_stop_the_others_and_is_retried_on_request(stage):
    stage.options = {"retries": 1}
    play = stage(threads=4)
    for number in range(3):
        play.runner._step()
        if number < 2:
            play.end(number, code=1, status="failed", failure="error", error="Traceback\nValueError: x", result=None)
        else:
            play.end(number)
    play.runner._step()
    assert "ValueError: x" in play.text.getvalue()
    first, second, third = (line[line.index("--out") + 1] for line, _, _ in play.started[:3])
    assert first == second != third


def test_a_killed_run_is_told_with_the_usual_reason_and_not_started_for_ever(stage):
    play = stage(threads=4)
    while play.runner._step() and len(play.started) < 20:
        play.end(-1, code=-9)
    assert len(play.started) == 6
    assert "out of memory is the usual reason" in play.text.getvalue()


def test_gpus_that_others_use_are_waited_for_and_taken_when_they_are_free(stage, monkeypatch):
    nvml = FakeNvml(BUSY, BUSY)
    play = stage(nvml, device="cuda")
    play.runner._step()
    assert play.started == []
    assert "waiting for 1 free GPU" in play.runner._waiting_for
    monkeypatch.setattr(local, "GPU_SECONDS", 60)
    play.runner._step()  # which asks nobody again so soon
    assert "waiting for 1 free GPU" in play.runner._waiting_for
    monkeypatch.setattr(local, "GPU_SECONDS", 0.0)
    nvml.gpus[1] = IDLE
    play.runner._step()
    assert [env["CUDA_VISIBLE_DEVICES"] for _, env, _ in play.started] == ["GPU-1111-abcd"]
    nvml.gpus[0] = IDLE
    play.runner._step()
    assert [env["CUDA_VISIBLE_DEVICES"] for _, env, _ in play.started] == ["GPU-1111-abcd", "GPU-0000-abcd"]
    play.end(0)
    play.runner._step()
    assert play.started[2][1]["CUDA_VISIBLE_DEVICES"] == "GPU-1111-abcd"


def test_a_run_of_several_processes_gets_as_many_gpus_and_torchrun(stage, study, tmp_path):
    play = stage(FakeNvml(IDLE, BUSY, IDLE), device="cuda", processes=2)
    play.runner._step()
    ((line, env, _),) = play.started
    assert env["CUDA_VISIBLE_DEVICES"] == "GPU-0000-abcd,GPU-2222-abcd"
    assert "--nproc_per_node=2" in line
    with pytest.raises(UsageError, match="needs 4 GPUs, and 3 are visible"):
        stage(FakeNvml(IDLE, BUSY, IDLE), device="cuda", processes=4).runner._step()
    assert "torch.distributed.run" not in child_command(study.runs()[0], tmp_path)


@pytest.mark.parametrize("runner", [LocalRunner, lambda board, **asked: SlurmRunner(board, SlurmSpec(), **asked)])
def test_no_slots_and_fewer_than_no_retries_are_refused(study, tmp_path, runner):
    with pytest.raises(UsageError, match="--slots 0"):
        runner(Board(study, tmp_path), slots=0)
    with pytest.raises(UsageError, match="--retries -1 .* Give 0"):
        runner(Board(study, tmp_path), retries=-1)


def test_what_is_cancelled_is_not_followed_by_what_waits_until_the_study_is_run_again(stage, write_run, monkeypatch):
    play = stage(threads=4)
    monkeypatch.setattr(local.os, "kill", lambda *_: None, raising=False)
    play.runner._step()
    directory = play.runner._working[0].directory
    write_run(play.runner._working[0].entry.run, status="running", result=None)
    with hold_lock(directory):
        play.runner._step()
        assert len(cancel(Board(play.board.study, play.board.root))) == 1
        play.runner._step()
    play.end(0, code=130, status="interrupted", result=None)
    assert not play.runner._step(), "nothing is left that may be started"
    assert len(play.started) == 1
    withdraw_cancellation(play.board)
    play.runner._step()
    assert len(play.started) == 2


def test_running_some_arms_again_leaves_the_others_cancelled(study, tmp_path):
    cancel(Board(study, tmp_path))
    withdraw_cancellation(Board(study, tmp_path, only=("baseline",)))
    assert {run.arm for run in cancelled_runs(Board(study, tmp_path))} == {"oelm-freeze"}
    withdraw_cancellation(Board(study, tmp_path))
    assert not cancelled_runs(Board(study, tmp_path))


def test_what_is_cancelled_between_two_looks_is_not_followed_either(stage, write_run, monkeypatch):
    play = stage(threads=4)
    monkeypatch.setattr(local.os, "kill", lambda *_: None, raising=False)
    play.runner._step()
    write_run(play.runner._working[0].entry.run, status="running", result=None)
    with hold_lock(play.runner._working[0].directory):
        play.runner._step()
        play.looks_seldom()
        cancel(Board(play.board.study, play.board.root))
    play.end(0, code=130, status="interrupted", result=None)
    assert not play.runner._step()
    assert len(play.started) == 1


def test_a_runner_that_waits_for_a_gpu_is_cancelled(stage):
    nvml = FakeNvml(BUSY)
    play = stage(nvml, device="cuda")
    play.board.root.mkdir()
    assert play.runner._step()
    assert cancel(Board(play.board.study, play.board.root)) == [], "nothing is at work"
    nvml.gpus[0] = IDLE
    play.runner._looked = float("inf")  # no look is due before the GPU is found free
    assert not play.runner._step()
    assert play.started == []


def test_a_run_that_is_still_starting_when_it_is_cancelled_is_asked_once_by_its_runner(stage, monkeypatch):
    play = stage(threads=4)
    asked = []
    monkeypatch.setattr(local.os, "kill", lambda pid, number: asked.append((pid, number)))
    monkeypatch.setattr(Played, "pid", 4711, raising=False)
    play.runner._step()
    cancel(Board(play.board.study, play.board.root))
    play.runner._step()
    play.runner._step()
    assert asked == [(4711, signal.SIGTERM)]
    play.end(0, code=-15)
    assert not play.runner._step()
    assert "stopped by oelm cancel before it began" in play.text.getvalue()
    assert len(play.started) == 1


def test_a_cancelled_run_with_a_claim_is_asked_by_its_claim_and_not_through_its_launcher(stage, monkeypatch):
    monkeypatch.setattr(Played, "pid", os.getppid())  # a launcher, as torchrun is, of this process, which has the claim
    play = stage(threads=4)
    asked = []
    play.runner._step()
    cancel(Board(play.board.study, play.board.root))  # which knows no folder of it: there is no record yet
    with hold_lock(play.runner._working[0].directory):
        monkeypatch.setattr(local.os, "kill", lambda pid, _: asked.append(pid))
        play.runner._step()
    assert asked == [os.getpid()]


def test_a_study_that_has_no_folder_is_not_given_one_by_cancelling_it(study, tmp_path):
    assert cancel(Board(study, tmp_path / "runs")) == []
    assert not (tmp_path / "runs").exists()


def test_a_freed_slot_is_filled_at_once_though_its_claim_was_seen_a_moment_ago(stage):
    play = stage(threads=2)
    play.runner._step()
    with hold_lock(play.runner._working[0].directory, threads=2):
        play.runner._step()
        play.looks_seldom()
    play.end(0)
    play.runner._step()
    assert len(play.started) == 3


def test_a_freed_gpu_is_taken_at_once_though_all_were_busy_a_moment_ago(stage):
    play = stage(FakeNvml(IDLE, BUSY), device="cuda")
    play.runner._step()
    with hold_lock(play.runner._working[0].directory, device="GPU-0000-abcd"):
        play.runner._step()
        play.looks_seldom()
    play.end(0)
    play.runner._step()
    assert [env["CUDA_VISIBLE_DEVICES"] for _, env, _ in play.started] == ["GPU-0000-abcd"] * 2


def test_runs_of_a_neighbouring_study_take_their_cores(stage, tmp_path):
    play = stage(threads=3)
    with hold_lock(tmp_path / "another" / "run", threads=2):
        play.runner._step()
        assert play.started == []
    play.runner._step()
    assert len(play.started) == 1


def test_a_gpu_that_another_runner_has_just_given_away_is_not_free(stage, tmp_path):
    play = stage(FakeNvml(IDLE, IDLE), device="cuda")
    with hold_lock(tmp_path / "another" / "run", device="GPU-0000-abcd"):
        play.runner._step()
    assert [env["CUDA_VISIBLE_DEVICES"] for _, env, _ in play.started] == ["GPU-1111-abcd"]


def test_runs_are_stopped_whatever_ends_the_runner(stage, monkeypatch):
    play = stage(threads=2)
    asked = []
    monkeypatch.setattr(local.os, "kill", lambda pid, number: asked.append((pid, number)))
    monkeypatch.setattr(Played, "wait", lambda _: 1, raising=False)  # torchrun's code, whatever its processes saved
    calls = iter([True])
    step = play.runner._step
    monkeypatch.setattr(play.runner, "_step", lambda: step() if next(calls, False) else 1 / 0)
    with pytest.raises(ZeroDivisionError):
        play.runner.run()
    assert asked == [(Played.pid, signal.SIGTERM)] * 2
    assert "all saved" in play.text.getvalue()
