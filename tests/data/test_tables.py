"""Tables: every format the same rows; what is not a table is refused by its line."""

import csv
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oelm.data.documents import Position, RowFiles
from oelm.data.sources import read_table
from oelm.errors import BadData

ROWS = [{"sentence": 'she said "no"', "label": "1"}, {"sentence": "a, b", "label": "0"}]


def written(path, rows):
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".csv":
        with path.open("w", newline="") as file:
            table = csv.DictWriter(file, rows[0])
            table.writeheader()
            table.writerows(rows)
    elif path.suffix == ".tsv":
        lines = ["\t".join(rows[0]), *("\t".join(row.values()) for row in rows)]
        path.write_text("\n".join(lines) + "\n")
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    return path


@pytest.mark.parametrize("suffix", [".tsv", ".csv", ".jsonl", ".parquet"])
def test_every_format_gives_the_same_rows(tmp_path, suffix):
    assert read_table(written(tmp_path / f"train{suffix}", ROWS)) == ROWS


text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\t\n\r\ufeff"), min_size=1).filter(
    str.strip
)


@given(st.lists(st.tuples(text, text), min_size=1))
def test_tab_separated_texts_come_back_whatever_they_hold(tmp_path_factory, pairs):
    path = tmp_path_factory.mktemp("tables") / "train.tsv"
    rows = [{"sentence": one, "label": other} for one, other in pairs]
    path.write_text("\n".join(["sentence\tlabel", *(f"{one}\t{other}" for one, other in pairs)]), newline="")
    assert read_table(path) == rows


def test_a_byte_that_is_not_utf8_is_named_by_its_line(tmp_path):
    path = tmp_path / "train.tsv"
    path.write_bytes("sentence\tlabel\nschön\t1\n".encode() + "schlöcht\t0\n".encode("latin1"))
    with pytest.raises(BadData, match=r"line 3, is not UTF-8 \(byte 0xf6\).*iconv"):
        read_table(path)


def test_a_row_with_other_columns_than_the_header_is_named(tmp_path):
    path = tmp_path / "train.tsv"
    path.write_text("sentence\tlabel\ngood\t1\nbad\n")
    with pytest.raises(BadData, match="row 2, has 1 columns, and the header 2"):
        read_table(path)


@pytest.mark.parametrize("content", ["", "sentence\tlabel\n"])
def test_a_table_without_rows_is_refused(tmp_path, content):
    (tmp_path / "train.tsv").write_text(content)
    with pytest.raises(BadData, match="holds no rows"):
        read_table(tmp_path / "train.tsv")


@pytest.mark.parametrize("line", ["not json", "[1, 2]"])
def test_a_line_that_is_not_an_object_is_refused(tmp_path, line):
    (tmp_path / "train.jsonl").write_text('{"a": 1}\n' + line + "\n")
    with pytest.raises(BadData, match="line 2, is not"):
        read_table(tmp_path / "train.jsonl")


def test_json_that_is_nested_too_deeply_is_refused(tmp_path):
    (tmp_path / "train.jsonl").write_text("[" * 100_000)
    with pytest.raises(BadData, match="line 1, is not JSON"):
        read_table(tmp_path / "train.jsonl")


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet"])
def test_two_columns_of_one_name_are_refused(tmp_path, suffix):
    path = tmp_path / f"train{suffix}"
    if suffix == ".parquet":
        pq.write_table(pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["text", "text"]), path)
    else:
        path.write_text("text,text\na,b\n".replace(",", "," if suffix == ".csv" else "\t"))
    with pytest.raises(BadData, match="has 2 columns called 'text'"):
        read_table(path)


def test_a_csv_file_with_an_open_quotation_mark_is_refused(tmp_path):
    (tmp_path / "train.csv").write_text('text,label\n"open,1\n')
    with pytest.raises(BadData, match="is not a readable CSV file"):
        read_table(tmp_path / "train.csv")


def test_a_folder_that_is_named_like_a_table_is_refused(tmp_path):
    for suffix in (".csv", ".parquet"):
        (tmp_path / f"train{suffix}").mkdir()
        with pytest.raises(BadData):
            read_table(tmp_path / f"train{suffix}")


def test_parquet_text_that_is_not_utf8_is_refused(tmp_path):
    offsets, letters = pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe")
    broken = pa.Array.from_buffers(pa.string(), 1, [None, offsets, letters])
    pq.write_table(pa.table({"text": broken}), tmp_path / "train.parquet")
    with pytest.raises(BadData, match="text that is not UTF-8"):
        read_table(tmp_path / "train.parquet")
    with pytest.raises(BadData, match="text that is not UTF-8"):
        list(RowFiles([tmp_path / "train.parquet"]).blocks(Position(), 100))


@pytest.mark.parametrize("line", ["text , label", "\ufefftext,label"])
def test_names_of_columns_are_stripped(tmp_path, line):
    (tmp_path / "train.csv").write_text(f"{line}\nfine,1\n", encoding="utf-8")
    assert read_table(tmp_path / "train.csv") == [{"text": "fine", "label": "1"}]
