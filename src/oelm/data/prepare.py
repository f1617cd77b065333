"""Turn a corpus into token files in nanoGPT's layout.

`train.bin`, `val.bin` and `test.bin` hold ids as raw 16-bit integers, and `meta.json` describes them. Memory is bounded
whatever the size of the corpus, all cores are used, and the same call continues a preparation that was killed, with the
same bytes in the end.

Until a preparation is complete, all its files are in `.preparing` inside the data folder. `journal.json` states how far
the input was read, how many tokens that gave, and the checksums of the files up to there; anything beyond is cut off
when the work continues. At the end the files are moved out one by one. `meta.json` comes last, and a folder without it
is not complete.
"""

from __future__ import annotations

import errno
import hashlib
import math
import os
import re
import shutil
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np
from filelock import FileLock, Timeout
from pydantic import BaseModel

from oelm.cores import available_cores
from oelm.data.documents import (
    SEPARATOR,
    SPLIT_FILES,
    SPLITS,
    Allocation,
    DocumentRule,
    Position,
    TextBlock,
    lacks_end,
)
from oelm.data.meta import (
    META,
    WORKSPACE,
    ProgressReporter,
    Request,
    SplitMeta,
    TokenMeta,
    checksum_of,
    hash_inputs,
    read_checked,
    read_meta,
    require_same,
    write_checked,
)
from oelm.data.sources import Corpus, SourceSection, block_bytes_for, make_request, open_corpus
from oelm.data.tokenizer import TOKENIZER_FILES, Ids, Tokenizer, gpt2_tokenizer, load_tokenizer, train_tokenizer
from oelm.errors import BadData, OelmError, RunLocked, UnknownName, UsageError
from oelm.files import sha256_of
from oelm.spec.run import DataSpec, SplitFile

JOURNAL_SECONDS = 5.0
"""How much work a crash may cost."""
TRAINING_BYTES = 64 << 20
"""How much text, from the beginning of the training documents, a vocabulary is trained on."""
_JOURNAL = "journal.json"
_LOCK = ".lock"
_BYTES_PER_ID = 2
_HASH_CHUNK = 1 << 20

TokenizerFinder = Callable[[str], Tokenizer]
"""Return the vocabulary of a pretrained model."""


def default_directory(spec: DataSpec) -> Path:
    """Return the default folder of a corpus: `data/<corpus>`, with the options that are not at their default."""
    name = re.sub(r"[^\w.-]+", "-", spec.corpus)
    if spec.vocab_size is not None:
        name += f"-bpe{spec.vocab_size}"
    if spec.tokenizer is not None:
        name += "-" + re.sub(r"[^\w.-]+", "-", Path(spec.tokenizer).name)
    if spec.tokens is not None:
        name += f"-{spec.tokens}"
    if spec.seed:
        name += f"-seed{spec.seed}"
    if spec.seal is not None:
        name += f"-sealed{spec.seal:g}"
    return Path("data") / name


