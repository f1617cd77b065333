"""Claims: one holder at a time, whatever becomes of it."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from oelm.errors import RunLocked, UsageError
from oelm.runner import claim as module
from oelm.runner.claim import ask_to_stop, claimed, holder


def test_a_held_directory_is_refused_and_a_released_one_is_free(tmp_path):
    with claimed(tmp_path, threads=3, device="cuda:1") as mine:
        assert holder(tmp_path) == mine
        assert (mine.threads, mine.device, mine.pid) == (3, "cuda:1", os.getpid())
        with pytest.raises(RunLocked, match=str(os.getpid())), claimed(tmp_path):
            pass
    assert holder(tmp_path) is None
    assert list(tmp_path.iterdir()) == []
    with claimed(tmp_path):
        pass


def _hold(directory):
    with claimed(directory):
        time.sleep(60)


def test_the_claim_of_a_killed_process_is_taken_over_at_once(tmp_path):
    process = multiprocessing.get_context("fork").Process(target=_hold, args=(tmp_path,))
    process.start()
    while holder(tmp_path) is None:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    with claimed(tmp_path) as mine:
        assert mine.path.name == "claim.2"
    assert list(tmp_path.iterdir()) == []


def elsewhere(directory, number=1):
    """Write the claim of a process on another machine."""
    plain = {"host": "far", "place": "another kernel", "pid": 1, "born": 0.0, "threads": 1, "device": "cpu"}
    path = directory / f"claim.{number}"
    path.write_text(json.dumps(plain))
    return path


def test_a_claim_from_elsewhere_lives_while_it_is_touched(tmp_path):
    path = elsewhere(tmp_path)
    assert holder(tmp_path).host == "far"
    with pytest.raises(RunLocked, match="far"), claimed(tmp_path):
        pass
    long_ago = time.time() - module.SILENCE_SECONDS - 1
    os.utime(path, (long_ago, long_ago))
    assert holder(tmp_path) is None
    with claimed(tmp_path) as mine:
        assert mine.path.name == "claim.2"


def test_the_file_systems_clock_decides_and_not_our_own(tmp_path, monkeypatch):
    elsewhere(tmp_path)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert holder(tmp_path) is not None
    monkeypatch.setattr(time, "time", lambda: 1e12)
    assert holder(tmp_path) is not None


def test_a_number_of_a_process_that_is_used_again_holds_nothing(tmp_path):
    with claimed(tmp_path) as mine:
        plain = json.loads(mine.path.read_text())
        mine.path.write_text(json.dumps(plain | {"born": plain["born"] - 100}))
        assert holder(tmp_path) is None


def test_a_claim_that_someone_edited_is_nobodys(tmp_path):
    path = tmp_path / "claim.7"
    path.write_text("{")
    os.utime(path, (0, 0))
    with claimed(tmp_path) as mine:
        assert mine.path.name == "claim.8"


def _contend(directory, barrier, results):
    barrier.wait()
    try:
        with claimed(directory):
            results.put("held")
            time.sleep(0.3)
    except RunLocked:
        results.put("locked")


def test_of_many_that_find_one_dead_claim_exactly_one_follows(tmp_path):
    context = multiprocessing.get_context("fork")
    for trial in range(5):
        directory = tmp_path / str(trial)
        directory.mkdir()
        os.utime(elsewhere(directory), (0, 0))
        barrier, results = context.Barrier(8), context.Queue()
        processes = [context.Process(target=_contend, args=(directory, barrier, results)) for _ in range(8)]
        for process in processes:
            process.start()
        outcomes = sorted(results.get(timeout=30) for _ in processes)
        for process in processes:
            process.join()
        assert outcomes == ["held"] + ["locked"] * 7


SLEEPER = """
import sys, time
from pathlib import Path
from oelm.runner import claim
claim.BEAT_SECONDS = 0.05
with claim.claimed(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_holder_that_was_asleep_and_succeeded_stops_when_it_wakes(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", SLEEPER, str(tmp_path)], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"held\n"
    psutil.Process(process.pid).suspend()
    elsewhere(tmp_path, number=2)
    psutil.Process(process.pid).resume()
    assert process.wait(timeout=20) == -signal.SIGTERM
    assert (tmp_path / "claim.2").exists()


@pytest.mark.parametrize("followed", [False, True])
def test_a_holder_whose_successor_has_come_and_gone_stops_too(tmp_path, followed):
    process = subprocess.Popen([sys.executable, "-c", SLEEPER, str(tmp_path)], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"held\n"
    psutil.Process(process.pid).suspend()
    (tmp_path / "claim.1").unlink()  # as the successor's release did, who numbers from the start again
    if followed:
        elsewhere(tmp_path)
    psutil.Process(process.pid).resume()
    assert process.wait(timeout=20) == -signal.SIGTERM
    assert (tmp_path / "claim.1").exists() == followed


def test_a_folder_that_cannot_be_written_is_refused_in_words(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="Give another folder"), claimed(tmp_path / "file" / "run"):
        pass


def test_who_is_asked_to_stop_is_our_own_run_and_not_that_of_another_runner(tmp_path):
    with claimed(tmp_path):  # by this process, which is no child of the one below
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        ask_to_stop(tmp_path, child.pid)
        assert child.wait(30) == -signal.SIGTERM


def test_a_run_below_its_launcher_is_asked_itself(tmp_path):
    code = "import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', sys.argv[1], sys.argv[2]]))"
    inner = (
        "import sys, time, pathlib; from oelm.runner.claim import claimed\n"
        "with claimed(pathlib.Path(sys.argv[1])): time.sleep(60)"
    )
    launcher = subprocess.Popen([sys.executable, "-c", code, inner, str(tmp_path)])
    while holder(tmp_path) is None:
        time.sleep(0.05)
    ask_to_stop(tmp_path, launcher.pid)
    assert launcher.wait(30) == 256 - signal.SIGTERM  # what it makes of its child's end: it was not asked itself
