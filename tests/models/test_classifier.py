"""A model as a classifier: called as its makers call it."""

import pytest
import torch

from oelm.errors import BadShape
from oelm.models.build import build
from oelm.spec.run import HuggingFaceSpec
from oelm.tasks.classification import Classifier, refuse_longer

transformers = pytest.importorskip("transformers")

SMALL = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


def small(name):
    """Draw a small model with three labels."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if name == "gpt2":
            config = transformers.GPT2Config(vocab_size=50, n_embd=16, n_layer=1, n_head=2, n_positions=16)
            config.pad_token_id = 49
        else:
            config = getattr(
                transformers, {"bert": "BertConfig", "roberta": "RobertaConfig", "camembert": "CamembertConfig"}[name]
            )(**SMALL, max_position_embeddings=16)
            config.type_vocab_size = 2 if name == "bert" else 1
        config.num_labels = 3
        return transformers.AutoModelForSequenceClassification.from_config(config).eval()


def a_pair():
    ids = torch.tensor([[5, 6, 7, 8, 9, 10], [11, 12, 13, 14, 49, 49]])
    mask = (ids != 49).long()
    return ids, mask, torch.tensor([[0, 0, 0, 1, 1, 1], [0, 1, 1, 1, 0, 0]])


@pytest.mark.parametrize("name", ["gpt2", "roberta"])
def test_a_model_that_does_not_tell_two_texts_apart_is_called_without_kinds(name):
    model = small(name)
    ids, mask, kinds = a_pair()
    with torch.no_grad():
        own = model(input_ids=ids, attention_mask=mask).logits
        assert torch.equal(Classifier(model, 49).logits(ids, mask, kinds), own)


def test_token_types_are_passed_to_models_that_have_several():
    model = small("bert")
    ids, mask, kinds = a_pair()
    with torch.no_grad():
        own = model(input_ids=ids, attention_mask=mask, token_type_ids=kinds).logits
        assert torch.equal(Classifier(model, 0).logits(ids, mask, kinds), own)
        assert not torch.equal(Classifier(model, 0).logits(ids, mask, 0 * kinds), own)
        without = model(input_ids=ids, attention_mask=mask).logits
        assert torch.equal(Classifier(model, 0, token_types=False).logits(ids, mask, kinds), without)


@pytest.mark.parametrize("name", ["bart-tiny", "t5-tiny", "bert-tiny", "gpt2"])
def test_padding_with_the_end_of_a_trained_vocabulary_changes_no_logit(name):
    spec, end = HuggingFaceSpec(name=name, labels=3, pretrained=False), 299
    model = build(spec, seed=1, vocab_size=300).eval()
    long, short = [5, 6, 7, 8, 9, end], [11, 12, end]
    ids = torch.tensor([long, short + [end] * 3])
    mask = torch.tensor([[1] * 6, [1] * 3 + [0] * 3])
    classifier = Classifier(model, end)
    with torch.no_grad():
        together = classifier.logits(ids, mask, torch.zeros_like(ids))
        for row, alone in enumerate((long, short)):
            one = torch.tensor([alone])
            torch.testing.assert_close(
                classifier.logits(one, torch.ones_like(one), torch.zeros_like(one))[0], together[row]
            )


def test_texts_of_more_tokens_than_positions_are_refused_in_words():
    model = small("gpt2")
    refuse_longer(model, 16)
    with pytest.raises(BadShape, match="up to 17 tokens, but the model reads 16 at most"):
        refuse_longer(model, 17)


@pytest.mark.parametrize("name", ["roberta", "camembert"])
def test_positions_that_are_counted_from_behind_the_padding_are_fewer(name):
    model = small(name)
    refuse_longer(model, 14)
    model(input_ids=torch.full((1, 14), 5))
    with pytest.raises(BadShape, match="reads 14 at most"):
        refuse_longer(model, 15)


@pytest.mark.parametrize("name", ["t5-tiny", "bart-tiny"])
def test_an_encoder_decoder_with_its_own_vocabulary_knows_how_answers_begin(name):
    model = build(HuggingFaceSpec(name=name, labels=3, pretrained=False)).eval()
    ids = torch.tensor([[5, 6, 7, model.config.eos_token_id]])
    assert Classifier(model, 0).logits(ids, torch.ones_like(ids), torch.zeros_like(ids)).shape == (1, 3)
