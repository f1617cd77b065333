"""Memory: known before a run starts, one line when it runs out, and a record of a run that the system killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from oelm.cli import dispatch
from oelm.errors import RunFailed, UsageError
from oelm.models.flops import training_cost
from oelm.models.gpt import GPT
from oelm.record.folder import read_record, write_study
from oelm.runs import execute as execute_module
from oelm.runs.board import Board
from oelm.runs.execute import execute
from oelm.runs.resolve import (
    _cgroup_room,
    free_memory,
    memory_of_step,
    refuse_too_large,
    resolve,
    warn_of_memory,
    warn_of_vocabulary,
)
from oelm.spec.run import GPT_SIZES, RunSpec


def test_weights_that_do_not_fit_are_refused_before_the_model_is_built():
    run = RunSpec(model=GPT_SIZES["medium-512"])
    refuse_too_large(run, 50_257, free=2**40)
    with pytest.raises(UsageError, match=r"needs over 0\.6 GiB .* 0\.5 GiB are free"):
        refuse_too_large(run, 50_257, free=2**29)


def test_a_step_that_does_not_fit_is_warned_about_and_accumulation_helps(tiny_run):
    run = tiny_run(batch_size=64)
    cost = training_cost(GPT(run.model.model_copy(update={"vocab_size": 300})), 64, 32)
    needed = memory_of_step(run, cost) - cost.weight_bytes
    assert warn_of_memory(run, cost, free=needed) is None
    assert "GiB are free" in warn_of_memory(run, cost, free=needed - 1)
    assert warn_of_memory(tiny_run(batch_size=64, accumulation=8), cost, free=needed - 1) is None


def test_limits_of_a_container_count_and_file_pages_do_not(tmp_path):
    group = tmp_path / "fs" / "a" / "b"
    group.mkdir(parents=True)
    for place, limit in ((group, "1000"), (group.parent, "max")):
        (place / "memory.max").write_text(f"{limit}\n")
        (place / "memory.current").write_text("700\n")
        (place / "memory.stat").write_text("anon 400\nfile 300\n")
    (tmp_path / "own").write_text("0::/a/b\n")
    assert _cgroup_room(tmp_path / "fs", tmp_path / "own") == [600]
    assert free_memory() > 0


def test_a_vocabulary_that_dwarfs_the_model_is_warned_about():
    nano = GPT_SIZES["nano"]
    rest = 12 * nano.num_layers * nano.model_dim**2
    for size, warns in ((300, False), (50_257, True)):
        found = warn_of_vocabulary(nano.model_copy(update={"vocab_size": size}), size * nano.model_dim + rest)
        assert bool(found) is warns


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: x")])
def test_out_of_memory_is_one_line_and_a_record(tmp_path, tiny_run, monkeypatch, error):
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(execute_module, "_training", fail)
    with pytest.raises(RunFailed, match="ran out of memory") as caught:
        execute(*resolve(tiny_run()), tmp_path / "run", quiet=True)
    assert "\n" not in str(caught.value)
    assert (read_record(tmp_path / "run").status, read_record(tmp_path / "run").failure) == ("failed", "out-of-memory")


def test_a_run_that_the_system_killed_has_a_record_that_says_so(tmp_path, study, write_run, capsys):
    directory = write_run(study.runs()[0], status="running", result=None, finished=None)
    code = "import os, sys; from pathlib import Path; from oelm.runs.lock import hold_lock\n"
    code += "with hold_lock(Path(sys.argv[1])): os.kill(os.getpid(), 9)"
    done = subprocess.run([sys.executable, "-c", code, str(directory)], check=False)
    assert done.returncode == -signal.SIGKILL
    root = tmp_path / "runs"
    entry = next(entry for entry in Board(study, root).entries if entry.directory == directory)
    assert entry.state == "interrupted"
    assert "was killed without a word" in read_record(directory).error
    assert not list(directory.glob("claim.*"))
    write_study(root, study)
    file = Path(tmp_path / "tiny.py")
    file.write_text(
        f"from oelm.record.folder import read_study\nstudy = read_study(__import__('pathlib').Path({str(root)!r}))\n"
    )
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / "tiny").symlink_to(root)
    assert dispatch(["status", str(file), "--runs", str(tmp_path / "all")]) == 0
    assert "memory ran out" in " ".join(capsys.readouterr().out.split())
