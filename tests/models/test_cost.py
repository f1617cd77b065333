"""FLOPs and bytes from shapes, against closed forms written out here and torch's own counter on a real step."""

import json
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import oelm
from oelm.errors import BadShape, NotCarriedOut
from oelm.models.build import build, parse_model_name
from oelm.models.flops import training_cost
from oelm.models.gpt import GPT
from oelm.spec.run import GPT_SIZES, GPTSpec

NANO = GPT_SIZES["nano"]
MIB = 2**20


def with_method(spec, method):
    model = build(spec)
    oelm.apply(model, method)
    return model


def closed_form_of_gpt(spec, batch, length):
    """Forward FLOPs of our GPT by part: two per multiplication and addition, the whole T x T square."""
    tokens, width, depth = batch * length, spec.model_dim, spec.num_layers
    queries, keys, values = (
        spec.num_heads * spec.qk_size,
        spec.key_heads * spec.qk_size,
        spec.key_heads * spec.head_size,
    )
    return {
        "q": 2 * tokens * depth * width * queries,
        "k": 2 * tokens * depth * width * keys,
        "v": 2 * tokens * depth * width * values,
        "o": 2 * tokens * depth * width * width,
        "ffn": 2 * tokens * depth * 2 * width * spec.hidden_dim,
        "attention": 2 * tokens * depth * length * (queries + width),
        "head": 2 * tokens * width * spec.vocab_size,
    }


def closed_form_of_bert(config, batch, length):
    """Forward FLOPs of a BERT classifier by part; pooler and classifier read one token of each sequence."""
    tokens, width, depth = batch * length, config.hidden_size, config.num_hidden_layers
    square = 2 * tokens * depth * width * width
    return {
        **dict.fromkeys(("q", "k", "v", "o"), square),
        "ffn": 2 * tokens * depth * 2 * width * config.intermediate_size,
        "attention": 2 * tokens * depth * 2 * length * width,
        "head": 2 * batch * width * (width + config.num_labels),
    }


def assert_is_closed_form(cost, forward, frozen=()):
    """A trained map costs twice its forward product backward, a frozen one once: the gradient of its input."""
    assert cost.forward_flops == forward
    assert cost.backward_flops == {part: flops * (1 if part in frozen else 2) for part, flops in forward.items()}
    assert cost.removed_flops == sum(forward[part] for part in frozen)
    assert cost.flop_share == pytest.approx(sum(forward[part] for part in frozen) / (3 * sum(forward.values())))


def test_freezing_qk_removes_the_published_share_of_a_medium_step():
    cost = training_cost(with_method(GPT_SIZES["medium-512"], "oelm-freeze"), 8, 512)
    assert_is_closed_form(cost, closed_form_of_gpt(GPT_SIZES["medium-512"], 8, 512), frozen=("q", "k"))
    assert round(100 * cost.flop_share, 1) == 2.2


@pytest.mark.programs
def test_freezing_qk_removes_the_published_share_of_a_bert_step():
    model = with_method(parse_model_name("bert-base", 3), "oelm-freeze")
    cost = training_cost(model, 8, 128)
    assert_is_closed_form(cost, closed_form_of_bert(model.config, 8, 128), frozen=("q", "k"))
    assert round(100 * cost.flop_share, 1) == 5.4


@pytest.mark.parametrize(("method", "mib"), [("baseline", 514), ("oelm-freeze", 490)])
def test_a_checkpoint_has_the_published_size(method, mib):
    cost = training_cost(with_method(GPT_SIZES["medium-512"], method), 1, 8)
    assert round(cost.checkpoint_bytes / MIB) == mib


@settings(max_examples=15, deadline=None)
@given(
    key_heads=st.sampled_from([1, 2, 4]),
    thin=st.sampled_from([None, 2, 6]),
    positions=st.sampled_from(["learned", "rope"]),
    dropout=st.sampled_from([0.0, 0.1]),
    batch=st.integers(1, 3),
    length=st.integers(2, 32),
    frozen=st.sampled_from([("baseline", ()), ("oelm-random", ("q", "k")), ("oelm-q-only", ("q",))]),
)
def test_every_form_of_our_gpt_costs_its_closed_form(key_heads, thin, positions, dropout, batch, length, frozen):
    spec = NANO.model_copy(
        update={"num_key_heads": key_heads, "qk_head_size": thin, "positions": positions, "dropout": dropout}
    )
    method, roles = frozen
    assert_is_closed_form(
        training_cost(with_method(spec, method), batch, length), closed_form_of_gpt(spec, batch, length), roles
    )


FOLDED = [
    f"{base}+{parts}" for base in ("oelm", "baseline") for parts in ("core", "diagonal", "low-rank", "core+low-rank")
]


@pytest.mark.parametrize(
    "method",
    ["baseline", "oelm-freeze", "oelm-slice", "uniform", "oelm-qk-ffn", "oelm+bias+mix+temperature+shift", *FOLDED],
)
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_the_count_of_our_gpt_equals_torchs_own(method, dropout, monkeypatch, plain_cross_entropy):
    # torch's counter does not see products in place; the plain loss does the same work in plain sight.
    monkeypatch.setattr("oelm.models.gpt.chunked_cross_entropy", plain_cross_entropy)
    model = with_method(NANO.model_copy(update={"dropout": dropout}), method)
    ids = torch.zeros(2, 16, dtype=torch.long)
    assert training_cost(model, 2, 16).total_flops == counted(lambda: model(ids, ids))


