"""Studies on Slurm: what the runner decides, told by stand-ins for Slurm's commands; then everything on a real one."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console
from safetensors.torch import load_file

from oelm.errors import UsageError
from oelm.record.folder import RunFolder, find_records, read_metrics, read_record
from oelm.runs.board import Board, cancel
from oelm.runs.slurm import RESUBMISSIONS, SlurmRunner
from oelm.spec.run import SlurmSpec
from oelm.spec.study import Study

from .conftest import carried_out


def study_of(run, **fields):
    return Study(name="tiny", question="Does it run?", base=run, **{"arms": ("baseline",), "seeds": (0,), **fields})


class StandIn:
    """Slurm's commands as scripts that say what a test puts into files."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "sbatch.said").write_text("0")
        (folder / "squeue.said").write_text("")
        self.script("srun", "exit 0")
        self.script("squeue", f"cat {folder}/squeue.said")
        self.script(
            "sbatch",
            f'n=$(($(cat {folder}/sbatch.said) + 1)); echo $n > {folder}/sbatch.said; cp "$1" {folder}/script.$n; '
            "echo Submitted batch job $n",
        )

    def script(self, name, body):
        (self.folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (self.folder / name).chmod(0o755)

    @property
    def submitted(self):
        return int((self.folder / "sbatch.said").read_text())

    def says(self, *lines):
        (self.folder / "squeue.said").write_text("".join(f"{line}\n" for line in lines))


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return StandIn(tmp_path / "bin")


@pytest.fixture
def runner_of(tmp_path):
    from oelm.runs.resolve import resolve

    def make(study, wish=None, **options):
        board = Board(study, tmp_path / "runs" / study.name, bind=lambda run: resolve(run).spec)
        return SlurmRunner(board, wish or SlurmSpec(), console=Console(file=io.StringIO(), width=500), **options)

    return make


def step(runner):
    """Look and decide, as after some seconds; return whether there is more to do, and what was said."""
    runner._asked = 0.0
    runner.console.file.truncate(0)
    return runner._step(), runner.console.file.getvalue()


def test_a_job_that_ends_before_its_run_is_submitted_again_so_often_and_no_more(stand_in, runner_of, tiny_run):
    runner = runner_of(study_of(tiny_run()))
    assert step(runner)[0]
    for number in range(1, RESUBMISSIONS + 1):
        assert stand_in.submitted == number
        stand_in.says(f"{number}|NODE_FAIL|None|node1")
        more, said = step(runner)
        assert more
        assert f"job {number} node fail" in said
        assert "submitting it again" in said
    stand_in.says()
    more, said = step(runner)
    assert "giving up" in said
    assert not more
    assert stand_in.submitted == 1 + RESUBMISSIONS


def test_a_run_is_not_submitted_while_a_job_for_it_may_live(stand_in, runner_of, tiny_run):
    step(runner_of(study_of(tiny_run())))
    stand_in.says("1|PENDING|Priority|")
    second = runner_of(study_of(tiny_run()))
    assert step(second)[0]
    stand_in.script("squeue", "echo slurm_load_jobs error: Unable to contact slurm controller >&2; exit 1")
    assert step(second)[0]
    third = runner_of(study_of(tiny_run()))
    assert step(third)[0]
    assert "Unable to contact" in third._waiting_for()
    assert stand_in.submitted == 1


def test_another_runners_new_job_is_not_taken_for_a_lost_one(stand_in, runner_of, tiny_run):
    one, two = runner_of(study_of(tiny_run())), runner_of(study_of(tiny_run()))
    step(one)
    stand_in.says("1|PENDING|Priority|")
    assert step(two)[0]  # sees a number that it has not asked about
    assert step(two)[0]
    assert stand_in.submitted == 1
    assert two.board.entries[0].state == "queued"


def test_out_of_memory_is_a_failure_that_only_retries_bring_back(stand_in, runner_of, tiny_run):
    runner = runner_of(study_of(tiny_run()), retries=1)
    step(runner)
    stand_in.says("1|OUT_OF_MEMORY|OutOfMemory|node1")
    assert "--slurm.memory" in step(runner)[1]
    stand_in.says("2|OUT_OF_MEMORY|OutOfMemory|node1")
    more, said = step(runner)
    assert "giving up" in said
    assert not more
    assert stand_in.submitted == 2


def test_what_oelm_cancel_stopped_stays_so_until_the_next_call(stand_in, runner_of, tiny_run):
    runner = runner_of(study_of(tiny_run()))
    step(runner)
    directory = runner.board.entries[0].directory
    RunFolder(directory).write_job(RunFolder(directory).read_job().model_copy(update={"cancelled": True}))
    stand_in.says("1|CANCELLED|None|")
    more, said = step(runner)
    assert not more
    assert "stopped by oelm cancel" in said
    assert stand_in.submitted == 1
    again = runner_of(study_of(tiny_run()))
    again._withdraw_cancellations()
    assert step(again)[0]
    assert stand_in.submitted == 2


def test_what_waits_to_be_submitted_is_cancelled_until_the_next_call(stand_in, runner_of, tiny_run):
    study = study_of(tiny_run(), seeds=(0, 1, 2), axes={"train.threads": (1, 2)})
    runner = runner_of(study, slots=2)
    step(runner)
    assert stand_in.submitted == 1  # the runs with two threads wait here, and not with Slurm
    stand_in.script("scancel", "exit 0")
    stand_in.says("1_0|RUNNING|None|node1", "1_1|PENDING|None|", "1_2|PENDING|None|")
    cancel(Board(study, runner.board.root))
    stand_in.says(*(f"1_{task}|CANCELLED|None|" for task in range(3)))
    more, said = step(runner)
    assert not more
    assert said.count("stopped by oelm cancel") == 3
    assert stand_in.submitted == 1
    again = runner_of(study)
    again._withdraw_cancellations()
    assert step(again)[0]
    assert stand_in.submitted == 3


def test_the_script_asks_for_what_the_run_needs_and_the_user_wishes(stand_in, runner_of, tiny_run):
    run = tiny_run(device="cuda", threads=3, processes=2)
    wish = SlurmSpec(partition="gpu", account="lab", time=90, memory=1.5, gpu="a100")
    runner = runner_of(study_of(run, seeds=range(5)), wish, slots=2)
    step(runner)
    asked = set(re.findall(r"^#SBATCH --(\S+)$", (stand_in.folder / "script.1").read_text(), re.MULTILINE))
    assert asked >= {
        "partition=gpu", "account=lab", "time=90", "mem=1536M", "gres=gpu:a100:2", "cpus-per-task=6", "array=0-4%2",
        "requeue", "job-name=oelm-tiny",
    }  # fmt: skip
    assert {RunFolder(entry.directory).read_job().job for entry in runner.board.entries} == {
        f"1_{task}" for task in range(5)
    }


def test_never_more_jobs_than_slots_are_let_loose(stand_in, runner_of, tiny_run):
    study = study_of(tiny_run(), seeds=(0, 1, 2), axes={"train.threads": (1, 2)})
    runner = runner_of(study, slots=2)
    step(runner)
    assert stand_in.submitted == 1  # the runs with two threads would be an array of their own
    stand_in.says("1_0|COMPLETED|None|", "1_1|COMPLETED|None|", "1_2|RUNNING|None|node1")
    step(runner)
    assert stand_in.submitted == 2
    assert "%1" in (stand_in.folder / "script.2").read_text()


def test_what_sbatch_refuses_is_told_in_its_words_and_nothing_is_written_down(stand_in, runner_of, tiny_run):
    stand_in.script("sbatch", "echo sbatch: error: invalid partition specified: gpus >&2; exit 1")
    runner = runner_of(study_of(tiny_run()), SlurmSpec(partition="gpus"))
    with pytest.raises(UsageError, match="invalid partition specified: gpus.*Nothing is lost"):
        step(runner)
    assert RunFolder(runner.board.entries[0].directory).read_job() is None


# --- with a real Slurm ------------------------------------------------------------------------------------------------


def _answers():
    try:
        done = subprocess.run(["sinfo", "--noheader"], capture_output=True, text=True, timeout=30, check=False)
    except FileNotFoundError:
        return "there is no sinfo on this machine; .ci/slurm installs Slurm"
    return "" if done.returncode == 0 else f"Slurm does not answer: {done.stderr.strip()}"


SILENT = _answers()
on_slurm = [
    pytest.mark.slurm,
    pytest.mark.skipif(bool(SILENT), reason=SILENT or "it answers"),
    pytest.mark.timeout(900),
]


def marked(test):
    for mark in on_slurm:
        test = mark(test)
    return test


class Project:
    """A folder with a study, and `oelm` as a user calls it there."""

    def __init__(self, folder, study):
        self.folder, self.study, self.root = folder, study, folder / "runs" / study.name
        plain = study.model_dump_json()
        (folder / "study.py").write_text(f"import oelm\nstudy = oelm.Study.model_validate_json({plain!r})\n")
        self.watchers = []

    def oelm(self, *words, **options):
        command = [sys.executable, "-m", "oelm", *words]
        return subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False, **options)

    def watch(self, *words):
        """Start `oelm run --slurm`."""
        command = [sys.executable, "-m", "oelm", "run", "study.py", "--slurm", *words]
        log = (self.folder / f"watch{len(self.watchers)}.log").open("w+")
        self.watchers.append(subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log, start_new_session=True))
        self.log = log.name
        return self.watchers[-1]

    def said(self):
        return Path(self.log).read_text()

    def runs(self):
        return {run["run"]: run for run in json.loads(self.oelm("status", "study.py", "--json").stdout)["runs"]}

    def at_work(self, but=()):
        """Wait for a run to have made some steps; return its directory."""
        while True:
            assert self.watchers[-1].poll() is None, self.said()
            for path in self.root.glob("*/metrics.jsonl"):
                begun = len(path.read_bytes().splitlines()) > 3
                if begun and path.parent not in but and read_record(path.parent).status == "running":
                    return path.parent
            time.sleep(0.05)

    def clean(self):
        for watcher in self.watchers:
            watcher.kill()
            watcher.wait()
        jobs = [RunFolder(path.parent).read_job().job for path in self.root.glob("*/job.json")]
        if jobs:
            subprocess.run(["scancel", *jobs], check=False)


