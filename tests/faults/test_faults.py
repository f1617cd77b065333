"""A run under injected faults: kills, errors of the system, a full disk, sleepers, clock steps, two runners, damage.

`make test-faults` runs a few trials of each class and `make test-faults-long` many. A trial may end identical, in a
clear error that the same command gets over, or in a reported loss; campaign.py says what else can happen.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from oelm.files import add_checksum

HERE = Path(__file__).parent
FAULTS = int(os.environ.get("OELM_FAULTS", "1"))
CLASSES = {"kill": 6, "time": 2, "error": 8, "full": 2, "sleep": 4, "clock": 4, "two": 3, "damage": 8}

pytestmark = [pytest.mark.faults, pytest.mark.timeout(3600 * FAULTS)]


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    """The library that injects faults, compiled now."""
    library = tmp_path_factory.mktemp("shim") / "faults.so"
    command = ["gcc", "-shared", "-fPIC", "-O1", "-o", str(library), str(HERE / "faults.c"), "-ldl"]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("there is no gcc to compile the library that injects faults")
    return library


@pytest.fixture(scope="module")
def folder(tiny_run, tmp_path_factory):
    """A folder with the spec of a run, in which the reference and all trials are made."""
    root = tmp_path_factory.mktemp("faults")
    run = tiny_run("oelm-freeze", steps=12, eval_every=4, eval_tokens=256, checkpoint_every=3)
    (root / "spec.json").write_text(add_checksum(run.model_dump_json(indent=1) + "\n"))
    return root


@pytest.mark.parametrize("kind", CLASSES)
def test_no_fault_is_silent_hangs_or_ends_in_a_traceback(kind: str, shim: Path, folder: Path) -> None:
    environment = {**os.environ, "LD_PRELOAD": str(shim)}
    words = [str(HERE / "campaign.py"), str(folder / "spec.json"), str(folder), kind, str(CLASSES[kind] * FAULTS), "1"]
    done = subprocess.run(
        [sys.executable, *words], env=environment, capture_output=True, text=True, check=False, start_new_session=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    trials = [json.loads(line) for line in done.stdout.splitlines()]
    sys.stdout.write(f"{kind}: {dict(Counter(trial['outcome'] for trial in trials))}\n")
    assert len(trials) == CLASSES[kind] * FAULTS
    assert not [trial for trial in trials if trial["bad"]]
