"""Measure our training step against other ways to train the same GPT, and against its bare matrix products.

Every side is a new process, and they take turns (see `oelm.bench`). All start from the same weights and see the
same random batches, with the same clipping, fused AdamW and number of threads. The opponents are written in the usual
way: `transformers` with sdpa attention and `labels`, `nanogpt-style` like nanoGPT, both with autocast for bf16. `floor`
is the matrix products alone, and `fp32` is our own step in fp32. Processor time decides, wall time is shown next to it
(decision 021). Peak memory is that of the process.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oelm.bench import (
    Blocks,
    Turn,
    answer_turns,
    describe_machine,
    ratio,
    split_names,
    take_turns,
    worker_command,
)
from oelm.errors import InvalidSpec, UnknownName
from oelm.models.gpt import GPT
from oelm.models.gpt import Block as OurBlock
from oelm.models.linear import HALF
from oelm.models.loss import chunk_slices, product_slices
from oelm.spec.run import GPT2_VOCAB_SIZE, GPT_SIZES, GPTSpec, Precision, TrainSpec, named_size

# The floor: the matrix products of a training step and nothing else. No step of this model can be faster.
#
# Every product of the forward pass, of the input gradients and of the weight gradients is done once, in the shapes of
# our step. Those of attention are full squares, although a causal kernel may leave out half of them.

Product = Callable[[], Tensor]


def bare_products(spec: GPTSpec, batch: int, length: int, dtype: torch.dtype) -> list[Product]:
    """Return the products of a step that trains everything; call each once."""
    rows, width, attended = batch * length, spec.model_dim, spec.num_heads * spec.head_size
    layer = [
        *_linear(rows, width, spec.num_heads * spec.qk_size, dtype),
        *_linear(rows, width, spec.key_heads * spec.qk_size, dtype),
        *_linear(rows, width, spec.key_heads * spec.head_size, dtype),
        *_linear(rows, attended, width, dtype),
        *_linear(rows, width, spec.hidden_dim, dtype),
        *_linear(rows, spec.hidden_dim, width, dtype),
        *_attention(batch * spec.num_heads, length, spec.qk_size, spec.head_size, dtype),
    ]
    return [*layer * spec.num_layers, *_head(rows, width, spec.vocab_size or 0, dtype)]


def _linear(rows: int, inputs: int, outputs: int, dtype: torch.dtype) -> list[Product]:
    x, weight, grad = (_random(dtype, *shape) for shape in ((rows, inputs), (outputs, inputs), (rows, outputs)))
    return [lambda: x @ weight.T, lambda: grad @ weight, lambda: grad.T @ x]


def _attention(heads: int, length: int, size: int, value_size: int, dtype: torch.dtype) -> list[Product]:
    queries, keys = _random(dtype, heads, length, size), _random(dtype, heads, length, size)
    values, weights = _random(dtype, heads, length, value_size), _random(dtype, heads, length, length)
    return [
        lambda: torch.bmm(queries, keys.transpose(1, 2)),
        lambda: torch.bmm(weights, values),
        lambda: torch.bmm(weights.transpose(1, 2), values),
        lambda: torch.bmm(values, values.transpose(1, 2)),
        lambda: torch.bmm(weights, keys),
        lambda: torch.bmm(weights.transpose(1, 2), queries),
    ]


def _head(rows: int, width: int, vocabulary: int, dtype: torch.dtype) -> list[Product]:
    """Return the products with the vocabulary, in the chunks and orientations of `models/loss.py`."""
    weight, grad_weight = _random(dtype, vocabulary, width), _random(dtype, vocabulary, width)
    products: list[Product] = []
    for span in chunk_slices(rows, weight):
        x = _random(dtype, span.stop - span.start, width)
        if dtype in HALF:
            logits_VC = _random(dtype, len(x), vocabulary).T
            products.append(lambda x=x, out=logits_VC.T: torch.mm(x, weight.T, out=out))  # type: ignore[misc]
            cuts = [logits_VC[cut] for cut in product_slices(vocabulary, weight.device)]
            products += [lambda x=x, logits=logits: logits @ x for logits in cuts]  # type: ignore[misc]
        else:
            logits_VC = _random(dtype, vocabulary, len(x))
            products.append(lambda x=x, out=logits_VC: torch.mm(weight, x.T, out=out))  # type: ignore[misc]
            products.append(lambda x=x, logits=logits_VC: torch.addmm(grad_weight, logits, x, out=grad_weight))  # type: ignore[misc]
        products.append(lambda logits=logits_VC: logits.T @ weight)  # type: ignore[misc]
    return products


def _random(dtype: torch.dtype, *shape: int) -> Tensor:
    # Small numbers, because sums that accumulate over turns must not overflow: that would slow them down.
    return torch.randn(shape).mul_(1e-3).to(dtype)


# A GPT written like nanoGPT: one fused projection for q, k and v, `scaled_dot_product_attention`, the logits of the
# whole batch and `F.cross_entropy`. Attention has no biases and the feed-forward has them, as in our model.


class CausalSelfAttention(nn.Module):
    """Attention from one fused projection."""

    def __init__(self, spec: GPTSpec) -> None:
        super().__init__()
        self.heads = spec.num_heads
        self.c_attn = nn.Linear(spec.model_dim, 3 * spec.model_dim, bias=False)
        self.c_proj = nn.Linear(spec.model_dim, spec.model_dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Mix the values of the past into each token."""
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2) for part in self.c_attn(x).split(width, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(batch, length, width))  # type: ignore[no-any-return]


