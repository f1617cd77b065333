"""Archives of runs: nothing is lost, nothing is trusted."""

from __future__ import annotations

import io
import lzma
import random
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oelm.errors import BadRecord, UsageError
from oelm.files import strip_checksum
from oelm.record.archive import (
    ARCHIVE,
    INDEX,
    add_runs,
    open_archives,
    original_path,
    pack,
    read_files,
    read_index,
    unpack,
    write_archive,
)
from oelm.record.folder import find_records, read_record, read_study
from oelm.record.keep import keep_archived
from oelm.spec.study import Study

FILES = {
    "a_1/record.json": b'{"loss": 1.25}\n',
    "a_1/metrics.jsonl": bytes(random.Random(0).randbytes(3000)),
    "b_2/record.json": b'{"loss": 1.5}\n',
    "choice.json": b"{}\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "first").mkdir()
    write_archive(FILES, tmp_path / "first")
    return tmp_path / "first"


NAMES = st.from_regex(r"[A-Za-z0-9+=_-][A-Za-z0-9+=_.-]{0,120}", fullmatch=True).filter(lambda name: name != INDEX)


@settings(deadline=None, max_examples=25)
@given(st.dictionaries(st.one_of(NAMES, st.tuples(NAMES, NAMES).map("/".join)), st.binary(max_size=300), max_size=8))
def test_every_file_comes_back_to_the_byte(tmp_path_factory: Any, files: dict[str, bytes]) -> None:
    path = tmp_path_factory.mktemp("archive") / ARCHIVE
    path.write_bytes(pack(files))
    assert read_files(path) == files


def test_the_same_files_give_the_same_bytes_in_any_order() -> None:
    assert pack(FILES) == pack(dict(reversed(FILES.items())))


def test_unpacking_gives_plain_files(folder: Path, tmp_path: Path) -> None:
    assert unpack(folder / ARCHIVE, tmp_path / "out") == len(FILES)
    found = {p.relative_to(tmp_path / "out").as_posix(): p.read_bytes() for p in (tmp_path / "out").rglob("*.json*")}
    assert found == FILES


def _tar(change: Callable[[tarfile.TarInfo, bytes], list[tuple[tarfile.TarInfo, bytes]]]) -> bytes:
    """Return the archive of FILES with every member passed through `change`."""
    buffer = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(lzma.decompress(pack(FILES)))) as source,
        tarfile.open(fileobj=buffer, mode="w") as target,
    ):
        for member in source.getmembers():
            file = source.extractfile(member)
            assert file
            for info, content in change(member, file.read()):
                info.size = len(content)
                target.addfile(info, io.BytesIO(content))
    return lzma.compress(buffer.getvalue())


def _renamed(old: str, new: str) -> bytes:
    """Return the archive with a file renamed, in its index as well."""

    def change(member: tarfile.TarInfo, content: bytes) -> list[tuple[tarfile.TarInfo, bytes]]:
        if member.name == INDEX:
            content = content.replace(f'"{old}"'.encode(), f'"{new}"'.encode())
        elif member.name == old:
            member.name = new
        return [(member, content)]

    return _tar(change)


def test_a_member_with_other_content_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / ARCHIVE
    path.write_bytes(_tar(lambda member, content: [(member, content.replace(b"1.25", b"1.24"))]))
    with pytest.raises(BadRecord, match="a_1/record.json does not have the content"):
        read_files(path)


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../up.json", "a_1/../../up.json", "a/b/c.json", "a_1/", ".hidden", "a\\\\b", "C:x", INDEX]
)
def test_a_name_that_leads_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "in" / ARCHIVE
    path.parent.mkdir()
    path.write_bytes(_renamed("choice.json", name))
    with pytest.raises(BadRecord, match="not an allowed name"):
        unpack(path, tmp_path / "in" / "out")
    assert [path.name for path in tmp_path.rglob("*")] == ["in", ARCHIVE]
    with pytest.raises(BadRecord, match="not an allowed name"):
        pack({name.replace("\\\\", "\\"): b""})


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE])
def test_a_link_or_a_device_is_refused(tmp_path: Path, kind: bytes) -> None:
    def change(member: tarfile.TarInfo, content: bytes) -> list[tuple[tarfile.TarInfo, bytes]]:
        if member.name == "choice.json":
            member.type, member.linkname, content = kind, "/etc/passwd", b""
        return [(member, content)]

    path = tmp_path / ARCHIVE
    path.write_bytes(_tar(change))
    with pytest.raises(BadRecord, match="choice.json is not a plain file"):
        read_files(path)


