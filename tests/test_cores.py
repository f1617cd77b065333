"""The cores that a process may use, and how its threads wait."""

import os
import subprocess
import sys

import pytest

from oelm.cores import _cgroup_quotas, available_cores, default_threads, wait_without_spinning


def test_the_affinity_limits_the_cores():
    assert 1 <= available_cores() <= len(os.sched_getaffinity(0))
    one = min(os.sched_getaffinity(0))
    code = f"import os; os.sched_setaffinity(0, {{{one}}}); from oelm.cores import available_cores as a; print(a())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"


@pytest.mark.parametrize(("asked", "threads"), [("1", 1), ("1,2", 1), ("999", None), ("0", None), ("many", None)])
def test_the_number_of_threads_in_the_environment_is_respected(monkeypatch, asked, threads):
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    assert default_threads() == (threads or available_cores())


def test_the_smallest_quota_of_the_groups_of_a_process_counts(tmp_path):
    own = tmp_path / "own"
    own.write_text("0::/job/step\n")
    (tmp_path / "job" / "step").mkdir(parents=True)
    (tmp_path / "job" / "step" / "cpu.max").write_text("max 100000\n")
    assert _cgroup_quotas(tmp_path, own) == []
    (tmp_path / "job" / "cpu.max").write_text("150000 100000\n")
    assert _cgroup_quotas(tmp_path, own) == [2]
    own.write_text("1:cpu:/old\n")
    assert _cgroup_quotas(tmp_path, own) == []


@pytest.mark.parametrize("name", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT"])
def test_a_policy_that_the_user_has_chosen_stays(monkeypatch, name):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setenv(name, "17")
    before = dict(os.environ)
    wait_without_spinning()
    assert dict(os.environ) == before
    monkeypatch.delenv(name)
    wait_without_spinning()
    assert os.environ["OMP_WAIT_POLICY"] == "passive"