@pytest.fixture
def project(tmp_path):
    made = []

    def make(study):
        made.append(Project(tmp_path, study))
        return made[-1]

    yield make
    for one in made:
        one.clean()


def assert_as_undisturbed(root, tmp_path):
    found, bad = find_records(root)
    assert not bad
    for directory, record in found:
        alone = tmp_path / "alone" / directory.name
        undisturbed = carried_out(record.spec, alone)
        assert record.status == "complete"
        assert record.result.test_loss == undisturbed.result.test_loss
        assert curve(directory) == curve(alone)
        left, right = (load_file(one / "checkpoints/latest/model.safetensors") for one in (directory, alone))
        assert all((left[name] == right[name]).all() for name in right)


def curve(directory):
    return [(metric.kind, metric.step, metric.loss) for metric in read_metrics(directory)]


def resumed(directory):
    return re.search(r"continuing after step [1-9]", (directory / "training.log").read_text()) is not None


@marked
def test_twelve_runs_complete_as_if_undisturbed_though_one_is_scancelled_and_one_requeued(project, tiny_run, tmp_path):
    run = tiny_run(steps=300, eval_every=50, checkpoint_every=100)
    here = project(study_of(run, arms=("baseline", "oelm-freeze"), seeds=range(6)))
    watcher = here.watch()
    victim = here.at_work()
    scancelled = RunFolder(victim).read_job().job
    subprocess.run(["scancel", scancelled], check=True)
    other = here.at_work(but=(victim,))
    requeued = RunFolder(other).read_job().job
    subprocess.run(["scontrol", "requeue", requeued], check=True)
    assert watcher.wait(800) == 0, here.said()
    assert len(find_records(here.root)[0]) == 12
    assert f"job {scancelled}" in here.said()
    assert RunFolder(victim).read_job().job != scancelled
    assert RunFolder(other).read_job().job == requeued
    restarts = subprocess.run(["scontrol", "show", "job", requeued], capture_output=True, text=True, check=True).stdout
    assert "Restarts=1" in restarts
    assert resumed(victim)
    assert resumed(other)
    assert_as_undisturbed(here.root, tmp_path)
    assert "12 of 12 runs are done already" in here.oelm("run", "study.py", "--slurm").stdout