def test_members_that_the_index_does_not_list_or_that_are_missing_are_refused(tmp_path: Path) -> None:
    path = tmp_path / ARCHIVE
    more = [(tarfile.TarInfo("more.json"), b"")]
    path.write_bytes(_tar(lambda member, content: [(member, content), *(more if "b_2" in member.name else [])]))
    with pytest.raises(BadRecord, match="holds 'more.json', which its index does not list"):
        read_files(path)
    path.write_bytes(_tar(lambda member, content: [(member, content)] if member.name != "choice.json" else []))
    with pytest.raises(BadRecord, match=r"holds 'a_1/metrics.jsonl' where its index lists choice.json"):
        read_files(path)
    path.write_bytes(_tar(lambda member, content: [(member, content)] if "b_2" not in member.name else []))
    with pytest.raises(BadRecord, match="ends before b_2/record.json"):
        read_files(path)


def test_any_flipped_bit_and_any_cut_is_noticed(folder: Path) -> None:
    path = folder / ARCHIVE
    whole = path.read_bytes()
    for place in range(0, len(whole), 37):
        torn = bytearray(whole)
        torn[place] ^= 1 << place % 8
        path.write_bytes(torn)
        with pytest.raises(BadRecord, match=ARCHIVE):
            read_files(path)
        path.write_bytes(whole[:place])
        with pytest.raises(BadRecord, match=ARCHIVE):
            read_files(path)


def test_damage_is_reported_with_the_file_it_was_met_in(folder: Path) -> None:
    whole = (folder / ARCHIVE).read_bytes()
    (folder / ARCHIVE).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BadRecord, match=r"damaged at (choice|a_1/metrics).json.*git checkout"):
        read_files(folder / ARCHIVE)


def test_an_archive_that_claims_to_unpack_to_terabytes_is_refused(tmp_path: Path) -> None:
    def change(member: tarfile.TarInfo, content: bytes) -> list[tuple[tarfile.TarInfo, bytes]]:
        size = f'"size": {len(FILES["choice.json"])},'.encode()
        assert member.name != INDEX or size in content
        return [(member, content.replace(size, b'"size": 1000000000000,'))]

    (tmp_path / ARCHIVE).write_bytes(_tar(change))
    with pytest.raises(BadRecord, match="more than 1 GiB"):
        read_files(tmp_path / ARCHIVE)


def test_what_a_neighbour_stores_is_stored_once_and_read_from_there(folder: Path, tmp_path: Path) -> None:
    files = {name: FILES[name] for name in ("a_1/metrics.jsonl", "choice.json")}
    files |= {"c_1/metrics.jsonl": b"", "c_1/record.json": FILES["a_1/record.json"]}
    index = write_archive(files, tmp_path / "second")
    assert {entry.name: entry.stored_in for entry in index.files} == {
        "a_1/metrics.jsonl": "first", "choice.json": "first", "c_1/metrics.jsonl": None, "c_1/record.json": None,
    }, "an equal file of another run is not shared"  # fmt: skip
    assert (tmp_path / "second" / ARCHIVE).stat().st_size < 1000 < (folder / ARCHIVE).stat().st_size
    assert read_files(tmp_path / "second" / ARCHIVE) == files
    (folder / ARCHIVE).unlink()
    with pytest.raises(BadRecord, match="leaves 2 files to .*first.*--alone"):
        read_files(tmp_path / "second" / ARCHIVE)


def test_an_archive_packed_alone_needs_no_neighbour(folder: Path, tmp_path: Path) -> None:
    write_archive(FILES, tmp_path / "second", alone=True)
    (folder / ARCHIVE).unlink()
    assert read_files(tmp_path / "second" / ARCHIVE) == FILES


