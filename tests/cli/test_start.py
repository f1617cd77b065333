"""The first steps: demo, new, list, doctor, completion."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import get_args

import pytest

from oelm.cli import VERBS, dispatch
from oelm.cli.doctor import examine
from oelm.cli.start import flags_of, words_after
from oelm.data.labelled import LABELLED_CORPORA
from oelm.record.stages import stage_of
from oelm.spec.method import METHODS
from oelm.spec.run import GPT_SIZES, TrackerName
from oelm.spec.study import load_study


def test_the_demo_has_a_frozen_arm_without_repairs_and_one_with_them_and_enough_seeds_to_decide():
    from oelm.demo import study

    assert [arm.method.arm_class for arm in study.arms] == ["trained", "frozen", "repaired"]
    assert len(study.seeds) >= 3


def test_the_demo_runs_the_study_of_the_package(monkeypatch, tmp_path, capsys):
    seen = []
    monkeypatch.setattr("oelm.cli.run.run_command", lambda argv: seen.append(argv) or 0)
    assert dispatch(["demo", "--out", str(tmp_path), "--slots", "1"]) == 0
    (path, *rest) = seen[0]
    assert load_study(Path(path)).name == "demo"
    assert rest == ["--out", str(tmp_path), "--slots", "1"]
    assert f"oelm serve {tmp_path}" in capsys.readouterr().out


def test_new_writes_a_study_that_is_valid_and_small(tmp_path, capsys):
    assert dispatch(["new", "study", "my-own_1", "--out", str(tmp_path / "studies")]) == 0
    path = tmp_path / "studies" / "my-own_1.py"
    assert f"oelm run {path}" in capsys.readouterr().out
    study = load_study(path)
    assert study.name == "my-own_1"
    assert sum(run.train.steps for run in stage_of(study, {}).runs) <= 1000
    assert "NAME" not in path.read_text()


def test_new_never_writes_over_a_file(tmp_path, capsys):
    (tmp_path / "mine.py").write_text("precious")
    assert dispatch(["new", "study", "mine", "--out", str(tmp_path)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert (tmp_path / "mine.py").read_text() == "precious"


@pytest.mark.parametrize("name", ["../up", "a b", ""])
def test_new_refuses_names_that_are_not_file_names(tmp_path, capsys, name):
    assert dispatch(["new", "study", name, "--out", str(tmp_path)]) == 2
    assert "cannot name a study file" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("what", "names"), [("methods", METHODS), ("models", GPT_SIZES), ("tasks", LABELLED_CORPORA)])
def test_list_names_everything_that_there_is(capsys, what, names):
    assert dispatch(["list", what, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert set(names) <= {row[what.rstrip("s")] for row in rows}
    assert dispatch(["list", what]) == 0
    said = capsys.readouterr().out
    assert all(f"{name} " in said for name in names)


def test_list_shows_corpora_that_were_prepared_here(tmp_path, monkeypatch, capsys):
    (tmp_path / "data" / "mine").mkdir(parents=True)
    (tmp_path / "data" / "mine" / "meta.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert dispatch(["list", "corpora", "--json"]) == 0
    assert {"stories", "mine"} <= {row["corpus"] for row in json.loads(capsys.readouterr().out)}


def test_doctor_says_how_to_fix_everything_that_is_not_ok(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr("oelm.cli.doctor.available_cores", lambda: 4)
    monkeypatch.setattr("oelm.cli.doctor.default_threads", lambda: 1)
    monkeypatch.setattr("oelm.cli.doctor.shutil.which", lambda _: None)
    assert dispatch(["doctor", "--json", "--out", str(tmp_path)]) == 0
    checks = {check["check"]: check for check in json.loads(capsys.readouterr().out)}
    assert {"oelm", "torch", "cores", "memory", "disk", "bf16", "GPUs", "Slurm", "chromium"} <= set(checks)
    assert set(get_args(TrackerName)) <= set(checks)
    assert "OMP_NUM_THREADS=1" in checks["cores"]["fix"]
    assert checks["chromium"]["state"] == checks["Slurm"]["state"] == "missing"
    assert all(check["fix"] for check in checks.values() if check["state"] != "ok")


def test_doctor_fails_where_runs_cannot_be_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("oelm.cli.doctor.os.access", lambda *_: False)
    assert dispatch(["doctor", "--out", str(tmp_path)]) == 1
    assert "cannot be written" in " ".join(capsys.readouterr().out.split())


def test_doctor_finds_another_version_of_torch(monkeypatch, tmp_path):
    monkeypatch.setattr("torch.__version__", "2.99.0+cpu")
    (torch,) = (check for check in examine(tmp_path) if check.check == "torch")
    assert torch.state == "broken"


def test_completion_knows_every_verb_and_the_flags_of_each():
    words = words_after()
    assert set(words) == set(VERBS) - {"version"}
    assert "--train.learning-rate" in words["train"]
    assert {"--task", "--rows", "--size"} <= set(words["train"])
    assert flags_of("new") == ["--help", "--out"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_verbs_flags_names_and_files(tmp_path, capsys):
    assert dispatch(["completion", "bash"]) == 0
    (tmp_path / "oelm.bash").write_text(capsys.readouterr().out)
    (tmp_path / "study.py").write_text("")

    def complete(*words: str) -> list[str]:
        quoted = " ".join(f"'{word}'" for word in words)
        script = f"source oelm.bash; COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _oelm; echo ${{COMPREPLY[*]}}"
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path)
        return done.stdout.split()

    assert complete("oelm", "do") == ["doctor"]
    assert complete("oelm", "run", "stu") == ["study.py"]
    assert "--slots" in complete("oelm", "run", "--")
    assert "oelm-fast" in complete("oelm", "train", "--method", "oelm-f")
    assert complete("oelm", "list", "m") == ["methods", "models"]


def test_the_other_shells_get_a_script_of_their_own(capsys):
    assert dispatch(["completion", "zsh"]) == 0
    assert capsys.readouterr().out.startswith("#compdef oelm\n")
    assert dispatch(["completion", "fish"]) == 0
    assert "complete -c oelm -n '__fish_seen_subcommand_from train' -l method -x" in capsys.readouterr().out
