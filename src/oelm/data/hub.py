"""Stream data sets from the Hugging Face hub."""

from __future__ import annotations

import importlib
import os
import urllib.error
import urllib.request
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, count, pairwise
from pathlib import Path
from typing import Any, Self

from oelm.data.documents import Position, TextBlock, TextDocument, encode_row, is_title, make_blocks
from oelm.errors import BadData, OelmError, UsageError
from oelm.spec.data import Split

_ENDPOINT = "https://huggingface.co"
_TIMEOUT_SECONDS = 5
_BLANK_LINE = " \n"  # WikiText's, which its rows on the hub hold as ""
_END = "the end of all rows"
SPLIT_NAMES: dict[str, Split] = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "val"),
    "test": "test",
}


@dataclass(frozen=True, slots=True)
class HubCorpus:
    """A data set of the hub. With `lines`, its rows are the lines of WikiText and its documents are articles."""

    repository: str
    config: str | None = None
    lines: bool = False

    @property
    def name(self) -> str:
        """Return the repository and its configuration, if there is one."""
        return self.repository if self.config is None else f"{self.repository}:{self.config}"

    @classmethod
    def named(cls, name: str) -> Self:
        """Parse owner/name or owner/name:configuration."""
        repository, _, config = name.partition(":")
        return cls(repository, config or None)


class HubRows:
    """One split of a data set, streamed."""

    def __init__(self, corpus: HubCorpus, stream: Any, size: int | None) -> None:
        self.corpus, self._stream, self.size = corpus, stream, size

    def blocks(self, position: Position, block_bytes: int) -> Generator[TextBlock]:
        """Yield the rows from number `position.offset` on, or the articles that begin there."""
        return make_blocks(self._documents(position.offset), position, block_bytes, self.corpus.name)

    def _documents(self, start: int) -> Iterator[TextDocument]:
        rows = self._rows(start)
        texts = articles(rows, start) if self.corpus.lines else zip(rows, count(start + 1), strict=False)
        for text, after in texts:
            encoded = encode_row(text)
            yield TextDocument(encoded, after, len(encoded))

    def _rows(self, start: int) -> Iterator[str]:
        with _explain_errors(self.corpus):
            for row in self._stream.skip(start) if start else self._stream:
                if "text" not in row:
                    raise BadData(
                        f"{self.corpus.name} has no column `text`, only {', '.join(row)}. Save the column "
                        "you want as `text` in .jsonl or .parquet files and give them with --from PATH."
                    )
                if not isinstance(row["text"], str | None):
                    raise BadData(
                        f"the column `text` of {self.corpus.name} does not hold strings: {str(row['text'])[:60]!r}. "
                        "Save it as strings in .jsonl or .parquet files and give them with --from PATH."
                    )
                yield row["text"] or ""


def articles(rows: Iterable[str], start: int) -> Iterator[tuple[str, int]]:
    """Join the lines of WikiText to articles; yield each with the number of the row after it."""
    lines: list[str] = []
    blank_before = True
    number = start
    for row, following in pairwise(chain(rows, (_END,))):
        blank_after = following != _END and not following.strip()
        if is_title(row) and blank_before and blank_after and any(map(str.strip, lines)):
            yield "".join(lines), number
            lines = []
        line = row or _BLANK_LINE
        lines.append(line if line.endswith("\n") else line + "\n")
        blank_before = not row.strip()
        number += 1
    if lines:
        yield "".join(lines), number


def open_hub(corpus: HubCorpus, revision: str | None = None) -> tuple[dict[Split, HubRows], str]:
    """Return the splits of a data set, and the commit that they were read from.

    Raise UsageError within seconds if the hub cannot be reached.
    """
    datasets = _datasets(corpus)
    with _explain_errors(corpus):
        builder = _builder(datasets, corpus, revision)
        streams = builder.as_streaming_dataset()
        sizes = builder.info.splits or {}
    found = {
        SPLIT_NAMES[name]: HubRows(corpus, stream, getattr(sizes.get(name), "num_bytes", None) or None)
        for name, stream in streams.items()
        if name in SPLIT_NAMES
    }
    if "train" not in found:
        raise BadData(
            f"{corpus.name} has no split `train`, only {', '.join(streams)}. Save the one you want as .jsonl "
            "or .parquet and give it with --from PATH."
        )
    return found, str(builder.hash)


