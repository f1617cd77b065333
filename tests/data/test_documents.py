"""Cutting a text never changes its tokens."""

from __future__ import annotations

import io
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oelm.data import documents
from oelm.data import documents as readers
from oelm.data.documents import DocumentRule, derive_rule, find_cuts, lacks_end, piece_end
from oelm.data.tokenizer import Tokenizer, gpt2_tokenizer, train_tokenizer

CUTTING_RULES: tuple[DocumentRule, ...] = ("stories", "articles", "paragraphs", "lines", "files")
SPACES = ["\t", "\n", "\v", "\f", "\r", " ", "\x1c", "\x85", "\xa0", "\u1680", "\u2003", "\u2028", "\u202f", "\u3000"]
PIECES = ["a", "Tom", "7", "'s", "'", ".", "é", "中", "\U0001f600", "<|endoftext|>", "<|endo", "|>"]
LINES = ["\n", "\n", "\n\n", " \n", " \n = A title = \n \n", " = = Section = = \n", " = x = \n", " "]
TEXTS = st.lists(st.sampled_from(SPACES + PIECES + LINES), max_size=40).map("".join)
GPT2 = gpt2_tokenizer()
TRAINED = train_tokenizer(["Tom ran to the barn.\n\n  Tom's = barn = was red. "] * 9, 280)


def split(rule: DocumentRule, text: bytes) -> list[bytes]:
    places = [0, *find_cuts(rule, text, final=True), len(text)]
    return [text[start:end] for start, end in pairwise(places)]


def tokens(tokenizer: Tokenizer, texts: list[bytes]) -> list[int]:
    return [int(i) for ids in tokenizer.encode_batch([text.decode() for text in texts]) for i in ids]


@given(text=TEXTS)
@settings(max_examples=300, deadline=None)
def test_the_tokens_of_the_documents_are_the_tokens_of_the_text(text: str) -> None:
    whole = {tokenizer: tokens(tokenizer, [text.encode()]) for tokenizer in (GPT2, TRAINED)}
    for rule in CUTTING_RULES:
        parts = split(rule, text.encode())
        assert b"".join(parts) == text.encode()
        assert len(parts) == 1 or not any(part.isspace() or not part for part in parts)
        if len(parts) > 1:
            assert tokens(GPT2, parts) == whole[GPT2], rule
            assert tokens(TRAINED, parts) == whole[TRAINED], rule


@given(text=TEXTS, chunk=st.integers(1, 9), rule=st.sampled_from(CUTTING_RULES))
@settings(max_examples=150, deadline=None)
def test_reading_in_small_chunks_finds_the_same_documents(text: str, chunk: int, rule: DocumentRule) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readers, "_CHUNK", chunk)
        found = list(readers._pieces(io.BytesIO(text.encode()), rule))
    assert all(ends for _, ends in found)
    assert [part for part, _ in found] == [part for part in split(rule, text.encode()) if part]


@given(text=TEXTS, chunk=st.integers(1, 50), rule=st.sampled_from(CUTTING_RULES))
@settings(max_examples=200, deadline=None)
def test_long_documents_are_read_in_pieces_with_the_same_tokens(text: str, chunk: int, rule: DocumentRule) -> None:
    text = text.replace("<|endo", "a").replace("|>", "") if "<|endoftext|>" not in text else text
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readers, "_CHUNK", chunk)
        patch.setattr(readers, "LOOKAHEAD", 200)
        patch.setattr(documents, "LOOKAHEAD", 32)
        for module in (readers, documents):
            patch.setattr(module, "MAX_PIECE", 64)
        found = list(readers._pieces(io.BytesIO(text.encode()), rule))
    assert b"".join(part for part, _ in found) == text.encode()
    assert all(len(part) <= 64 for part, _ in found)
    whole, current = [], b""
    for part, ends in found:
        current += part
        if ends:
            whole.append(current)
            current = b""
    assert whole == [part for part in split(rule, text.encode()) if part]
    if " " in text and not any(len(word) > 40 for word in text.encode().split()):
        parts = [part for part, _ in found]
        assert tokens(GPT2, parts) == tokens(GPT2, [text.encode()])


def test_a_megabyte_without_white_space_is_cut_between_characters_and_never_inside_end_of_text() -> None:
    wide = ("中" * documents.MAX_PIECE).encode()
    assert wide[: piece_end(wide, 0)].decode().strip("中") == ""
    ended = b"x" * (documents.MAX_PIECE - 5) + documents.SEPARATOR + b"x" * 100
    assert piece_end(ended, 0) == documents.MAX_PIECE - 5


def test_an_article_begins_at_a_title_between_blank_lines_and_nowhere_else() -> None:
    text = (
        b" \n = One = \n \n Text . \n \n = = Section = = \n \n Where \n = 1 rad / s and k = \n 1 . \n"
        b" \n = = = Deeper = = = \n \n More . \n \n = Two things = \n \n Text . \n \n = Not = \n a title . \n"
    )
    assert [part.split(b"\n")[0] for part in split("articles", text)] == [b" ", b" = Two things = "]
    assert b"".join(split("articles", text)) == text


def test_separators_end_stories_and_trailing_blanks_make_no_story() -> None:
    text = b"One.\n<|endoftext|>\nTwo.\n<|endoftext|>\n\n<|endoftext|>\nThree.\n<|endoftext|>\n"
    assert split("stories", text) == [
        b"One.\n<|endoftext|>",
        b"\nTwo.\n<|endoftext|>\n\n<|endoftext|>",
        b"\nThree.\n<|endoftext|>\n",
    ]
    assert not lacks_end(b"Three.\n<|endoftext|>\n")
    assert lacks_end(b"Three.\n")


def test_lines_keep_their_newline_unless_more_white_space_belongs_to_it() -> None:
    assert split("lines", b"one\ntwo\n\nthree \n  four\n") == [b"one\n", b"two\n", b"\nthree \n ", b" four\n"]
    assert split("paragraphs", b"one\ntwo\n\nthree\n \n\nfour") == [b"one\ntwo\n", b"\nthree\n \n", b"\nfour"]


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (b"One.\n<|endoftext|>\nTwo.\n\nMore.", "stories"),
        (b" \n = Title = \n \n Text . \n", "articles"),
        (b"Text . \n \n = Title = \n \n Text . \n", "articles"),
        (b"One\nline.\n\nTwo\nlines.\n", "paragraphs"),
        (b"One.\nTwo.\nThree.\n\n", "lines"),
    ],
)
def test_the_rule_for_documents_is_derived_from_the_text(text: bytes, rule: DocumentRule) -> None:
    assert derive_rule(text) == rule


@pytest.mark.shared
@pytest.mark.parametrize(
    ("file", "rule", "expected"),
    [
        ("wikitext-103/wiki.valid.tokens", "articles", 60),
        ("wikitext-103/wiki.test.tokens", "articles", 60),
        ("wikitext-103/wiki.test.tokens", "lines", 2891),
        ("tinystories/train.part.txt", "stories", 2317),
    ],
)
def test_real_texts_keep_their_tokens(shared_data: Path, file: str, rule: DocumentRule, expected: int) -> None:
    text = (shared_data / file).read_bytes()
    parts = split(rule, text)
    assert len(parts) == expected
    cut = np.concatenate(GPT2.encode_batch([part.decode() for part in parts]))
    assert np.array_equal(cut, GPT2.encode_batch([text.decode()])[0])
