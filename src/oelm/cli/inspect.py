"""`oelm inspect`: what a method changes and freezes in a model, in numbers."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.console import Console
from rich.table import Table

from oelm.errors import BadRecord

if TYPE_CHECKING:  # it imports torch, and --help need not wait for that
    from oelm.inspection import Audit, ProjectionAudit


@dataclass
class Arguments:
    """Show where Q and K are in a model, what a method draws into them, what is frozen, and what never is.

    Nothing is downloaded for named models, and nothing is written. For example:

      oelm inspect medium-512 --method oelm-freeze
      oelm inspect bert-base --labels 3 --method oelm-freeze --json
      oelm inspect path/to/a/saved/model
    """

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME|DIR")]
    """A size of our GPT (nano, mini, medium-512), a published architecture without its weights (bert-base,
    gpt2, t5-small, vit-base, ...), the folder of a run or of a saved model, or a hub name (owner/model)."""
    method: str | None = None
    """A named method to apply first, e.g. oelm-freeze, oelm-from-current, oelm-partial:-1. Without one: the
    model as it is, with the method it was saved with."""
    labels: int | None = None
    """With a classification head of so many classes instead of the model's own."""
    seed: int = 0
    """Of the draws."""
    json: bool = False
    """Print JSON: total, trainable, frozen, qk, repair, max_departure, never_frozen, and each projection with its
    layer, site, shape, hash and departure from orthogonality."""


def main(argv: list[str]) -> int:
    """Parse, build, apply, show."""
    asked = tyro.cli(Arguments, args=argv, prog="oelm inspect", config=(tyro.conf.FlagCreatePairsOff,))
    # Bars of a load that nobody asked to watch would stand before the answer.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    audit = _audit(asked)
    if asked.json:
        print(json.dumps({"name": asked.model, "method": asked.method, **audit.as_dict()}, indent=1))
    else:
        show(audit, asked.method, Console())
    return 0


def show(audit: Audit, method: str | None, console: Console) -> None:
    """Print an audit as a table by layer, the totals and what is never frozen."""
    table = Table(title=f"{audit.model} ({audit.architecture})" + (f" under {method}" if method else ""))
    for heading in ("site", "layer", "Q heads x size x input", "frozen", "trains"):
        table.add_column(heading)
    table.add_column("departure", justify="right")
    layers: dict[tuple[str, int], list[ProjectionAudit]] = {}
    for row in audit.projections:
        layers.setdefault((row.site, row.layer), []).append(row)
    for (site, layer), rows in layers.items():
        shape = next((" x ".join(map(str, row.shape)) for row in rows if row.role == "q"), "none")
        departures = [row.departure for row in rows if row.departure is not None]
        table.add_row(
            site,
            str(layer),
            shape,
            _roles(rows, frozen=True),
            _roles(rows, frozen=False),
            f"{max(departures):.1e}" if departures else "",
        )
    console.print(table)
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


def _roles(rows: list[ProjectionAudit], *, frozen: bool) -> str:
    return " ".join(dict.fromkeys(row.role for row in rows if row.frozen is frozen))


def _audit(asked: Arguments) -> Audit:
    from oelm import surgery
    from oelm.models.build import build
    from oelm.models.configs import spec_of
    from oelm.record.store import RECORD

    directory = Path(asked.model)
    if (directory / RECORD).is_file():
        return _of_run(directory, asked)
    if asked.method is None and asked.labels is None and _carries_method(directory):
        from oelm.interop.pretrained import load

        return surgery.audit(load(directory))
    model = build(spec_of(asked.model, asked.labels), seed=asked.seed)
    return surgery.inspect(model, asked.method, seed=asked.seed)


def _of_run(directory: Path, asked: Arguments) -> Audit:
    """Audit the model of a run as it was before its first step."""
    from oelm import surgery
    from oelm.models.build import build
    from oelm.record.store import read_record
    from oelm.spec.data import ExamplesSpec

    record = read_record(directory)
    model = record.spec.model
    if model.kind == "gpt" and model.vocab_size is None:
        if record.data is None:
            raise BadRecord(
                f"{directory}/record.json names no vocabulary and holds no data: the run stopped before it "
                "had any. Inspect its model by the name of its size."
            )
        model = model.model_copy(update={"vocab_size": record.data.vocab_size})
    own = None
    if isinstance(record.spec.data, ExamplesSpec) and record.data is not None:
        if record.spec.data.answers == "label":
            model = model.model_copy(update={"labels": len(record.data.labels) or None})
        own = record.data.vocab_size if record.spec.data.vocab_size is not None else None
    built = build(model, seed=record.spec.seed_of("init"), vocab_size=own)
    return surgery.apply(built, asked.method or record.spec.method, seed=record.spec.seed_of("draw"))


def _carries_method(directory: Path) -> bool:
    file = directory / "config.json"
    try:
        return "oelm" in json.loads(file.read_text())
    except (OSError, ValueError):
        return False