def prepare(
    spec: DataSpec,
    out: Path | None = None,
    *,
    documents: DocumentRule | None = None,
    vocabulary: Path | None = None,
    progress: ProgressReporter | None = None,
    wait: bool = False,
    tokenizer_of: TokenizerFinder | None = None,
) -> Path:
    """Write a corpus as token files, and return their folder.

    `documents` overrides how text is cut into documents, and `vocabulary` is a folder with the files of GPT-2.
    `tokenizer_of` finds the vocabulary of a pretrained model, which data alone cannot. If the folder is already
    complete, this returns at once.

    Raises:
        UsageError: the request cannot be met, or the folder holds something else (BadData: the input is malformed).
        RunLocked: another process is preparing this folder, and `wait` is False.
        OelmError: the disk is full. The same call continues the work then, as after a crash.

    """
    if vocabulary is not None and spec.vocab_size is not None:
        raise UsageError(
            f"--vocab-size {spec.vocab_size} trains a vocabulary, and --vocabulary {vocabulary} is the one of GPT-2. "
            "Give one of them."
        )
    if spec.tokenizer is not None and (vocabulary is not None or tokenizer_of is None):
        raise UsageError(
            f"The vocabulary is that of the model {spec.tokenizer!r}. Leave out --vocabulary, and prepare the text "
            f"with `oelm prepare {spec.corpus} --tokenizer {spec.tokenizer}`."
        )
    find = partial(gpt2_tokenizer, vocabulary)
    if spec.tokenizer is not None and tokenizer_of is not None:
        find = partial(tokenizer_of, spec.tokenizer)
    progress = progress or ProgressReporter()
    directory = out or spec.directory or default_directory(spec)
    request = make_request(spec, documents)
    if _is_prepared(request, directory, progress):
        return directory
    workspace = Workspace(directory)
    if not workspace.path.exists():
        _refuse_unknown_files(directory)
    with workspace.lock(wait):
        if _is_prepared(request, directory, progress):
            return directory
        try:
            _prepare(request, workspace, find, progress)
        except OelmError as error:
            if isinstance(error, BadData) or not workspace.has_journal():
                workspace.discard()  # there is nothing to continue, or the input would only fail again
            raise
    return directory


def find_or_prepare(
    spec: DataSpec, progress: ProgressReporter | None = None, *, tokenizer_of: TokenizerFinder | None = None
) -> Path:
    """Return the data folder of a corpus, and prepare it if there is none.

    This is for runs, which name a corpus but not the files that it was made from. If another process is preparing the
    folder, this waits for it.
    """
    directory = spec.directory or default_directory(spec)
    meta = read_meta(directory)
    if meta is not None and spec.source is None and not meta.request.origin.startswith("generator:"):
        _refuse_other_settings(meta, spec, directory)
        return directory
    is_bare = (directory / "train.bin").exists() and not Workspace(directory).path.exists()
    if meta is None and is_bare and spec.source is None:
        return directory
    try:
        return prepare(spec, directory, progress=progress, wait=True, tokenizer_of=tokenizer_of)
    except UnknownName:
        # A corpus of the user's own is only known by the folder that `oelm prepare` made from it.
        for other in sorted(directory.parent.glob(f"*/{META}")):
            made = read_meta(other.parent)
            if made is not None and made.corpus == spec.corpus:
                _refuse_other_settings(made, spec, other.parent)
        raise


def _refuse_other_settings(meta: TokenMeta, spec: DataSpec, directory: Path) -> None:
    """Refuse data that were prepared in another way than a run states, and name the flags of `oelm train`."""
    fields = ("corpus", "vocab_size", "tokenizer", "tokens", "seed", "seal")
    held = {field: getattr(meta.request, field) for field in fields}
    differs = {field: value for field, value in held.items() if value != getattr(spec, field)}
    if not differs:
        return
    flags = [f"--data.{field.replace('_', '-')} {value}" for field, value in differs.items() if value is not None]
    unset = [f"leave out --data.{field.replace('_', '-')}" for field, value in differs.items() if value is None]
    advice = " and ".join([*([f"use {' '.join(flags)}"] if flags else []), *unset])
    made = ", ".join(f"{field} {value!r} (the run states {getattr(spec, field)!r})" for field, value in differs.items())
    raise UsageError(f"{directory} was made with {made}. To train on it, {advice}; otherwise give another folder.")


def _is_prepared(request: Request, directory: Path, progress: ProgressReporter) -> bool:
    """Return whether a folder is complete. Sizes are checked here; contents are checked when the tokens are opened."""
    meta = read_meta(directory)
    if meta is None:
        return False
    require_same(meta.request, request, directory)
    for split, its in meta.files.items():
        path = directory / f"{split}.bin"
        size, expected = path.stat().st_size if path.exists() else 0, _BYTES_PER_ID * its.num_tokens
        if size != expected:
            raise BadData(
                f"{path} has {size:,} bytes, but {META} states {expected:,}: the file was cut or changed. Restore it, "
                f"or delete {directory} and run the command again."
            )
    progress.note(f"{directory} is already prepared; nothing to do")
    return True


