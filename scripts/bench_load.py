"""Measure the results page and `report --all` on many runs: processor seconds and memory of each, as JSON.

    python scripts/bench_load.py --runs 5000 > docs/results/performance/load.json

The runs are written into a temporary folder first: studies of 100 runs each, with records, curves and samples.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PER_STUDY = 100
OVERVIEW = """
import json, resource, sys, time
from pathlib import Path
from oelm.server import index as module
from oelm.server.index import Folder, FolderIndex
from oelm.server.app import overview
module.LOOK_SECONDS = 0.0
index, times = FolderIndex(Folder(Path(sys.argv[1]))), []


def ask():
    began = time.process_time()
    found = overview(index, "", 0)
    times.append(time.process_time() - began)
    return len(found["runs"])


first = ask()
while index.unread:
    ask()
whole = sum(times)
runs = ask()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({
    "runs": runs, "first_seconds": times[0], "first_runs": first, "whole_seconds": whole, "later_seconds": times[-1],
    "peak_bytes": peak,
}))
"""


def write_runs(root: Path, count: int) -> None:
    """Write studies of 100 complete runs each: two arms, fifty seeds."""
    from oelm.record.folder import METRICS, run_directory, write_record, write_study
    from oelm.record.record import (
        DataRecord,
        EnvironmentRecord,
        MetricRecord,
        ParametersRecord,
        ResultRecord,
        RunRecord,
        SecondsRecord,
    )
    from oelm.spec.run import GPT_SIZES, RunSpec, TrainSpec, fingerprint
    from oelm.spec.study import Study

    environment = EnvironmentRecord(
        oelm="0.1.0",
        python="3.11",
        torch="2.13.0",
        platform="Linux",
        device="a processor",
        cores=2,
        commit=None,
        dirty=None,
        command="oelm run study.py",
    )
    for number in range(count // PER_STUDY):
        base = RunSpec(model=GPT_SIZES["nano"], train=TrainSpec(steps=1000 + number, warmup_steps=10))
        seeds = tuple(range(PER_STUDY // 2))
        study = Study(name=f"s{number:03}", question="?", base=base, arms=("baseline", "oelm-freeze"), seeds=seeds)
        folder = root / study.name
        for run in study.runs():
            named = run.model_copy(update={"data": run.data.model_copy(update={"checksum": "c0ffee"})})
            loss = 2 + 0.1 * (run.arm != "baseline") + 0.01 * math.sin(run.seed + number)
            directory = run_directory(folder, named)
            points = [
                MetricRecord(kind=kind, step=step, loss=loss + 3 * math.exp(-step / 200), seconds=0.1 * step)
                for step in range(10, 1001, 10)
                for kind in ("train", "val")
            ]
            write_record(
                directory,
                RunRecord(
                    fingerprint=fingerprint(named),
                    status="complete",
                    spec=named,
                    environment=environment,
                    started="2026-01-01T00:00:00+00:00",
                    finished="2026-01-01T00:10:00+00:00",
                    step=run.train.steps,
                    parameters=ParametersRecord(total=1000, trainable=900, frozen=100),
                    data=DataRecord(
                        corpus="stories",
                        checksum="c0ffee",
                        tokens={"train": 10**6, "val": 10**4, "test": 10**4},
                        vocab_size=97,
                    ),
                    seconds=SecondsRecord(
                        total=100.0, train=90.0, processor=90.0, validation=5.0, checkpoint=5.0, timed_steps=1000
                    ),
                    result=ResultRecord(
                        val_loss=loss,
                        test_loss=loss,
                        best_val_loss=loss,
                        best_step=900,
                        train_tokens=10**6,
                        tokens_per_second=12_345.6,
                        peak_memory_bytes=1 << 28,
                    ),
                ),
            )
            (directory / METRICS).write_text(
                "".join(point.model_dump_json(exclude_none=True) + "\n" for point in points)
            )
            (directory / "samples.txt").write_text("Once upon a time there was a run.\n")
        write_study(folder, study)


def measure_overview(root: Path) -> dict[str, float]:
    """Return the processor seconds of the first and of later overviews in a fresh process."""
    command = [sys.executable, "-c", OVERVIEW, str(root)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def measure_report(root: Path) -> dict[str, float]:
    """Return the processor seconds of `oelm report --all`, which writes into the folder of the runs."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [sys.executable, "-m", "oelm", "report", str(root), "--all"]
    subprocess.run(command, capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds": used, "wall_seconds": time.perf_counter() - began, "peak_bytes": after.ru_maxrss * 1024}


def main() -> None:
    """Write the runs, measure, print JSON."""
    from oelm.bench import describe_machine

    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--runs", type=int, default=5000, help="number of runs; default 5000")
    flags.add_argument("--folder", type=Path, help="folder of an earlier call to measure again")
    flags.add_argument("--only", choices=("overview", "report"))
    asked = flags.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        root = asked.folder or Path(scratch) / "runs"
        if not root.is_dir():
            write_runs(root, asked.runs)
        found: dict[str, object] = {"bench": "load", "runs": asked.runs, "threads": 1, **describe_machine()}
        if asked.only != "report":
            found["overview"] = measure_overview(root)
        if asked.only != "overview":
            found["report_all"] = measure_report(root)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
