"""Open token files, verify them, and cut them into batches."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from oelm.data.documents import SPLITS
from oelm.data.meta import META, WORKSPACE, SplitMeta, TokenMeta, checksum_of, format_checked, read_checked, read_meta
from oelm.data.tokenizer import GPT2_SHA256
from oelm.errors import BadData, Sealed
from oelm.files import sha256_of, write_once
from oelm.spec import Spec, explain_validation
from oelm.spec.run import GPT2_VOCAB_SIZE, Split, derived_seed

Tokens = npt.NDArray[np.uint16]

_CHUNK = 1 << 23


@dataclass(frozen=True, slots=True)
class TokenData:
    """Verified tokens by split. `meta` is None for nanoGPT's bare layout, whose ids are those of GPT-2."""

    directory: Path
    meta: TokenMeta | None
    vocab_size: int
    checksum: str
    files: Mapping[Split, Path] = field(repr=False)
    sha256: Mapping[Split, str] = field(repr=False)

    @property
    def splits(self) -> tuple[Split, ...]:
        """Return the names of the splits; a bare layout may have no test split."""
        return tuple(split for split in SPLITS if split in self.files)

    def split(self, name: Split) -> Tokens:
        """Map the ids of a split into memory, after checking that the file is the one that was opened."""
        if name not in self.files:
            raise BadData(
                f"{self.directory} has no {name} tokens, only {', '.join(self.splits)}. Prepare the corpus with `oelm "
                f"prepare`, which makes all three splits, or add {name}.bin."
            )
        self._require_opened(name)
        file = self.files[name]
        return _load_array(file) if file.suffix == ".npy" else np.memmap(file, dtype=np.uint16, mode="r")

    def refuse_changes(self) -> None:
        """Raise BadData if a file is not the one that was opened: mapped memory would show what it holds now."""
        for name in self.files:
            self._require_opened(name)

    def _require_opened(self, name: Split) -> None:
        file = self.files[name]
        try:
            is_same = _scan(file).sha256 == self.sha256[name]
        except OSError as error:
            raise BadData(f"{file} cannot be read any more: {error.strerror}. Restore it.") from error
        if not is_same:
            raise BadData(f"{file} has changed since it was opened. Restore it, or start again.")

    def num_tokens(self, name: Split) -> int:
        """Return the length of a split; 0 if a bare layout does not have it."""
        return len(self.split(name)) if name in self.files else 0

    @property
    def floor(self) -> dict[Split, float]:
        """Return the lowest expected loss in nats per token, for splits where it is known."""
        splits = {} if self.meta is None else self.meta.splits
        return {split: its.floor for split, its in splits.items() if its.floor is not None}


FILES = (".bin", ".npy")
"""Files of tokens: raw 16-bit ids, or an array that numpy saved."""


def open_tokens(path: Path, *, vocab_size: int | None = None) -> TokenData:
    """Open a folder of token files, or a training file, and verify their contents.

    The other files of a training file have its name with `val` and `test` for `train`. `vocab_size` is the vocabulary
    of files without a meta.json; by default GPT-2's.

    Raises:
        BadData: files that are missing, empty, truncated, changed, or hold ids beyond the vocabulary.
        Sealed: the path is a sealed file.

    """
    if path.name == SEALED_FILE:
        raise Sealed(
            f"{path} is sealed: no run may read it. `oelm report STUDY --unseal` scores a finished study on it, once."
        )
    directory = path if path.suffix not in FILES else path.parent
    meta = read_meta(directory) if path.suffix not in FILES or path.name == "train.bin" else None
    is_folder = path.suffix not in FILES or meta is not None
    files = _folder_files(directory, meta) if is_folder else _named_files(path)
    if meta is None and (directory / WORKSPACE).exists():
        raise BadData(
            f"{directory} is being prepared, or its preparation was interrupted. Run the same `oelm prepare` again to "
            "complete it."
        )
    vocab_size = _bare_vocabulary(files, vocab_size) if meta is None else meta.tokenizer.vocab_size
    for split, file in files.items():
        _check_size(file, None if meta is None else meta.splits[split])
    for split, file in files.items():
        _check_content(file, vocab_size, None if meta is None else meta.splits[split])
    sha256 = {split: _scan(file).sha256 for split, file in files.items()}
    checksum = checksum_of(GPT2_SHA256, vocab_size, sha256) if meta is None else meta.checksum
    return TokenData(directory, meta, vocab_size, checksum, files, sha256)


