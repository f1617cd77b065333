"""Time an encoder as the published study timed XNLI-01 and XNLI-02, and then both alike.

The published program records, at every optimiser step, the duration of the micro-batch *before* it. XNLI-01 had no
accumulation, so that was a whole step: 16 rows forward and backward, and the optimiser. XNLI-02 accumulated two
micro-batches of 8, so it was the first of them: half of the rows, and no optimiser. The published saving of 57 %
compares these two.

Four processes take turns (see `oelm.bench`): the baseline's whole step, what was recorded for the frozen arm, the
frozen arm's whole step as it ran (two micro-batches and the optimiser), and the frozen arm's step timed like the
baseline's. Results are processor time, with intervals over blocks of new processes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from oelm.bench import Blocks, Ratio, answer_turns, describe_machine, ratio, take_turns, worker_command
from oelm.errors import InvalidSpec
from oelm.spec.run import TrainSpec

BASELINE, RECORDED, ACCUMULATED, ALIKE = "baseline", "recorded", "accumulated", "alike"
METHODS = {
    BASELINE: "random-trained",
    RECORDED: "oelm-from-current",
    ACCUMULATED: "oelm-from-current",
    ALIKE: "oelm-from-current",
}
"""Worker -> the method of XNLI-01 or of XNLI-02."""
PUBLISHED_SAVING = 1 - 0.069 / 0.162
"""The seconds per step that the study reports for XNLI-02 and XNLI-01."""


@dataclass(frozen=True)
class PublishedTimingBench:
    """Reproduce the published 57 % of saved time on BERT with the published timer, and time both arms alike.

    The model is an encoder from scratch with a classification head. Three numbers answer: the saving as it was
    recorded, the saving with both arms timed alike, and the share of a step's FLOPs that freezing removes.

      oelm bench published-timing --blocks 6 --json
    """

    size: str = "electra-small"
    """Encoder from scratch, a Hugging Face configuration. bert-base is the published one and takes ten times longer."""
    batch: int = 16
    """Rows of a step; the accumulated arm has two micro-batches of half as many."""
    length: int = 128
    """Tokens of a row."""
    labels: int = 3
    """Number of classes."""
    blocks: int = 6
    """Number of blocks, each with new processes."""
    steps: int = 4
    """Number of turns per block. Two warm-up turns come before and do not count."""
    threads: int = 1
    """CPU threads of each process."""
    json: bool = False
    """Print the result as one line of JSON."""


def bench_published_timing(bench: PublishedTimingBench, say: Callable[[str], None]) -> dict[str, Any] | None:
    """Run the benchmark and return its result."""
    if bench.batch < 2 or bench.batch % 2 or min(bench.length, bench.labels, bench.blocks, bench.steps) < 1:
        raise InvalidSpec("--batch must be even, and --length, --labels, --blocks and --steps at least 1.")
    commands = {name: worker_command("oelm.bench.published_timing", name, arguments=bench) for name in METHODS}
    blocks: list[list[Any]] = []
    for number in range(1, bench.blocks + 1):
        blocks.append(take_turns(commands, bench.steps, bench.threads))
        say(f"block {number} of {bench.blocks}: {_describe(summarise(blocks))}")
    found = summarise(blocks)
    limit = _flop_share(bench)
    say(f"freezing removes {100 * limit:.1f} % of the FLOPs of a step")
    return {
        "size": bench.size, "batch": [bench.batch, bench.length], "labels": bench.labels, "blocks": bench.blocks,
        "steps_per_block": bench.steps, "threads": bench.threads, "published_saving": PUBLISHED_SAVING, **found,
        "flop_share": limit, **describe_machine(),
    }  # fmt: skip


def summarise(blocks: Blocks) -> dict[str, Any]:
    """Return the three savings against the baseline's step, each with its interval over blocks."""
    names = {"as_published": RECORDED, "as_run": ACCUMULATED, "timed_alike": ALIKE}
    return {name: _saving(ratio(blocks, worker, BASELINE)) for name, worker in names.items()}


def _saving(found: Ratio) -> dict[str, Any]:
    bounds = None if found.interval is None else [1 - found.interval[1], 1 - found.interval[0]]
    return {"saving": 1 - found.value, "interval": bounds}


def _describe(found: Mapping[str, Any]) -> str:
    def percent(name: str) -> str:
        bounds = found[name]["interval"]
        spread = "" if bounds is None else f" [{100 * bounds[0]:.1f}, {100 * bounds[1]:.1f}]"
        return f"{100 * found[name]['saving']:.1f} %{spread}"

    return (
        f"saved as published {percent('as_published')}, by the whole step as it ran {percent('as_run')}, timed alike "
        f"{percent('timed_alike')}"
    )


def _model(bench: PublishedTimingBench, worker: str) -> Any:
    from oelm.models import apply as surgery
    from oelm.models.build import build, parse_model_name

    model: Any = build(parse_model_name(bench.size, bench.labels))
    surgery.apply(model, METHODS[worker])
    return model.train()


def _flop_share(bench: PublishedTimingBench) -> float:
    from oelm.models.flops import training_cost

    return training_cost(_model(bench, ALIKE), bench.batch, bench.length).flop_share


def _work(worker: str, bench: PublishedTimingBench) -> None:
    """Be a worker: measure its step, or the first micro-batch of it."""
    import torch

    from oelm.train.device import keep_large_blocks
    from oelm.train.loop import Optimizer

    keep_large_blocks()
    torch.set_num_threads(bench.threads)
    model, spec = _model(bench, worker), TrainSpec()
    optimizer = Optimizer(model, spec, dict.fromkeys((name for name, _ in model.named_parameters()), 1.0))
    generator = torch.Generator().manual_seed(0)
    rows = bench.batch if worker in (BASELINE, ALIKE) else bench.batch // 2

    def backward() -> None:
        ids = torch.randint(0, model.config.vocab_size, (rows, bench.length), generator=generator)
        labels = torch.randint(0, bench.labels, (rows,), generator=generator)
        optimizer.backward(model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels).loss)

    def update() -> None:
        optimizer.step(spec.learning_rate)

    def whole_step() -> None:
        for _ in range(bench.batch // rows):
            backward()
        update()

    def second_half() -> None:
        backward()
        update()

    if worker == RECORDED:
        answer_turns(backward, second_half)
    else:
        answer_turns(whole_step)


if __name__ == "__main__":
    _work(sys.argv[1], PublishedTimingBench(**json.loads(sys.argv[2])))
