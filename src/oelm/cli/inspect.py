"""`oelm inspect` and `oelm cost`: what a method freezes in a model, and what a training step costs with it."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from pydantic import Field

from oelm.cli.terminal import Seed, Size, parse, print_table
from oelm.console import Console
from oelm.errors import BadRecord
from oelm.files import parse_json
from oelm.spec.run import GPTSpec

if TYPE_CHECKING:
    from oelm.models.apply import Audit
    from oelm.models.flops import Cost


@dataclass
class InspectArguments:
    """Show the projections of a model, what a method draws into them, and which of them it freezes.

    Named models are built without a download, and nothing is written. Examples:

      oelm inspect medium-512 --method oelm-freeze
      oelm inspect bert-base --labels 3 --method oelm-freeze --json
      oelm inspect path/to/a/saved/model
    """

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME|DIR")]
    """Size of our GPT (nano, mini, medium-512), a Hugging Face architecture without its weights (bert-base, gpt2,
    t5-small, vit-base, ...), folder of a run or of a saved model, or name of a model on the hub (owner/model)."""
    method: str | None = None
    """Method to apply first, for example oelm-freeze, oelm-from-current or oelm-partial:-1. By default the model is
    shown with the method that it was saved with."""
    labels: Annotated[int, Field(le=1_000_000)] | None = None
    """Number of classes of a classification head that replaces the model's own head."""
    seed: Seed = 0
    """Random seed of the weights that are drawn."""
    json: bool = False
    """Print JSON: total, trainable, frozen, qk, repair, max_departure, never_frozen, and each projection with its
    layer, site, shape, hash and departure from orthogonality."""


def inspect_command(argv: list[str]) -> int:
    """Build a model, apply a method and show the result."""
    asked = parse(InspectArguments, argv, "oelm inspect")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    audit = _audit(asked)
    if asked.json:
        print(json.dumps({"name": asked.model, "method": asked.method, **audit.as_dict()}, indent=1))
    else:
        show(audit, asked.method, Console())
    return 0


def show(audit: Audit, method: str | None, console: Console) -> None:
    """Print an audit: a table by layer, the totals, and what no method freezes."""
    from oelm.models.apply import list_roles

    lines = []
    for (site, layer), rows in audit.by_layer.items():
        shape = next((" x ".join(map(str, row.shape)) for row in rows if row.role == "q"), "none")
        departure = max((row.departure for row in rows if row.departure is not None), default=None)
        frozen, trained = (list_roles(rows, frozen=frozen) for frozen in (True, False))
        lines.append((site, str(layer), shape, frozen, trained, "" if departure is None else f"{departure:.1e}"))
    title = f"{audit.model} ({audit.architecture})" + (f" under {method}" if method else "")
    headings = ("site", "layer", "Q heads x size x input", "frozen", "trains", "departure")
    print_table(console, headings, lines, words=headings[:-1], title=title)
    share = 100 * audit.frozen / max(audit.total, 1)
    console.print(f"total      {audit.total:>15,}")
    console.print(f"trainable  {audit.trainable:>15,}")
    console.print(f"frozen     {audit.frozen:>15,}  ({share:.1f} %)")
    if audit.repair:
        console.print(f"repairs    {audit.repair:>15,}  ({100 * audit.repair_share:.1f} % of the weights of Q and K)")
    if audit.max_departure is not None:
        console.print(f"largest departure of Q and K from orthogonal: {audit.max_departure:.1e}")
    if audit.never_frozen:
        outside = ", ".join(f"{place} {count:,}" for place, count in audit.never_frozen.items())
        console.print(f"never frozen by a method: {outside}")


def _audit(asked: InspectArguments) -> Audit:
    from oelm.models import apply as surgery
    from oelm.models.build import build, parse_model_name
    from oelm.record.folder import RECORD

    directory = Path(asked.model)
    if (directory / RECORD).is_file():
        return _audit_run(directory, asked)
    if asked.method is None and asked.labels is None and _has_method(directory):
        from oelm.interop.pretrained import load_pretrained

        return surgery.audit(load_pretrained(directory))
    model = build(parse_model_name(asked.model, asked.labels), seed=asked.seed)
    if asked.method is None:
        return surgery.audit(model)
    return surgery.apply(model, asked.method, seed=asked.seed, scheduled=True)


