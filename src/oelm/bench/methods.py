"""What methods save of a training step, beside the FLOPs they remove and the most they could save.

A block starts one fresh process per arm and per ceiling, and they take turns. A block's figure is the median over turns
of the ratio to the first arm's step of the same turn; intervals are over blocks. Blocks go on until every saving is
known well enough, or there have been enough. Processor time decides, wall time is shown beside it (decision 021).
"""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tyro

from oelm.analysis.statistics import CONFIDENCE, interval_of_mean
from oelm.bench.turns import Clock, Turn, answer_turns, take_turns
from oelm.errors import InvalidSpec
from oelm.spec.model import GPT_SIZES, named_size
from oelm.spec.named import named_method
from oelm.spec.train import TrainSpec

LEAST_BLOCKS = 4
"""Fewer have a spread that may be small by luck."""
CEILING = "ceiling of "
HUGGING_FACE_LENGTH = 512


@dataclass(frozen=True)
class MethodsBench:
    """Measure what methods save of a training step against the first of them, each in fresh processes, turn about.

    Beside each saving stand the share of FLOPs that the method removes and a measured ceiling: the first arm's own
    step with the removed work replaced by nothing. A saving above its ceiling is flagged: the method does not
    explain it.

      oelm bench methods --arms baseline,oelm-freeze,oelm-slice --batch 1
    """

    arms: str = "baseline,oelm-freeze,oelm-slice"
    """Named methods, with commas; the first is what the others are compared with."""
    size: str = "medium-512"
    """Named size of our GPT, or a Hugging Face configuration: gpt2, bert-base, ... (from scratch)."""
    labels: int | None = None
    """With a classification head of this many classes instead of the model's own head."""
    batch: int = 8
    """Sequences per step."""
    length: int | None = None
    """Tokens per sequence. Without it: the whole context of our GPT, 512 for other models."""
    blocks: int = 30
    """At most so many blocks of fresh processes."""
    steps: int = 4
    """Turns in a block, one step of each process; two steps before them are left out as warm-up."""
    half_width: float = 1.5
    """Stop once the half-width of every saving's interval is at most so many points (percent of a step)."""
    threads: int = 1
    """CPU threads of each process. With one, processor time holds no waiting of threads for one another."""
    json: bool = False
    """Print the result as JSON only."""

    @property
    def names(self) -> list[str]:
        """The arms in order."""
        return [name.strip() for name in self.arms.split(",") if name.strip()]

    @property
    def tokens(self) -> int:
        """Tokens per sequence."""
        return self.length or (named_size(self.size).context if self.size in GPT_SIZES else HUGGING_FACE_LENGTH)


def main(argv: list[str]) -> int:
    """Measure, and print what was found."""
    bench = tyro.cli(MethodsBench, args=argv, prog="oelm bench methods", config=(tyro.conf.FlagCreatePairsOff,))
    result = bench_methods(bench, say=lambda line: print(line, file=sys.stderr, flush=True))
    print(json.dumps(result, indent=None if bench.json else 1))
    return 0


