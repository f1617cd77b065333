"""Probes: answers that follow, a floor that is exact, documents that fill a window."""

import math
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from oelm.data import probes
from oelm.data.prepare import prepare
from oelm.data.probes import ASK, KEYS, LENGTH, VALUES, answers, generate_probes, guess_rate, write_probe
from oelm.data.sources import make_request
from oelm.data.tokenizer import load_tokenizer
from oelm.data.tokens import open_tokens
from oelm.errors import UnknownName, UsageError
from oelm.spec.run import PROBE_SIZES, DataSpec, ProbeSpec, probe_of

RECALLS = st.builds(ProbeSpec, kind=st.just("recall"), size=st.integers(*PROBE_SIZES["recall"]))
COPIES = st.builds(ProbeSpec, kind=st.just("copy"), size=st.integers(*PROBE_SIZES["copy"]))


@given(RECALLS, st.integers(0, 99))
def test_every_answer_of_recall_is_the_value_that_its_key_was_given(probe, index):
    text = write_probe(probe, 0, index).text
    assert len(text) == LENGTH - 1
    listed, asked = text.split(ASK)
    value_of = dict(zip(listed[::2], listed[1::2], strict=True))
    assert len(value_of) == len(set(value_of.values())) == probe.size
    assert set(value_of) <= set(KEYS)
    assert set(value_of.values()) <= set(VALUES)
    assert [text[place] for place in answers(probe)] == [value_of[text[place - 1]] for place in answers(probe)]
    assert "".join(text[place - 1] + text[place] for place in answers(probe)) == asked
    for first in range(0, len(asked), 2 * probe.size):
        one_round = asked[first : first + 2 * probe.size : 2]
        assert len(set(one_round)) == len(one_round)


@given(COPIES, st.integers(0, 99))
def test_every_answer_of_copy_is_the_letter_that_stood_so_far_before_and_nowhere_else(probe, index):
    text = write_probe(probe, 0, index).text
    assert len(text) == LENGTH - 1
    assert len(set(text[: probe.size])) == probe.size
    assert answers(probe) == tuple(range(probe.size, LENGTH - 1))
    assert all(text[place] == text[place - probe.size] for place in answers(probe))


@given(st.one_of(RECALLS, COPIES), st.integers(0, 9), st.integers(0, 50))
def test_a_document_depends_on_its_probe_seed_and_number_alone(probe, seed, index):
    assert next(generate_probes(probe, seed, index)) == write_probe(probe, seed, index)
    assert write_probe(probe, seed, index) != write_probe(probe, seed + 1, index)
    assert write_probe(probe, seed, index) != write_probe(probe, seed, index + 1)


def test_the_probability_is_one_in_the_number_of_documents_there_can_be():
    size = 3
    questions = 63 - size
    ways = math.perm(len(KEYS), size) * math.perm(len(VALUES), size) * math.factorial(size) ** (questions // size)
    ways *= math.perm(size, questions % size)
    assert write_probe(ProbeSpec(kind="recall", size=size), 0, 0).log_probability == pytest.approx(-math.log(ways))
    letters = math.perm(len(KEYS + VALUES), 64)
    assert write_probe(ProbeSpec(kind="copy", size=64), 0, 0).log_probability == pytest.approx(-math.log(letters))


@pytest.mark.parametrize(("corpus", "share"), [("recall:2", 0.75), ("copy:2", 0.752)])
def test_counting_alone_is_right_where_one_answer_is_left(corpus, share):
    # Of two answers the first is a guess between two and the second is what is left.
    assert guess_rate(probe_of(corpus)) == pytest.approx(share, abs=0.01)
    assert guess_rate(probe_of(corpus.replace("2", "32"))) < 0.13


@pytest.mark.parametrize("corpus", ["recall:8", "copy:16"])
def test_prepared_documents_fill_windows_of_128_tokens_with_a_floor_and_without_a_vocabulary_to_find(corpus, tmp_path):
    directory = prepare(DataSpec(corpus=corpus, tokens=20_000), tmp_path / "data")
    tokens = open_tokens(directory)
    assert tokens.vocab_size == probes.VOCAB_SIZE
    tokenizer = load_tokenizer(directory)
    texts = []
    for split in tokens.splits:
        rows = np.asarray(tokens.split(split)).reshape(-1, LENGTH)
        assert (rows[:, -1] == tokenizer.end_of_text).all()
        assert (rows[:, :-1] < tokenizer.end_of_text).all()
        texts += [tokenizer.decode(row[:-1]) for row in rows]
    made = list(islice(generate_probes(probe_of(corpus), 0), len(texts)))
    assert sorted(texts) == sorted(each.text for each in made)
    assert tokens.floor["test"] == pytest.approx(-made[0].log_probability / LENGTH)


@pytest.mark.parametrize(
    "name", ["recall:1", "recall:33", "copy:65", "copy:x", "recall:", "copy:08", "copy:-4", "copy:²"]
)
def test_a_probe_that_cannot_be_is_refused_with_the_sizes_that_can(name):
    with pytest.raises(ValidationError, match="takes a number from 2 to"):
        DataSpec(corpus=name)


def test_other_corpora_are_no_probes_and_probes_take_neither_files_nor_a_vocabulary(tmp_path):
    assert DataSpec().probe is probe_of("owner/copy:64") is probe_of("recall") is None
    with pytest.raises(ValidationError, match="vocabulary of its own"):
        DataSpec(corpus="copy:8", vocab_size=300)
    with pytest.raises(UsageError, match="is generated"):
        make_request(DataSpec(corpus="copy:8", source=tmp_path))
    with pytest.raises(UnknownName, match="recall:8"):
        make_request(DataSpec(corpus="recall"))
