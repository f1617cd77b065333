"""What tests of several rooms share."""

from __future__ import annotations

import math
import os
import random
import signal
from collections.abc import Callable, Generator
from contextlib import suppress
from pathlib import Path
from typing import Any

import hypothesis
import psutil
import pytest

from oelm.cores import wait_without_spinning
from oelm.record.folder import (
    METRICS,
    RunFolder,
    TokenLosses,
    WindowLossesRecord,
    run_directory,
    write_record,
    write_study,
)
from oelm.record.record import (
    DataRecord,
    EnvironmentRecord,
    MetricRecord,
    ParametersRecord,
    ResultRecord,
    RunRecord,
    commit_of,
)
from oelm.spec.method import named_method
from oelm.spec.run import GPT_SIZES, DataSpec, GPTSpec, RunSpec, TrainSpec, fingerprint
from oelm.spec.study import Study

COMMIT = commit_of(Path(__file__).parent.parent) or "0123456789abcdef"
"""A commit that reports can find in the history, so that they do not mark the records."""

wait_without_spinning()  # before torch is loaded; processes that tests start inherit it
try:
    import torch

    # Several tests run at a time; more threads than cores make each of them many times slower.
    torch.set_num_threads(1)
except ImportError:  # the paper side needs no torch, nor do its tests
    pass

