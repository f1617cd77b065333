"""Open token files, and refuse those that are not what they should be."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError

from oelm.data.allocation import SPLITS
from oelm.data.meta import TokenMeta, checksum_of, read_meta
from oelm.data.sealed import refuse_sealed
from oelm.data.vocabulary import GPT2_SHA256
from oelm.data.workspace import WORKSPACE
from oelm.errors import BadData
from oelm.files import write_atomically
from oelm.spec.data import Split
from oelm.spec.model import GPT2_VOCAB_SIZE

_SCANS = ".scanned.json"
_CHUNK = 1 << 23


@dataclass(frozen=True, slots=True)
class TokenData:
    """Tokens by split, checked. `meta` is None for nanoGPT's bare layout, whose ids are GPT-2's."""

    directory: Path
    meta: TokenMeta | None
    vocab_size: int
    checksum: str
    files: Mapping[Split, Path] = field(repr=False)

    @property
    def splits(self) -> tuple[Split, ...]:
        """Return which splits there are; a bare layout may have no test."""
        return tuple(split for split in SPLITS if split in self.files)

    def split(self, name: Split) -> NDArray[np.uint16]:
        """Map a split's ids into memory; they are read when looked at."""
        if name not in self.files:
            raise BadData(
                f"the {name} tokens of {self.directory} were asked for, but it has only "
                f"{', '.join(self.splits)}. Prepare the corpus with `oelm prepare`, which makes all three, "
                f"or add {name}.bin."
            )
        return np.memmap(self.files[name], dtype=np.uint16, mode="r")

    def num_tokens(self, name: Split) -> int:
        """Return the length of a split; 0 for one that a bare layout lacks."""
        return len(self.split(name)) if name in self.files else 0

    @property
    def floor(self) -> dict[Split, float]:
        """Return the least losses that can be reached, in nats per token by split, where they are known."""
        splits = {} if self.meta is None else self.meta.splits
        return {split: its.floor for split, its in splits.items() if its.floor is not None}


class _Scan(BaseModel):
    """What a reading of a whole file found; good for as long as its size and time stay."""

    size: int
    mtime_ns: int
    largest: int
    sha256: str


class _Scans(BaseModel):
    files: dict[str, _Scan] = {}


def open_tokens(path: Path) -> TokenData:
    """Open a folder of token files, or the training file of one.

    Of a training file the others are named like it, with `val` and `test` for `train`. Raises BadData for
    files that are missing, empty, torn, not those of their meta.json, or hold ids beyond the vocabulary.
    """
    refuse_sealed(path)
    directory = path if path.suffix != ".bin" else path.parent
    files = _folder_files(directory) if path.suffix != ".bin" else _named_files(path)
    meta = read_meta(directory) if files.get("train") == directory / "train.bin" else None
    if meta is None and (directory / WORKSPACE).exists():
        raise BadData(
            f"{directory} is being prepared, or its preparation was interrupted. Run the same `oelm prepare` "
            "again to complete it."
        )
    for split, file in files.items():
        _check_size(file, None if meta is None else 2 * meta.splits[split].num_tokens)
    scans = _scanned(directory, files)
    vocab_size = GPT2_VOCAB_SIZE if meta is None else meta.tokenizer.vocab_size
    for split, file in files.items():
        _check_content(file, scans[split], vocab_size, None if meta is None else meta.splits[split].sha256)
    sums = {split: scan.sha256 for split, scan in scans.items()}
    checksum = checksum_of(GPT2_SHA256, vocab_size, sums) if meta is None else meta.checksum
    return TokenData(directory, meta, vocab_size, checksum, files)


def _folder_files(directory: Path) -> dict[Split, Path]:
    if not directory.is_dir():
        raise BadData(
            f"there are no tokens at {directory}: no such folder. `oelm prepare` makes one; see `oelm prepare --help`."
        )
    files = {split: directory / f"{split}.bin" for split in SPLITS}
    required = SPLITS if read_meta(directory) is not None else SPLITS[:2]
    return {
        split: file
        for split, file in files.items()
        if split in required or (file.exists() and not (directory / WORKSPACE).exists())
    }


