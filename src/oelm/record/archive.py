"""Pack the runs of a study into one small file, `runs.tar.xz`, to be committed next to the study's declaration.

The first member, `index.json`, lists every file with its size and sha256. The others follow, sorted by file name so
that files of one kind compress together, without times or owners: the same files give the same bytes. A file that the
archive of a neighbouring study already stores under the same name is only listed, with the name of that study's folder.

Archives may come from untrusted sources. Only plain files with names of the form FILE or RUN/FILE are read, nothing is
unpickled, and every file must have the size and the sha256 that the index gives.
"""

from __future__ import annotations

import atexit
import hashlib
import io
import lzma
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from oelm.errors import BadRecord, UsageError
from oelm.files import write_atomically
from oelm.record.record import Record
from oelm.spec import explain_validation

ARCHIVE = "runs.tar.xz"
INDEX = "index.json"
FORMAT = 1
MOST_BYTES = 1 << 30
"""An archive that claims to hold more is refused: a few kilobytes of xz can unpack to terabytes."""
LIGHT_SUFFIXES = (".json", ".jsonl", ".txt", ".log", ".md")
"""Suffixes of files that are read next to an unpacked archive: declarations, reports, runs that are not archived."""

Files = Mapping[str, bytes]
"""File name, relative to the study's folder -> content."""

_LENT: dict[Path, Path] = {}
"""Folders lent by `open_archives` -> the folders that they replace."""
_KEPT: dict[str, Any] = {}
"""What `open_archives_with_neighbours` unpacked last, and from which archives."""


class StoredFile(Record):
    """One file in the index."""

    name: str
    size: int
    sha256: str
    stored_in: str | None = None
    """The neighbouring study's folder whose archive stores the content. None: this archive."""


class ArchiveIndex(Record):
    """The content of `index.json`."""

    format: int = FORMAT
    files: tuple[StoredFile, ...]


def pack(files: Files, elsewhere: Mapping[tuple[str, str], str] | None = None) -> bytes:
    """Return an archive of some files. `elsewhere` maps (name, sha256) to the folder whose archive stores the file."""
    entries = []
    for name in sorted(files, key=_by_kind):
        _check_name(name, name)
        digest = hashlib.sha256(files[name]).hexdigest()
        place = (elsewhere or {}).get((name, digest))
        entries.append(StoredFile(name=name, size=len(files[name]), sha256=digest, stored_in=place))
    index = ArchiveIndex(files=tuple(entries)).model_dump_json(indent=0, exclude_none=True) + "\n"
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        _add(tar, INDEX, index.encode())
        for entry in entries:
            if entry.stored_in is None:
                _add(tar, entry.name, files[entry.name])
    return lzma.compress(buffer.getvalue(), preset=9 | lzma.PRESET_EXTREME)


def write_archive(files: Files, folder: Path, *, alone: bool = False) -> ArchiveIndex:
    """Write the archive of a study into its folder.

    Files that the archives of neighbouring folders store are not stored again, unless `alone`. Raise UsageError if a
    neighbour refers to a file of the present archive that the new one would not store.
    """
    indices = _neighbours(folder)
    stored = {} if alone else _stored_by(indices)
    _keep_promises(files, stored, folder, indices)
    write_atomically(folder / ARCHIVE, pack(files, stored))
    return read_index(folder / ARCHIVE)


def read_index(path: Path) -> ArchiveIndex:
    """Read the index of an archive, without unpacking the rest."""
    with _open_archive(path) as tar:
        return _index(path, tar)


def read_files(path: Path) -> dict[str, bytes]:
    """Return every file of an archive, checked; files that a neighbour stores are read from there."""
    index, contents = _own_files(path)
    for place in sorted({entry.stored_in for entry in index.files if entry.stored_in}):
        wanted = [entry for entry in index.files if entry.stored_in == place]
        contents |= _fetch(path, path.parent.parent / place / ARCHIVE, wanted)
    return {entry.name: contents[entry.name] for entry in index.files}


def unpack(path: Path, target: Path) -> int:
    """Write the files of an archive below a folder; return their number. Nothing is written if one is damaged."""
    files = read_files(path)
    for name, content in files.items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_bytes(content)
    return len(files)


def add_runs(folder: Path, target: Path) -> tuple[int, int]:
    """Unpack the archive in a folder into `target`; return the numbers of new runs and of runs that were there before.

    Each run appears in one step, because other processes may read or run there. Files in `target` are not replaced. The
    study's declaration is copied as well.
    """
    target.mkdir(parents=True, exist_ok=True)
    added = present = 0
    with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=target) as temporary:
        unpack(folder / ARCHIVE, Path(temporary))
        for path in folder.glob("*.json"):
            shutil.copyfile(path, Path(temporary) / path.name)
        for path in sorted(Path(temporary).iterdir()):
            is_new = not (target / path.name).exists()
            if is_new:
                path.rename(target / path.name)
            if (target / path.name).is_dir():
                added, present = added + is_new, present + (not is_new)
    return added, present


