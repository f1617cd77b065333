"""Token files are what they should be, or they are refused."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from oelm.data import tokens as module
from oelm.data.prepare import prepare
from oelm.data.tokens import open_tokens
from oelm.data.workspace import WORKSPACE
from oelm.errors import BadData
from oelm.spec.data import DataSpec


def write_ids(path: Path, ids: list[int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.array(ids, dtype=np.uint16).tofile(path)


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A folder in nanoGPT's layout."""
    write_ids(tmp_path / "bare" / "train.bin", [1, 2, 50256])
    write_ids(tmp_path / "bare" / "val.bin", [3, 4])
    return tmp_path / "bare"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare(DataSpec(tokens=3_000, vocab_size=300), tmp_path_factory.mktemp("data") / "stories")


@pytest.fixture
def stories(made: Path, tmp_path: Path) -> Path:
    """A prepared folder to spoil."""
    for file in made.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def test_a_prepared_folder_opens_with_what_its_statement_says(made: Path) -> None:
    data = open_tokens(made)
    assert data.meta is not None
    assert data.vocab_size == 300
    assert data.checksum == data.meta.checksum
    assert data.splits == ("train", "val", "test")
    assert data.num_tokens("test") == data.meta.splits["test"].num_tokens
    assert set(data.floor) == {"train", "val", "test"}
    assert isinstance(data.split("val"), np.memmap)
    assert data.split("val")[-1] == 299


def test_a_bare_folder_opens_as_gpt2_without_a_test_split(bare: Path) -> None:
    data = open_tokens(bare)
    assert (data.meta, data.vocab_size, data.floor) == (None, 50257, {})
    assert data.split("train").tolist() == [1, 2, 50256]
    assert data.num_tokens("test") == 0
    with pytest.raises(BadData, match=r"test tokens of .* only train, val"):
        data.split("test")


def test_the_checksum_of_a_bare_folder_is_that_of_its_bytes(bare: Path, tmp_path: Path) -> None:
    first = open_tokens(bare).checksum
    (tmp_path / "copy").mkdir()
    for name in ("train.bin", "val.bin"):
        (tmp_path / "copy" / name).write_bytes((bare / name).read_bytes())
    assert open_tokens(tmp_path / "copy").checksum == first
    write_ids(bare / "val.bin", [3, 5])
    os.utime(bare / "val.bin", ns=(1, 1))
    assert open_tokens(bare).checksum != first


@pytest.mark.parametrize(
    ("train", "val"),
    [("x/train.bin", "x/val.bin"), ("x/train_small.bin", "x/val_small.bin"), ("x/train/a.bin", "x/val/a.bin"),
     ("training/train.bin", "training/val.bin")],
)  # fmt: skip
def test_a_training_file_names_its_validation_file(train: str, val: str, tmp_path: Path) -> None:
    write_ids(tmp_path / train, [1, 2])
    write_ids(tmp_path / val, [3])
    data = open_tokens(tmp_path / train)
    assert data.split("train").tolist() == [1, 2]
    assert data.split("val").tolist() == [3]


def test_the_training_file_of_a_prepared_folder_is_that_folder(made: Path) -> None:
    assert open_tokens(made / "train.bin") == open_tokens(made)


def test_what_is_missing_is_named(bare: Path, tmp_path: Path) -> None:
    (bare / "val.bin").unlink()
    with pytest.raises(BadData, match=r"val\.bin were asked for: No such file.*oelm prepare"):
        open_tokens(bare)
    with pytest.raises(BadData, match=r"val\.bin were asked for"):
        open_tokens(bare / "train.bin")
    with pytest.raises(BadData, match="no such folder"):
        open_tokens(tmp_path / "nowhere")
    with pytest.raises(BadData, match="no `train` in its path"):
        open_tokens(Path("/data/tokens.bin"))


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", r"train\.bin is empty"), (b"abc", r"odd number of bytes \(3\)"), (b"\xff\xff", "holds the id 65535")],
)
def test_bare_files_that_are_no_tokens_are_refused(content: bytes, message: str, bare: Path) -> None:
    (bare / "train.bin").write_bytes(content)
    with pytest.raises(BadData, match=message):
        open_tokens(bare)


def test_a_truncated_file_is_refused(stories: Path) -> None:
    os.truncate(stories / "val.bin", 10)
    with pytest.raises(BadData, match=r"val\.bin has 10 bytes, but its meta\.json states"):
        open_tokens(stories)


def test_a_prepared_folder_without_its_test_file_is_refused(stories: Path) -> None:
    (stories / "test.bin").unlink()
    with pytest.raises(BadData, match=r"test\.bin"):
        open_tokens(stories)


def test_ids_beyond_a_trained_vocabulary_are_refused(stories: Path) -> None:
    ids = np.fromfile(stories / "train.bin", dtype=np.uint16)
    ids[7] = 300
    ids.tofile(stories / "train.bin")
    with pytest.raises(BadData, match="holds the id 300, beyond its vocabulary of 300"):
        open_tokens(stories)


def test_a_file_with_other_content_than_stated_is_refused(stories: Path) -> None:
    ids = np.fromfile(stories / "train.bin", dtype=np.uint16)
    ids[7] += 1 if ids[7] < 299 else -1
    ids.tofile(stories / "train.bin")
    with pytest.raises(BadData, match=r"is not the file that its meta\.json describes"):
        open_tokens(stories)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"schema_version": 1', "not whole JSON"),
        ('{"schema_version": 99}', "Update oelm"),
        ("{}", "does not describe"),
    ],
)
def test_a_statement_that_cannot_be_read_is_refused(content: str, message: str, stories: Path) -> None:
    (stories / "meta.json").write_text(content)
    with pytest.raises(BadData, match=message):
        open_tokens(stories)


def test_an_unfinished_folder_is_not_mistaken_for_a_bare_one(bare: Path) -> None:
    (bare / WORKSPACE).mkdir()
    with pytest.raises(BadData, match=r"interrupted\. Run the same `oelm prepare` again"):
        open_tokens(bare)


def test_a_file_is_read_whole_once_and_again_only_when_it_changes(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = open_tokens(bare)
    with monkeypatch.context() as patch:
        patch.setattr(module, "_scan", None)
        assert open_tokens(bare) == first
    write_ids(bare / "val.bin", [3, 50257])
    with pytest.raises(BadData, match="holds the id 50257"):
        open_tokens(bare)


def test_a_folder_that_takes_no_notes_opens_all_the_same(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(module, "write_atomically", refuse)
    assert open_tokens(bare).num_tokens("train") == 3