@marked
def test_jobs_outlive_the_watching_and_go_on_after_a_cancel_and_a_preemption(project, tiny_run, tmp_path):
    here = project(study_of(tiny_run(steps=2000, eval_every=1000, checkpoint_every=2000), seeds=(0, 1)))
    watcher = here.watch("--slots", "1")
    working = here.at_work()
    os.killpg(watcher.pid, signal.SIGINT)
    assert watcher.wait(60) == 130
    assert "2 jobs are still in Slurm and continue" in here.said()

    runs = here.runs()
    [queued] = [run for run in runs.values() if run["state"] == "queued"]
    assert queued["job_state"] == f"job {queued['job']} pending (JobArrayTaskLimit)"
    assert {run["state"] for run in runs.values()} == {"queued", "running"}

    done = here.oelm("cancel", "study.py")
    assert f"asked job {RunFolder(working).read_job().job} to save its state and stop" in done.stdout
    assert f"removed job {queued['job']} from Slurm's queue" in done.stdout
    while (states := {run["state"] for run in here.runs().values()}) & {"running", "queued"}:
        time.sleep(0.5)
    assert states == {"interrupted", "waiting"}
    assert 0 < read_record(working).step < 2000

    watcher = here.watch()
    wait_for_resumption(working, 1)
    preempted = RunFolder(working).read_job().job
    subprocess.run(["scancel", "--signal=USR2", preempted], check=True)  # what submitit has Slurm send
    assert watcher.wait(500) == 0, here.said()
    wait_for_resumption(working, 2)
    assert RunFolder(working).read_job().job == preempted
    assert_as_undisturbed(here.root, tmp_path)