def _prepare(request: Request, workspace: Workspace, find: Callable[[], Tokenizer], progress: ProgressReporter) -> None:
    if (meta := read_meta(workspace.path)) is None:
        _refuse_unknown_files(workspace.directory)
        journal = _begin_or_continue(workspace, request, progress)
        corpus = open_corpus(journal.request, journal.revision)
        journal.revision = corpus.revision
        tokenizer = _find_tokenizer(workspace, journal, corpus, find, progress)
        workspace.open(journal)
        workspace.save(journal)
        _encode_corpus(workspace, journal, corpus, tokenizer, progress)
        workspace.close()
        _finish(workspace, journal, corpus, tokenizer)
    else:
        require_same(meta.request, request, workspace.directory)
    workspace.publish()


def _begin_or_continue(workspace: Workspace, request: Request, progress: ProgressReporter) -> Journal:
    journal = workspace.read_journal()
    if journal is None:
        workspace.clear()
        files = SPLITS if request.seal is None else SPLIT_FILES
        return Journal(request=hash_inputs(request, progress), counts={file: SplitCount() for file in files})
    require_same(journal.request, request, workspace.path)
    progress.note(f"continuing after {journal.num_tokens:,} tokens")
    return journal


def _find_tokenizer(
    workspace: Workspace, journal: Journal, corpus: Corpus, find: Callable[[], Tokenizer], progress: ProgressReporter
) -> Tokenizer:
    """Load the tokenizer of the unfinished work, or find or train one and store it next to the tokens."""
    if workspace.has_journal():
        tokenizer = load_tokenizer(workspace.path)
        if journal.tokenizer not in {None, tokenizer.sha256}:
            raise workspace.damaged("the tokenizer is not the one that the journal names")
        return tokenizer if (name := journal.request.tokenizer) is None else replace(tokenizer, name=name)
    if journal.request.vocab_size is None:
        tokenizer = find()
    else:
        progress.begin(f"training a vocabulary of {journal.request.vocab_size}", None)
        tokenizer = train_tokenizer(_training_texts(corpus, journal.request), journal.request.vocab_size)
        progress.end()
    tokenizer.save(workspace.path)
    journal.tokenizer = tokenizer.sha256
    return tokenizer


def _training_texts(corpus: Corpus, request: Request) -> Iterator[str]:
    """Yield only training documents, so that the vocabulary does not depend on held-out text."""
    section = corpus.sections[0]
    left = TRAINING_BYTES if request.tokens is None else min(TRAINING_BYTES, request.tokens * 4)
    with closing(section.source.blocks(Position(), block_bytes_for(request.tokens))) as blocks:
        for block in blocks:
            places = section.allocation.places(block.first, len(block.texts))
            for text, place in zip(block.texts, places, strict=True):
                if SPLIT_FILES[place] == "train":
                    yield text.decode(errors="replace")
                    left -= len(text)
            if left <= 0:
                return


def _encode_corpus(
    workspace: Workspace, journal: Journal, corpus: Corpus, tokenizer: Tokenizer, progress: ProgressReporter
) -> None:
    """Read every section from the position in the journal, and write its tokens."""
    sizes = [section.source.size for section in corpus.sections]
    known = [size for size in sizes if size is not None]
    total = sum(known) if len(known) == len(sizes) else None
    before = journal.num_tokens
    progress.begin("tokenising", journal.request.tokens or total, _count_done(journal))
    try:
        for number in range(journal.section, len(corpus.sections)):
            if number != journal.section:
                journal.section, journal.position = number, Position()
            with closing(_encode_section(workspace, journal, corpus.sections[number], tokenizer)) as steps:
                for _ in steps:
                    progress.update(_count_done(journal), journal.num_tokens - before)
    finally:
        progress.end()
    workspace.save(journal)


