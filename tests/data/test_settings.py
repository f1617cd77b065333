"""A run that names prepared data in another way than they were prepared."""

import pytest

from oelm.data.prepare import find_or_prepare, prepare
from oelm.errors import UnknownName, UsageError
from oelm.spec.run import DataSpec


@pytest.fixture
def mine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.txt").write_text("\n\n".join(f"The {n} sat on mat number {n * n}." for n in range(400)))
    return prepare(DataSpec(corpus="mine", vocab_size=300, source=tmp_path / "mine.txt"))


def test_the_flag_of_a_vocabulary_is_named(mine):
    assert find_or_prepare(DataSpec(corpus="mine", vocab_size=300)) == mine
    with pytest.raises(UsageError, match=r"mine-bpe300 was made with vocab_size 300 .*use --data.vocab-size 300;"):
        find_or_prepare(DataSpec(corpus="mine"))
    with pytest.raises(UsageError, match=r"leave out --data.tokens"):
        find_or_prepare(DataSpec(corpus="mine", vocab_size=300, tokens=50, directory=mine))


def test_an_unknown_corpus_stays_unknown(mine):
    with pytest.raises(UnknownName, match="mein"):
        find_or_prepare(DataSpec(corpus="mein"))
