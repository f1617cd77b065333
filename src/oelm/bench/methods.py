"""Measure what methods save of a training step, next to the FLOPs they remove and the most they could save.

A block starts one new process per arm and per ceiling, and they take turns (see `oelm.bench`). The result of a
block is the median over turns of the ratio to the first arm's step; intervals are over blocks. Blocks are added until
every saving is known precisely enough, or until their number is reached. Processor time decides, wall time is shown
next to it (decision 021).
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from torch import Tensor, nn

from oelm.analysis.statistics import CONFIDENCE, interval_of_mean
from oelm.bench import (
    Blocks,
    Clock,
    Turn,
    answer_turns,
    describe_machine,
    ratio,
    split_names,
    take_turns,
    worker_command,
)
from oelm.errors import InvalidSpec
from oelm.method.projection import Projection
from oelm.models.families import architecture_of
from oelm.models.gpt import GPT, Block
from oelm.models.linear import is_sliced
from oelm.spec.method import named_method
from oelm.spec.run import GPT_SIZES, TrainSpec, named_size

# The ceiling, the most that a method can save: the reference's own step without the work that the method removes.
#
# A projection that the reference trains and the arm does not becomes a constant: no gradient product, no gradient
# tensor, no clipping, no update. Where the arm needs no product either (slices, or no Q and K at all), the output is a
# view of the input. Where our GPT has no logits (uniform), attention returns its values. Everything else, weights
# included, is the reference. So an arm that is faster than its ceiling is faster for another reason than the method.


@dataclass(frozen=True)
class Removed:
    """The work of the reference's step that an arm does not do."""

    constants: frozenset[str]
    """Names of projections that no longer train."""
    products: frozenset[str]
    """Names of projections that need no product."""
    attentions: frozenset[int]
    """Numbers of the layers of our GPT whose attention has no logits."""

    def __bool__(self) -> bool:
        return bool(self.constants or self.products or self.attentions)


def removed_work(reference: nn.Module, arm: nn.Module) -> Removed:
    """Compare two models after their methods have been applied."""
    before, after = (_projections(model) for model in (reference, arm))
    trained = {name for name, each in before.items() if each.weight.requires_grad}
    return Removed(
        frozenset(name for name in trained if name not in after or not after[name].weight.requires_grad),
        frozenset(
            name for name, each in before.items() if not _is_free(each) and (name not in after or _is_free(after[name]))
        ),
        frozenset(_without_logits(arm) - _without_logits(reference)),
    )


def remove_work(reference: nn.Module, removed: Removed) -> None:
    """Take the removed work out of the reference, in place."""
    for name, projection in _projections(reference).items():
        if name in removed.constants:
            _make_constant(projection)
        if name in removed.products:
            _make_free(reference, projection)
    if isinstance(reference, GPT):
        groups = reference.spec.num_heads // reference.spec.key_heads
        for layer in removed.attentions:
            attention = cast("Block", reference.blocks[layer]).attention
            attention.q = attention.k = None
            cast("_Replaceable", attention)._average = partial(_return_values, groups)  # noqa: SLF001  (our own attention)


class _Replaceable:
    _average: Callable[[Tensor, int], Tensor]