def _bare_vocabulary(files: Mapping[Split, Path], stated: int | None) -> int:
    """Return the vocabulary size of files without a meta.json: GPT-2's, unless another is stated that they may need.

    A model with some more entries than GPT-2 has reads GPT-2's tokens all the same.
    """
    if stated is None or stated == GPT2_VOCAB_SIZE:
        return GPT2_VOCAB_SIZE
    if stated < GPT2_VOCAB_SIZE:
        return stated
    scans = (_scan(file) for file in files.values() if file.is_file() and file.stat().st_size)
    return stated if any(scan.largest >= GPT2_VOCAB_SIZE for scan in scans) else GPT2_VOCAB_SIZE


def _folder_files(directory: Path, meta: TokenMeta | None) -> dict[Split, Path]:
    if not directory.is_dir():
        raise BadData(
            f"there are no tokens at {directory}: no such folder. `oelm prepare` makes one; see `oelm prepare --help`."
        )
    files = {split: directory / f"{split}.bin" for split in SPLITS}
    required = SPLITS if meta is not None else SPLITS[:2]
    return {split: file for split, file in files.items() if split in required or file.exists()}


def _named_files(train: Path) -> dict[Split, Path]:
    """Find the files that are named like a training file."""
    if "train" not in str(train):
        raise BadData(
            f"{train} was given as training tokens, but there is no `train` in its path to replace by `val` for the "
            "validation tokens. Name the files train.bin and val.bin."
        )
    files: dict[Split, Path] = {"train": train}
    for split in SPLITS[1:]:
        candidates = _rename(train, split)
        found = next((path for path in candidates if path.exists()), candidates[0])
        if found.exists():
            files[split] = found
    return files


def _rename(train: Path, split: Split) -> list[Path]:
    """Return paths with another split for `train`: in one part of the path, the last part first, and in all parts."""
    parts = train.parts
    places = [number for number in reversed(range(len(parts))) if "train" in parts[number]]
    one = [Path(*parts[:n], parts[n].replace("train", split), *parts[n + 1 :]) for n in places]
    return [*one, Path(str(train).replace("train", split))]


def _check_size(file: Path, stated: SplitMeta | None) -> None:
    try:
        size = file.stat().st_size
    except OSError as error:
        raise BadData(
            f"there are no tokens at {file}: {error.strerror}. Prepare them with `oelm prepare`, or give the folder "
            "that holds train.bin and val.bin."
        ) from error
    if size == 0:
        raise BadData(f"{file} is empty: there is nothing to train on. Prepare the corpus again.")
    if size % 2 and file.suffix == ".bin":
        raise BadData(
            f"{file} has an odd number of bytes ({size:,}), so it does not hold 16-bit ids, or was cut. Prepare the "
            "corpus again."
        )
    if stated is not None and size != 2 * stated.num_tokens:
        raise BadData(
            f"{file} has {size:,} bytes, but {META} states {2 * stated.num_tokens:,}: the file was cut or changed. "
            "Restore it, or delete the folder and prepare the corpus again."
        )


def _check_content(file: Path, vocab_size: int, stated: SplitMeta | None) -> None:
    scan = _scan(file)
    if scan.largest >= vocab_size:
        raise BadData(
            f"{file} holds the id {scan.largest}, but its vocabulary has {vocab_size} entries. It was made with "
            "another tokenizer, or does not hold 16-bit ids. Prepare the corpus again, or state the size of its "
            "vocabulary (model.vocab_size)."
        )
    if stated is not None and scan.sha256 != stated.sha256:
        raise BadData(
            f"{file} is not the file that {META} describes: its sha256 is {scan.sha256[:12]}..., not "
            f"{stated.sha256[:12]}.... Restore it, or delete the folder and prepare the corpus again."
        )