def _named_files(train: Path) -> dict[Split, Path]:
    """Find the files that are named like a training file."""
    if "train" not in str(train):
        raise BadData(
            f"{train} was given as training tokens, but has no `train` in its path to replace by `val` for the "
            "validation tokens. Call the files train.bin and val.bin."
        )
    files: dict[Split, Path] = {"train": train}
    for split in SPLITS[1:]:
        candidates = _renamed(train, split)
        found = next((path for path in candidates if path.exists()), candidates[0])
        if split == "val" or found.exists():
            files[split] = found
    return files


def _renamed(train: Path, split: Split) -> list[Path]:
    """Return the paths with another split for `train`: in one part of it, the last first, and in all of them."""
    parts = train.parts
    places = [number for number in reversed(range(len(parts))) if "train" in parts[number]]
    one = [Path(*parts[:n], parts[n].replace("train", split), *parts[n + 1 :]) for n in places]
    return [*one, Path(str(train).replace("train", split))]


def _check_size(file: Path, expected: int | None) -> None:
    try:
        size = file.stat().st_size
    except OSError as error:
        raise BadData(
            f"the tokens in {file} were asked for: {error.strerror}. Prepare them with `oelm prepare`, or "
            "give the folder that holds train.bin and val.bin."
        ) from error
    if size == 0:
        raise BadData(f"{file} is empty: there is nothing to train on. Prepare the corpus again.")
    if size % 2:
        raise BadData(
            f"{file} has an odd number of bytes ({size:,}), so it is no file of 16-bit ids, or was cut. "
            "Prepare the corpus again."
        )
    if expected is not None and size != expected:
        raise BadData(
            f"{file} has {size:,} bytes, but its meta.json states {expected:,}: it was cut or changed. "
            "Restore it, or delete the folder and prepare the corpus again."
        )


def _check_content(file: Path, scan: _Scan, vocab_size: int, expected_sha256: str | None) -> None:
    if scan.largest >= vocab_size:
        raise BadData(
            f"{file} holds the id {scan.largest}, beyond its vocabulary of {vocab_size} entries. It was made "
            "with another tokenizer, or is no file of 16-bit ids. Prepare the corpus again."
        )
    if expected_sha256 is not None and scan.sha256 != expected_sha256:
        raise BadData(
            f"{file} is not the file that its meta.json describes: the sha256 is {scan.sha256[:12]}..., not "
            f"{expected_sha256[:12]}.... Restore it, or delete the folder and prepare the corpus again."
        )


def _scanned(directory: Path, files: Mapping[Split, Path]) -> dict[Split, _Scan]:
    """Read every file once in its life, and remember beside it what was found if the folder lets us."""
    memory = directory / _SCANS
    try:
        known = _Scans.model_validate_json(memory.read_text())
    except (OSError, ValidationError, UnicodeDecodeError):
        known = _Scans()
    scans: dict[Split, _Scan] = {}
    for split, file in files.items():
        state, scan = file.stat(), known.files.get(str(file.absolute()))
        if scan is None or (scan.size, scan.mtime_ns) != (state.st_size, state.st_mtime_ns):
            scan = known.files[str(file.absolute())] = _scan(file)
            with suppress(OSError):
                write_atomically(memory, known.model_dump_json() + "\n")
        scans[split] = scan
    return scans


def _scan(file: Path) -> _Scan:
    state, content, largest = file.stat(), hashlib.sha256(), 0
    with file.open("rb") as opened:
        while chunk := opened.read(_CHUNK):
            content.update(chunk)
            largest = max(largest, int(np.frombuffer(chunk, dtype=np.uint16).max()))
    return _Scan(size=state.st_size, mtime_ns=state.st_mtime_ns, largest=largest, sha256=content.hexdigest())
