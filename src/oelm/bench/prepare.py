"""Measure preparation against bare `tiktoken` on the same text and the same cores.

Ours is everything: hashing and reading the input, splitting it by document, encoding, writing, hashing the
output. Bare is `Encoding.encode_batch` over the documents already in memory, its tokens thrown away; `chunks`
is the most that tiktoken can give, on megabytes of joined text. Each measurement has a process of its own,
and they alternate, so that whatever else the machine does falls on all of them.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import tyro

from oelm.data import stories
from oelm.data.documents import MAX_PIECE
from oelm.data.prepare import prepare
from oelm.data.readers import Position, TextFiles
from oelm.data.tokenizer import gpt2_tokenizer
from oelm.record.memory import peak_resident_bytes
from oelm.spec.data import END_OF_TEXT, DataSpec

_BATCH = 4096


@dataclass
class Arguments:
    """Measure `oelm prepare` against bare tiktoken."""

    megabytes: int = 64
    """How much text to prepare."""
    source: Path | None = None
    """A text file to repeat up to that size; else generated stories."""
    rounds: int = 3
    json: bool = False
    """Print the result as JSON only."""


def main(argv: list[str]) -> int:
    """Measure, and print what was found."""
    asked = tyro.cli(Arguments, args=argv, prog="oelm bench prepare", config=(tyro.conf.FlagCreatePairsOff,))
    result = measure(asked.megabytes, asked.source, asked.rounds)
    sys.stdout.write(json.dumps(result, indent=None if asked.json else 1) + "\n")
    return 0


def measure(megabytes: int = 64, source: Path | None = None, rounds: int = 3) -> dict[str, float]:
    """Return speeds in MB of text per second (medians), their ratios, and our peak memory in MB."""
    kinds = {"ours": _ours, "bare": _bare, "chunks": _chunks}
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    peak = 0.0
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text.txt"
        size = _write_text(text, megabytes * 1_000_000, source)
        for number in range(rounds):
            for kind, task in kinds.items():
                taken, memory = _apart(task, text, Path(folder) / f"tokens-{number}")
                seconds[kind].append(taken)
                peak = max(peak, memory) if kind == "ours" else peak
    speed = {kind: size / 1e6 / statistics.median(taken) for kind, taken in seconds.items()}
    return {
        "megabytes": size / 1e6,
        "cores": len(os.sched_getaffinity(0)),
        **{f"{kind}_megabytes_per_second": round(value, 2) for kind, value in speed.items()},
        "ratio_to_bare": round(speed["ours"] / speed["bare"], 3),
        "ratio_to_chunks": round(speed["ours"] / speed["chunks"], 3),
        "peak_memory_megabytes": round(peak, 1),
    }


def _apart(task: Callable[[Path, Path], float], text: Path, out: Path) -> tuple[float, float]:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_with_peak, task, text, out).result()


def _with_peak(task: Callable[[Path, Path], float], text: Path, out: Path) -> tuple[float, float]:
    return task(text, out), peak_resident_bytes() / 1e6


def _ours(text: Path, out: Path) -> float:
    start = time.perf_counter()
    prepare(DataSpec(corpus="bench", source=text), out)
    return time.perf_counter() - start


def _bare(text: Path, _out: Path) -> float:
    """Time `encode_batch` alone."""
    cores = len(os.sched_getaffinity(0))
    encoding = gpt2_tokenizer().encoding
    seconds = 0.0
    for documents in _batched(_documents(text), _BATCH):
        start = time.perf_counter()
        encoding.encode_batch(documents, num_threads=cores, allowed_special={END_OF_TEXT})
        seconds += time.perf_counter() - start
    return seconds


def _chunks(text: Path, _out: Path) -> float:
    """Time `encode_to_numpy` alone, on joined documents."""
    cores = len(os.sched_getaffinity(0))
    encoding = gpt2_tokenizer().encoding
    seconds = 0.0
    blocks = TextFiles([text], "stories").blocks(Position(), MAX_PIECE)
    joined = (b"".join(block.texts).decode() for block in blocks)
    with ThreadPoolExecutor(cores) as pool:
        for texts in _batched(joined, 16 * cores):
            start = time.perf_counter()
            for _ in pool.map(lambda one: encoding.encode_to_numpy(one, allowed_special={END_OF_TEXT}), texts):
                pass
            seconds += time.perf_counter() - start
    return seconds


def _documents(text: Path) -> Iterator[str]:
    for block in TextFiles([text], "stories").blocks(Position(), MAX_PIECE):
        yield from (document.decode() for document in block.texts)


def _batched(items: Iterable[str], size: int) -> Iterator[list[str]]:
    batch: list[str] = []
    for item in items:
        batch.append(item)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def _write_text(path: Path, size: int, source: Path | None) -> int:
    """Fill a file with text: a given file over and over, or stories."""
    repeated = None if source is None else source.read_bytes()
    written = 0
    with path.open("wb") as file:
        told = stories.generate(0)
        while written < size:
            written += file.write(repeated or (next(told).text + END_OF_TEXT + "\n").encode())
    return written


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
