"""Turn blocks of documents into tokens by split, on all cores and in order."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from oelm.data.allocation import SPLIT_FILES, Allocation
from oelm.data.documents import SEPARATOR, lacks_end
from oelm.data.readers import Block, Position
from oelm.data.tokenizer import Ids, Tokenizer
from oelm.errors import BadData
from oelm.spec.data import SplitFile


@dataclass(frozen=True, slots=True)
class Part:
    """What a block gave one split."""

    ids: Ids
    documents: int
    added_tokens: int
    log_probability: float


@dataclass(frozen=True, slots=True)
class Encoded:
    """What a block gave, by split."""

    parts: dict[SplitFile, Part]
    after: Position
    whole: bool
    done: int


def encode_blocks(blocks: Iterable[Block], encode: Callable[[Block], Encoded]) -> Generator[Encoded]:
    """Encode blocks in threads (the tokenizers let go of the GIL); hold no more than a few at a time."""
    workers = len(os.sched_getaffinity(0))
    pending: deque[Future[Encoded]] = deque()
    with ThreadPoolExecutor(workers, thread_name_prefix="encode") as pool:
        try:
            for block in blocks:
                pending.append(pool.submit(encode, block))
                if len(pending) > 2 * workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()


def encode_block(block: Block, allocation: Allocation, tokenizer: Tokenizer) -> Encoded:
    """Share a block's documents out, and encode them.

    Raises BadData, naming file and byte, for text that is not UTF-8.
    """
    places = allocation.places(block.first, len(block.texts))
    parts: dict[SplitFile, Part] = {}
    for number, split in enumerate(SPLIT_FILES):
        chosen = np.flatnonzero(places == number).tolist()
        if not chosen:
            continue
        unfinished = not block.whole and chosen[-1] == len(block.texts) - 1
        chunks, added = _joined([block.texts[index] for index in chosen], unfinished)
        try:
            ids = tokenizer.encode_batch([chunk.decode() for chunk in chunks])
        except UnicodeDecodeError as error:
            raise _not_text(block, chosen) from error
        chances = [block.log_probabilities[index] for index in chosen] if block.log_probabilities else []
        parts[split] = Part(
            ids[0] if len(ids) == 1 else np.concatenate(ids),
            len(chosen) - unfinished,
            added,
            math.fsum(chances),
        )
    return Encoded(parts, block.after, block.whole, block.done)


def _joined(texts: Sequence[bytes], unfinished: bool) -> tuple[list[bytes], int]:
    """Join texts with the ends they lack, so that the tokens are those of each alone, and count these ends.

    No token reaches across an end of text. Only white space behind a document's own end could meet the next
    document's beginning, so there a new chunk begins.
    """
    chunks: list[bytes] = []
    current: list[bytes] = []
    added = 0
    for number, text in enumerate(texts, 1):
        current.append(text)
        if lacks_end(text):
            if number < len(texts) or not unfinished:
                current.append(SEPARATOR)
                added += 1
        elif not text.endswith(SEPARATOR):
            chunks.append(b"".join(current))
            current = []
    if current:
        chunks.append(b"".join(current))
    return chunks, added


def _not_text(block: Block, chosen: Sequence[int]) -> BadData:
    for index in chosen:
        try:
            block.texts[index].decode()
        except UnicodeDecodeError as error:
            start = None if block.offset is None else block.offset + sum(map(len, block.texts[:index])) + error.start
            place = block.where if start is None else f"{block.where}, at byte {start}"
            found = error.object[error.start : error.start + 8]
            return BadData(
                f"{place}, is not UTF-8 text: {found!r}. Convert it, for example with "
                "`iconv -f latin1 -t utf-8 OLD > NEW`, and prepare the new file."
            )
    raise AssertionError("the chunk was not UTF-8 but all its texts are")
