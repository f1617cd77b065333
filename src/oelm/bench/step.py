"""Our training step against other ways to train the same GPT, and against the matrix products that it consists of.

Every side is a fresh process, and they take turns (see `oelm.bench.turns`). All start from the same weights and see
the same random batches, with the same clipping, fused AdamW and thread count. The opponents are written as their users
write them: `transformers` with sdpa attention and `labels`, `nanogpt-style` in nanoGPT's manner, both with autocast
where the precision is bf16. `floor` is the bare products (see `oelm.bench.floor`), and `fp32` our own step in fp32.
Processor time decides, wall time is shown next to it (decision 021). Peak memory is the process's own.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import tyro

from oelm.bench.turns import Turn, answer_turns, describe_machine, ratio, take_turns
from oelm.errors import InvalidSpec, UnknownName
from oelm.spec.model import GPT2_VOCAB_SIZE, GPTSpec, named_size
from oelm.spec.train import Precision, TrainSpec

OURS, FLOOR, FP32 = "oelm", "floor", "fp32"
OPPONENTS = ("transformers", "nanogpt-style", FLOOR, FP32)
Step = Callable[[Any, Any], float | None]


@dataclass(frozen=True)
class StepBench:
    """Measure our training step against transformers, a nanoGPT-style GPT and the bare matrix products.

    Each side is a process of its own, and they take turns. A time ratio above 1 means that our step is faster. That of
    the floor is the share of our step that is matrix products.

      oelm bench step --precision bf16 --batch 2 --against transformers,floor
    """

    against: str = "transformers,nanogpt-style,floor"
    """Opponents, with commas. `fp32` is our own step in fp32, for comparison with one in bf16."""
    precision: Literal["fp32", "bf16", "auto"] = "fp32"
    """Precision of all sides. `auto` takes bf16 where the CPU has it natively, else fp32."""
    size: str = "medium-512"
    """Named size of the GPT."""
    batch: int = 2
    """Sequences per step, each as long as the context."""
    steps: int = 4
    """Turns of a block, one step of each process; two steps before them are left out as warm-up."""
    blocks: int = 2
    """Blocks of fresh processes. Intervals are over blocks."""
    threads: int = 1
    """CPU threads of each side. With one, processor time holds no waiting of threads for one another."""
    learning_rate: float = 1e-4
    """Learning rate of all sides. Speed does not depend on it, but the losses compared do."""
    json: bool = False
    """Print the result as JSON only."""

    @property
    def opponents(self) -> list[str]:
        """The opponents in order."""
        return [name.strip() for name in self.against.split(",") if name.strip()]

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
    """Measure all sides and return times, memory and ratios to ours.

    Raises:
        UnknownName: there is no such opponent or size.
        InvalidSpec: an opponent is named twice, or a number measures nothing.
        RunFailed: a process broke.

    """
    from oelm.train.precision import resolve_precision

    _refuse(bench)
    bench = StepBench(**vars(bench) | {"precision": resolve_precision("cpu", bench.precision)})
    words = json.dumps(vars(bench))
    sides = [OURS, *bench.opponents]
    commands = {name: [sys.executable, "-m", "oelm.bench.step", name, words] for name in sides}
    blocks: list[list[Turn]] = []
    for number in range(bench.blocks):
        blocks.append(take_turns(commands, bench.steps, os.environ | {"OMP_NUM_THREADS": str(bench.threads)}))
        found = ", ".join(f"{name} {ratio(blocks, name, OURS)}" for name in bench.opponents)
        say(f"block {number + 1} of {bench.blocks}, {bench.precision}, batch {bench.batch}, times over ours: {found}")
    result = summary(bench, blocks)
    for name in bench.opponents:
        say(_verdict(name, result["against"][name]))
    return result


def summary(bench: StepBench, blocks: Sequence[Sequence[Turn]]) -> dict[str, Any]:
    """Return what each side needs, and the ratios of the others to ours."""
    tokens = bench.batch * bench.spec().context
    sides = {}
    for side in (OURS, *bench.opponents):
        taken = [turn[side] for turns in blocks for turn in turns]
        seconds = statistics.median(one["cpu"] for one in taken)
        sides[side] = {
            "seconds": seconds,
            "wall_seconds": statistics.median(one["wall"] for one in taken),
            "tokens_per_second": tokens / seconds,
            "peak_bytes": max(one["peak_bytes"] for one in taken),
            "losses": [turn[side]["loss"] for turn in blocks[0] if "loss" in turn[side]],
        }
    return {
        "bench": "step",
        "size": bench.size,
        "precision": bench.precision,
        "batch": [bench.batch, bench.spec().context],
        "threads": bench.threads,
        "blocks": len(blocks),
        "steps_per_block": bench.steps,
        "sides": sides,
        "against": {name: _against(blocks, sides, name) for name in bench.opponents},
        **describe_machine(),
    }


def _against(blocks: Sequence[Sequence[Turn]], sides: dict[str, Any], name: str) -> dict[str, Any]:
    time, wall = ratio(blocks, name, OURS), ratio(blocks, name, OURS, "wall")
    found: dict[str, Any] = {"time": time.value, "time_interval": time.interval, "wall": wall.value}
    if name == FLOOR:
        return found
    apart = [abs(a - b) for a, b in zip(sides[OURS]["losses"], sides[name]["losses"], strict=True)]
    return found | {
        "memory": sides[OURS]["peak_bytes"] / sides[name]["peak_bytes"],
        "largest_loss_difference": max(apart),
    }


def _verdict(name: str, found: dict[str, Any]) -> str:
    bounds = found["time_interval"]
    spread = "" if bounds is None else f" [{bounds[0]:.2f}, {bounds[1]:.2f}]"
    if name == FLOOR:
        return f"the bare products take {found['time']:.2f}{spread} of our step ({found['wall']:.2f} by the clock)"
    return (
        f"our step is {found['time']:.2f}{spread} times as fast as {name} ({found['wall']:.2f} by the clock) and needs "
        f"{found['memory']:.2f} times its memory; losses differ by at most {found['largest_loss_difference']:.1e}"
    )


def _refuse(bench: StepBench) -> None:
    for name in bench.opponents:
        if name not in OPPONENTS:
            raise UnknownName("opponent", name, OPPONENTS)
    if not bench.opponents or len(set(bench.opponents)) < len(bench.opponents):
        raise InvalidSpec(f"--against {bench.against!r} was given. Name at least one opponent, each once, with commas.")
    if min(bench.batch, bench.steps, bench.blocks, bench.threads) < 1:
        raise InvalidSpec(f"{bench} measures nothing. Give numbers above 0.")
    bench.spec()


def work(
    side: str, spec: GPTSpec, *, precision: Precision, batch: int, threads: int, learning_rate: float = 1e-4
) -> None:
    """Be a participant: build one side and take its turns."""
    import torch

    torch.set_num_threads(threads)
    step = _SIDES[side](spec, "fp32" if side == FP32 else precision, batch, learning_rate)
    generator = torch.Generator().manual_seed(0)

    def turn() -> float | None:
        tokens = torch.randint(0, spec.vocab_size or 0, (batch, spec.context + 1), generator=generator)
        return step(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())

    answer_turns(turn)


def _our_step(spec: GPTSpec, precision: Precision, batch: int, learning_rate: float) -> Step:  # noqa: ARG001
    import torch

    from oelm.models.gpt import GPT
    from oelm.train.allocator import keep_large_blocks
    from oelm.train.optimizer import Optimizer
    from oelm.train.precision import autocast

    keep_large_blocks()
    model = GPT(spec)
    optimizer = Optimizer(model, TrainSpec(), dict.fromkeys((name for name, _ in model.named_parameters()), 1.0))

    def step(ids: Any, targets: Any) -> float:
        with autocast(torch.device("cpu"), precision):
            loss = model(ids, targets)
        optimizer.backward(loss)
        optimizer.step(learning_rate)
        return float(loss.detach())

    return step


def _transformers_step(spec: GPTSpec, precision: Precision, batch: int, learning_rate: float) -> Step:  # noqa: ARG001
    from oelm.interop.export import as_gpt2
    from oelm.models.gpt import GPT

    model = as_gpt2(GPT(spec)).train()
    model.set_attn_implementation("sdpa")
    for name, parameter in model.named_parameters():
        if ".attn." in name and name.endswith("bias"):
            parameter.requires_grad_(False)  # our model has none; trained, they would make it another model
    return _plain_step(
        model,
        lambda ids, targets: model(input_ids=ids, labels=ids, shift_labels=targets, use_cache=False).loss,
        precision,
        learning_rate,
    )


def _nanogpt_step(spec: GPTSpec, precision: Precision, batch: int, learning_rate: float) -> Step:  # noqa: ARG001
    from oelm.bench.nanogpt_style import NanoGPTStyle
    from oelm.models.gpt import GPT

    model = NanoGPTStyle(GPT(spec))
    return _plain_step(model, model, precision, learning_rate)


def _plain_step(model: Any, loss_of: Callable[[Any, Any], Any], precision: Precision, learning_rate: float) -> Step:
    """Return a step as most people write it."""
    import torch

    from oelm.train.precision import autocast

    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.01, fused=True)

    def step(ids: Any, targets: Any) -> float:
        with autocast(torch.device("cpu"), precision):
            loss = loss_of(ids, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    return step


def _floor_step(spec: GPTSpec, precision: Precision, batch: int, learning_rate: float) -> Step:  # noqa: ARG001
    import torch

    from oelm.bench.floor import bare_products
    from oelm.train.allocator import keep_large_blocks

    keep_large_blocks()
    products = bare_products(spec, batch, spec.context, torch.bfloat16 if precision == "bf16" else torch.float32)

    @torch.no_grad()
    def step(ids: Any, targets: Any) -> None:  # noqa: ARG001
        for product in products:
            product()

    return step


_SIDES: dict[str, Callable[[GPTSpec, Precision, int, float], Step]] = {
    OURS: _our_step,
    "transformers": _transformers_step,
    "nanogpt-style": _nanogpt_step,
    FLOOR: _floor_step,
    FP32: _our_step,
}

if __name__ == "__main__":
    _bench = StepBench(**json.loads(sys.argv[2]))
    work(
        sys.argv[1],
        _bench.spec(),
        precision=_bench.precision,
        batch=_bench.batch,
        threads=_bench.threads,
        learning_rate=_bench.learning_rate,
    )