class NanoGptBlock(nn.Module):
    """Attention and feed-forward."""

    def __init__(self, spec: GPTSpec) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(spec.model_dim)
        self.attn = CausalSelfAttention(spec)
        self.ln_2 = nn.LayerNorm(spec.model_dim)
        self.c_fc = nn.Linear(spec.model_dim, spec.hidden_dim)
        self.gelu = nn.GELU()
        self.c_proj = nn.Linear(spec.hidden_dim, spec.model_dim)

    def forward(self, x: Tensor) -> Tensor:
        """Refine each token."""
        x = x + self.attn(self.ln_1(x))
        refined: Tensor = x + self.c_proj(self.gelu(self.c_fc(self.ln_2(x))))
        return refined


class NanoGPTStyle(nn.Module):
    """The same function as our GPT with learned positions, from the same weights."""

    def __init__(self, ours: GPT) -> None:
        super().__init__()
        spec = ours.spec
        self.wte = nn.Embedding(cast("int", spec.vocab_size), spec.model_dim)
        self.wpe = nn.Embedding(spec.context, spec.model_dim)
        self.h = nn.ModuleList(NanoGptBlock(spec) for _ in range(spec.num_layers))
        self.ln_f = nn.LayerNorm(spec.model_dim)
        self.lm_head = nn.Linear(spec.model_dim, cast("int", spec.vocab_size), bias=False)
        self.wte.weight = self.lm_head.weight
        self._take(ours)

    def forward(self, idx: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss."""
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))

    @torch.no_grad()
    def _take(self, ours: GPT) -> None:
        self.wte.weight.copy_(ours.token_embedding.weight)
        self.wpe.weight.copy_(cast("nn.Embedding", ours.position_embedding).weight)
        self.ln_f.load_state_dict(ours.norm.state_dict())
        mine_and_other = zip(
            cast("list[NanoGptBlock]", list(self.h)), cast("list[OurBlock]", list(ours.blocks)), strict=True
        )
        for mine, other in mine_and_other:
            attention = other.attention
            fused = [cast("nn.Linear", part).weight for part in (attention.q, attention.k, attention.v)]
            mine.attn.c_attn.weight.copy_(torch.cat(fused))
            mine.attn.c_proj.weight.copy_(attention.o.weight)
            pairs = ((mine.ln_1, other.attention_norm), (mine.ln_2, other.ffn_norm), (mine.c_fc, other.ffn.up))
            for its, our in (*pairs, (mine.c_proj, other.ffn.down)):
                its.load_state_dict(our.state_dict())


OURS, FLOOR, FP32 = "oelm", "floor", "fp32"
OPPONENTS = ("transformers", "nanogpt-style", FLOOR, FP32)
StepFunction = Callable[[Any, Any], float | None]


@dataclass(frozen=True)
class StepBench:
    """Measure our training step against transformers, a nanoGPT-style GPT and the bare matrix products.

    Each side is a process, and they take turns. A time ratio above 1 means that our step is faster. The ratio of the
    floor is the share of our step that is matrix products.

      oelm bench step --precision bf16 --batch 2 --against transformers,floor
    """

    against: str = "transformers,nanogpt-style,floor"
    """Opponents, separated by commas. `fp32` is our own step in fp32, to compare with bf16."""
    precision: Literal["fp32", "bf16", "auto"] = "fp32"
    """Precision of all sides. `auto` is bf16 where the CPU has it natively, otherwise fp32."""
    size: str = "medium-512"
    """Size of our GPT: nano, mini or medium-512."""
    batch: int = 2
    """Sequences per step, each as long as the context."""
    steps: int = 4
    """Number of turns per block, one step of each process. Two warm-up steps come before and do not count."""
    blocks: int = 2
    """Number of blocks, each with new processes. Intervals are over blocks."""
    threads: int = 1
    """CPU threads of each side. With one thread, processor time contains no waiting for other threads."""
    learning_rate: float = 1e-4
    """Learning rate of all sides. It affects the losses that are compared, not the speed."""
    json: bool = False
    """Print the result as one line of JSON."""

    @property
    def opponents(self) -> list[str]:
        """Opponents in order."""
        return split_names(self.against)

    def spec(self) -> GPTSpec:
        """Return the model, without dropout, so that losses can be compared."""
        spec, entries = named_size(self.size), GPT_SIZES[self.size].vocab_size or GPT2_VOCAB_SIZE
        return spec.model_copy(update={"dropout": 0.0, "vocab_size": entries})


def bench_step(bench: StepBench, say: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Measure all sides and return times, memory and ratios to ours.

    Raises:
        UnknownName: an opponent or the size does not exist.
        InvalidSpec: an opponent is there twice, or a number is too small.
        RunFailed: a process failed.

    """
    from oelm.train.device import resolve_precision

    _refuse(bench)
    bench = StepBench(**vars(bench) | {"precision": resolve_precision("cpu", bench.precision)})
    names = (OURS, *bench.opponents)
    commands = {name: worker_command("oelm.bench.step", name, arguments=bench) for name in names}
    blocks: list[list[Turn]] = []
    for number in range(bench.blocks):
        blocks.append(take_turns(commands, bench.steps, bench.threads))
        found = ", ".join(f"{name} {ratio(blocks, name, OURS)}" for name in bench.opponents)
        say(f"block {number + 1} of {bench.blocks}, {bench.precision}, batch {bench.batch}, times over ours: {found}")
    result = summarise_step(bench, blocks)
    for name in bench.opponents:
        say(_describe(name, result["against"][name]))
    return result


def summarise_step(bench: StepBench, blocks: Blocks) -> dict[str, Any]:
    """Return time and memory of each side, and the ratios of the others to ours."""
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
        "against": {name: _compare(blocks, sides, name) for name in bench.opponents},
        **describe_machine(),
    }