def wait_for_resumption(directory, count):
    until = time.monotonic() + 120
    while (directory / "training.log").read_text().count("continuing after step") < count:
        assert time.monotonic() < until
        time.sleep(0.05)


@marked
def test_an_unreachable_slurm_is_told_and_loses_nothing(project, tiny_run, tmp_path):
    config = subprocess.run(["scontrol", "show", "config"], capture_output=True, text=True, check=True).stdout
    path = re.search(r"SLURM_CONF\s+= (\S+)", config).group(1)
    (tmp_path / "slurm.conf").write_text(Path(path).read_text() + "\nSlurmctldPort=6\nMessageTimeout=2\n")
    unreachable = {**os.environ, "SLURM_CONF": str(tmp_path / "slurm.conf")}
    here = project(study_of(tiny_run(steps=100_000)))

    done = here.oelm("run", "study.py", "--slurm", env=unreachable)
    assert done.returncode == 2
    assert "SlurmUnreachable: Slurm does not answer: sinfo says" in done.stderr
    done = here.oelm("run", "study.py", "--slurm.partition", "all", env={**os.environ, "PATH": "/nowhere"})
    assert done.returncode == 2
    assert "There is no command sbatch" in done.stderr
    assert not list(here.root.glob("*/job.json"))

    watcher = here.watch()
    while not list(here.root.glob("*/job.json")):
        assert watcher.poll() is None, here.said()
        time.sleep(0.05)
    watcher.kill()
    done = here.oelm("status", "study.py", env=unreachable)
    assert done.returncode == 0
    assert "The state of queued runs is unknown. Slurm does not answer" in done.stdout
    assert here.oelm("cancel", "study.py", env=unreachable).returncode == 1
