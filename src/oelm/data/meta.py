"""What `meta.json` states about a folder of tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from pydantic import NonNegativeInt, PositiveInt, ValidationError

from oelm.data.documents import Rule
from oelm.errors import BadData
from oelm.spec.base import Spec, digest
from oelm.spec.data import Split, SplitFile

META = "meta.json"
SCHEMA = 1


class InputFile(Spec):
    """A file that was read, known by its content; size and time spare reading it again to compare."""

    path: str
    size: NonNegativeInt
    mtime_ns: int
    sha256: str = ""


class Request(Spec):
    """What was asked for. Two equal requests give the same bytes."""

    corpus: str
    origin: str
    """Where the text is from: `files`, a data set of the hub, or a version of the generator of stories."""
    documents: Rule
    vocab_size: int | None
    tokens: int | None
    seed: int
    inputs: tuple[InputFile, ...] = ()
    seal: float | None = None
    """Share of the training documents that is sealed."""


class TokenizerMeta(Spec):
    """The tokenizer whose ids the files hold."""

    name: str
    vocab_size: PositiveInt
    end_of_text: NonNegativeInt
    sha256: str


class HeldOut(Spec):
    """Which splits the corpus came with, and which were drawn from its training documents.

    Of every `period` documents, one was drawn for each.
    """

    own: tuple[Split, ...]
    drawn: tuple[Split, ...]
    period: PositiveInt


class SplitMeta(Spec):
    """One file of tokens. `added_tokens` are the ends of text that the documents did not bring themselves."""

    documents: NonNegativeInt
    text_tokens: NonNegativeInt
    added_tokens: NonNegativeInt
    sha256: str
    floor: float | None = None
    """The least loss any model can reach here, in nats per token, where the corpus knows it."""

    @property
    def num_tokens(self) -> int:
        """Return the length of the file in tokens."""
        return self.text_tokens + self.added_tokens


class TokenMeta(Spec):
    """The whole statement."""

    schema_version: int = SCHEMA
    corpus: str
    documents: Rule
    tokenizer: TokenizerMeta
    held_out: HeldOut
    splits: dict[Split, SplitMeta]
    checksum: str
    revision: str | None = None
    """The commit of the hub's data set that was read."""
    request: Request
    sealed: SplitMeta | None = None
    """The sealed split, if there is one. It is no part of `checksum`: no run depends on it."""

    @property
    def files(self) -> dict[SplitFile, SplitMeta]:
        """What is stated of every file of tokens, the sealed one included."""
        found: dict[SplitFile, SplitMeta] = dict(self.splits.items())
        return found if self.sealed is None else {**found, "sealed": self.sealed}


def read_meta(directory: Path) -> TokenMeta | None:
    """Read a folder's statement; None where there is none. Say in words what is wrong with one."""
    path = directory / META
    try:
        plain = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise BadData(f"{path} cannot be read: {error.strerror}. Give yourself access to it.") from error
    except ValueError as error:
        raise BadData(
            f"{path} is not whole JSON ({error}). It is written in one step, so something else has changed "
            "it: restore it, or delete the folder and prepare the corpus again."
        ) from error
    version = plain.get("schema_version") if isinstance(plain, dict) else None
    if isinstance(version, int) and version > SCHEMA:
        raise BadData(f"{path} has schema version {version}; this program knows up to {SCHEMA}. Update oelm.")
    try:
        return TokenMeta.model_validate(plain)
    except ValidationError as error:
        first = error.errors()[0]
        raise BadData(
            f"{path} does not describe tokens prepared by oelm: {'.'.join(map(str, first['loc']))}: "
            f"{first['msg']} ({error.error_count()} problems in all). Delete it to use train.bin and val.bin "
            "with GPT-2's vocabulary, or prepare the corpus again."
        ) from error


def checksum_of(tokenizer_sha256: str, vocab_size: int, files: Mapping[Split, str]) -> str:
    """Hash everything about token files that can change a run: their bytes and what the ids mean."""
    return digest({"tokenizer": tokenizer_sha256, "vocab_size": vocab_size, "files": dict(files)})