def _compare(blocks: Blocks, sides: dict[str, Any], name: str) -> dict[str, Any]:
    time, wall = ratio(blocks, name, OURS), ratio(blocks, name, OURS, "wall")
    found: dict[str, Any] = {"time": time.value, "time_interval": time.interval, "wall": wall.value}
    if name == FLOOR:
        return found
    apart = [abs(a - b) for a, b in zip(sides[OURS]["losses"], sides[name]["losses"], strict=True)]
    return found | {
        "memory": sides[OURS]["peak_bytes"] / sides[name]["peak_bytes"],
        "largest_loss_difference": max(apart),
    }


def _describe(name: str, found: dict[str, Any]) -> str:
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
        raise InvalidSpec(
            f"--against {bench.against!r} must have at least one opponent, each once, separated by commas."
        )
    if min(bench.batch, bench.steps, bench.blocks, bench.threads) < 1:
        raise InvalidSpec("--batch, --steps, --blocks and --threads must be above 0.")
    bench.spec()


def run_worker(
    side: str, spec: GPTSpec, *, precision: Precision, batch: int, threads: int, learning_rate: float = 1e-4
) -> None:
    """Be a worker: build one side and take its turns."""
    import torch

    torch.set_num_threads(threads)
    step = _SIDES[side](spec, "fp32" if side == FP32 else precision, batch, learning_rate)
    generator = torch.Generator().manual_seed(0)

    def turn() -> float | None:
        tokens = torch.randint(0, spec.vocab_size or 0, (batch, spec.context + 1), generator=generator)
        return step(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())

    answer_turns(turn)