def _load_array(file: Path) -> Tokens:
    """Read ids from a .npy file; nothing in it is executed.

    Raises:
        BadData: it is not a one-dimensional array of integers from 0 to 65535.

    """
    try:
        array = np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise BadData(f"{file} is not an array that numpy saved ({error}). Save it with numpy.save.") from error
    is_ids = array.ndim == 1 and array.dtype.kind in "ui"
    if not is_ids or (len(array) and (array.min() < 0 or array.max() > np.iinfo(np.uint16).max)):
        raise BadData(
            f"{file} holds an array of shape {array.shape} and type {array.dtype}, not a row of 16-bit ids. Save the "
            "ids as numpy.uint16."
        )
    ids: Tokens = array.astype(np.uint16, copy=False)
    return ids


class _Scan(NamedTuple):
    largest: int
    sha256: str


_SCANS: dict[tuple[object, ...], _Scan] = {}
"""The files that this process has read, by everything that changes when a file is written."""


def _scan(file: Path) -> _Scan:
    """Return the checksum of a file and its largest id. Each process reads a file once, and again if it changes."""
    state = file.stat()
    key = (file.absolute(), state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)
    if key not in _SCANS and file.suffix == ".npy":
        _SCANS[key] = _Scan(int(_load_array(file).max(initial=0)), sha256_of(file))
    if key not in _SCANS:
        content, largest = hashlib.sha256(), 0
        with file.open("rb") as opened:
            while chunk := opened.read(_CHUNK):
                content.update(chunk)
                largest = max(largest, int(np.frombuffer(chunk, dtype=np.uint16).max()))
        _SCANS[key] = _Scan(largest, content.hexdigest())
    return _SCANS[key]


# Batches of a token file, each a pure function of (seed, step).
#
# Training data are the non-overlapping windows of the file, shuffled again in each epoch. There is no state, so a
# resumed run, another arm with the same seed, and each of several processes know the windows of every step.


def num_windows(tokens: int, context: int) -> int:
    """Return the number of windows in a training split; raise BadData if there is none."""
    windows = (tokens - 1) // context
    if windows < 1:
        raise BadData(
            f"the training split has {tokens} tokens, too few for one window of {context} + 1. Prepare more text, or "
            "use a smaller model.context."
        )
    return windows


