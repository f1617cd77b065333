"""Every model is read with the tokenizer it was trained with, or refused in words."""

import pytest

from oelm.data.tokenizer import trained_encoder
from oelm.errors import BadData
from oelm.interop.pretrained import encoder_of
from oelm.spec.run import GPT_SIZES, HuggingFaceSpec

TEXTS = ["Tom went to the park.", "Lily saw a bird."]


def test_our_gpt_reads_as_gpt2_does():
    (encoded,) = encoder_of(GPT_SIZES["mini"]).encode([("Hello world",)], 8)
    assert encoded.ids[:2] == [15496, 995]


def test_a_directory_is_read_with_its_own_tokenizer(tmp_path):
    own = trained_encoder(TEXTS, 270)
    own.tokenizer.save(str(tmp_path / "tokenizer.json"))
    found = encoder_of(HuggingFaceSpec(name=str(tmp_path)))
    assert found.encode([(TEXTS[0],)], 32)[0].ids == own.encode([(TEXTS[0],)], 32)[0].ids


def test_a_shape_without_a_tokenizer_says_how_to_get_one():
    with pytest.raises(BadData, match="--vocab-size"):
        encoder_of(HuggingFaceSpec(name="gpt2-tiny", pretrained=False))


def test_a_directory_without_a_tokenizer_is_refused_in_words(tmp_path):
    with pytest.raises(BadData, match=r"could not be read .* tokenizer\.json"):
        encoder_of(HuggingFaceSpec(name=str(tmp_path)))
