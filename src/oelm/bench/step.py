"""Our training step against transformers' GPT-2 of the same size, each in its own process, turn about.

Both sides start from the same weights and see the same random batches, with the same clipping, fused AdamW and
thread count. The other side is written as a user of transformers would write it: sdpa attention, `labels` to the
model, `clip_grad_norm_`, `step`. Peak memory is the process's own, what the machine had to provide for it: ru_maxrss,
but without what that inherits from whoever started the process (see `oelm.record.memory`).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import tyro

from oelm.errors import RunFailed
from oelm.record.memory import peak_resident_bytes
from oelm.spec.model import GPT2_VOCAB_SIZE, GPTSpec, named_size
from oelm.spec.train import TrainSpec

Side = Literal["oelm", "transformers"]
SIDES: tuple[Side, Side] = ("oelm", "transformers")
LOSSES = 5


@dataclass(frozen=True)
class StepBench:
    """Measure our training step against transformers' GPT-2 of the same size, each in its own process, turn about."""

    size: str = "medium-512"
    """Named size of the GPT."""
    batch_size: int = 8
    """Sequences per step, each as long as the context."""
    steps: int = 6
    """Steps per process; the first is left out as warm-up."""
    rounds: int = 2
    """How often the two take turns."""
    threads: int = len(os.sched_getaffinity(0))
    """CPU threads of each side."""
    learning_rate: float = 1e-4
    """The same for both: what is measured does not depend on it, the losses compared do."""
    json: bool = False
    """Print the result as JSON only."""

    def spec(self) -> GPTSpec:
        """Return the model: without dropout, so that losses can be compared."""
        spec = named_size(self.size)
        return spec.model_copy(update={"dropout": 0.0, "vocab_size": spec.vocab_size or GPT2_VOCAB_SIZE})


def main(argv: list[str]) -> int:
    """Measure, and print what was found."""
    bench = tyro.cli(StepBench, args=argv, prog="oelm bench step", config=(tyro.conf.FlagCreatePairsOff,))
    result = bench_step(bench, say=lambda line: print(line, file=sys.stderr, flush=True))
    print(json.dumps(result, indent=None if bench.json else 1))
    return 0


def bench_step(bench: StepBench, say: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Measure both sides and return ratios, ours over theirs."""
    found: dict[Side, list[dict[str, Any]]] = {side: [] for side in SIDES}
    for turn in range(bench.rounds):
        for side in SIDES if turn % 2 == 0 else SIDES[::-1]:
            result = _in_a_process(side, bench)
            found[side].append(result)
            say(
                f"round {turn + 1}/{bench.rounds}, {side}: {statistics.median(result['seconds']):.2f} s per step, "
                f"{result['peak_bytes'] / 2**20:.0f} MiB"
            )
    return _summary(bench, found)


def _summary(bench: StepBench, found: dict[Side, list[dict[str, Any]]]) -> dict[str, Any]:
    seconds = {side: statistics.median([s for run in runs for s in run["seconds"]]) for side, runs in found.items()}
    peak = {side: max(run["peak_bytes"] for run in runs) for side, runs in found.items()}
    apart = [abs(a - b) for a, b in zip(found["oelm"][0]["losses"], found["transformers"][0]["losses"], strict=True)]
    tokens = bench.batch_size * bench.spec().context
    return {
        "size": bench.size,
        "ratio_tokens_per_second": seconds["transformers"] / seconds["oelm"],
        "ratio_peak_memory": peak["oelm"] / peak["transformers"],
        "seconds_per_step": seconds,
        "tokens_per_second": {side: tokens / value for side, value in seconds.items()},
        "peak_bytes": peak,
        "losses": {side: runs[0]["losses"] for side, runs in found.items()},
        "largest_loss_difference": max(apart),
        "threads": bench.threads,
        "batch": [bench.batch_size, bench.spec().context],
    }


def _in_a_process(side: Side, bench: StepBench) -> dict[str, Any]:
    command = [sys.executable, "-m", "oelm.bench.step", side, json.dumps(vars(bench))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  (a command of our own)
    if done.returncode:
        raise RunFailed(f"the {side} side of the benchmark ended with code {done.returncode}: {done.stderr[-800:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _worker(side: Side, bench: StepBench) -> dict[str, Any]:
    import torch

    torch.set_num_threads(bench.threads)
    step = _our_step(bench) if side == "oelm" else _their_step(bench)
    generator = torch.Generator().manual_seed(0)
    spec = bench.spec()
    seconds, losses = [], []
    for _ in range(max(bench.steps, LOSSES)):
        shape = (bench.batch_size, spec.context + 1)
        tokens = torch.randint(0, spec.vocab_size or 0, shape, generator=generator)
        began = time.perf_counter()
        losses.append(step(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()))
        seconds.append(time.perf_counter() - began)
    return {"seconds": seconds[1:], "losses": losses[:LOSSES], "peak_bytes": peak_resident_bytes()}


def _our_step(bench: StepBench) -> Callable[[Any, Any], float]:
    from oelm.models.gpt import GPT
    from oelm.train.allocator import keep_large_blocks
    from oelm.train.optimizer import Optimizer

    keep_large_blocks()
    model = GPT(bench.spec())
    optimizer = Optimizer(model, TrainSpec(), dict.fromkeys((name for name, _ in model.named_parameters()), 1.0))

    def step(ids: Any, targets: Any) -> float:
        loss = model(ids, targets)
        optimizer.backward(loss)
        optimizer.step(bench.learning_rate)
        return float(loss.detach())

    return step


def _their_step(bench: StepBench) -> Callable[[Any, Any], float]:
    import torch

    from oelm.interop.export import as_gpt2
    from oelm.models.gpt import GPT

    model = as_gpt2(GPT(bench.spec())).train()
    model.set_attn_implementation("sdpa")
    for name, parameter in model.named_parameters():
        if ".attn." in name and name.endswith("bias"):
            parameter.requires_grad_(False)  # our model has none; trained, they would make it another model
    optimizer = torch.optim.AdamW(model.parameters(), lr=bench.learning_rate, weight_decay=0.01, fused=True)

    def step(ids: Any, targets: Any) -> float:
        loss = model(input_ids=ids, labels=ids, shift_labels=targets, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    return step


if __name__ == "__main__":
    _flags = argparse.ArgumentParser()
    _flags.add_argument("side", choices=SIDES)
    _flags.add_argument("bench", type=json.loads)
    _given = _flags.parse_args()
    print(json.dumps(_worker(_given.side, StepBench(**_given.bench))))
