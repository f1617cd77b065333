"""Token files are what they should be, or they are refused."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from oelm.data import tokens as module
from oelm.data.meta import WORKSPACE
from oelm.data.prepare import prepare
from oelm.data.tokenizer import load_tokenizer
from oelm.data.tokens import open_tokens, sealed_split
from oelm.errors import BadData
from oelm.spec.run import DataSpec


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
    with pytest.raises(BadData, match="has no test tokens, only train, val"):
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
    with pytest.raises(BadData, match=r"no tokens at .*val\.bin: No such file.*oelm prepare"):
        open_tokens(bare)
    assert open_tokens(bare / "train.bin").splits == ("train",)  # a training file alone is trained without validation
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
    with pytest.raises(BadData, match=r"val\.bin has 10 bytes, but meta\.json states"):
        open_tokens(stories)


def test_a_prepared_folder_without_its_test_file_is_refused(stories: Path) -> None:
    (stories / "test.bin").unlink()
    with pytest.raises(BadData, match=r"test\.bin"):
        open_tokens(stories)


def test_ids_beyond_a_trained_vocabulary_are_refused(stories: Path) -> None:
    ids = np.fromfile(stories / "train.bin", dtype=np.uint16)
    ids[7] = 300
    ids.tofile(stories / "train.bin")
    with pytest.raises(BadData, match="holds the id 300, but its vocabulary has 300"):
        open_tokens(stories)


def test_a_file_with_other_content_than_stated_is_refused(stories: Path) -> None:
    ids = np.fromfile(stories / "train.bin", dtype=np.uint16)
    ids[7] += 1 if ids[7] < 299 else -1
    ids.tofile(stories / "train.bin")
    with pytest.raises(BadData, match=r"is not the file that meta\.json describes"):
        open_tokens(stories)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"schema_version": 1', "is damaged: Expecting"),
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


def test_a_process_reads_a_file_once_and_again_only_when_it_changes(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = open_tokens(bare)
    with monkeypatch.context() as patch:
        patch.setattr(module.np, "frombuffer", None)
        assert open_tokens(bare) == first
    write_ids(bare / "val.bin", [3, 50257])
    with pytest.raises(BadData, match="holds the id 50257"):
        open_tokens(bare)


def test_a_change_that_keeps_size_and_time_is_noticed(stories: Path) -> None:
    data = open_tokens(stories)
    file = stories / "val.bin"
    before, content = file.stat(), bytearray(file.read_bytes())
    content[0] ^= 1
    file.write_bytes(content)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(BadData, match="has changed since it was opened"):
        data.split("val")
    with pytest.raises(BadData, match="is not the file that"):
        open_tokens(stories)


def test_opening_tokens_writes_nothing(stories: Path) -> None:
    before = sorted(stories.iterdir())
    open_tokens(stories)
    assert sorted(stories.iterdir()) == before


def everything(folder: Path) -> tuple[object, ...]:
    """Return all that a run or a report can read from a data folder."""
    data, sealed = open_tokens(folder), sealed_split(folder)
    ids = {split: data.split(split).tolist() for split in data.splits}
    tokenizer = load_tokenizer(folder)
    return (
        data.meta,
        data.checksum,
        ids,
        sealed,
        tokenizer.sha256,
        tokenizer.encode_batch(["Tom was here."])[0].tolist(),
    )


@pytest.fixture(scope="module", params=["trained", "gpt2"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared folder with every kind of file."""
    spec = DataSpec(tokens=2_000, vocab_size=300 if request.param == "trained" else None, seal=0.2)
    return prepare(spec, tmp_path_factory.mktemp("flips") / request.param)