def _encode_section(
    workspace: Workspace, journal: Journal, section: SourceSection, tokenizer: Tokenizer
) -> Generator[None]:
    """Write the tokens of a section, block by block."""
    if _has_enough(journal, section):
        return
    blocks = section.source.blocks(journal.position, block_bytes_for(journal.request.tokens))
    encode = partial(_encode_block, allocation=section.allocation, tokenizer=tokenizer)
    saved = time.monotonic()
    with closing(_encode_blocks(blocks, encode)) as results:
        for encoded in results:
            workspace.append(journal, encoded)
            yield
            if time.monotonic() - saved >= JOURNAL_SECONDS:
                workspace.save(journal)
                saved = time.monotonic()
            if _has_enough(journal, section):
                return


def _has_enough(journal: Journal, section: SourceSection) -> bool:
    """Return whether a subset has the requested number of tokens, and at least one document in every split."""
    drawn = [*section.allocation.drawn, *([] if section.allocation.seal is None else ["sealed"])]
    return (
        section.limit is not None
        and journal.whole
        and all(count.documents for split, count in journal.counts.items() if split in drawn)
        and journal.counts[section.allocation.own].num_tokens >= section.limit
    )


def _count_done(journal: Journal) -> int:
    """Return the progress in units of the total: training tokens of a subset, otherwise bytes read."""
    return journal.done if journal.request.tokens is None else journal.counts["train"].num_tokens


def _finish(workspace: Workspace, journal: Journal, corpus: Corpus, tokenizer: Tokenizer) -> None:
    """Check that no split is empty and that the files hold what was written, and write `meta.json`."""
    request, counts = journal.request, journal.counts
    if empty := [split for split, count in counts.items() if not count.documents]:
        documents = sum(count.documents for count in counts.values())
        raise BadData(
            f"{request.corpus} has {documents} documents ({request.documents}), which leaves none for "
            f"{' and '.join(empty)}. Set how the text is cut with --documents (lines or paragraphs, for example), or "
            "give more text."
        )
    known_floor = request.origin.startswith("generator:")
    files = {}
    for split, count in counts.items():
        if sha256_of(workspace.path / f"{split}.bin") != count.sha256:
            raise workspace.damaged(f"{split}.bin does not hold the bytes that were written")
        floor = -count.log_probability / count.num_tokens if known_floor else None
        files[split] = SplitMeta(**count.model_dump(exclude={"log_probability"}), floor=floor)
    splits = {split: files[split] for split in SPLITS}
    checksums = {split: its.sha256 for split, its in splits.items()}
    meta = TokenMeta(
        corpus=request.corpus,
        documents=request.documents,
        tokenizer=tokenizer.describe(),
        held_out=corpus.held_out,
        splits=splits,
        checksum=checksum_of(tokenizer.sha256, tokenizer.vocab_size, checksums),
        revision=corpus.revision,
        request=request,
        sealed=files.get("sealed"),
    )
    write_checked(workspace.path / META, meta)


# Encoding: blocks of documents to tokens by split, on all cores and in order.


@dataclass(frozen=True, slots=True)
class _SplitTokens:
    """The tokens of a block that belong to one split."""

    ids: Ids
    documents: int
    added_tokens: int
    log_probability: float


@dataclass(frozen=True, slots=True)
class _EncodedBlock:
    """The tokens of a block by split."""

    parts: dict[SplitFile, _SplitTokens]
    after: Position
    whole: bool
    done: int


def _encode_blocks(
    blocks: Iterable[TextBlock], encode: Callable[[TextBlock], _EncodedBlock]
) -> Generator[_EncodedBlock]:
    """Encode blocks in threads (the tokenizers release the GIL), with only a few in memory at a time."""
    workers = available_cores()
    pending: deque[Future[_EncodedBlock]] = deque()
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


