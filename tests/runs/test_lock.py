"""Locks: one holder at a time, and a holder that was suspended writes nothing after another has taken over."""

import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import psutil
import pytest

from oelm.errors import RunLocked, UsageError
from oelm.record.folder import AttentionRecord, LogitVarianceRecord, RunFolder
from oelm.runs import lock as module
from oelm.runs.lock import ask_to_stop, hold_lock, read_holder


def test_a_held_directory_is_refused_and_a_released_one_is_free(tmp_path):
    with hold_lock(tmp_path, threads=3, device="cuda:1") as mine:
        assert read_holder(tmp_path) == mine
        assert (mine.threads, mine.device, mine.pid) == (3, "cuda:1", os.getpid())
        with pytest.raises(RunLocked, match=str(os.getpid())), hold_lock(tmp_path):
            pass
    assert read_holder(tmp_path) is None
    assert list(tmp_path.iterdir()) == []
    with hold_lock(tmp_path):
        pass


def _hold(directory):
    with hold_lock(directory):
        time.sleep(60)


def test_the_lock_of_a_killed_process_is_taken_over_at_once(tmp_path):
    process = multiprocessing.get_context("fork").Process(target=_hold, args=(tmp_path,))
    process.start()
    while read_holder(tmp_path) is None:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    with hold_lock(tmp_path) as mine:
        assert mine.path.name == "claim.2"
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def short_watch(monkeypatch):
    """Watch locks from elsewhere for a short time only."""
    monkeypatch.setattr(module, "WATCH_SECONDS", 0.2)


def elsewhere(directory, number=1):
    """Write the lock of a process on another machine."""
    plain = {"host": "far", "place": "another kernel", "pid": 1, "born": 0.0, "threads": 1, "device": "cpu"}
    path = directory / f"claim.{number}"
    path.write_text(json.dumps(plain))
    return path


def test_a_lock_from_elsewhere_lives_while_it_is_touched(tmp_path, short_watch):
    path = elsewhere(tmp_path)
    assert read_holder(tmp_path).host == "far"
    with pytest.raises(RunLocked, match="far"), hold_lock(tmp_path):
        pass
    long_ago = time.time() - module.SILENCE_SECONDS - 1
    os.utime(path, (long_ago, long_ago))
    assert read_holder(tmp_path) is None
    with hold_lock(tmp_path) as mine:
        assert mine.path.name == "claim.2"


def test_the_file_systems_clock_decides_and_not_our_own(tmp_path, monkeypatch):
    elsewhere(tmp_path)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert read_holder(tmp_path) is not None
    monkeypatch.setattr(time, "time", lambda: 1e12)
    assert read_holder(tmp_path) is not None


@pytest.mark.parametrize("changed", [{"ticks": 1}, {"ticks": None, "born": 0.0}])  # the second by an older version
def test_a_lock_of_a_reused_process_number_is_dead(tmp_path, changed):
    with hold_lock(tmp_path) as mine:
        plain = json.loads(mine.path.read_text())
        mine.path.write_text(json.dumps(plain | changed))
        assert read_holder(tmp_path) is None


@pytest.mark.parametrize(
    "content", [b"{", b"", b"[]", b"null", b'{"pid": "x"}', b"\xff\xfe", b"[" * 9999,
                b'{"host":"a","place":"b","pid":-1,"born":null,"threads":1,"device":"cpu"}']
)  # fmt: skip
def test_a_damaged_lock_counts_while_it_is_touched_and_then_no_longer(tmp_path, content, short_watch):
    path = tmp_path / "claim.7"
    path.write_bytes(content)
    with pytest.raises(RunLocked), hold_lock(tmp_path):
        pass
    os.utime(path, (0, 0))
    with hold_lock(tmp_path) as mine:
        assert mine.path.name == "claim.8"


@pytest.mark.parametrize("step", [-86400.0, -6.0, 6.0, 86400.0])
def test_a_step_of_the_clock_does_not_make_a_live_lock_dead(tmp_path, step, monkeypatch):
    """Psutil computes start times from the boot time, which moves with the clock: here as if after a step."""
    process = subprocess.Popen([sys.executable, "-c", SLEEPER, str(tmp_path)], stdout=subprocess.PIPE)
    try:
        assert process.stdout.readline() == b"held\n"
        real, now = psutil.Process.create_time, time.time
        monkeypatch.setattr(psutil.Process, "create_time", lambda self: real(self) + step)
        monkeypatch.setattr(time, "time", lambda: now() + step)
        assert read_holder(tmp_path).pid == process.pid
        with pytest.raises(RunLocked, match=str(process.pid)), hold_lock(tmp_path):
            pass
    finally:
        process.kill()
        process.wait()
    assert read_holder(tmp_path) is None