def archives_below(root: Path) -> list[Path]:
    """Return the archives at or below a folder. Folders whose names begin with a dot are skipped."""
    found = sorted(root.glob(f"**/{ARCHIVE}"))
    return [path for path in found if not any(part.startswith(".") for part in path.relative_to(root).parts)]


@contextmanager
def open_archives(root: Path, keep: Path | None = None) -> Iterator[Path]:
    """Lend a folder in which every archive at or below `root` is unpacked: `root` itself if there is none.

    It has the name of `root` and is removed afterwards, or kept below `keep` if that is given. Declarations, Markdown
    reports and the small files of runs that are not archived are copied into it.
    """
    archives = archives_below(root)
    if not archives:
        yield root
        return
    with ExitStack() as stack:
        parent = keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="oelm-")))
        mirror = parent / root.resolve().name
        if keep and mirror.exists():
            shutil.rmtree(mirror)
        mirror.mkdir(parents=True)
        _copy_light_files(root, mirror)
        for path in archives:
            unpack(path, mirror / path.parent.relative_to(root))
        _LENT[mirror] = root
        try:
            yield mirror
        finally:
            del _LENT[mirror]


@contextmanager
def open_archives_with_neighbours(folder: Path) -> Iterator[Path]:
    """Lend the folder of a study together with the studies next to it, their archives unpacked."""
    place = original_path(folder).absolute()
    if folder not in _LENT and place != folder.absolute():  # its neighbours were lent together with it
        yield folder
        return
    yield _keep_open(place.parent) / place.name


def _keep_open(parent: Path) -> Path:
    """Return a folder with its archives unpacked. It stays until the program ends or a study in it changes.

    The reports of all studies in a folder need the same neighbours.
    """
    files = [*archives_below(parent), *parent.glob("*/*.json"), *parent.glob("*/*/*.json*")]
    stamps = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in files}
    if _KEPT.get("stamps") != (parent, stamps):
        _KEPT.pop("stack", ExitStack()).close()
        stack = ExitStack()
        atexit.register(stack.close)
        _KEPT.update(folder=stack.enter_context(open_archives(parent)), stack=stack, stamps=(parent, stamps))
    folder: Path = _KEPT["folder"]
    return folder


def original_path(path: Path) -> Path:
    """Return the path that a file in a folder lent by `open_archives` would have if it were unpacked in place."""
    for mirror, root in _LENT.items():
        if path.is_relative_to(mirror):
            return root / path.relative_to(mirror)
    return path


def _by_kind(name: str) -> tuple[str, str]:
    return name.rpartition("/")[2], name


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)  # without time and owner, mode 0644
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def _check_name(name: str, shown: str) -> None:
    parts = name.split("/")
    if not (1 <= len(parts) <= 2 and all(map(_is_plain, parts))) or name == INDEX:
        raise BadRecord(f"{shown} is not an allowed name in an archive of runs. It may be FILE or RUN/FILE.")


def _is_plain(part: str) -> bool:
    return bool(part) and not part.startswith(".") and part.isprintable() and "\\" not in part and ":" not in part


@contextmanager
def _open_archive(path: Path, last: list[str] | None = None) -> Iterator[tarfile.TarFile]:
    """Open an archive; errors name the file that was read last, if there is one in `last`."""
    try:
        packed = path.read_bytes()
    except FileNotFoundError:
        raise BadRecord(f"{path} does not exist. Restore it, for example with `git checkout`.") from None
    except OSError as error:
        raise BadRecord(f"{path} cannot be read: {error.strerror}.") from error
    plain, trouble = _decompress(packed)
    try:
        with tarfile.open(fileobj=io.BytesIO(plain), mode="r:") as tar:
            yield tar
    except tarfile.TarError as error:
        trouble = trouble or str(error)
    if trouble:
        where = f" at {last[-1]}" if last else ""
        raise BadRecord(f"{path} is damaged{where} ({trouble}). Restore it, for example with `git checkout`.")


def _decompress(packed: bytes) -> tuple[bytes, str | None]:
    """Return the bytes that can be decompressed, at most `MOST_BYTES`, and what is wrong with the rest."""
    decompressor = lzma.LZMADecompressor(format=lzma.FORMAT_XZ)
    plain = bytearray()
    try:
        while not decompressor.eof and len(plain) <= MOST_BYTES:
            plain += decompressor.decompress(packed, max_length=1 << 20)
            if decompressor.needs_input and not decompressor.eof:
                return bytes(plain), "it was cut short"
            packed = b""
    except lzma.LZMAError as error:
        return bytes(plain), str(error)
    if len(plain) > MOST_BYTES:
        return b"", f"it unpacks to more than {MOST_BYTES >> 30} GiB"
    return bytes(plain), "something follows its end" if decompressor.unused_data else None