def test_a_gpt_with_labels_reads_one_token_and_has_no_vocabulary_to_choose_from():
    spec = NANO.model_copy(update={"labels": 3})
    cost = training_cost(with_method(spec, "oelm-freeze"), 2, 16)
    forward = closed_form_of_gpt(spec, 2, 16) | {"head": 2 * 2 * spec.model_dim * 3}
    assert_is_closed_form(cost, forward, frozen=("q", "k"))


@pytest.mark.programs
def test_an_answer_that_is_written_costs_what_is_written():
    model = with_method(parse_model_name("t5-small", None), "oelm-freeze")
    feed = {"input_ids": torch.ones(1, 16, dtype=torch.long), "decoder_input_ids": torch.ones(1, 3, dtype=torch.long)}

    def loss():
        return model(**feed).logits.sum()

    assert training_cost(model, 1, 16, 3).total_flops == counted(loss)


@pytest.mark.programs
@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("bert-tiny", None),
        ("bert-tiny", 3),
        ("electra-small", 2),
        ("llama-tiny", None),
        ("llama-tiny", 2),
        ("t5-small", None),
    ],
)
def test_the_count_of_a_hugging_face_model_equals_torchs_own(name, labels):
    model = with_method(parse_model_name(name, labels), "oelm-freeze")
    cost = training_cost(model, 1, 16)
    names = ("input_ids", "decoder_input_ids") if model.config.is_encoder_decoder else ("input_ids",)
    feed = dict.fromkeys(names, torch.ones(1, 16, dtype=torch.long))

    def loss():
        return model(**feed).logits.sum()

    assert cost.total_flops == counted(loss)
    assert cost.removed_flops > 0


def counted(loss):
    with (
        FlopCounterMode(display=False) as counter,
        torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
    ):
        loss().backward()
    return counter.get_total_flops()


def test_slices_save_every_product_of_their_projections():
    frozen, sliced = (training_cost(with_method(NANO, method), 1, 16) for method in ("oelm-freeze", "oelm-slice"))
    assert sliced.removed_flops == 3 * frozen.removed_flops
    assert "q" not in sliced.forward_flops


def test_uniform_attention_saves_the_square_of_attention_too():
    cost = training_cost(with_method(NANO, "uniform"), 2, 16)
    forward = closed_form_of_gpt(NANO, 2, 16)
    assert cost.removed_flops == 3 * (forward["q"] + forward["k"] + forward["attention"])
    assert set(cost.forward_flops) == {"v", "o", "ffn", "head"}


def test_a_layer_that_trains_saves_nothing():
    half, all_layers = (
        training_cost(with_method(NANO, method), 1, 16) for method in ("oelm-partial:-1", "oelm-freeze")
    )
    assert 2 * half.removed_flops == all_layers.removed_flops > 0


