"""Text token by token."""

import math

import pytest
import torch

from oelm.errors import UsageError
from oelm.models.gpt import GPT, choose_token, generate_tokens
from oelm.spec.run import GPT_SIZES, stream


@pytest.fixture(scope="module")
def model():
    return GPT(GPT_SIZES["nano"], seed=1)


def test_the_likeliest_continuation_is_that_of_the_model_without_a_cache(model):
    text = [5, 6, 7]
    for token in generate_tokens(model, text, new_tokens=10, temperature=0):
        assert token == int(model.eval()(torch.tensor([text]))[0, -1].argmax())
        text.append(token)


def test_the_same_seed_gives_the_same_text_and_another_seed_another(model):
    texts = [list(generate_tokens(model, [1], new_tokens=30, seed=seed)) for seed in (0, 0, 1)]
    assert texts[0] == texts[1] != texts[2]


def test_generation_goes_on_past_the_context(model):
    assert len(list(generate_tokens(model, list(range(32)), new_tokens=80))) == 80


def test_it_stops_after_the_stop_token(model):
    full = list(generate_tokens(model, [1], new_tokens=30))
    stopped = list(generate_tokens(model, [1], new_tokens=30, stop=full[4]))
    assert stopped == full[: full.index(full[4]) + 1]


def test_top_k_and_top_p_leave_only_the_likely():
    logits = torch.tensor([0.1, 0.2, 0.3, 0.4]).log()
    generator = stream(0, "t")
    assert {choose_token(logits, 1, 2, None, generator) for _ in range(100)} == {2, 3}
    assert {choose_token(logits, 1, None, 0.6, generator) for _ in range(100)} == {2, 3}
    assert {choose_token(logits, 1, None, 1e-9, generator) for _ in range(20)} == {3}


def test_tokens_are_drawn_with_their_probabilities():
    logits = torch.tensor([0.8, 0.2]).log()
    generator = stream(0, "t")
    share = sum(choose_token(logits, 1, None, None, generator) for _ in range(4000)) / 4000
    assert share == pytest.approx(0.2, abs=4 * math.sqrt(0.16 / 4000))


@pytest.mark.parametrize("settings", [{"temperature": -1.0}, {"top_k": 0}, {"top_p": 0.0}, {"top_p": 1.5}])
def test_impossible_settings_are_refused(model, settings):
    with pytest.raises(UsageError, match="temperature="):
        list(generate_tokens(model, [1], new_tokens=1, **settings))


def test_an_empty_prompt_is_refused(model):
    with pytest.raises(UsageError, match="at least one token"):
        list(generate_tokens(model, [], new_tokens=1))
