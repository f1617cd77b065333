"""Describe a folder of prepared tokens: its `meta.json`, the request that made it, and their checksums."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, NonNegativeInt, PositiveInt, ValidationError

from oelm.data.documents import DocumentRule, no_access
from oelm.errors import BadData, UsageError
from oelm.files import add_checksum, digest, parse_checked, sha256_of, write_atomically
from oelm.spec import Spec, explain_validation
from oelm.spec.run import Split, SplitFile

META = "meta.json"
META_SCHEMA = 1
WORKSPACE = ".preparing"
"""The folder inside a data folder that holds the files of an unfinished preparation."""


def format_checked(content: BaseModel) -> str:
    """Return a model as JSON with a checksum."""
    return add_checksum(json.dumps(content.model_dump(mode="json"), indent=1, ensure_ascii=False) + "\n")


def write_checked(path: Path, content: BaseModel) -> None:
    """Write a model as JSON with a checksum."""
    write_atomically(path, format_checked(content))


def read_checked(path: Path) -> Any:
    """Read JSON that `format_checked` made; raise ValueError if it is not what was written."""
    return parse_checked(path.read_bytes())


class InputFile(Spec):
    """A file that was read, identified by its content. An unchanged size and time save reading it again."""

    path: str
    size: NonNegativeInt
    mtime_ns: int
    sha256: str = ""


class Request(Spec):
    """Everything that determines prepared data. Two equal requests give the same bytes."""

    corpus: str
    origin: str
    """Where the text is from: `files`, a data set of the hub, or a version of a generator."""
    documents: DocumentRule
    vocab_size: int | None
    tokens: int | None
    seed: int
    inputs: tuple[InputFile, ...] = ()
    seal: float | None = None
    """Share of the training documents that is sealed."""
    tokenizer: str | None = None
    """The pretrained model whose vocabulary makes the tokens."""


class TokenizerMeta(Spec):
    """The tokenizer that made the ids."""

    name: str
    vocab_size: PositiveInt
    end_of_text: NonNegativeInt
    sha256: str


class HeldOut(Spec):
    """Which splits the corpus came with, and which were drawn from its training documents.

    One of every `period` documents was drawn for each.
    """

    own: tuple[Split, ...]
    drawn: tuple[Split, ...]
    period: PositiveInt


class SplitMeta(Spec):
    """One token file. `added_tokens` counts the end-of-text tokens that the documents did not have themselves."""

    documents: NonNegativeInt
    text_tokens: NonNegativeInt
    added_tokens: NonNegativeInt
    sha256: str
    floor: float | None = None
    """The lowest expected loss of any model, in nats per token, where the corpus knows it."""

    @property
    def num_tokens(self) -> int:
        """Return the length of the file in tokens."""
        return self.text_tokens + self.added_tokens


class TokenMeta(Spec):
    """The content of `meta.json`."""

    schema_version: int = META_SCHEMA
    corpus: str
    documents: DocumentRule
    tokenizer: TokenizerMeta
    held_out: HeldOut
    splits: dict[Split, SplitMeta]
    checksum: str
    """Of the token files and of the meaning of their ids. It enters the fingerprints of runs."""
    revision: str | None = None
    """The commit of the hub data set that was read."""
    request: Request
    sealed: SplitMeta | None = None
    """The sealed split, if there is one. It is not part of `checksum`, because no run depends on it."""

    @property
    def files(self) -> dict[SplitFile, SplitMeta]:
        """Return the metadata of every token file, including the sealed one."""
        found: dict[SplitFile, SplitMeta] = dict(self.splits.items())
        return found if self.sealed is None else {**found, "sealed": self.sealed}


def read_meta(directory: Path) -> TokenMeta | None:
    """Read and verify the `meta.json` of a folder; return None if there is none."""
    path = directory / META
    again = "Restore it, or delete the folder and prepare the corpus again."
    try:
        plain = read_checked(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise no_access(path, error) from error
    except (ValueError, RecursionError) as error:
        raise BadData(f"{path} is damaged: {error}. {again}") from error
    version = plain.get("schema_version") if isinstance(plain, dict) else None
    if isinstance(version, int) and version > META_SCHEMA:
        raise BadData(f"{path} has schema version {version}, and this program knows up to {META_SCHEMA}. Update oelm.")
    try:
        meta = TokenMeta.model_validate(plain)
    except ValidationError as error:
        raise BadData(
            f"{path} does not describe tokens prepared by oelm: {explain_validation(error)}. Delete it to use "
            "train.bin and val.bin with the vocabulary of GPT-2, or prepare the corpus again."
        ) from error
    files = {split: its.sha256 for split, its in meta.splits.items()}
    if meta.checksum != checksum_of(meta.tokenizer.sha256, meta.tokenizer.vocab_size, files):
        raise BadData(f"{path} is damaged: its checksum is not that of the files that it describes. {again}")
    return meta


def checksum_of(tokenizer_sha256: str, vocab_size: int, files: Mapping[Split, str]) -> str:
    """Hash everything about token files that can change a run: their bytes and the meaning of the ids."""
    return digest({"tokenizer": tokenizer_sha256, "vocab_size": vocab_size, "files": dict(files)})


class ProgressReporter:
    """Show the progress of a long preparation. This one shows nothing; subclasses show a bar or lines."""

    def begin(self, task: str, total: int | None, done: int = 0) -> None:
        """Start a task of `total` units (None: unknown), of which `done` were done earlier."""

    def update(self, done: int, tokens: int) -> None:
        """Report how many units are done in total, and how many tokens this task has made."""

    def end(self) -> None:
        """Report that the task has ended, completed or not."""

    def note(self, message: str) -> None:
        """Show one line of text."""


def hash_inputs(request: Request, progress: ProgressReporter) -> Request:
    """Return the request with the checksum of every input file."""
    progress.begin("hashing the input", sum(file.size for file in request.inputs))
    done, inputs = 0, []
    for file in request.inputs:
        inputs.append(file.model_copy(update={"sha256": _hash(file)}))
        done += file.size
        progress.update(done, 0)
    progress.end()
    return request.model_copy(update={"inputs": tuple(inputs)})


def _hash(file: InputFile) -> str:
    try:
        return sha256_of(Path(file.path))
    except OSError as error:
        raise no_access(file.path, error) from error


def require_same(made: Request, asked: Request, directory: Path) -> None:
    """Raise UsageError if a folder belongs to another request, comparing input files by their content."""
    for field in Request.model_fields:
        if field != "inputs":
            require_equal(field, getattr(made, field), getattr(asked, field), directory)
    if len(made.inputs) != len(asked.inputs) or not all(map(_is_same_file, made.inputs, asked.inputs)):
        raise UsageError(
            f"{directory} was made from different input ({_describe_inputs(made)}; now {_describe_inputs(asked)}), "
            "and nothing is overwritten. Choose another folder with --out, or delete this one."
        )


def require_equal(field: str, made: object, asked: object, directory: Path) -> None:
    """Raise UsageError if a folder was made with another value of a field."""
    if made != asked:
        raise UsageError(
            f"{directory} was made with {field} {made!r}, not {asked!r}, and nothing is overwritten. Choose another "
            "folder with --out, or delete this one."
        )


def _is_same_file(made: InputFile, asked: InputFile) -> bool:
    if made.size != asked.size:
        return False
    is_unchanged = (made.path, made.mtime_ns) == (asked.path, asked.mtime_ns)
    return is_unchanged or made.sha256 == _hash(asked)


def _describe_inputs(request: Request) -> str:
    size = sum(file.size for file in request.inputs)
    return f"{len(request.inputs)} files of {size:,} bytes, the first {request.inputs[0].path}"