# A script that starts the tests in the background leaves SIGINT ignored, and every process started from here would
# inherit that: tests that press Ctrl-C would wait for ever. Under nohup and some runners it is SIGHUP or SIGTERM.
signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (signal.SIGTERM, signal.SIGHUP):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)
# Files that others may read, and names in UTF-8, whatever the shell of the caller has.
os.umask(0o022)
os.environ |= {"LC_ALL": "C.UTF-8", "LANGUAGE": "en"}
for name in ("FORCE_COLOR", "NO_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE"):
    os.environ.pop(name, None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Kill what a failed test has started: runs would go on for hours, and disturb the tests after it."""
    report = yield
    if report.failed:
        for child in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                child.kill()
    return report


# On a loaded machine any example may take longer than the 200 ms that hypothesis allows by default.
hypothesis.settings.register_profile("any-load", deadline=None)
hypothesis.settings.load_profile("any-load")

MakeRecord = Callable[..., RunRecord]
WriteRun = Callable[..., Path]


@pytest.fixture
def plain_cross_entropy():
    """Return the loss that holds all logits: the reference for ours, which holds a few at a time."""

    def plain(hidden_BTD, weight_VD, targets_BT, _tied=None):
        logits_BTV = hidden_BTD @ weight_VD.T
        return torch.nn.functional.cross_entropy(logits_BTV.flatten(0, 1).float(), targets_BT.flatten())

    return plain


@pytest.fixture
def study() -> Study:
    return Study(
        name="tiny",
        question="What does freezing cost?",
        base=RunSpec(model=GPT_SIZES["nano"], train=TrainSpec(steps=100, warmup_steps=10)),
        arms=("baseline", "oelm-freeze"),
        seeds=(0, 1, 2),
    )


@pytest.fixture
def tuned_study() -> Callable[..., Study]:
    """Return a maker of studies that tune their learning rate, with any other field."""

    def make(rates: tuple[float, ...] = (1e-3, 2e-3, 4e-3), **fields: Any) -> Study:
        return Study(**{
            "name": "tuned",
            "question": "What does freezing cost when every arm is tuned?",
            "base": RunSpec(model=GPT_SIZES["nano"], train=TrainSpec(steps=100, warmup_steps=10)),
            "arms": ("baseline", "oelm-freeze"),
            "tuned": {"train.learning_rate": rates},
            "tuning_seeds": (100,),
            "seeds": (0, 1, 2),
            **fields,
        })  # fmt: skip

    return make


@pytest.fixture
def make_record() -> MakeRecord:
    """Return a maker of complete records, bound to data, with a chosen test loss and any other field."""

    def make(run: RunSpec, loss: float = 1.5, checksum: str = "c0ffee", **fields: Any) -> RunRecord:
        bound = run.model_copy(update={"data": run.data.model_copy(update={"checksum": checksum})})
        trained = 900 if run.method.freeze.roles else 1000
        return RunRecord(**{
            "fingerprint": fingerprint(bound),
            "status": "complete",
            "spec": bound,
            "environment": EnvironmentRecord(
                oelm="0.1.0", python="3.11.7", torch="2.13.0", platform="Linux", device="A processor",
                cores=2, commit=COMMIT, dirty=False, command="oelm run study.py",
            ),
            "started": "2026-01-01T00:00:00+00:00",
            "finished": "2026-01-01T00:10:00+00:00",
            "step": run.train.steps,
            "parameters": ParametersRecord(total=1000, trainable=trained, frozen=1000 - trained),
            "data": DataRecord(
                corpus=run.data.corpus, checksum=checksum, tokens={"train": 10_000, "val": 500, "test": 500},
                vocab_size=97, floor={"val": 1.0, "test": 1.1},
            ),
            "result": ResultRecord(
                val_loss=loss + 0.01, test_loss=loss, best_val_loss=loss, best_step=90, train_tokens=25_600,
                tokens_per_second=12_345.6, peak_memory_bytes=1 << 20,
            ),
            **fields,
        })  # fmt: skip

    return make


@pytest.fixture
def write_run(tmp_path: Path, make_record: MakeRecord) -> WriteRun:
    """Return a writer of whole run directories: record, curve and samples, below `tmp_path / "runs"`."""

    def write(run: RunSpec, loss: float = 1.5, samples: str = "Once upon a time", **fields: Any) -> Path:
        record = make_record(run, loss, **fields)
        directory = run_directory(tmp_path / "runs", record.spec)
        write_record(directory, record)
        curve = [
            MetricRecord(kind="val", step=step, loss=loss + 3 * math.exp(-step / 20), seconds=0.1 * step)
            for step in range(0, run.train.steps + 1, 10)
        ]
        (directory / METRICS).write_text("".join(point.model_dump_json() + "\n" for point in curve))
        (directory / "samples.txt").write_text(samples)
        return directory

    return write


@pytest.fixture
def write_study_runs(tmp_path: Path, make_record: MakeRecord) -> Callable[..., Path]:
    """Return a writer of a whole study below `tmp_path`: losses by arm, curves, and losses on repeats."""

    def write(
        study: Study,
        losses: dict[str, float] | None = None,
        at_half: dict[str, float] | None = None,
        repeats: dict[str, float] | None = None,
    ) -> Path:
        root = tmp_path / study.name
        losses = losses or {"baseline": 2.02, "baseline+features": 2.0, "oelm-fast": 2.05, "position-only": 2.2}
        for run in study.runs():
            noise = 0.001 * ((7 * run.seed + len(run.arm)) % 5)
            loss = losses[run.arm] + 0.1 * run.seed + noise
            directory = run_directory(root, run)
            write_record(directory, make_record(run, loss))
            half = (at_half or {}).get(run.arm, losses[run.arm] + 0.5) + 0.1 * run.seed
            points = {run.train.steps // 4: loss + 1.0, run.train.steps // 2: half, run.train.steps: loss}
            curve = [MetricRecord(kind="val", step=step, loss=each, seconds=1.0) for step, each in points.items()]
            (directory / METRICS).write_text("".join(point.model_dump_json() + "\n" for point in curve))
            if repeats is not None:
                nats = repeats[run.arm] * 10
                RunFolder(directory).write_window_losses(
                    WindowLossesRecord(
                        split="test", starts=(0, 1), context=32, repeats=TokenLosses(nats=(0.0, nats), tokens=(0, 10)),
                        others=TokenLosses(nats=(9.0, 81.0 + nats), tokens=(3, 27)),
                    ),
                )  # fmt: skip
        write_study(root, study)
        return root

    return write


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory):
    """A tiny prepared corpus."""
    from oelm.data.prepare import prepare

    directory = tmp_path_factory.mktemp("data") / "stories"
    prepare(DataSpec(corpus="stories", vocab_size=300, tokens=20_000), directory)
    return directory


@pytest.fixture(scope="session")
def tiny_run(tiny_data):
    """Make a run: `tiny_run("oelm-freeze", steps=10)`; keywords are fields of TrainSpec."""

    def make(method="baseline", seed=0, model=None, **train):
        settings = {"steps": 30, "batch_size": 4, "warmup_steps": 3, "learning_rate": 3e-3, "eval_every": 10,
                    "eval_tokens": 512, "checkpoint_every": 7} | train  # fmt: skip
        return RunSpec(
            arm=method,
            method=named_method(method),
            seed=seed,
            model=model or GPTSpec(context=32, model_dim=32, num_layers=2, num_heads=4, dropout=0.1),
            data=DataSpec(corpus="stories", directory=tiny_data),
            train=TrainSpec(**settings),
        )

    return make


GOOD, BAD = ("good", "fine", "lovely", "warm", "bright"), ("bad", "poor", "awful", "cold", "dull")


@pytest.fixture(scope="session")
def reviews(tmp_path_factory):
    """A folder of tiny reviews whose label is that of most of their words."""
    folder = tmp_path_factory.mktemp("reviews")
    draw = random.Random(0)
    for name, count in (("train", 160), ("heldout", 40), ("dev", 40)):
        rows = []
        for _ in range(count):
            label = draw.randrange(2)
            words = draw.choices((BAD, GOOD)[label], k=draw.randint(2, 9)) + draw.choices(GOOD + BAD, k=1)
            draw.shuffle(words)
            rows.append(f"{' '.join(words)}\t{label}")
        (folder / f"{name}.tsv").write_text("sentence\tlabel\n" + "\n".join(rows) + "\n")
    return folder