def test_a_flipped_bit_in_any_file_is_refused_or_changes_nothing(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(whole, folder)
    expected = everything(folder)
    chance = random.Random(0)
    names = {file.name for file in folder.iterdir()} - {".lock"}
    assert {"train.bin", "val.bin", "test.bin", "sealed.bin", "meta.json"} < names
    for name in sorted(names):
        file = folder / name
        content = file.read_bytes()
        is_statement = name == "meta.json"
        for _ in range(300 if is_statement else 8):
            place, bit = chance.randrange(len(content)), chance.randrange(8)
            file.write_bytes(content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :])
            try:
                found, said = everything(folder), ""
            except BadData as error:
                found, said = None, str(error)
            assert found or name in said or "tokenizer" in said, said
            assert is_statement or not found, f"byte {place} of {name} is not covered by a checksum"
            assert found in (None, expected), f"byte {place} of {name} changes a result"
        file.write_bytes(content)
    assert everything(folder) == expected


def test_every_field_of_the_statement_is_covered(stories: Path) -> None:
    path = stories / "meta.json"
    plain = json.loads(path.read_text())

    def change(value: object) -> Iterator[object]:
        """Yield the value with each of its fields changed once."""
        if isinstance(value, dict):
            for key, inner in value.items():
                yield from ({**value, key: other} for other in change(inner))
        elif isinstance(value, list):
            yield [*value, "test"]
        else:
            yield value + "0" if isinstance(value, str) else 7 if value is None else value + 1

    changed = list(change(plain))
    assert len(changed) > 30
    for other in changed:
        path.write_text(json.dumps(other))
        with pytest.raises(BadData, match=r"meta\.json"):
            open_tokens(stories)


def test_a_folder_from_before_statements_had_a_checksum_opens_with_the_checks_that_it_allows(stories: Path) -> None:
    path = stories / "meta.json"
    plain = json.loads(path.read_text())
    del plain["file_checksum"]
    path.write_text(json.dumps(plain))
    assert open_tokens(stories).checksum == plain["checksum"]
    plain["splits"]["train"]["sha256"] = "0" * 64
    path.write_text(json.dumps(plain))
    with pytest.raises(BadData, match=r"meta\.json is damaged: its checksum is not that of the files"):
        open_tokens(stories)


@pytest.mark.parametrize("dtype", [np.uint16, np.int64])
def test_arrays_that_numpy_saved_are_read_as_tokens(tmp_path: Path, dtype: type) -> None:
    np.save(tmp_path / "train.npy", np.array([1, 2, 50256], dtype=dtype))
    np.save(tmp_path / "val.npy", np.array([3, 4], dtype=dtype))
    data = open_tokens(tmp_path / "train.npy")
    assert data.split("train").tolist() == [1, 2, 50256]
    assert data.split("train").dtype == np.uint16
    assert data.split("val").tolist() == [3, 4]


@pytest.mark.parametrize(
    "array", [np.zeros((2, 2), dtype=np.uint16), np.array([0.5]), np.array([-1]), np.array([70000])]
)
def test_arrays_of_anything_else_are_refused(tmp_path: Path, array: np.ndarray) -> None:
    np.save(tmp_path / "train.npy", array)
    with pytest.raises(BadData, match="not a row of 16-bit ids"):
        open_tokens(tmp_path / "train.npy")


def test_bare_files_have_the_stated_vocabulary_only_if_they_need_it(tmp_path: Path) -> None:
    np.array([1, 2, 299], dtype=np.uint16).tofile(tmp_path / "train.bin")
    assert open_tokens(tmp_path / "train.bin", vocab_size=300).vocab_size == 300
    assert open_tokens(tmp_path / "train.bin").vocab_size == 50257
    # A GPT with padded rows reads GPT-2's tokens, and its runs keep their checksum.
    assert open_tokens(tmp_path / "train.bin", vocab_size=50304) == open_tokens(tmp_path / "train.bin")
    with pytest.raises(BadData, match="holds the id 299, but its vocabulary has 200"):
        open_tokens(tmp_path / "train.bin", vocab_size=200)
    np.array([1, 60000], dtype=np.uint16).tofile(tmp_path / "train.bin")
    assert open_tokens(tmp_path / "train.bin", vocab_size=60001).vocab_size == 60001