def test_a_suspended_process_of_this_machine_keeps_its_lock(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SILENCE_SECONDS", 0.1)
    process = subprocess.Popen([sys.executable, "-c", SLEEPER, str(tmp_path)], stdout=subprocess.PIPE)
    try:
        assert process.stdout.readline() == b"held\n"
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(0.3)
        with pytest.raises(RunLocked), hold_lock(tmp_path):
            pass
    finally:
        process.kill()
        process.wait()


def test_a_lock_from_elsewhere_that_looks_dead_is_watched_before_it_is_succeeded(tmp_path, monkeypatch):
    """After a step of the file system's clock a live lock looks old until its holder touches it again."""
    monkeypatch.setattr(module, "WATCH_SECONDS", 20.0)
    path = elsewhere(tmp_path)
    os.utime(path, (0, 0))
    beat = threading.Timer(0.5, os.utime, [path])
    beat.start()
    assert read_holder(tmp_path) is None
    with pytest.raises(RunLocked, match="far"), hold_lock(tmp_path):
        pass
    beat.join()


def test_a_lock_from_elsewhere_with_a_date_in_the_future_expires(tmp_path, short_watch):
    path = elsewhere(tmp_path)
    ahead = time.time() + 86400
    os.utime(path, (ahead, ahead))
    assert read_holder(tmp_path) is None
    with hold_lock(tmp_path) as mine:
        assert mine.path.name == "claim.2"


def test_a_lock_of_this_machine_before_its_last_reboot_is_dead_at_once(tmp_path, short_watch):
    path = elsewhere(tmp_path)
    place = "11111111-2222-3333-4444-555555555555/pid:[4026531836]"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"host": socket.gethostname(), "place": place}))
    assert read_holder(tmp_path) is None
    with hold_lock(tmp_path) as mine:
        assert mine.path.name == "claim.2"


def test_a_holder_that_has_been_succeeded_may_not_write(tmp_path):
    with hold_lock(tmp_path) as mine:
        mine.check()
        elsewhere(tmp_path, number=2)
        with pytest.raises(RunLocked, match="writes nothing more"):
            mine.check()
        folder = RunFolder(tmp_path, mine.check)
        with pytest.raises(RunLocked):
            folder.append_attention(AttentionRecord(entropy=(), distance=()))
        with pytest.raises(RunLocked):
            folder.write_logit_variance(LogitVarianceRecord(tokens=1, content=(), position=()))
        with pytest.raises(RunLocked):
            folder.write_samples("late")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["claim.1", "claim.2"]


def test_a_write_that_slept_between_its_last_check_and_its_rename_fails(tmp_path):
    """The next holder removes temporary files of others, so that a rename which comes late has no source."""
    calls = []

    def check():
        calls.append(None)
        if len(calls) == 1:  # suspended right after the check; meanwhile another process takes over
            RunFolder(tmp_path).remove_leftovers()
        else:
            raise RunLocked("lost")

    with pytest.raises(RunLocked, match="lost"):
        RunFolder(tmp_path, check).write_logit_variance(LogitVarianceRecord(tokens=1, content=(), position=()))
    assert list(tmp_path.iterdir()) == []


def _contend(directory, barrier, results):
    barrier.wait()
    try:
        with hold_lock(directory):
            results.put("held")
            time.sleep(0.3)
    except RunLocked:
        results.put("locked")


def test_of_many_that_find_one_dead_lock_exactly_one_follows(tmp_path, short_watch):
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
from oelm.runs import lock
lock.BEAT_SECONDS = 0.05
with lock.hold_lock(Path(sys.argv[1])):
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
    with pytest.raises(UsageError, match="Give another folder"), hold_lock(tmp_path / "file" / "run"):
        pass


def test_who_is_asked_to_stop_is_our_own_run_and_not_that_of_another_runner(tmp_path):
    with hold_lock(tmp_path):  # by this process, which is no child of the one below
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        ask_to_stop(tmp_path, child.pid)
        assert child.wait(30) == -signal.SIGTERM


def test_a_run_below_its_launcher_is_asked_itself(tmp_path):
    code = "import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', sys.argv[1], sys.argv[2]]))"
    inner = (
        "import sys, time, pathlib; from oelm.runs.lock import hold_lock\n"
        "with hold_lock(pathlib.Path(sys.argv[1])): time.sleep(60)"
    )
    launcher = subprocess.Popen([sys.executable, "-c", code, inner, str(tmp_path)])
    while read_holder(tmp_path) is None:
        time.sleep(0.05)
    ask_to_stop(tmp_path, launcher.pid)
    assert launcher.wait(30) == 256 - signal.SIGTERM  # what it makes of its child's end: it was not asked itself


def test_the_next_holder_removes_whatever_a_killed_one_was_writing(tmp_path):
    (tmp_path / "tokenizer").mkdir()
    mine = tmp_path / "tokenizer" / "tokenizer.json"
    mine.write_text("{}")
    (tmp_path / "record.json").write_text("{}")
    names = (".record.json.x1", ".latest.pt.123", ".best.pt.123", "tokenizer/.tokenizer.json.x1")
    for name in names:
        (tmp_path / name).write_text("half")
    folder = RunFolder(tmp_path)
    assert list(folder.hash_files()) == ["tokenizer/tokenizer.json"]
    folder.remove_leftovers()
    assert sorted(path.name for path in tmp_path.rglob("*.*")) == ["record.json", "tokenizer.json"]


def test_the_lock_of_another_user_whose_processes_are_hidden_lives_while_it_is_touched(
    tmp_path, monkeypatch, short_watch
):
    """As on clusters that mount /proc with hidepid: the process exists, and /proc does not show it."""
    hidden = 2**22 + 1  # above the highest process number

    def kill(pid, _signal):
        raise PermissionError if pid == hidden else ProcessLookupError

    path = elsewhere(tmp_path)
    own = {"host": socket.gethostname(), "place": module._place(), "pid": hidden, "ticks": 5}
    path.write_text(json.dumps(json.loads(path.read_text()) | own))
    assert read_holder(tmp_path) is None  # there is no such process
    monkeypatch.setattr(module.os, "kill", kill)
    assert read_holder(tmp_path) is not None
    with pytest.raises(RunLocked), hold_lock(tmp_path):
        pass
    os.utime(path, (0, 0))
    assert read_holder(tmp_path) is None
    with hold_lock(tmp_path) as mine:
        assert mine.path.name == "claim.2"