def _encode_block(block: TextBlock, allocation: Allocation, tokenizer: Tokenizer) -> _EncodedBlock:
    """Assign the documents of a block to splits and encode them; raise BadData for text that is not UTF-8."""
    places = allocation.places(block.first, len(block.texts))
    parts: dict[SplitFile, _SplitTokens] = {}
    for number, split in enumerate(SPLIT_FILES):
        chosen = np.flatnonzero(places == number).tolist()
        if not chosen:
            continue
        unfinished = not block.whole and chosen[-1] == len(block.texts) - 1
        chunks, added = _join([block.texts[index] for index in chosen], unfinished)
        try:
            ids = tokenizer.encode_batch([chunk.decode() for chunk in chunks])
        except UnicodeDecodeError as error:
            raise _not_utf8(block, chosen) from error
        log_probabilities = [block.log_probabilities[index] for index in chosen] if block.log_probabilities else []
        parts[split] = _SplitTokens(np.concatenate(ids), len(chosen) - unfinished, added, math.fsum(log_probabilities))
    return _EncodedBlock(parts, block.after, block.whole, block.done)


def _join(texts: Sequence[bytes], unfinished: bool) -> tuple[list[bytes], int]:
    """Join texts with the end-of-text that they lack; return the chunks and the number of ends that were added.

    The tokens of the chunks are those of the single texts, because no token spans an end of text. Only white space
    after the own end of a document could merge with the next document, so a new chunk begins there.
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


def _not_utf8(block: TextBlock, chosen: Sequence[int]) -> BadData:
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


# The workspace: the files of an unfinished preparation.


class SplitCount(BaseModel):
    """The content of a token file so far."""

    documents: int = 0
    text_tokens: int = 0
    added_tokens: int = 0
    log_probability: float = 0.0
    sha256: str | None = None

    @property
    def num_tokens(self) -> int:
        """Return the length of the file in tokens."""
        return self.text_tokens + self.added_tokens


class Journal(BaseModel):
    """The state of a preparation: the request, where to continue reading, and what the files hold."""

    request: Request
    revision: str | None = None
    tokenizer: str | None = None
    """The checksum of the tokenizer."""
    section: int = 0
    position: Position = Position()
    whole: bool = True
    """Whether the last document that was read is complete."""
    done: int = 0
    """Number of input bytes that were read."""
    counts: dict[SplitFile, SplitCount]
    """By file, including "sealed" if a sealed split is requested."""

    @property
    def num_tokens(self) -> int:
        """Return the number of tokens in all files."""
        return sum(count.num_tokens for count in self.counts.values())


class Workspace:
    """The unfinished work in a folder. Only the process that holds the lock may change it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / WORKSPACE
        self._files: dict[SplitFile, BinaryIO] = {}
        self._hashes = {split: hashlib.sha256() for split in SPLIT_FILES}

    @contextmanager
    def lock(self, wait: bool = False) -> Iterator[None]:
        """Lock the folder, and explain errors in writing to it."""
        with _explain_write_errors(self.directory):
            self.directory.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.directory / _LOCK)
            try:
                lock.acquire(timeout=-1 if wait else 0)
            except Timeout:
                raise RunLocked(
                    f"another process is preparing {self.directory} now. Wait for it, or choose another folder with "
                    "--out."
                ) from None
            try:
                yield
            finally:
                self.close()
                lock.release()

    def clear(self) -> None:
        """Remove unfinished work."""
        self.close()
        shutil.rmtree(self.path, ignore_errors=True)

    def has_journal(self) -> bool:
        """Return whether there is work to continue."""
        return (self.path / _JOURNAL).exists()

    def read_journal(self) -> Journal | None:
        """Read the state of the work; return None if it has not begun."""
        try:
            return Journal.model_validate(read_checked(self.path / _JOURNAL))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise UsageError(
                f"{self.path / _JOURNAL} is damaged, or was written by another version of oelm. Delete {self.path} to "
                "start again, or choose another folder with --out."
            ) from error

    def damaged(self, reason: str) -> UsageError:
        """Return the error for unfinished work that something else has changed. It is kept for inspection."""
        return UsageError(f"{self.path} is damaged: {reason}. Delete it and run the command again.")

    def open(self, journal: Journal) -> None:
        """Open the files, check them against the journal, and cut off what it does not count."""
        self.path.mkdir(exist_ok=True)
        for split, count in journal.counts.items():
            path = self.path / f"{split}.bin"
            path.touch()
            left = count.num_tokens * _BYTES_PER_ID
            if path.stat().st_size < left:
                raise self.damaged(f"{path.name} is shorter than the journal states")
            os.truncate(path, left)
            self._hashes[split] = hashlib.sha256()
            with path.open("rb") as file:
                while chunk := file.read(_HASH_CHUNK):
                    self._hashes[split].update(chunk)
            if count.sha256 not in {None, self._hashes[split].hexdigest()}:
                raise self.damaged(f"{path.name} does not hold the bytes that the journal states")
            self._files[split] = path.open("ab")

    def append(self, journal: Journal, encoded: _EncodedBlock) -> None:
        """Write the tokens of a block to the files, and count them in the journal."""
        for split, part in encoded.parts.items():
            self._files[split].write(part.ids.data)
            self._hashes[split].update(part.ids.data)
            count = journal.counts[split]
            count.documents += part.documents
            count.added_tokens += part.added_tokens
            count.text_tokens += len(part.ids) - part.added_tokens
            count.log_probability += part.log_probability
        journal.position, journal.whole = encoded.after, encoded.whole
        journal.done += encoded.done

    def save(self, journal: Journal) -> None:
        """Flush the files to the disk, then write the journal."""
        for split, file in self._files.items():
            file.flush()
            os.fsync(file.fileno())
            journal.counts[split].sha256 = self._hashes[split].hexdigest()
        write_checked(self.path / _JOURNAL, journal)

    def close(self) -> None:
        """Close the files. Only what the journal states counts."""
        for file in self._files.values():
            with suppress(OSError):  # a full disk was reported when the journal was written
                file.close()
        self._files = {}

    def publish(self) -> None:
        """Move finished files out, `meta.json` last, and remove the workspace."""
        for name in _NAMES:
            if (self.path / name).exists():
                (self.path / name).replace(self.directory / name)
        shutil.rmtree(self.path)

    def discard(self) -> None:
        """Remove unfinished work, and the folder itself if nothing else is in it."""
        self.clear()
        if [file.name for file in self.directory.iterdir()] == [_LOCK]:
            shutil.rmtree(self.directory)


_NAMES = (*(f"{split}.bin" for split in SPLIT_FILES), *TOKENIZER_FILES, META)


def _refuse_unknown_files(directory: Path) -> None:
    """Raise UsageError if preparing here would overwrite files of unknown origin."""
    if found := [name for name in _NAMES if (directory / name).exists()]:
        raise UsageError(
            f"{directory} holds {', '.join(found)} of unknown origin, and nothing is overwritten. Choose another "
            "folder with --out, or move these files away."
        )


@contextmanager
def _explain_write_errors(directory: Path) -> Iterator[None]:
    """Turn errors of the file system into errors that say what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
            raise OelmError(
                f"the disk is full: {directory} cannot grow ({error.strerror}). Free some space and run the same "
                "command again to continue. Or choose another folder with --out, or fewer --tokens."
            ) from error
        if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ENOENT}:
            file = f" ({error.filename})" if error.filename else ""
            raise UsageError(
                f"{directory} cannot be written to: {error.strerror}{file}. Choose a folder with write access with "
                "--out."
            ) from error
        raise
