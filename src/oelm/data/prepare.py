"""From a corpus to token files in nanoGPT's layout.

`train.bin`, `val.bin` and `test.bin` hold ids as raw 16-bit integers; `meta.json` says what they are. Memory
is bounded whatever the size of the corpus, all cores work, and a preparation that was killed is continued by
the same call, with the same bytes in the end.
"""

from __future__ import annotations

import re
import time
from collections.abc import Generator, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

from oelm.data.allocation import SPLIT_FILES, SPLITS
from oelm.data.documents import Rule
from oelm.data.encode import encode_block, encode_blocks
from oelm.data.identity import hashed, require_equal, require_same, require_whole
from oelm.data.meta import META, Request, SplitMeta, TokenMeta, checksum_of, read_meta
from oelm.data.progress import Progress, Silent
from oelm.data.readers import Position
from oelm.data.sources import Corpus, Section, block_bytes_for, make_request, open_corpus
from oelm.data.tokenizer import Tokenizer, gpt2_tokenizer, load_tokenizer, train_tokenizer
from oelm.data.workspace import Count, Journal, Workspace, refuse_foreign_files
from oelm.errors import BadData, OelmError, UsageError
from oelm.files import sha256_of, write_atomically
from oelm.spec.data import DataSpec

JOURNAL_SECONDS = 5.0
"""How much work a crash may cost."""
TRAINING_BYTES = 64 << 20
"""How much text, from the beginning of the training documents, a vocabulary is trained on."""


def default_directory(spec: DataSpec) -> Path:
    """Return where a corpus is prepared unless told otherwise: `data/<corpus>`, as published."""
    name = re.sub(r"[^\w.-]+", "-", spec.corpus)
    if spec.vocab_size is not None:
        name += f"-bpe{spec.vocab_size}"
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
    documents: Rule | None = None,
    vocabulary: Path | None = None,
    progress: Progress | None = None,
    wait: bool = False,
) -> Path:
    """Write a corpus as token files, and return their folder.

    `documents` overrides what counts as a document, `vocabulary` is a folder with GPT-2's files. Afterwards
    the folder is whole; the same call again returns at once. Raises UsageError (BadData for the input itself)
    where the request cannot be met or the folder holds something else, RunLocked while another process works
    there (unless told to `wait` for it), and OelmError when the disk is full; then, and after a crash, the
    same call continues.
    """
    if vocabulary is not None and spec.vocab_size is not None:
        raise UsageError(
            f"--vocab-size {spec.vocab_size} trains a vocabulary, and --vocabulary {vocabulary} is GPT-2's. "
            "Give one of them."
        )
    progress = progress or Silent()
    directory = out or spec.directory or default_directory(spec)
    request = make_request(spec, documents)
    if _already(request, directory, progress):
        return directory
    workspace = Workspace(directory)
    if not workspace.path.exists():
        refuse_foreign_files(directory)
    with workspace.locked(wait):
        if _already(request, directory, progress):
            return directory
        try:
            _prepare(request, workspace, vocabulary, progress)
        except OelmError as error:
            if isinstance(error, BadData) or not workspace.begun():
                workspace.discard()  # nothing to continue, or an input with which it would only fail again
            raise
    return directory


def prepared(spec: DataSpec, progress: Progress | None = None) -> Path:
    """Return the folder of a corpus, from whatever source it was made, or bare; make it if there is none.

    This is for runs, which name a corpus but not the files it once came from. Another process that is just
    preparing it is waited for.
    """
    directory = spec.directory or default_directory(spec)
    meta = read_meta(directory)
    if meta is not None and spec.source is None and not meta.request.origin.startswith("generator:"):
        for field in ("corpus", "vocab_size", "tokens", "seed", "seal"):
            require_equal(field, getattr(meta.request, field), getattr(spec, field), directory)
        return directory
    bare = (directory / "train.bin").exists() and not Workspace(directory).path.exists()
    if meta is None and bare and spec.source is None:
        return directory
    return prepare(spec, directory, progress=progress, wait=True)


def _already(request: Request, directory: Path, progress: Progress) -> bool:
    meta = read_meta(directory)
    if meta is None:
        return False
    require_same(meta.request, request, directory)
    require_whole(directory, meta)
    progress.note(f"{directory} is already prepared; nothing to do")
    return True


def _prepare(request: Request, workspace: Workspace, vocabulary: Path | None, progress: Progress) -> None:
    if (meta := workspace.finished()) is None:
        refuse_foreign_files(workspace.directory)
        journal = _taken_up(workspace, request, progress)
        corpus = open_corpus(journal.request, journal.revision)
        journal.revision = corpus.revision
        tokenizer = _tokenizer(workspace, journal, corpus, vocabulary, progress)
        workspace.open(journal)
        workspace.save(journal)
        _encode(workspace, journal, corpus, tokenizer, progress)
        workspace.close()
        _finish(workspace, journal, corpus, tokenizer)
    else:
        require_same(meta.request, request, workspace.directory)
    workspace.publish()