class TrainingBatches:
    """The batches of a training run: `batch(step)` returns inputs and targets of shape (B, T)."""

    def __init__(self, tokens: Tokens, *, context: int, batch_size: int, seed: int) -> None:
        self.tokens, self.context, self.batch_size, self.seed = tokens, context, batch_size, seed
        self._order = lru_cache(maxsize=2)(self._shuffle)

    @cached_property
    def num_windows(self) -> int:
        """The number of windows. It is computed on demand, because evaluation also accepts shorter text."""
        return num_windows(len(self.tokens), self.context)

    @property
    def steps_per_epoch(self) -> float:
        """The number of steps that see every window once."""
        return self.num_windows / self.batch_size

    def windows(self, step: int) -> npt.NDArray[np.int64]:
        """Return the numbers of the windows that belong to a step."""
        places = np.arange(step * self.batch_size, (step + 1) * self.batch_size)
        epochs, within = np.divmod(places, self.num_windows)
        return np.array([self._order(int(epoch))[place] for epoch, place in zip(epochs, within, strict=True)])

    def batch(self, step: int, rows: slice = slice(None)) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of a step, or of some rows of it."""
        starts = self.windows(step)[rows] * self.context
        return _cut(self.tokens, starts, self.context)

    def _shuffle(self, epoch: int) -> npt.NDArray[np.int64]:
        return np.random.default_rng(derived_seed(self.seed, "batches", epoch)).permutation(self.num_windows)


def evaluation_batches(
    tokens: Tokens, *, context: int, batch_size: int, limit: int | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield every token of a split but the first as a target once, in order, or only about `limit` of them.

    Windows do not overlap, and the last one may be shorter.
    """
    if len(tokens) < 2:
        raise BadData(f"the split has {len(tokens)} tokens, and a loss needs at least 2. Prepare more text.")
    predicted = len(tokens) - 1
    if limit is not None:
        predicted = min(predicted, max(context, limit // context * context))
    starts = np.arange(0, predicted // context * context, context)
    for first in range(0, len(starts), batch_size):
        yield _cut(tokens, starts[first : first + batch_size], context)
    rest = predicted % context
    if rest:
        yield _cut(tokens, np.array([predicted - rest]), rest)


def _cut(tokens: Tokens, starts: npt.NDArray[np.int64], length: int) -> tuple[Tensor, Tensor]:
    rows = np.stack([tokens[start : start + length + 1] for start in starts]).astype(np.int64)
    both = torch.from_numpy(rows)
    return both[:, :-1].contiguous(), both[:, 1:].contiguous()


# Sealed data: a second test split that one study reads once, when everything else is done.
#
# `oelm prepare --seal` puts documents aside in `sealed.bin`. Training, `oelm evaluate` and every other verb refuse the
# file. `oelm report --unseal` first writes `sealed.opened.json` next to it, atomically and once: which study opened it,
# when, and the checksum of all weights that it will score. After that, only the same study may finish its scoring.

SEALED_FILE, OPENED = "sealed.bin", "sealed.opened.json"


class Opening(Spec):
    """The content of `sealed.opened.json`."""

    schema_version: int = 1
    study: str
    digest: str
    """Checksum of the registered study."""
    opened: str
    """Time in UTC."""
    commit: str | None
    sha256: str
    """Checksum of the sealed file."""
    weights: dict[str, str]
    """Fingerprint of a run -> sha256 of the final weights that are scored."""

    def is_same_as(self, other: Opening) -> bool:
        """Return whether both belong to one study with the same weights; time and commit may differ."""
        moment = {"opened": "", "commit": None}
        return self.model_copy(update=moment) == other.model_copy(update=moment)


def sealed_split(directory: Path) -> SplitMeta:
    """Return the metadata of the sealed split in a data folder, after verifying the file.

    Raises:
        Sealed: the data have no sealed split.
        BadData: the file is not the one that was prepared.

    """
    meta = read_meta(directory)
    if meta is None or meta.sealed is None:
        raise Sealed(
            f"{directory} has no sealed split. Prepare the corpus with `oelm prepare ... --seal 0.05` into a new "
            "folder and run a new study on it: text that was trained on cannot be sealed afterwards."
        )
    path = directory / SEALED_FILE
    if not path.is_file() or _scan(path).sha256 != meta.sealed.sha256:
        raise BadData(f"{path} is missing, or is not the file that {META} describes. Restore it.")
    return meta.sealed


def read_opening(directory: Path) -> Opening | None:
    """Read which study has opened the sealed split of a folder; return None if it is still sealed."""
    path = directory / OPENED
    try:
        return Opening.model_validate(read_checked(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        reason = explain_validation(error)
        raise Sealed(f"{path} exists, so the split was opened, but it is damaged ({reason}). Restore it.") from error


def refuse_opened(directory: Path, wanted: Opening) -> Opening | None:
    """Return the opening to finish, or None if the split is sealed; raise Sealed for any other opening."""
    found = read_opening(directory)
    if found is None or found.is_same_as(wanted):
        return found
    whose = "this study, with other weights or another declaration" if found.study == wanted.study else found.study
    raise Sealed(
        f"the sealed split in {directory} was opened by {whose} on {found.opened[:10]}, and it is opened only once. "
        "Prepare new data with --seal for a new study."
    )


def open_seal(directory: Path, wanted: Opening) -> Opening:
    """Record that a sealed split is opened, before it is read; return the opening that counts.

    If several processes try at the same time, one opens it, and those of other studies are refused.
    """
    try:
        write_once(directory / OPENED, format_checked(wanted))
    except OSError as error:
        raise Sealed(
            f"the opening must be recorded in {directory / OPENED} first, which cannot be written ({error.strerror}). "
            "Get write access to the data folder."
        ) from error
    return refuse_opened(directory, wanted) or wanted


def with_sealed_as_test(tokens: TokenData, opening: Opening) -> TokenData:
    """Return token data whose test split is the sealed one, for the study that has opened it."""
    if read_opening(tokens.directory) != opening:
        raise Sealed(f"{tokens.directory / SEALED_FILE} has not been opened.")
    sealed = sealed_split(tokens.directory)
    return replace(
        tokens,
        files={**tokens.files, "test": tokens.directory / SEALED_FILE},
        sha256={**tokens.sha256, "test": sealed.sha256},
    )
