"""`oelm cost`: what a training step costs, and what a method saves of it, from shapes alone."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table

from oelm.errors import InvalidSpec
from oelm.spec.model import GPTSpec

if TYPE_CHECKING:  # they import torch, and --help need not wait for that
    from oelm.inspection import Audit
    from oelm.models.cost import Cost

MIB = 2**20
FOREIGN_LENGTH = 128
"""Tokens that models of others are counted with unless told: what the published study gave its encoder."""


@dataclass
class Arguments:
    """Count the parameters, bytes and FLOPs of a training step, and the share of the FLOPs that a method removes.

    Nothing is trained, downloaded (for named models) or written. For example:

      oelm cost medium-512 --method oelm-freeze
      oelm cost bert-base --labels 3 --method oelm-freeze --length 128 --json
    """

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME|DIR")]
    """A size of our GPT (nano, mini, medium-512), a published architecture without its weights (bert-base,
    gpt2, t5-small, vit-base, ...), the folder of a saved model, or a hub name (owner/model)."""
    method: str = "baseline"
    """A named method, e.g. oelm-freeze, oelm-slice, oelm-partial:-1; as it stands at the first step."""
    length: int | None = None
    """Tokens per sequence. Without it: the whole context of our GPT, 128 for others. Images have their own size."""
    labels: int | None = None
    """With a classification head of so many classes instead of the model's own."""
    batch: int = 8
    """Sequences per step."""
    json: bool = False
    """Print JSON: parameters, bytes, forward_flops and backward_flops by part, and flop_share."""


def main(argv: list[str]) -> int:
    """Parse, build, apply, count, show."""
    asked = tyro.cli(Arguments, args=argv, prog="oelm cost", config=(tyro.conf.FlagCreatePairsOff,))
    for name in ("batch", "length"):
        if (value := getattr(asked, name)) is not None and value < 1:
            raise InvalidSpec(f"--{name} {value} was given. A step needs at least 1; leave it out for the default.")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    with Console(stderr=True).status(f"building {asked.model}, counting one step"):
        audit, cost, length = _counted(asked)
    if asked.json:
        print(json.dumps(_as_json(asked, audit, cost, length), indent=1))
    else:
        show(asked, audit, cost, length, Console())
    return 0


def show(asked: Arguments, audit: Audit, cost: Cost, length: int, console: Console) -> None:
    """Print FLOPs by part, then parameters and bytes, then what the method saves."""
    console.print(
        f"{asked.model} under {asked.method}: one step of {asked.batch} x {length}, in GFLOP", highlight=False
    )
    table = Table()
    table.add_column("part")
    for heading in ("forward", "backward", "share"):
        table.add_column(heading, justify="right")
    for part in dict.fromkeys([*cost.forward_flops, *cost.backward_flops]):
        forward, backward = cost.forward_flops.get(part, 0), cost.backward_flops.get(part, 0)
        share = (forward + backward) / cost.total_flops
        table.add_row(part, f"{forward / 1e9:,.2f}", f"{backward / 1e9:,.2f}", f"{100 * share:.1f} %")
    console.print(table)
    rows = {
        "parameters": f"{audit.total:,}",
        "  trained": f"{audit.trainable:,}",
        "  frozen": f"{audit.frozen:,}",
        "weights": _mib(cost.weight_bytes),
        "gradients": _mib(cost.gradient_bytes),
        "optimiser": _mib(cost.optimizer_bytes),
        "activations": f"{_mib(cost.activation_bytes)} (an estimate)",
        "checkpoint": f"{_mib(cost.checkpoint_bytes)} (weights and optimiser)",
        "removed": f"{cost.removed_flops / 1e9:,.2f} GFLOP, {100 * cost.flop_share:.1f} % of a step with all trained",
    }
    for name, value in rows.items():
        console.print(f"{name:12} {value}", highlight=False, soft_wrap=True)


def _counted(asked: Arguments) -> tuple[Audit, Cost, int]:
    from oelm import surgery
    from oelm.models.build import build
    from oelm.models.configs import spec_of
    from oelm.models.cost import training_cost

    spec = spec_of(asked.model, asked.labels)
    length = asked.length or (spec.context if isinstance(spec, GPTSpec) else FOREIGN_LENGTH)
    model = build(spec)
    audit = surgery.apply(model, asked.method)
    return audit, training_cost(model.train(), asked.batch, length), length


def _as_json(asked: Arguments, audit: Audit, cost: Cost, length: int) -> dict[str, Any]:
    return {
        "name": asked.model,
        "method": asked.method,
        "batch": asked.batch,
        "length": length,
        "labels": asked.labels,
        "parameters": {"total": audit.total, "trained": audit.trainable, "frozen": audit.frozen},
        "flop_share": cost.flop_share,
        "total_flops": cost.total_flops,
        **asdict(cost),
        "gradient_bytes": cost.gradient_bytes,
        "checkpoint_bytes": cost.checkpoint_bytes,
        "checkpoint_mib": cost.checkpoint_bytes / MIB,
        "memory_bytes": cost.memory_bytes,
    }


def _mib(size: int) -> str:
    return f"{size / MIB:,.1f} MiB"
