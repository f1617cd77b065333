"""Measure `oelm prepare` against bare `tiktoken` on the same text and the same cores.

Ours does everything: hash and read the input, split it into documents, encode, write, hash the output. *bare* is
`Encoding.encode_batch` over documents in memory, whose tokens are thrown away. *chunks* is the best that tiktoken can
do, on megabytes of joined text. Each measurement has its own process, and they alternate, so that other load on the
machine affects all of them.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from oelm.cores import available_cores
from oelm.data import stories
from oelm.data.documents import MAX_PIECE, Position, TextFiles
from oelm.data.prepare import prepare
from oelm.data.tokenizer import gpt2_tokenizer
from oelm.errors import InvalidSpec
from oelm.spec.run import END_OF_TEXT, DataSpec
from oelm.train.device import peak_resident_bytes

_BATCH = 4096


@dataclass(frozen=True)
class PrepareBench:
    """Measure `oelm prepare` against bare tiktoken: MB of text per second, and our peak memory.

    For example:

      oelm bench prepare --megabytes 64
    """

    megabytes: int = 64
    """Amount of text to prepare, in MB."""
    source: Path | None = None
    """Text file to repeat up to that size. By default generated stories."""
    rounds: int = 3
    """Number of measurements. The result is their median."""
    json: bool = False
    """Print the result as one line of JSON."""


def bench_prepare(bench: PrepareBench, say: Callable[[str], None] = lambda _: None) -> dict[str, float]:
    """Return speeds in MB of text per second (medians), their ratios, and our peak memory in MB."""
    if min(bench.megabytes, bench.rounds) < 1:
        raise InvalidSpec("--megabytes and --rounds must be at least 1.")
    kinds = {"ours": _time_ours, "bare": _time_bare, "chunks": _time_chunks}
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    peak = 0.0
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text.txt"
        size = _write_text(text, bench.megabytes * 1_000_000, bench.source)
        for number in range(bench.rounds):
            for kind, measure in kinds.items():
                with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                    out = Path(folder) / f"tokens-{number}"
                    taken, memory = pool.submit(_with_peak, measure, text, out).result()
                seconds[kind].append(taken)
                peak = max(peak, memory) if kind == "ours" else peak
            say(f"round {number + 1} of {bench.rounds}")
    speed = {kind: size / 1e6 / statistics.median(taken) for kind, taken in seconds.items()}
    return {
        "megabytes": size / 1e6,
        "cores": available_cores(),
        **{f"{kind}_megabytes_per_second": round(value, 2) for kind, value in speed.items()},
        "ratio_to_bare": round(speed["ours"] / speed["bare"], 3),
        "ratio_to_chunks": round(speed["ours"] / speed["chunks"], 3),
        "peak_memory_megabytes": round(peak, 1),
    }


def _with_peak(measure: Callable[[Path, Path], float], text: Path, out: Path) -> tuple[float, float]:
    return measure(text, out), peak_resident_bytes() / 1e6


def _time_ours(text: Path, out: Path) -> float:
    start = time.perf_counter()
    prepare(DataSpec(corpus="bench", source=text), out)
    return time.perf_counter() - start


def _time_bare(text: Path, _out: Path) -> float:
    cores = available_cores()
    encoding: Any = gpt2_tokenizer().encoding  # tiktoken's own, as for every vocabulary but a pretrained model's
    blocks = TextFiles([text], "stories").blocks(Position(), MAX_PIECE)
    documents = (document.decode() for block in blocks for document in block.texts)
    seconds = 0.0
    for batch in _cut_batches(documents, _BATCH):
        start = time.perf_counter()
        encoding.encode_batch(batch, num_threads=cores, allowed_special={END_OF_TEXT})
        seconds += time.perf_counter() - start
    return seconds


def _time_chunks(text: Path, _out: Path) -> float:
    cores = available_cores()
    encoding = gpt2_tokenizer().encoding
    blocks = TextFiles([text], "stories").blocks(Position(), MAX_PIECE)
    joined = (b"".join(block.texts).decode() for block in blocks)
    seconds = 0.0
    with ThreadPoolExecutor(cores) as pool:
        for texts in _cut_batches(joined, 16 * cores):
            start = time.perf_counter()
            for _ in pool.map(lambda one: encoding.encode_to_numpy(one, allowed_special={END_OF_TEXT}), texts):
                pass
            seconds += time.perf_counter() - start
    return seconds


def _cut_batches(items: Iterable[str], size: int) -> Iterator[list[str]]:
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch


def _write_text(path: Path, size: int, source: Path | None) -> int:
    """Fill a file with a given text, repeated, or with stories; return its size."""
    repeated = None if source is None else source.read_bytes()
    if repeated == b"":
        raise InvalidSpec(f"--source {source} is empty. Give a file with text.")
    written = 0
    with path.open("wb") as file:
        generated = stories.generate_stories(0)
        while written < size:
            written += file.write(repeated or (next(generated).text + END_OF_TEXT + "\n").encode())
    return written