def _our_step(spec: GPTSpec, precision: Precision, batch: int, learning_rate: float) -> StepFunction:  # noqa: ARG001
    import torch

    from oelm.models.gpt import GPT
    from oelm.train.device import autocast, keep_large_blocks
    from oelm.train.loop import Optimizer

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


def _transformers_step(spec: GPTSpec, precision: Precision, batch: int, learning_rate: float) -> StepFunction:  # noqa: ARG001
    from oelm.interop.export import as_gpt2
    from oelm.models.gpt import GPT

    model = as_gpt2(GPT(spec)).train()
    model.set_attn_implementation("sdpa")
    for name, parameter in model.named_parameters():
        if ".attn." in name and name.endswith("bias"):
            parameter.requires_grad_(False)  # our model has none, and training them would make it another model
    return _plain_step(
        model,
        lambda ids, targets: model(input_ids=ids, labels=ids, shift_labels=targets, use_cache=False).loss,
        precision,
        learning_rate,
    )


def _nanogpt_step(spec: GPTSpec, precision: Precision, batch: int, learning_rate: float) -> StepFunction:  # noqa: ARG001
    from oelm.models.gpt import GPT

    model = NanoGPTStyle(GPT(spec))
    return _plain_step(model, model, precision, learning_rate)


def _plain_step(
    model: Any, loss_of: Callable[[Any, Any], Any], precision: Precision, learning_rate: float
) -> StepFunction:
    """Return a training step in the usual form."""
    import torch

    from oelm.train.device import autocast

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


def _floor_step(spec: GPTSpec, precision: Precision, batch: int, learning_rate: float) -> StepFunction:  # noqa: ARG001
    import torch

    from oelm.train.device import keep_large_blocks

    keep_large_blocks()
    products = bare_products(spec, batch, spec.context, torch.bfloat16 if precision == "bf16" else torch.float32)

    @torch.no_grad()
    def step(ids: Any, targets: Any) -> None:  # noqa: ARG001
        for product in products:
            product()

    return step


_SIDES: dict[str, Callable[[GPTSpec, Precision, int, float], StepFunction]] = {
    OURS: _our_step,
    "transformers": _transformers_step,
    "nanogpt-style": _nanogpt_step,
    FLOOR: _floor_step,
    FP32: _our_step,
}

if __name__ == "__main__":
    _bench = StepBench(**json.loads(sys.argv[2]))
    run_worker(
        sys.argv[1],
        _bench.spec(),
        precision=_bench.precision,
        batch=_bench.batch,
        threads=_bench.threads,
        learning_rate=_bench.learning_rate,
    )
