"""Looking at a study from another terminal, reading its logs, stopping it, planning it: as a user does."""

import json
import subprocess
import sys
import time

import pytest

from oelm.cli import dispatch
from oelm.cli.status import logs_command as logs
from oelm.errors import UsageError
from oelm.record.folder import find_records
from oelm.runs.lock import hold_lock
from oelm.spec.study import load_study

pytestmark = pytest.mark.programs

STUDY = """
from pathlib import Path
from oelm import DataSpec, GPTSpec, RunSpec, Study, TrainSpec
study = Study(
    name="long",
    question="Can it be stopped?",
    base=RunSpec(
        model=GPTSpec(context=32, model_dim=32, num_layers=1, num_heads=4),
        data=DataSpec(corpus="stories", directory=Path({data!r})),
        train=TrainSpec(steps=200000, batch_size=2, warmup_steps=3, eval_every=1000, eval_tokens=256),
    ),
    arms=("baseline",),
)
"""


def oelm(*words):
    return subprocess.run([sys.executable, "-m", "oelm", *map(str, words)], capture_output=True, text=True, check=True)


def test_a_running_study_is_seen_followed_and_cancelled_from_elsewhere(tmp_path, tiny_data):
    study, out = tmp_path / "long.py", tmp_path / "runs"
    study.write_text(STUDY.format(data=str(tiny_data)))
    runner = subprocess.Popen(
        [sys.executable, "-m", "oelm", "run", study, "--out", out],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        deadline = time.monotonic() + 150
        now = {"step": 0}
        while not (now["state"] == "running" and now["step"]) if "state" in now else True:
            assert time.monotonic() < deadline
            assert runner.poll() is None, runner.stdout.read()
            (now,) = json.loads(oelm("status", study, "--runs", out, "--json").stdout)["runs"]
        assert now["device"] == "cpu"
        assert now["steps"] == 200000
        follower = subprocess.Popen(
            [sys.executable, "-m", "oelm", "logs", "baseline", "--runs", out, "--follow"],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert "asked process" in oelm("cancel", study, "--runs", out).stdout
        output, _ = runner.communicate(timeout=150)
        assert runner.returncode == 1, output
        assert follower.wait(timeout=30) == 0, "following ends with the run"
        ((_, record),) = find_records(out)[0]
        assert record.status == "interrupted"
    finally:
        runner.kill()
    assert "No run of this study is running" in oelm("cancel", study, "--runs", out).stdout


def test_status_for_people_names_every_run_and_what_is_wrong_with_it(study, tmp_path, write_run, capsys, monkeypatch):
    write_run(study.runs()[0])
    broken = write_run(study.runs()[1])
    (broken / "record.json").write_text("{")
    path = tmp_path / "study.py"
    path.write_text(
        "from oelm import RunSpec, Study, TrainSpec\nfrom oelm.spec.run import GPT_SIZES\n"
        "study = Study(name='runs', question='?', arms=('baseline', 'oelm-freeze'), seeds=(0, 1, 2),"
        " base=RunSpec(model=GPT_SIZES['nano'], train=TrainSpec(steps=100, warmup_steps=10)))\n"
    )
    assert dispatch(["status", str(path), "--runs", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "1/6, 16 %" in text
    assert "complete" in text
    assert "not whole JSON" in " ".join(text.split())


def test_status_does_not_pay_for_torch(tmp_path):
    code = "import sys, oelm.cli.status, oelm.runs.board, oelm.runs.display; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_logs_are_found_by_part_of_a_name_and_ambiguity_is_refused(study, tmp_path, write_run, capsys):
    first, second = (write_run(run) for run in study.runs()[:2])
    (first / "training.log").write_text("step 1\nstep 2\n")
    assert logs(["baseline-seed0", "--runs", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "step 1\nstep 2\n"
    with pytest.raises(UsageError, match="2 runs"):
        logs(["seed0", "--runs", str(tmp_path)])
    with pytest.raises(UsageError, match="no run"):
        logs(["nobody", "--runs", str(tmp_path)])
    with pytest.raises(UsageError, match="has no training.log yet"):
        logs([str(second), "--follow"])


def test_following_stops_when_the_holder_is_gone(study, tmp_path, write_run):
    directory = write_run(study.runs()[0])
    (directory / "training.log").write_text("step 1\n")
    with hold_lock(directory):
        follower = subprocess.Popen(
            [sys.executable, "-m", "oelm", "logs", str(directory), "--follow"], stdout=subprocess.PIPE, text=True
        )
        assert follower.stdout.readline() == "step 1\n"
        with (directory / "training.log").open("a") as file:
            file.write("step 2\n")
        assert follower.stdout.readline() == "step 2\n"
        assert follower.poll() is None
    assert follower.wait(timeout=20) == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("raise ValueError('no such cluster')", "raised ValueError"),
        ("x = 1", "does not define `study`"),
        (
            "from oelm import Study\nstudy = Study(name='s', question='?', base=None, arms=())",
            "not declare a valid study",
        ),
    ],
)
@pytest.mark.parametrize("verb", ["plan", "run", "status", "cancel"])
def test_a_file_without_a_study_is_refused_with_the_reason(tmp_path, capsys, text, words, verb):
    path = tmp_path / "broken.py"
    path.write_text(text + "\n")
    assert dispatch([verb, str(path)]) == 2
    assert words in capsys.readouterr().err


def test_a_plan_is_a_table_or_data_and_writes_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "small.py"
    path.write_text(
        "from oelm import RunSpec, Study\nfrom oelm.spec.run import named_size\n"
        "study = Study(name='small', question='How much?', base=RunSpec(model=named_size('nano')),"
        " arms=('baseline', 'oelm-freeze'))\n"
    )
    assert dispatch(["plan", str(path)]) == 0
    assert "2 runs" in capsys.readouterr().out
    assert dispatch(["plan", str(path), "--device", "h100", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["device"] == "h100"
    assert [item.name for item in tmp_path.iterdir()] == ["small.py"]


def test_a_plan_names_every_run_on_one_line_at_eighty_columns_and_says_what_it_leaves_out(
    tmp_path, capsys, monkeypatch
):
    path = tmp_path / "long.py"
    path.write_text(
        "from oelm import Arm, RunSpec, Study\nfrom oelm.spec.run import named_size\n"
        "from oelm.spec.method import named_method\n"
        "arm = Arm(name='orthogonal-[red]from-current', method=named_method('oelm-freeze'))\n"
        "study = Study(name='long', question='?', base=RunSpec(model=named_size('nano')), arms=('baseline', arm))\n"
    )
    shown = {}
    for width in (52, 80, 180):
        monkeypatch.setenv("COLUMNS", str(width))
        assert dispatch(["plan", str(path), "--device", "h100", "--runs", str(tmp_path)]) == 0
        shown[width] = [line.rstrip() for line in capsys.readouterr().out.splitlines()[1:]]
        assert max(map(len, shown[width])) <= width
        assert shown[width][1].startswith("baseline, seed 0  ")
        assert shown[width][2].startswith("orthogonal-[red]from-current, seed 0  ")
    assert shown[52][0].split() == ["run", "state", "time"]
    assert shown[80][0].split() == ["run", "state", "trained", "frozen", "steps", "time"]
    said = " ".join(shown[80][3:5])
    assert said.startswith("left out: fingerprint, stage, TFLOP/step, memory, s/step (a wider terminal or --json")
    assert "fingerprint" in shown[180][0]
    assert "left out" not in " ".join(shown[180])


def test_status_says_why_a_run_has_failed(tmp_path, tiny_data, write_run, capsys):
    (tmp_path / "long.py").write_text(STUDY.format(data=str(tiny_data)))
    (run,) = load_study(tmp_path / "long.py").runs()
    lost = {"status": "failed", "failure": "out-of-memory", "error": "torch.OutOfMemoryError: no room", "result": None}
    write_run(run, **lost).rename(tmp_path / "gone")
    (tmp_path / "out" / "long").mkdir(parents=True)
    (tmp_path / "gone").rename(tmp_path / "out" / "long" / "baseline-seed0_0123456789abcdef")
    assert dispatch(["status", str(tmp_path / "long.py"), "--runs", str(tmp_path / "out")]) == 0
    assert "baseline, seed 0: out-of-memory: torch.OutOfMemoryError: no room" in capsys.readouterr().out