class _View(nn.Module):
    """Replace the output of a linear map by the first coordinates of its input, which costs nothing."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, x: Tensor) -> Tensor:
        """Return a view."""
        return x[..., : self.weight.shape[0]]


class _FreeReader:
    """Do the same for a part of a split tensor."""

    def find(self, weight_CI: Tensor) -> None:
        """Accept any weight."""

    def __call__(self, weight_CI: Tensor, x: Tensor) -> Tensor:
        return x[..., : weight_CI.shape[0]]


def _return_values(groups: int, values_BGTK: Tensor, new: int) -> Tensor:  # noqa: ARG001  (as attention calls it)
    return values_BGTK if groups == 1 else values_BGTK.repeat_interleave(groups, dim=1)


def _projections(model: nn.Module) -> dict[str, Projection]:
    return {projection.name: projection for projection in architecture_of(model).projections(model)}


def _is_free(projection: Projection) -> bool:
    part = projection.part
    return is_sliced(projection.module) or (part is not None and (part.reader is not None or part.is_absent))


def _without_logits(model: nn.Module) -> set[int]:
    if not isinstance(model, GPT):
        return set()
    blocks = enumerate(cast("list[Block]", list(model.blocks)))
    return {layer for layer, block in blocks if not block.attention.has_logits}


def _make_constant(projection: Projection) -> None:
    projection.split(biases=True)
    for _, parameter in projection.parameters(biases=True):
        parameter.requires_grad_(False)


def _make_free(model: nn.Module, projection: Projection) -> None:
    if isinstance(model, GPT):
        parent, _, child = projection.name.rpartition(".")
        setattr(model.get_submodule(parent), child, _View(projection.weight))
    else:
        projection.set_apart().reader = _FreeReader()


LEAST_BLOCKS = 4
"""Smallest number of blocks: fewer may agree by chance."""
CEILING = "ceiling of "
BENCH_LENGTH = 512


@dataclass(frozen=True)
class MethodsBench:
    """Measure what methods save of a training step against the first of them, in processes that take turns.

    Each saving comes with the share of FLOPs that the method removes and with a measured ceiling: the first arm's own
    step without the removed work. A saving above its ceiling is flagged, because the method does not explain it.

      oelm bench methods --arms baseline,oelm-freeze,oelm-slice --batch 1
    """

    arms: str = "baseline,oelm-freeze,oelm-slice"
    """Methods, separated by commas. The others are compared with the first."""
    size: str = "medium-512"
    """Size of our GPT, or a Hugging Face configuration from scratch: gpt2, bert-base, ..."""
    labels: int | None = None
    """Number of classes of a classification head that replaces the model's own head."""
    batch: int = 8
    """Sequences per step."""
    length: int | None = None
    """Tokens per sequence. By default the whole context of our GPT, 512 for other models."""
    blocks: int = 30
    """Largest number of blocks, each with new processes."""
    steps: int = 4
    """Number of turns per block, one step of each process. Two warm-up steps come before and do not count."""
    half_width: float = 1.5
    """Stop when the interval of every saving has at most this half-width, in percent of a step."""
    threads: int = 1
    """CPU threads of each process. With one thread, processor time contains no waiting for other threads."""
    json: bool = False
    """Print the result as one line of JSON."""

    @property
    def names(self) -> list[str]:
        """Arms in order."""
        return split_names(self.arms)

    @property
    def tokens(self) -> int:
        """Tokens per sequence."""
        return self.length or (named_size(self.size).context if self.size in GPT_SIZES else BENCH_LENGTH)