def _taken_up(workspace: Workspace, request: Request, progress: Progress) -> Journal:
    journal = workspace.journal()
    if journal is None:
        workspace.clear()
        files = SPLITS if request.seal is None else SPLIT_FILES
        return Journal(request=hashed(request, progress), counts={file: Count() for file in files})
    require_same(journal.request, request, workspace.path)
    progress.note(f"continuing after {journal.num_tokens:,} tokens")
    return journal


def _tokenizer(
    workspace: Workspace, journal: Journal, corpus: Corpus, vocabulary: Path | None, progress: Progress
) -> Tokenizer:
    """Return the tokenizer of the work begun here; the first time, get it and keep it beside the tokens."""
    if workspace.begun():
        return load_tokenizer(workspace.path)
    if journal.request.vocab_size is None:
        tokenizer = gpt2_tokenizer(vocabulary)
    else:
        progress.begin(f"training a vocabulary of {journal.request.vocab_size}", None)
        tokenizer = train_tokenizer(_training_texts(corpus, journal.request), journal.request.vocab_size)
        progress.end()
    tokenizer.save(workspace.path)
    return tokenizer


def _training_texts(corpus: Corpus, request: Request) -> Iterator[str]:
    """Yield training documents only, so that no vocabulary has seen what a model is tested on."""
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


def _encode(workspace: Workspace, journal: Journal, corpus: Corpus, tokenizer: Tokenizer, progress: Progress) -> None:
    """Read every section from where the journal stands, and write its tokens."""
    sizes = [section.source.size for section in corpus.sections]
    wanted = journal.request.tokens
    known = [size for size in sizes if size is not None]
    total = wanted if wanted is not None else sum(known) if len(known) == len(sizes) else None
    before = journal.num_tokens
    progress.begin("tokenising", total, _done(journal))
    try:
        for number in range(journal.section, len(corpus.sections)):
            if number != journal.section:
                journal.section, journal.position = number, Position()
            with closing(_encode_section(workspace, journal, corpus.sections[number], tokenizer)) as steps:
                for _ in steps:
                    progress.update(_done(journal), journal.num_tokens - before)
    finally:
        progress.end()
    workspace.save(journal)


def _encode_section(workspace: Workspace, journal: Journal, section: Section, tokenizer: Tokenizer) -> Generator[None]:
    """Write a section's tokens, block by block."""
    if _enough(journal, section):
        return
    blocks = section.source.blocks(journal.position, block_bytes_for(journal.request.tokens))
    encode = partial(encode_block, allocation=section.allocation, tokenizer=tokenizer)
    saved = time.monotonic()
    with closing(encode_blocks(blocks, encode)) as results:
        for encoded in results:
            workspace.append(journal, encoded)
            yield
            if time.monotonic() - saved >= JOURNAL_SECONDS:
                workspace.save(journal)
                saved = time.monotonic()
            if _enough(journal, section):
                return


def _enough(journal: Journal, section: Section) -> bool:
    """Tell whether a subset has the tokens asked for, and a document at least of every split."""
    drawn = [*section.allocation.drawn, *([] if section.allocation.seal is None else ["sealed"])]
    filled = all(count.documents for split, count in journal.counts.items() if split in drawn)
    return (
        section.limit is not None
        and journal.whole
        and filled
        and journal.counts[section.allocation.own].num_tokens >= section.limit
    )


def _done(journal: Journal) -> int:
    """Return how far the work is, in units of its total: training tokens of a subset, else bytes read."""
    return journal.done if journal.request.tokens is None else journal.counts["train"].num_tokens


def _finish(workspace: Workspace, journal: Journal, corpus: Corpus, tokenizer: Tokenizer) -> None:
    """Check that the files are worth having, and write the statement that makes them whole."""
    request, counts = journal.request, journal.counts
    if empty := [split for split, count in counts.items() if not count.documents]:
        documents = sum(count.documents for count in counts.values())
        raise BadData(
            f"{request.corpus} gave {documents} documents ({request.documents}), which leaves none for "
            f"{' and '.join(empty)}: {', '.join(counts)} need at least one each. Say with --documents what "
            "its documents are (lines or paragraphs, for example), or give it more text."
        )
    known_floor = request.origin.startswith("generator:")
    stated = {
        split: SplitMeta(
            documents=count.documents,
            text_tokens=count.text_tokens,
            added_tokens=count.added_tokens,
            sha256=sha256_of(workspace.path / f"{split}.bin"),
            floor=-count.log_probability / count.num_tokens if known_floor else None,
        )
        for split, count in counts.items()
    }
    splits = {split: stated[split] for split in SPLITS}
    files = {split: statement.sha256 for split, statement in splits.items()}
    meta = TokenMeta(
        corpus=request.corpus,
        documents=request.documents,
        tokenizer=tokenizer.describe(),
        held_out=corpus.held_out,
        splits=splits,
        checksum=checksum_of(tokenizer.sha256, tokenizer.vocab_size, files),
        revision=corpus.revision,
        request=request,
        sealed=stated.get("sealed"),
    )
    write_atomically(workspace.path / META, meta.model_dump_json(indent=1) + "\n")