def hub_tables(corpus: HubCorpus | None, name: str) -> dict[str, list[dict[str, Any]]]:
    """Return all rows of every split of a data set, by the name of the split. A class of -1 is returned as None."""
    if corpus is None:
        raise UsageError(
            f"there is no folder data/{name} and no data set {name!r} on the hub. Give its files with --from PATH "
            "(data.source in a spec), or the name of a data set as owner/name."
        )
    datasets = _datasets(corpus)
    with _explain_errors(corpus):
        builder = _builder(datasets, corpus, None)
        builder.download_and_prepare()
        return {split: _mark_missing_classes(datasets, table) for split, table in builder.as_dataset().items()}


def _mark_missing_classes(datasets: Any, table: Any) -> list[dict[str, Any]]:
    """Return the rows, with None for the -1 that `datasets` writes where a row has none of the named classes."""
    classes = [name for name, kind in table.features.items() if isinstance(kind, datasets.ClassLabel)]
    return [{**row, **{name: None for name in classes if row[name] == -1}} for row in table]


def _datasets(corpus: HubCorpus) -> Any:
    """Import `datasets`, after checking that the hub answers: the library would retry for minutes."""
    if not Path(corpus.repository).is_dir():
        _require_hub(corpus)
    try:
        datasets = importlib.import_module("datasets")
    except ImportError as error:
        raise UsageError(
            f"{corpus.name} is on the hub, and reading it needs `datasets`. Install it with `pip install "
            "'.[data]'`, or give local text with --from PATH."
        ) from error
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity_error()
    return datasets


def _builder(datasets: Any, corpus: HubCorpus, revision: str | None) -> Any:
    try:
        return datasets.load_dataset_builder(corpus.repository, corpus.config, revision=revision)
    except RuntimeError as error:
        # `datasets` no longer runs data sets that are scripts; the hub keeps a Parquet copy of them.
        if "script" not in str(error) or revision is not None:
            raise
        return datasets.load_dataset_builder(corpus.repository, corpus.config, revision="refs/convert/parquet")


def _require_hub(corpus: HubCorpus) -> None:
    endpoint = os.environ.get("HF_ENDPOINT", _ENDPOINT)
    if os.environ.get("HF_HUB_OFFLINE", "0").upper() in {"1", "ON", "YES", "TRUE"}:
        raise _unreachable(corpus, endpoint, "HF_HUB_OFFLINE is set")
    request = urllib.request.Request(endpoint, method="HEAD")  # noqa: S310  (the user's own endpoint)
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS):  # noqa: S310
            pass
    except urllib.error.HTTPError:
        pass  # it answered
    except OSError as error:
        raise _unreachable(corpus, endpoint, str(error)) from error


def _unreachable(corpus: HubCorpus, endpoint: str, reason: str) -> UsageError:
    return UsageError(
        f"{corpus.name} is on the hub, but {endpoint} cannot be reached ({reason}). Give local files with --from PATH: "
        "text (.txt, .tokens, .jsonl, .parquet), labelled tables (.tsv, .csv), or a folder of them. The corpus "
        "`stories` needs no network."
    )


@contextmanager
def _explain_errors(corpus: HubCorpus) -> Iterator[None]:
    try:
        yield
    except (OelmError, GeneratorExit):
        raise
    except FileNotFoundError as error:
        raise UsageError(
            f"the hub has no data set {corpus.name} that you may read ({error}). Check its name (owner/name or "
            "owner/name:config), log in with `hf auth login` if it is gated, or give local text with --from PATH."
        ) from error
    except Exception as error:  # `datasets` passes on the errors of its many backends
        raise OelmError(
            f"reading {corpus.name} from the hub failed: {type(error).__name__}: {error}. Run the same command again "
            "to continue, or give local text with --from PATH."
        ) from error