def _index(path: Path, tar: tarfile.TarFile) -> ArchiveIndex:
    first = tar.next()
    if first is None or first.name != INDEX or not first.isreg() or first.size > MOST_BYTES:
        raise BadRecord(f"{path} is not an archive of runs: it does not begin with {INDEX}.")
    try:
        index = ArchiveIndex.model_validate_json(_content(tar, first))
    except ValidationError as error:
        raise BadRecord(f"{path}: {INDEX} is not a list of files: {explain_validation(error)}.") from error
    if index.format > FORMAT:
        raise BadRecord(f"{path} has format {index.format}; this program reads up to {FORMAT}. Update oelm.")
    names = [entry.name for entry in index.files]
    for name in names:
        _check_name(name, f"{path}: {name!r}")
    for place in {entry.stored_in for entry in index.files if entry.stored_in is not None}:
        if not _is_plain(place) or "/" in place:
            raise BadRecord(f"{path} refers to {place!r}, which is not the name of a neighbouring folder.")
    if len(set(names)) < len(names):
        raise BadRecord(f"{path} lists a file twice.")
    if any(entry.size < 0 for entry in index.files) or sum(entry.size for entry in index.files) > MOST_BYTES:
        raise BadRecord(f"{path} claims to hold more than {MOST_BYTES >> 30} GiB, so it is not unpacked.")
    return index


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(member)
    return file.read() if file else b""


def _own_files(path: Path) -> tuple[ArchiveIndex, dict[str, bytes]]:
    """Return the index, and the files that this archive stores itself."""
    found: dict[str, bytes] = {}
    last: list[str] = [INDEX]
    with _open_archive(path, last) as tar:
        index = _index(path, tar)
        for entry in index.files:
            if entry.stored_in is None:
                last.append(entry.name)
                found[entry.name] = _read_checked(path, tar, tar.next(), entry)
        if extra := tar.next():
            raise BadRecord(f"{path} holds {extra.name!r}, which its index does not list.")
    return index, found


def _read_checked(path: Path, tar: tarfile.TarFile, member: tarfile.TarInfo | None, entry: StoredFile) -> bytes:
    if member is None:
        raise BadRecord(f"{path} ends before {entry.name}, which its index lists. It was cut short: restore it.")
    if member.name != entry.name:
        raise BadRecord(f"{path} holds {member.name!r} where its index lists {entry.name}.")
    if not member.isreg():
        raise BadRecord(f"{path}: {entry.name} is not a plain file but a link or a device, so it is not unpacked.")
    content = _content(tar, member) if member.size == entry.size else b""
    if len(content) != entry.size or hashlib.sha256(content).hexdigest() != entry.sha256:
        raise BadRecord(
            f"{path}: {entry.name} does not have the content that the index gives (sha256 {entry.sha256[:12]}…). "
            "The archive is damaged or was changed. Restore it, for example with `git checkout`."
        )
    return content


def _fetch(path: Path, neighbour: Path, wanted: list[StoredFile]) -> dict[str, bytes]:
    if not neighbour.is_file():
        raise BadRecord(
            f"{path} leaves {len(wanted)} files to {neighbour}, which does not exist. Keep both folders next to each "
            "other, or pack the study with --alone."
        )
    index, contents = _own_files(neighbour)
    stored = {entry.sha256: contents[entry.name] for entry in index.files if entry.name in contents}
    for entry in wanted:
        if entry.sha256 not in stored:
            raise BadRecord(f"{path} leaves {entry.name} to {neighbour}, which does not hold it. Restore both.")
    return {entry.name: stored[entry.sha256] for entry in wanted}


def _neighbours(folder: Path) -> dict[str, ArchiveIndex]:
    paths = sorted(folder.parent.glob(f"*/{ARCHIVE}")) if folder.parent.is_dir() else []
    own = folder.resolve()
    return {path.parent.name: read_index(path) for path in paths if path.parent.resolve() != own}


def _stored_by(indices: Mapping[str, ArchiveIndex]) -> dict[tuple[str, str], str]:
    """Return (name, sha256) -> folder. The name counts, so that equal files of two runs do not link two studies."""
    return {
        (entry.name, entry.sha256): folder
        for folder, index in indices.items() for entry in index.files if entry.stored_in is None
    }  # fmt: skip


def _keep_promises(
    files: Files, stored: Mapping[tuple[str, str], str], folder: Path, indices: Mapping[str, ArchiveIndex]
) -> None:
    """Refuse to write an archive without files that a neighbour's archive relies on."""
    named = {(name, hashlib.sha256(content).hexdigest()) for name, content in files.items()}
    own = {digest for _, digest in named - stored.keys()}
    for name, index in indices.items():
        lost = [entry.name for entry in index.files if entry.stored_in == folder.name and entry.sha256 not in own]
        if lost:
            raise UsageError(
                f"{folder / ARCHIVE} may not be replaced: {folder.parent / name} leaves {len(lost)} files to it "
                f"({lost[0]}, ...) that would be lost. Pack {name} first, with --alone."
            )


def _copy_light_files(root: Path, mirror: Path) -> None:
    for path in sorted(root.rglob("*")):
        relative = path.relative_to(root)
        if path.suffix in LIGHT_SUFFIXES and path.is_file() and not any(p.startswith(".") for p in relative.parts):
            (mirror / relative).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, mirror / relative)
