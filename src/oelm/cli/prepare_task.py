"""`oelm prepare --task`: check labelled text, and keep it where runs look for it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table

from oelm.data.encoded import EncodedExamples, encode_examples
from oelm.data.examples import default_folder, open_examples
from oelm.data.labelled_files import write_examples
from oelm.errors import InvalidSpec
from oelm.spec.base import in_words
from oelm.spec.data import ExamplesSpec


@dataclass
class Arguments:
    """Read labelled text, say what is in it, and keep its splits as train.jsonl, val.jsonl and test.jsonl.

    Runs on the task then find it. What is left out, cut, drawn or found in two splits is told.
    """

    task: str
    """sst2, mnli, mnli-mismatched, xnli, ag_news, imdb, story-questions; owner/name from the hub or any name
    with --from, together with --texts and --label."""
    source: Annotated[Path | None, tyro.conf.arg(name="from")] = None
    """A file or folder of .tsv, .csv, .jsonl or .parquet; data/TASK if it is there (and is then only looked at), else
    the hub."""
    out: Path | None = None
    """The folder to write to; data/TASK unless given (data/xnli-de for XNLI in German)."""
    texts: tuple[str, ...] = ()
    """The one or two columns with the text, if they are not the task's own."""
    label: str | None = None
    """The column with the label, if it is not the task's own."""
    language: str = "en"
    """Of XNLI; rows of files with a column `language` are taken by it."""
    model: str = "minilm"
    """Whose tokenizer lengths are counted with."""
    max_length: int = 128
    """Beyond which texts would be cut."""
    seed: int = 0
    """Of the splits that are drawn."""
    json: bool = False
    """Print the result as JSON."""


def main(argv: list[str]) -> int:
    """Read, write, show."""
    asked = tyro.cli(Arguments, args=argv, prog="oelm prepare", config=(tyro.conf.FlagCreatePairsOff,))

    from oelm.interop.tokenization import encoder_of
    from oelm.models.configs import spec_of

    spec = _spec(asked)
    with Console(stderr=True).status(f"reading and encoding {asked.task}"):
        examples = open_examples(spec)
        encoded = encode_examples(examples, encoder_of(spec_of(asked.model)), asked.max_length)
    folder = asked.out or default_folder(spec)
    is_new = write_examples(examples, spec, folder)
    if asked.json:
        print(json.dumps({"directory": str(folder), "notes": encoded.notes, "splits": statistics(encoded)}, indent=1))
    else:
        _show(encoded, f"{folder}: {'written' if is_new else 'there already'}")
    return 0


def _spec(asked: Arguments) -> ExamplesSpec:
    try:
        return ExamplesSpec(
            corpus=asked.task, source=asked.source, texts=asked.texts, label=asked.label, language=asked.language,
            seed=asked.seed,
        )  # fmt: skip
    except ValidationError as error:
        raise InvalidSpec(
            f"such a task cannot be prepared: {in_words(error)}. `oelm prepare --task NAME --help` explains."
        ) from error


def statistics(encoded: EncodedExamples) -> dict[str, dict[str, object]]:
    """Return, by split, how many rows and tokens there are, how long rows are, and how often each label occurs."""
    return {
        split: {
            "rows": len(its),
            "tokens": len(its.ids),
            "mean_length": float(its.lengths.mean()),
            "length_95": float(np.quantile(its.lengths, 0.95)),
            "max_length": int(its.lengths.max()),
            "cut": its.cut,
            "labels": {name: int((its.labels == number).sum()) for number, name in enumerate(encoded.labels)},
        }
        for split, its in encoded.splits.items()
    }


def _show(encoded: EncodedExamples, last: str) -> None:
    table = Table("split", "rows", "tokens", "mean", "95 %", "longest", "cut", "labels", box=None)
    for column in table.columns[1:-1]:
        column.justify = "right"
    for split, its in encoded.splits.items():
        counts = ", ".join(f"{name} {(its.labels == number).mean():.1%}" for number, name in enumerate(encoded.labels))
        table.add_row(
            split, f"{len(its):,}", f"{len(its.ids):,}", f"{its.lengths.mean():.1f}",
            f"{np.quantile(its.lengths, 0.95):.0f}", str(its.lengths.max()), f"{its.cut:,}", counts,
        )  # fmt: skip
    console = Console(highlight=False, soft_wrap=True)
    console.print(table)
    for note in encoded.notes:
        console.print(note)
    console.print(last)