SMALL = {"vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
FUSED = {
    "GPT2LMHeadModel": {"vocab_size": 61, "n_embd": 32, "n_layer": 2, "n_head": 4},
    "GPTNeoXForCausalLM": {**SMALL, "intermediate_size": 48},
    "ModernBertForMaskedLM": {**SMALL, "intermediate_size": 48, "reference_compile": False, "pad_token_id": 0,
                              "cls_token_id": 1, "sep_token_id": 2, "bos_token_id": 1, "eos_token_id": 2},
}  # fmt: skip


def fused_model(name):
    transformers = pytest.importorskip("transformers")
    cls = getattr(transformers, name)
    return cls(cls.config_class(**{**FUSED, "BertForMaskedLM": {**SMALL, "intermediate_size": 48}}[name]))


@pytest.mark.parametrize("name", FUSED)
def test_frozen_rows_of_a_fused_tensor_cost_no_gradient(name):
    model = fused_model(name)
    audit = oelm.apply(model, "oelm-freeze")
    cost = training_cost(model, 2, 16)
    product = 2 * 2 * 16 * 2 * 32 * 32
    assert {role: cost.forward_flops[role] for role in "qkv"} == dict.fromkeys("qkv", product)
    assert [cost.backward_flops[role] for role in "qkv"] == [product, product, 2 * product]
    assert cost.removed_flops == 2 * product
    assert cost.optimizer_bytes == 2 * 4 * audit.trainable


@pytest.mark.parametrize("name", [*FUSED, "BertForMaskedLM"])
def test_slices_and_absent_maps_cost_no_product_on_hugging_face_models(name):
    for method in ("oelm-slice", "oelm-slice+features", "uniform", "position-only"):
        model = fused_model(name)
        oelm.apply(model, method)
        cost = training_cost(model, 2, 16)
        assert not {"q", "k"} & (cost.forward_flops.keys() | cost.backward_flops.keys()), method
        # Where Q and K are modules of their own, attention does not compute the gradients of absent ones either.
        assert cost.removed_flops >= 6 * 2 * 2 * 16 * 2 * 32 * 32


@pytest.mark.parametrize("name", FUSED)
def test_features_make_the_products_of_queries_and_keys_smaller(name):
    model = fused_model(name)
    oelm.apply(model, "oelm-freeze+features")
    cost = training_cost(model, 2, 16)
    product = 2 * 2 * 16 * 2 * 32 * 32
    assert [cost.forward_flops[role] for role in "qkv"] == [product // 2, product // 2, product]


def test_what_is_folded_into_frozen_weights_takes_back_what_freezing_them_removed():
    frozen, core, diagonal = (
        training_cost(with_method(NANO, method), 2, 16) for method in ("oelm-freeze", "oelm-core", "oelm-diagonal")
    )
    forward = closed_form_of_gpt(NANO, 2, 16)
    folding = 2 * NANO.num_layers * NANO.model_dim**2 * NANO.head_size  # once a step, and not per token
    assert core.forward_flops == {**forward, "repair": folding}
    assert core.backward_flops == {**frozen.backward_flops, "q": 2 * forward["q"], "repair": folding}
    assert core.removed_flops == forward["k"] - 2 * folding
    assert diagonal.removed_flops == 0
    assert diagonal.forward_flops == forward


def test_moments_are_kept_for_what_trains_only():
    model = GPT(NANO)
    audit = oelm.apply(model, "oelm-freeze")
    cost = training_cost(model, 1, 16)
    assert cost.weight_bytes == 4 * audit.total
    assert cost.optimizer_bytes == 2 * 4 * audit.trainable
    assert cost.gradient_bytes == 4 * audit.trainable


def test_counting_leaves_the_model_the_draws_and_the_configuration_as_they_were():
    model = with_method(parse_model_name("llama-tiny", 2), "oelm-freeze").train()
    before = {name: (id(p), p.requires_grad, p.device.type) for name, p in model.named_parameters()}
    state, config = torch.get_rng_state(), model.config.to_dict()
    training_cost(model, 2, 8)
    assert {name: (id(p), p.requires_grad, p.device.type) for name, p in model.named_parameters()} == before
    assert torch.equal(torch.get_rng_state(), state)
    assert model.config.to_dict() == config
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_model_that_cannot_be_counted_is_refused_in_words():
    with pytest.raises(BadShape, match="context of 32"):
        training_cost(GPT(NANO), 1, 33)
    with pytest.raises(NotCarriedOut, match="1 x 600.*Try a length"):
        training_cost(build(parse_model_name("bert-tiny", 3)), 1, 600)
    with pytest.raises(NotCarriedOut, match="its inputs are unknown"):
        training_cost(nn.TransformerEncoderLayer(32, 4), 1, 8)


@pytest.mark.parametrize("method", ["oelm-freeze", "oelm-bias"])
def test_activations_are_those_that_autograd_really_keeps_fused_attention_or_not(method):
    model = GPT(NANO)
    oelm.apply(model, method)
    kept = {}
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}

    def pack(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor  # held, so that no address is given out again
        return tensor

    ids = torch.zeros(2, 32, dtype=torch.long)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model(ids, ids)
    real = sum(tensor.untyped_storage().nbytes() for place, tensor in kept.items() if place not in own)
    assert loss.requires_grad
    assert training_cost(model, 2, 32).activation_bytes == pytest.approx(real, rel=0.08)


PEAK = r"""
import json, re, sys, torch
from pathlib import Path
from oelm.models.flops import training_cost
from oelm.models.gpt import GPT
from oelm.spec.run import GPTSpec
from oelm.spec.run import TrainSpec
from oelm.train.loop import Optimizer
torch.set_num_threads(1)
spec = GPTSpec.model_validate_json(sys.argv[1])
def status(field):  # not ru_maxrss, which begins with what the parent had
    return 1024 * int(re.search(field + r":\s+(\d+)", Path("/proc/self/status").read_text()).group(1))
small = GPT(spec.model_copy(update=dict(model_dim=32, num_layers=1)))
training_cost(small, 1, 8)
small(torch.zeros(1, 8).long(), torch.zeros(1, 8).long()).backward()
before = status("VmRSS")
model = GPT(spec)
optimizer = Optimizer(model, TrainSpec(), dict.fromkeys((n for n, _ in model.named_parameters()), 1.0))
for _ in range(2):
    ids = torch.zeros(8, 256).long()
    optimizer.backward(model(ids, ids)); optimizer.step(1e-4)
print(json.dumps([status("VmHWM") - before, training_cost(model, 8, 256).memory_bytes]))
"""


@pytest.mark.programs
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_a_real_step_needs_at_most_half_as_much_again_as_the_estimate_of_memory(dropout):
    spec = GPTSpec(vocab_size=1000, context=256, model_dim=256, num_layers=6, num_heads=8, dropout=dropout)
    command = [sys.executable, "-c", PEAK, spec.model_dump_json()]
    measured, estimate = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert 1 < measured / estimate < 1.5  # what is left out is scratch space and the loss
