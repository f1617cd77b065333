"""What is read from a place on does not depend on what was read before."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from oelm.data import documents, stories
from oelm.data import documents as readers
from oelm.data.documents import Generated, Position, RowFiles, Source, TextBlock, TextFiles
from oelm.errors import BadData

TEXTS = [f"Document {number}.\n" + "Word " * (number % 7) + "end." for number in range(60)]


def text_files(folder: Path) -> Source:
    half = len(TEXTS) // 2
    (folder / "a.txt").write_text("\n<|endoftext|>\n".join(TEXTS[:half]))
    (folder / "b.txt").write_text("\n<|endoftext|>\n".join(TEXTS[half:]) + "\n<|endoftext|>\n")
    return TextFiles([folder / "a.txt", folder / "b.txt"], "stories")


def json_files(folder: Path) -> Source:
    lines = [json.dumps({"id": 1, "text": text}) for text in TEXTS]
    lines[5:5] = ["", '{"text": ""}', '{"text": null}']
    (folder / "a.jsonl").write_text("\n".join(lines[:20]) + "\n")
    (folder / "b.jsonl").write_text("\n".join(lines[20:]))
    return RowFiles([folder / "a.jsonl", folder / "b.jsonl"])


def parquet_files(folder: Path) -> Source:
    table = pa.table({"id": list(range(len(TEXTS) + 1)), "text": [*TEXTS[:9], None, *TEXTS[9:]]})
    pq.write_table(table, folder / "a.parquet", row_group_size=7)
    return RowFiles([folder / "a.parquet"])


def generated(_folder: Path) -> Source:
    return Generated(lambda start: stories.generate_stories(5, start=start))


SOURCES = [text_files, json_files, parquet_files, generated]


START = Position()


def read(source: Source, position: Position = START, most: int = 60) -> list[TextBlock]:
    blocks: list[TextBlock] = []
    for block in source.blocks(position, 100):
        blocks.append(block)
        if sum(len(block.texts) for block in blocks) >= most:
            break
    return blocks


@pytest.mark.parametrize("make", SOURCES)
def test_reading_on_from_any_block_gives_the_same_blocks(make: Callable[[Path], Source], tmp_path: Path) -> None:
    source = make(tmp_path)
    blocks = read(source)
    assert len(blocks) > 10
    for number, block in enumerate(blocks[:-1]):
        rest = read(source, block.after, sum(len(later.texts) for later in blocks[number + 1 :]))
        assert rest == blocks[number + 1 :]


def test_reading_on_in_the_middle_of_a_long_document_gives_the_same_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (readers, documents):
        monkeypatch.setattr(module, "MAX_PIECE", 64)
        monkeypatch.setattr(module, "LOOKAHEAD", 16)
    monkeypatch.setattr(readers, "_CHUNK", 50)
    (tmp_path / "a.txt").write_text("\n".join(TEXTS))
    source = TextFiles([tmp_path / "a.txt"], "files")
    blocks = read(source, most=1000)
    assert [block.whole for block in blocks] == [False] * (len(blocks) - 1) + [True]
    assert {block.first for block in blocks} == {0}
    for number, block in enumerate(blocks[:-1]):
        assert read(source, block.after, most=1000) == blocks[number + 1 :]


@pytest.mark.parametrize("make", SOURCES[:3])
def test_every_document_is_read_once_and_numbered(make: Callable[[Path], Source], tmp_path: Path) -> None:
    source = make(tmp_path)
    blocks = read(source)
    texts = [text.decode().replace("<|endoftext|>", "").strip() for block in blocks for text in block.texts]
    assert texts == TEXTS
    counted = 0
    for block in blocks:
        assert block.first == counted
        counted += len(block.texts)
        assert block.after.document == counted
    assert source.size is not None
    assert sum(block.done for block in blocks) == pytest.approx(source.size, abs=20)


def test_stories_come_with_their_probabilities() -> None:
    blocks = read(generated(Path()), most=4)
    made = [(text.decode(), chance) for b in blocks for text, chance in zip(b.texts, b.log_probabilities, strict=True)]
    assert made == [(story.text, story.log_probability) for story in stories.generate_stories(5, len(made))]


@pytest.mark.parametrize(
    "line",
    [
        '{"text": "cut',
        '{"text": 0}',
        '{"text": false}',
        '{"text": []}',
        "[" * 100_000,
        '{"text": 1' + "0" * 5000,
        '{"title": "no text"}',
        '["text"]',
        '{"text": 5}',
        "plain",
        "3",
        b"\xff\xfe{}",
    ],
)
def test_a_row_without_text_is_refused_with_its_place(line: str | bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "fine"}\n' + (line if isinstance(line, bytes) else line.encode()) + b"\n")
    with pytest.raises(BadData, match=r"a\.jsonl, at byte 17, is not a JSON row"):
        list(RowFiles([path]).blocks(Position(), 100))


def test_half_a_surrogate_pair_becomes_a_replacement_character(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a \\ud83d b"}')
    (block,) = RowFiles([tmp_path / "a.jsonl"]).blocks(Position(), 100)
    assert block.texts[0].decode() == "a � b"


@pytest.mark.parametrize("values", [[1, 2], [b"a", b"b"], [1.5, None], [["a"], ["b"]], [{"a": "b"}, None]])
def test_parquet_text_that_is_not_strings_is_refused_with_its_row(values: list[object], tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": values}), tmp_path / "a.parquet")
    with pytest.raises(BadData, match=r"a\.parquet, row 1, has no string in the column `text`"):
        list(RowFiles([tmp_path / "a.parquet"]).blocks(Position(), 100))


def test_parquet_that_is_torn_or_has_no_text_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"body": ["x"], "title": ["y"]}), tmp_path / "a.parquet")
    with pytest.raises(BadData, match="no column `text`, only body, title"):
        list(RowFiles([tmp_path / "a.parquet"]).blocks(Position(), 100))
    (tmp_path / "b.parquet").write_bytes(b"PAR1 and then nothing")
    with pytest.raises(BadData, match="not readable Parquet"):
        list(RowFiles([tmp_path / "b.parquet"]).blocks(Position(), 100))