def _audit_run(directory: Path, asked: InspectArguments) -> Audit:
    """Audit the model of a run as it was before the first step."""
    from oelm.models import apply as surgery
    from oelm.models.build import build
    from oelm.record.folder import read_record
    from oelm.spec.run import ExamplesSpec

    record = read_record(directory)
    model = record.spec.model
    if model.kind == "gpt" and model.vocab_size is None:
        if record.data is None:
            raise BadRecord(
                f"{directory}/record.json has no vocabulary size: the run stopped before it read its data. "
                "Inspect its model by the name of its size."
            )
        model = model.model_copy(update={"vocab_size": record.data.vocab_size})
    own = None
    if isinstance(record.spec.data, ExamplesSpec) and record.data is not None:
        if record.spec.data.answers == "label":
            model = model.model_copy(update={"labels": len(record.data.labels) or None})
        own = record.data.vocab_size if record.spec.data.vocab_size is not None else None
    built = build(model, seed=record.spec.seed_of("init"), vocab_size=own)
    return surgery.apply(built, asked.method or record.spec.method, seed=record.spec.seed_of("draw"), scheduled=True)


def _has_method(directory: Path) -> bool:
    file = directory / "config.json"
    try:
        return "oelm" in parse_json(file.read_text())
    except (OSError, ValueError):
        return False


MIB = 2**20
HUGGING_FACE_LENGTH = 128
"""Default number of tokens for Hugging Face models: that of the published study's encoder."""


@dataclass
class CostArguments:
    """Count the parameters, bytes and FLOPs of a training step, and the share of the FLOPs that a method removes.

    The counts follow from the shapes. Nothing is trained or written, and named models are not downloaded. Examples:

      oelm cost medium-512 --method oelm-freeze
      oelm cost bert-base --labels 3 --method oelm-freeze --length 128 --json
    """

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME|DIR")]
    """Size of our GPT (nano, mini, medium-512), a Hugging Face architecture without its weights (bert-base, gpt2,
    t5-small, vit-base, ...), folder of a saved model, or name of a model on the hub (owner/model)."""
    method: str = "baseline"
    """Method to apply, for example oelm-freeze, oelm-slice or oelm-partial:-1. Its state at the first step counts."""
    length: Size | None = None
    """Tokens per sequence. By default the whole context of our GPT, 128 for other models. Images have a fixed size."""
    labels: Annotated[int, Field(le=1_000_000)] | None = None
    """Number of classes of a classification head that replaces the model's own head."""
    batch: Size = 8
    """Sequences per step."""
    json: bool = False
    """Print JSON: parameters, bytes, forward_flops and backward_flops by part, and flop_share."""


def cost_command(argv: list[str]) -> int:
    """Build a model, apply a method, count one step and show the result."""
    asked = parse(CostArguments, argv, "oelm cost")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    with Console(stderr=True).status(f"building {asked.model}, counting one step"):
        audit, cost, length = _count(asked)
    if asked.json:
        print(json.dumps(_as_json(asked, audit, cost, length), indent=1))
    else:
        show_cost(asked, audit, cost, length, Console())
    return 0


def show_cost(asked: CostArguments, audit: Audit, cost: Cost, length: int, console: Console) -> None:
    """Print the FLOPs of each part, the parameters and bytes, and the FLOPs that the method removes."""
    lines = []
    for part in dict.fromkeys([*cost.forward_flops, *cost.backward_flops]):
        forward, backward = cost.forward_flops.get(part, 0), cost.backward_flops.get(part, 0)
        share = (forward + backward) / cost.total_flops
        lines.append((part, f"{forward / 1e9:,.2f}", f"{backward / 1e9:,.2f}", f"{100 * share:.1f} %"))
    title = f"{asked.model} under {asked.method}: one step of {asked.batch} x {length}, in GFLOP"
    print_table(console, ("part", "forward", "backward", "share"), lines, words=("part",), title=title)
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
        console.print(f"{name:12} {value}", soft_wrap=True)


def _count(asked: CostArguments) -> tuple[Audit, Cost, int]:
    from oelm.models import apply as surgery
    from oelm.models.build import build, parse_model_name
    from oelm.models.flops import training_cost

    spec = parse_model_name(asked.model, asked.labels)
    length = asked.length or (spec.context if isinstance(spec, GPTSpec) else HUGGING_FACE_LENGTH)
    model = build(spec)
    audit = surgery.apply(model, asked.method, scheduled=True)
    return audit, training_cost(model.train(), asked.batch, length), length


def _as_json(asked: CostArguments, audit: Audit, cost: Cost, length: int) -> dict[str, Any]:
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