def bench_methods(bench: MethodsBench, say: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Measure every arm and its ceiling against the first arm.

    Raises:
        InvalidSpec: fewer than two arms, one of them twice, or a number that is too small.
        RunFailed: a process failed.

    """
    _refuse(bench)
    shares, ceilings = _count_removed(bench)
    workers = [*bench.names, *dict.fromkeys(filter(None, ceilings.values()))]
    commands = {name: worker_command("oelm.bench.methods", name, arguments=bench) for name in workers}
    say(f"{len(workers)} processes per block: {', '.join(workers)}")
    blocks: list[list[Turn]] = []
    while not (enough := _is_enough(bench, blocks)) and len(blocks) < bench.blocks:
        blocks.append(take_turns(commands, bench.steps, bench.threads))
        say(_describe_progress(bench, blocks))
    found = summarise_methods(blocks, shares, ceilings)
    for arm in bench.names[1:]:
        say(_describe(arm, found[arm]))
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
        "environment": describe_machine()["environment"],
    }


def summarise_methods(
    blocks: Blocks, shares: Mapping[str, float], ceilings: Mapping[str, str | None]
) -> dict[str, Any]:
    """Return for each arm its seconds, its saving against the first arm, its share of FLOPs and its ceiling.

    A saving is `explained` unless the interval of what it saves beyond its ceiling is above 0 (None for one block).
    `ceilings` maps an arm to the worker that is its ceiling; an arm with None removes nothing and can save nothing.
    """
    reference, *_ = shares
    return {arm: _summarise_arm(blocks, reference, arm, share, ceilings[arm]) for arm, share in shares.items()}


def _summarise_arm(blocks: Blocks, reference: str, arm: str, share: float, ceiling: str | None) -> dict[str, Any]:
    found: dict[str, Any] = {"flop_share": share}
    clocks: dict[Clock, str] = {"cpu": "", "wall": "wall_"}
    for clock, prefix in clocks.items():
        medians = [statistics.median(turn[arm][clock] for turn in turns) for turns in blocks]
        interval = interval_of_mean([math.log(value) for value in medians], CONFIDENCE)
        found[f"{prefix}seconds"] = statistics.median(medians)
        found[f"{prefix}seconds_interval"] = interval and [math.exp(interval.low), math.exp(interval.high)]
        if arm != reference:
            found |= {f"{prefix}{key}": value for key, value in estimate_saving(blocks, reference, arm, clock).items()}
    peaks = [turn[arm]["peak_bytes"] for turns in blocks for turn in turns if "peak_bytes" in turn[arm]]
    found["peak_bytes"] = max(peaks, default=None)
    if arm != reference:
        found |= estimate_memory_saving(blocks, reference, arm)
        most = estimate_saving(blocks, reference, ceiling or reference)
        # Compared with the ceiling directly: a difference of two savings would contain the first arm's noise twice.
        excess = estimate_saving(blocks, ceiling or reference, arm)["saving_interval"]
        found["ceiling"], found["ceiling_interval"] = most["saving"], most["saving_interval"]
        found["share_of_ceiling"] = found["saving"] / most["saving"] if most["saving"] > 0 else None
        found["explained"] = None if excess is None else excess[0] <= 0
    return found


def estimate_saving(blocks: Blocks, reference: str, arm: str, clock: Clock = "cpu") -> dict[str, Any]:
    """Return the share of the reference's step that an arm saves, with its interval over blocks (None for one block).

    The share is 1 minus the `ratio` of the arm's time to the reference's.
    """
    found = ratio(blocks, arm, reference, clock)
    bounds = found.interval and [1 - found.interval[1], 1 - found.interval[0]]
    return {
        "saving": 1 - found.value,
        "saving_interval": bounds,
        "half_width": bounds and (bounds[1] - bounds[0]) / 2,
    }


def estimate_memory_saving(blocks: Blocks, reference: str, arm: str) -> dict[str, Any]:
    """Return the share of the reference's peak memory that an arm saves, with its interval over blocks.

    Every block has new processes, so the peak at the end of a block belongs to that block alone.
    """
    ends = [turns[-1] for turns in blocks if all("peak_bytes" in turns[-1][name] for name in (reference, arm))]
    shares = [1 - turn[arm]["peak_bytes"] / turn[reference]["peak_bytes"] for turn in ends]
    interval = interval_of_mean(shares, CONFIDENCE)
    return {
        "memory_saving": statistics.fmean(shares) if shares else None,
        "memory_saving_interval": interval and [interval.low, interval.high],
    }


def _is_enough(bench: MethodsBench, blocks: Blocks) -> bool:
    reference, *others = bench.names
    return len(blocks) >= LEAST_BLOCKS and all(
        100 * estimate_saving(blocks, reference, arm)["half_width"] <= bench.half_width for arm in others
    )


def _describe_progress(bench: MethodsBench, blocks: Blocks) -> str:
    reference, *others = bench.names
    words = []
    for arm in others:
        found = estimate_saving(blocks, reference, arm)
        spread = "" if found["half_width"] is None else f" +- {100 * found['half_width']:.1f}"
        words.append(f"{arm} saves {100 * found['saving']:.1f}{spread} %")
    return f"block {len(blocks)} of at most {bench.blocks}: {', '.join(words)}"


def _describe(arm: str, found: Mapping[str, Any]) -> str:
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
        raise InvalidSpec(f"--arms {bench.arms!r} must have at least two methods, each once, separated by commas.")
    for name in names:
        if named_method(name).schedule.moves:
            raise InvalidSpec(
                f"{name!r} changes what trains during training, and this benchmark measures single steps. Measure the "
                "states before and after the change, for example baseline and oelm-freeze."
            )
    if bench.labels is not None and bench.size in GPT_SIZES:
        raise InvalidSpec(f"--labels is for Hugging Face models; {bench.size!r} is a size of our GPT. Leave it out.")
    if min(bench.batch, bench.tokens, bench.steps, bench.threads, bench.blocks) < 1 or bench.half_width <= 0:
        raise InvalidSpec("--batch, --length, --steps, --threads, --blocks and --half-width must be above 0.")


def _count_removed(bench: MethodsBench) -> tuple[dict[str, float], dict[str, str | None]]:
    """Return each arm's share of removed FLOPs and the name of its ceiling. Arms that remove the same share one."""
    from oelm.models.flops import training_cost

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
    """Build a model with a method and without dropout, whose random draws would dominate the differences of steps."""
    from oelm.models import apply as surgery
    from oelm.models.build import build, parse_model_name
    from oelm.spec.run import GPTSpec

    spec = parse_model_name(bench.size, bench.labels)
    model = build(spec.model_copy(update={"dropout": 0.0}) if isinstance(spec, GPTSpec) else spec)
    surgery.apply(model, method, scheduled=True)
    return model if isinstance(spec, GPTSpec) else model.eval()


def _loss(bench: MethodsBench, model: Any) -> Callable[[Any], Any]:
    """Return the function from random integers (B, T + 1) to the loss of a batch."""
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


def _work(name: str, bench: MethodsBench) -> None:
    """Be a worker: an arm, or the ceiling of one."""
    import torch

    from oelm.train.device import keep_large_blocks
    from oelm.train.loop import Optimizer

    keep_large_blocks()
    torch.set_num_threads(bench.threads)
    arm = name.removeprefix(CEILING)
    model = _model(bench, arm)
    if name != arm:
        reference = _model(bench, bench.names[0])
        remove_work(reference, removed_work(reference, model))
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