def bench_methods(bench: MethodsBench, say: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Measure every arm and its ceiling against the first arm.

    Raises:
        InvalidSpec: fewer than two arms, one of them twice, or a number that measures nothing.
        RunFailed: a process broke.

    """
    _refuse(bench)
    shares, ceilings = _facts(bench)
    participants = [*bench.names, *dict.fromkeys(filter(None, ceilings.values()))]
    words = json.dumps(vars(bench))
    commands = {name: [sys.executable, "-m", "oelm.bench.methods", name, words] for name in participants}
    say(f"{len(participants)} processes per block: {', '.join(participants)}")
    blocks: list[list[Turn]] = []
    while not (enough := _enough(bench, blocks)) and len(blocks) < bench.blocks:
        blocks.append(take_turns(commands, bench.steps, os.environ | {"OMP_NUM_THREADS": str(bench.threads)}))
        say(_progress(bench, blocks))
    found = summary(blocks, shares, ceilings)
    for arm in bench.names[1:]:
        say(_verdict(arm, found[arm]))
    return {
        "size": bench.size,
        "labels": bench.labels,
        "batch": [bench.batch, bench.tokens],
        "threads": bench.threads,
        "reference": bench.names[0],
        "clock": "cpu",
        "blocks": len(blocks),
        "steps_per_block": bench.steps,
        "half_width": bench.half_width,
        "stopped": "the half-width is reached" if enough else "the blocks are used up",
        "arms": found,
        "environment": _environment(),
    }


def summary(
    blocks: Sequence[Sequence[Turn]], shares: Mapping[str, float], ceilings: Mapping[str, str | None]
) -> dict[str, Any]:
    """Return per arm its seconds, its saving against the first arm, its share of FLOPs, its ceiling.

    It is `explained` unless the interval of what it saves beyond its ceiling lies above nought; None: one block.

    `ceilings` names the participant that is an arm's ceiling; None: it removes nothing, and can save nothing.
    """
    reference, *_ = shares
    return {arm: _arm(blocks, reference, arm, share, ceilings[arm]) for arm, share in shares.items()}


def _arm(
    blocks: Sequence[Sequence[Turn]], reference: str, arm: str, share: float, ceiling: str | None
) -> dict[str, Any]:
    found: dict[str, Any] = {"flop_share": share}
    clocks: dict[Clock, str] = {"cpu": "", "wall": "wall_"}
    for clock, prefix in clocks.items():
        medians = [statistics.median(turn[arm][clock] for turn in turns) for turns in blocks]
        interval = interval_of_mean([math.log(value) for value in medians], CONFIDENCE)
        found[f"{prefix}seconds"] = statistics.median(medians)
        found[f"{prefix}seconds_interval"] = interval and [math.exp(interval.low), math.exp(interval.high)]
        if arm != reference:
            found |= {f"{prefix}{key}": value for key, value in saving(blocks, reference, arm, clock).items()}
    peaks = [turn[arm]["peak_bytes"] for turns in blocks for turn in turns if "peak_bytes" in turn[arm]]
    found["peak_bytes"] = max(peaks, default=None)
    if arm != reference:
        found |= memory_saving(blocks, reference, arm)
        most = saving(blocks, reference, ceiling or reference)
        # Paired with the ceiling itself: a difference of two savings would carry the noise of the first arm twice.
        excess = saving(blocks, ceiling or reference, arm)["saving_interval"]
        found["ceiling"], found["ceiling_interval"] = most["saving"], most["saving_interval"]
        found["share_of_ceiling"] = found["saving"] / most["saving"] if most["saving"] > 0 else None
        found["explained"] = None if excess is None else excess[0] <= 0
    return found


def saving(blocks: Sequence[Sequence[Turn]], reference: str, arm: str, clock: Clock = "cpu") -> dict[str, Any]:
    """Return the part of the reference's step that an arm saves, with its interval over blocks (None: one block).

    The unit is a block's median of log(arm / reference) over turns; one minus the exponential of their mean.
    """
    logs = [
        statistics.median(math.log(turn[arm][clock] / turn[reference][clock]) for turn in turns) for turns in blocks
    ]
    interval = interval_of_mean(logs, CONFIDENCE)
    bounds = interval and [1 - math.exp(interval.high), 1 - math.exp(interval.low)]
    return {
        "saving": 1 - math.exp(statistics.fmean(logs)),
        "saving_interval": bounds,
        "half_width": bounds and (bounds[1] - bounds[0]) / 2,
    }


def memory_saving(blocks: Sequence[Sequence[Turn]], reference: str, arm: str) -> dict[str, Any]:
    """Return the part of the reference's peak of memory that an arm saves, with its interval over blocks.

    Every block has fresh processes, so the peak at the end of a block belongs to that block alone.
    """
    ends = [turns[-1] for turns in blocks if all("peak_bytes" in turns[-1][name] for name in (reference, arm))]
    shares = [1 - turn[arm]["peak_bytes"] / turn[reference]["peak_bytes"] for turn in ends]
    interval = interval_of_mean(shares, CONFIDENCE)
    return {
        "memory_saving": statistics.fmean(shares) if shares else None,
        "memory_saving_interval": interval and [interval.low, interval.high],
    }


def _enough(bench: MethodsBench, blocks: Sequence[Sequence[Turn]]) -> bool:
    reference, *others = bench.names
    return len(blocks) >= LEAST_BLOCKS and all(
        100 * saving(blocks, reference, arm)["half_width"] <= bench.half_width for arm in others
    )


def _progress(bench: MethodsBench, blocks: Sequence[Sequence[Turn]]) -> str:
    reference, *others = bench.names
    words = []
    for arm in others:
        found = saving(blocks, reference, arm)
        spread = "" if found["half_width"] is None else f" +- {100 * found['half_width']:.1f}"
        words.append(f"{arm} saves {100 * found['saving']:.1f}{spread} %")
    return f"block {len(blocks)} of at most {bench.blocks}: {', '.join(words)}"


def _verdict(arm: str, found: Mapping[str, Any]) -> str:
    def percent(key: str) -> str:
        bounds = found[f"{key}_interval"]
        spread = "" if bounds is None else f" [{100 * bounds[0]:.1f}, {100 * bounds[1]:.1f}]"
        return f"{100 * found[key]:.1f} %{spread}"

    flag = ": MORE THAN THE METHOD EXPLAINS" if found["explained"] is False else ""
    return (
        f"{arm} saves {percent('saving')} of the processor's time ({percent('wall_saving')} by the clock), removes "
        f"{100 * found['flop_share']:.1f} % of the FLOPs, could save at most {percent('ceiling')}{flag}"
    )


def _refuse(bench: MethodsBench) -> None:
    names = bench.names
    if len(names) < 2 or len(set(names)) < len(names):
        raise InvalidSpec(
            f"--arms {bench.arms!r} was given. Name at least two methods, each once, with commas between."
        )
    for name in names:
        if named_method(name).schedule.moves:
            raise InvalidSpec(
                f"{name!r} changes what trains on the way, and a bench of steps has no way. Time what it is before and "
                "after: baseline, oelm-freeze."
            )
    if bench.labels is not None and bench.size in GPT_SIZES:
        raise InvalidSpec(f"--labels is for Hugging Face models; {bench.size!r} is a size of our GPT. Leave it out.")
    if min(bench.batch, bench.tokens, bench.steps, bench.threads, bench.blocks) < 1 or bench.half_width <= 0:
        raise InvalidSpec(f"{bench} measures nothing: every number must be above 0.")


def _facts(bench: MethodsBench) -> tuple[dict[str, float], dict[str, str | None]]:
    """Return each arm's share of removed FLOPs and the name of its ceiling; arms that remove the same share one."""
    from oelm.bench.ceiling import Removed, removed_work
    from oelm.models.cost import training_cost

    models = {name: _model(bench, name) for name in bench.names}
    reference = models[bench.names[0]]
    totals = {name: training_cost(model, bench.batch, bench.tokens).total_flops for name, model in models.items()}
    ceilings: dict[str, str | None] = {}
    first: dict[Removed, str] = {}
    for name, model in models.items():
        removed = removed_work(reference, model)
        ceilings[name] = CEILING + first.setdefault(removed, name) if removed else None
    return {name: 1 - total / totals[bench.names[0]] for name, total in totals.items()}, ceilings


def _model(bench: MethodsBench, method: str) -> Any:
    """Build a model with a method, without dropout, whose draws would be most of what differs between steps."""
    from oelm import surgery
    from oelm.models.build import build
    from oelm.models.configs import spec_of
    from oelm.spec.model import GPTSpec

    spec = spec_of(bench.size, bench.labels)
    model = build(spec.model_copy(update={"dropout": 0.0}) if isinstance(spec, GPTSpec) else spec)
    surgery.apply(model, method)
    return model if isinstance(spec, GPTSpec) else model.eval()


def _loss(bench: MethodsBench, model: Any) -> Callable[[Any], Any]:
    """Return the function from random numbers (B, T + 1) to the loss of a batch."""
    from oelm.models.gpt import GPT

    vocab_size = model.spec.vocab_size if isinstance(model, GPT) else model.config.vocab_size

    def loss(numbers: Any) -> Any:
        tokens = numbers % vocab_size
        inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        if isinstance(model, GPT):
            return model(inputs, targets)
        labels = targets if bench.labels is None else numbers[:, 0] % bench.labels
        return model(input_ids=inputs, labels=labels).loss

    return loss


def _environment() -> dict[str, Any]:
    import torch

    from oelm.record.environment import environment

    return environment("cpu", torch.__version__).model_dump()


def _work(participant: str, bench: MethodsBench) -> None:
    """Be a participant: an arm, or the ceiling of one."""
    import torch

    from oelm.bench.ceiling import removed_work, take_away
    from oelm.train.allocator import keep_large_blocks
    from oelm.train.optimizer import Optimizer

    keep_large_blocks()
    torch.set_num_threads(bench.threads)
    arm = participant.removeprefix(CEILING)
    model = _model(bench, arm)
    if participant != arm:
        reference = _model(bench, bench.names[0])
        take_away(reference, removed_work(reference, model))
        model = reference
    spec = TrainSpec()
    optimizer = Optimizer(model, spec, dict.fromkeys((name for name, _ in model.named_parameters()), 1.0))
    generator = torch.Generator().manual_seed(0)
    shape = (bench.batch, bench.tokens + 1)

    loss = _loss(bench, model)

    def step() -> None:
        optimizer.backward(loss(torch.randint(0, 1 << 30, shape, generator=generator)))
        optimizer.step(spec.learning_rate)

    answer_turns(step)


if __name__ == "__main__":
    _work(sys.argv[1], MethodsBench(**json.loads(sys.argv[2])))
