"""Records as the published runs would have left them, for the tests of what is made of such records."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from oelm.published.claims import PublishedRun, published
from oelm.record.folder import run_directory, write_record
from oelm.record.record import ResultRecord, SecondsRecord
from oelm.spec.method import named_method
from oelm.spec.run import GPT_SIZES, DataSpec, ExamplesSpec, HuggingFaceSpec, RunSpec, TrainSpec

ARMS = {"baseline": "baseline", "oelm-freeze": "oelm-freeze", "oelm-random": "oelm-random",
        "orthogonal-from-current-trained": "baseline", "random-trained": "baseline",
        "oelm-from-current": "oelm-freeze"}  # fmt: skip


def spec_of(item: PublishedRun) -> RunSpec:
    language = item.perplexity is not None
    return RunSpec(
        arm=ARMS[item.method],
        label=item.id,
        method=named_method(item.method),
        model=GPT_SIZES["medium-512"] if language else HuggingFaceSpec(name="bert-base", labels=3),
        data=DataSpec(corpus=item.corpus) if language else ExamplesSpec(corpus=item.corpus),
        train=TrainSpec(steps=item.steps or 73_000, learning_rate=item.learning_rate),
        seed=42,
    )


def write_published(root: Path, make_record: Any, ids: str = "") -> list[Path]:
    """Write a record for every published run whose id begins so."""
    directories = []
    for item in published().runs:
        if not item.id.startswith(ids):
            continue
        run = spec_of(item)
        loss = math.log(item.perplexity) if item.perplexity else 0.5
        result = ResultRecord(
            val_loss=loss, test_loss=None, best_val_loss=loss, best_step=1, train_tokens=1, tokens_per_second=1.0,
            peak_memory_bytes=1, val_accuracy=item.accuracy,
        )  # fmt: skip
        spent = item.train_seconds
        seconds = SecondsRecord(total=spent, train=spent, validation=0, checkpoint=0) if spent else None
        record = make_record(run, result=result, seconds=seconds, cost=None, parameters=None, checksum=item.corpus)
        directory = run_directory(root, record.spec)
        write_record(directory, record)
        directories.append(directory)
    return directories
