from __future__ import annotations

import os
from pathlib import Path

import pytest

from oelm.errors import BadRecord
from oelm.server.index import Folder


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    (tmp_path / "runs" / "a").mkdir(parents=True)
    (tmp_path / "runs" / "a" / "training.log").write_text("inside")
    (tmp_path / "secret").write_text("outside")
    return Folder(tmp_path / "runs")


def test_a_file_below_the_folder_is_read_and_no_more_of_it_than_asked(folder: Folder) -> None:
    assert folder.read(folder.root / "a" / "training.log", 4) == b"insi"


@pytest.mark.parametrize("way", ["a/link", "a/twice", "a/../../secret", "out/secret", "/etc/hostname"])
def test_nothing_outside_is_read_by_whatever_way(folder: Folder, way: str) -> None:
    (folder.root / "a" / "link").symlink_to("../../secret")
    (folder.root / "a" / "twice").symlink_to("link")
    (folder.root / "out").symlink_to(folder.root.parent)
    with pytest.raises(BadRecord, match="leads out of"):
        folder.read(folder.root / way, 100)


def test_a_link_that_stays_inside_is_refused_as_well(folder: Folder) -> None:
    (folder.root / "link").symlink_to("a/training.log")
    with pytest.raises(BadRecord, match="is a link"):
        folder.read(folder.root / "link", 100)


def test_a_folder_that_is_a_link_itself_is_the_one_it_leads_to(folder: Folder, tmp_path: Path) -> None:
    (tmp_path / "other").symlink_to(folder.root)
    other = Folder(tmp_path / "other")
    assert other.read(other.root / "a" / "training.log", 100) == b"inside"


@pytest.mark.timeout(60)  # nobody ever writes into it: waiting would have no end
def test_a_pipe_is_refused_at_once_and_not_waited_for(folder: Folder) -> None:
    os.mkfifo(folder.root / "pipe")
    with pytest.raises(BadRecord, match="not a plain file"):
        folder.open(folder.root / "pipe")


def test_links_in_a_circle_are_an_error_like_any_other(folder: Folder) -> None:
    (folder.root / "x").symlink_to("y")
    (folder.root / "y").symlink_to("x")
    with pytest.raises((BadRecord, OSError)):
        folder.open(folder.root / "x")


def test_names_of_any_bytes_become_text(folder: Folder) -> None:
    path = folder.root / os.fsdecode(b"bad-\xff")
    assert folder.key(path) == "bad-\\xff"
    assert folder.key(folder.root) == ""