def test_an_archive_is_not_replaced_by_one_that_lacks_what_a_neighbour_reads_there(
    folder: Path, tmp_path: Path
) -> None:
    write_archive(FILES, tmp_path / "second")
    before = (folder / ARCHIVE).read_bytes()
    with pytest.raises(UsageError, match="second leaves 3 files to it"):
        write_archive({"b_2/record.json": FILES["b_2/record.json"]}, folder)
    assert (folder / ARCHIVE).read_bytes() == before
    write_archive(FILES | {"new.json": b"1"}, folder)
    assert read_files(tmp_path / "second" / ARCHIVE) == FILES


def test_a_reference_may_not_lead_out_of_the_neighbouring_folders(tmp_path: Path) -> None:
    digest = read_index_of(FILES)["choice.json"]
    path = tmp_path / "first" / ARCHIVE
    path.parent.mkdir()
    path.write_bytes(pack(FILES, {("choice.json", digest): "../../elsewhere"}))
    with pytest.raises(BadRecord, match="not the name of a neighbouring folder"):
        read_files(path)


def read_index_of(files: dict[str, bytes]) -> dict[str, str]:
    import hashlib

    return {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}


def test_the_index_lists_everything_without_unpacking(folder: Path) -> None:
    assert {entry.name: entry.sha256 for entry in read_index(folder / ARCHIVE).files} == read_index_of(FILES)


@pytest.fixture
def archived(study: Study, write_run: Any, tmp_path: Path) -> Path:
    """An archived study in results/tiny, with its runs still in runs/."""
    for run in study.runs():
        write_run(run, 1.5 + run.seed / 100)
    keep_archived(study, tmp_path / "runs", find_records(tmp_path / "runs")[0], tmp_path / "results" / "tiny")
    return tmp_path / "results" / "tiny"


def test_a_folder_without_archives_is_read_as_it_is(tmp_path: Path) -> None:
    with open_archives(tmp_path) as root:
        assert root == tmp_path


def test_an_opened_archive_looks_like_the_folder_it_was_made_from(archived: Path, study: Study, tmp_path: Path) -> None:
    with open_archives(archived.parent) as root:
        assert root.name == "results"
        assert read_study(root / "tiny") == study
        found, bad = find_records(root)
        assert bad == []
        assert dict(found) == {
            root / "tiny" / path.name: record for path, record in find_records(tmp_path / "runs")[0]
        }  # fmt: skip
        assert original_path(found[0][0]) == archived / found[0][0].name
    assert not root.exists()
    assert original_path(found[0][0]) == found[0][0]


def test_an_archive_that_was_not_opened_is_never_taken_for_no_runs(archived: Path) -> None:
    found, bad = find_records(archived)
    assert found == []
    assert "oelm unpack" in str(bad[0])


def test_unpacked_runs_join_those_that_are_there_without_touching_them(archived: Path, tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    assert add_runs(archived, target) == (6, 0)
    kept, lost = sorted(path for path in target.iterdir() if path.is_dir())[:2]
    (kept / "record.json").write_text("mine")
    for path in lost.iterdir():
        path.unlink()
    lost.rmdir()
    assert add_runs(archived, target) == (1, 5)
    assert (kept / "record.json").read_text() == "mine"
    assert read_record(lost).status == "complete"
    assert not [path for path in target.iterdir() if path.name.startswith(".")]


def test_a_record_without_paths_is_archived_to_the_byte(study: Study, write_run: Any, tmp_path: Path) -> None:
    directory = write_run(study.runs()[0])
    older = strip_checksum((directory / "record.json").read_text()).replace(',\n "imported": false', "")
    (directory / "record.json").write_text(older)
    keep_archived(study, tmp_path / "runs", find_records(tmp_path / "runs")[0], tmp_path / "kept")
    assert read_record(directory).model_dump_json(indent=1) + "\n" != older
    assert read_files(tmp_path / "kept" / ARCHIVE)[f"{directory.name}/record.json"] == older.encode()
