"""Repairs of Hugging Face models: what each is, in every family that goes through the attention interface."""

import copy
import importlib.util
import math
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import oelm
from oelm.errors import BadShape, CheckpointError, NotCarriedOut
from oelm.method.freeze import sha256
from oelm.method.repair import Repair
from oelm.models.families import architecture_of
from oelm.models.repaired_attention import BIAS, FEATURES, MIX, SHIFT, TEMPERATURE
from oelm.spec.method import MethodSpec, RepairSpec

_FILE = Path(__file__).parents[1] / "invariants" / "family_rows.py"


def _rows():
    spec = importlib.util.spec_from_file_location("family_rows", _FILE)
    module = sys.modules.setdefault("family_rows", importlib.util.module_from_spec(spec))
    if not hasattr(module, "ROWS"):
        spec.loader.exec_module(module)
    return module


rows = _rows()


@pytest.fixture(autouse=True)
def one_thread():
    """Tiny products on several threads wait for one another longer than they take."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


REPAIRED = [row for row in rows.ROWS if row.repairs]
CACHED = [row for row in REPAIRED if row.cached]
DECODERS = [row for row in CACHED if row.inputs == "tokens"]
ENCODERS = [row for row in REPAIRED if row.inputs == "tokens" and not row.cached]
BOTH = MethodSpec(repair=RepairSpec(key_shift=0.5, temperature=True))
AT_LOGITS = ["features", "features=1", "bias", "mix", "shift", "temperature", "features=1+bias+mix+shift+temperature"]
FOLDED = ["low-rank=2", "diagonal", "core", "core+diagonal+low-rank=3"]
TOGETHER = "features=1+bias+mix+temperature+core+diagonal+low-rank=3+query-bias"


def attentions(model):
    return [module for module in model.modules() if TEMPERATURE in module._modules]


def use(row, model, implementation):
    """Let a model attend by an implementation, unless transformers refuses it."""
    if row.eager_only and "sdpa" in implementation:
        pytest.skip("transformers has no sdpa attention for it")
    model.set_attn_implementation(implementation)


def repair_parameters(model):
    return {
        f"{name}.{inner}": parameter
        for name, module in model.named_modules()
        if isinstance(module, Repair)
        for inner, parameter in module.named_parameters(recurse=False)
    }


def parts_of(row, parts):
    """Leave out of a method what a family refuses."""
    by_distance = () if row.distances else ("features", "bias")
    return "+".join(part for part in parts.split("+") if not part.startswith(by_distance))


def repaired(row, parts, base="oelm", *, double=False, **changes):
    """Build a model with repairs whose values are what training might have made of them."""
    if not (parts := parts_of(row, parts)):
        pytest.skip("the family refuses repairs by distance")
    model = row.build(**changes).eval()
    oelm.apply(model, f"{base}+{parts}")
    draw = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in repair_parameters(model).values():
            parameter.normal_(0, 0.4, generator=draw)
    return model.double() if double else model


def distance_bias(module, heads, new, seen):
    """The function of distance of features and biases, written plainly: (H, new, seen)."""
    total = torch.zeros(heads, new, seen, dtype=torch.float64)
    distance = (seen - new + torch.arange(new))[:, None] - torch.arange(seen)
    if (features := module._modules.get(FEATURES)) is not None:
        number = features.cosine_HM.shape[1]
        for head in range(heads):
            for m in range(number):
                start = math.pi * (2 / features.context) ** (m / max(number - 1, 1))
                frequency = start * features.log_frequency_GM[head // features.groups, m].double().exp()
                total[head] += features.cosine_HM[head, m] * (frequency * distance).cos()
                total[head] += features.sine_HM[head, m] * (frequency * distance).sin()
    if (bias := module._modules.get(BIAS)) is not None:
        size = bias.bias_HT.shape[1]
        zero = 0 if type(bias).__name__ == "PositionBias" else (size - 1) // 2
        total += bias.bias_HT.double()[:, (distance + zero).clamp(0, size - 1)]
    return total


def written_out(module, queries, keys, values, attention_mask=None, *, scaling=None, position_bias=None, **_):
    """Attention with repairs as one would explain it: plain formulas, and everything by distance as a mask."""
    heads, new, head_size = queries.shape[1:]
    if (shift := module._modules.get(SHIFT)) is not None:
        before = torch.cat((keys[:, :, :1], keys[:, :, :-1]), 2)
        keys = torch.stack([(before if g < shift.shifted else keys)[:, g] for g in range(keys.shape[1])], 1)
    if (mix := module._modules.get(MIX)) is not None:
        share = mix.share_H[:, None, None]
        keys = (1 - share) * keys + share * torch.cat((keys[:, :, :1], keys[:, :, :-1]), 2)
    if (temperature := module._modules.get(TEMPERATURE)) is not None:
        queries = queries * temperature.log_factor_H.exp()[:, None, None]
    keys, values = (each.repeat_interleave(heads // each.shape[1], 1) for each in (keys, values))
    scaling = head_size**-0.5 if scaling is None else scaling
    if (features := module._modules.get(FEATURES)) is not None:
        content_size = head_size - 2 * features.cosine_HM.shape[1]
        scaling *= math.sqrt(head_size / content_size)
    logits = queries @ keys.mT * scaling + (0 if position_bias is None else position_bias)
    logits = logits + distance_bias(module, heads, new, keys.shape[2]).to(logits.dtype)
    if attention_mask is not None:
        logits = logits + attention_mask
    return (logits.softmax(-1) @ values).transpose(1, 2).contiguous(), None


def write_out(model):
    """Let a model attend by the formulas above."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    AttentionInterface.register("oelm_written_out", written_out)
    AttentionMaskInterface.register("oelm_written_out", ALL_MASK_ATTENTION_FUNCTIONS["eager"])
    model.set_attn_implementation("oelm_written_out")


@rows.named(REPAIRED)
@pytest.mark.parametrize("parts", AT_LOGITS)
@pytest.mark.parametrize("implementation", ["oelm_sdpa", "oelm_eager"])
def test_attention_is_the_one_written_out(row, parts, implementation):
    model = repaired(row, parts, double=True)
    single = repaired(row, parts)
    feed = {name: each.double() if each.is_floating_point() else each for name, each in row.feed().items()}
    with torch.no_grad():
        use(row, model, implementation)
        use(row, single, implementation)
        found = model(**feed).logits
        assert torch.allclose(row.logits(single).double(), found, atol=1e-5)
        write_out(model)
        # Some eager functions take the softmax in float32 whatever they are given.
        tolerance = 1e-10 if implementation == "oelm_sdpa" else 1e-6
        assert torch.allclose(found, model(**feed).logits, atol=tolerance)


@rows.named(REPAIRED)
@pytest.mark.parametrize("parts", FOLDED)
@pytest.mark.parametrize("base", ["oelm", "oelm-slice", "baseline"])
def test_what_is_folded_in_is_a_plain_model_with_the_folded_weight(row, parts, base):
    model, plain = repaired(row, parts, base).double(), row.build().eval()
    oelm.apply(plain, "frozen-as-is")
    with torch.no_grad():
        for ours, theirs in zip(qk(model), qk(plain), strict=True):
            fold, weight_HKI = ours.part.oelm_fold, ours.read()
            plain.double()
            if fold is None:  # a core is on the side of the queries
                theirs.write(weight_HKI)
                continue
            if fold.outer_CR is not None:
                weight_HKI = weight_HKI + (fold.outer_CR @ fold.inner_RI).view(weight_HKI.shape)
            if fold.core_HKK is not None:
                weight_HKI = weight_HKI + fold.core_HKK @ weight_HKI
            if fold.diagonal_I is not None:
                weight_HKI = weight_HKI + weight_HKI * fold.diagonal_I
            theirs.write(weight_HKI)
        feed = {name: each.double() if each.is_floating_point() else each for name, each in row.feed().items()}
        assert torch.allclose(model(**feed).logits, plain(**feed).logits, atol=1e-10)


@rows.named([row for row in REPAIRED if row.biased])
@pytest.mark.parametrize("base", ["oelm", "oelm-slice"])
def test_a_query_bias_is_added_to_the_bias_that_is_there(row, base):
    model, plain = repaired(row, "query-bias", base).double(), row.build().eval().double()
    oelm.apply(plain, base if base != "oelm" else "oelm-freeze")
    feed = {name: each.double() if each.is_floating_point() else each for name, each in row.feed().items()}
    with torch.no_grad():
        for ours, theirs in zip(qk(model), qk(plain), strict=True):
            theirs.write(ours.read())
            if ours.role == "q":
                theirs.bias.add_(ours.part.oelm_query_bias.bias_HK.flatten())
        assert torch.allclose(model(**feed).logits, plain(**feed).logits, atol=1e-10)


def qk(model):
    return [each for each in architecture_of(model).projections(model) if each.role in ("q", "k")]


@rows.named(REPAIRED)
@pytest.mark.parametrize("parts", [None, "features", "low-rank=2", "features=1+core"])
def test_slices_are_read_and_give_what_their_product_gives(row, parts):
    if parts is None:
        model = row.build().eval()
        oelm.apply(model, "oelm-slice")
    else:
        model = repaired(row, parts, "oelm-slice")
    model.double()
    multiplied = copy.deepcopy(model)
    for each in qk(multiplied):
        assert each.part.reader is not None
        each.part.reader = None
    feed = {name: each.double() if each.is_floating_point() else each for name, each in row.feed().items()}
    with torch.no_grad():
        assert torch.allclose(model(**feed).logits, multiplied(**feed).logits, atol=1e-10)
    oelm.unfreeze(model)
    model(**feed).logits.square().mean().backward()
    assert all(each.part.reader is None and each.weight.grad.any() for each in qk(model))


@rows.named(CACHED)
@pytest.mark.parametrize("parts", [*AT_LOGITS, TOGETHER])
@pytest.mark.parametrize("implementation", ["oelm_sdpa", "oelm_eager"])
def test_decoding_with_a_cache_gives_what_the_whole_sequence_gives(row, parts, implementation):
    model = repaired(row, parts)
    use(row, model, implementation)
    whole, pieces = decoded_in_pieces(row, model)
    assert torch.allclose(pieces, whole, atol=2e-5)


def decoded_in_pieces(row, model):
    feed = row.feed()
    name = "decoder_input_ids" if "decoder_input_ids" in feed else "input_ids"
    ids = feed.pop(name)
    with torch.no_grad():
        whole = model(**feed, **{name: ids}).logits
        past, parts = None, []
        for start, stop in ((0, 5), (5, 6), (6, 9)):
            output = model(**feed, **{name: ids[:, start:stop]}, past_key_values=past, use_cache=True)
            past = output.past_key_values
            parts.append(output.logits)
    return whole, torch.cat(parts, 1)


@pytest.mark.parametrize("name", ["mistral", "qwen2"])
@pytest.mark.parametrize("parts", ["features", "bias"])
def test_a_sliding_window_keeps_distances_right(name, parts):
    row = next(row for row in rows.ROWS if row.name == name)
    sliding = {"sliding_window": 4} if name == "mistral" else {
        "sliding_window": 4, "use_sliding_window": True, "layer_types": ["sliding_attention", "full_attention"]
    }  # fmt: skip
    model = repaired(row, parts, **sliding)
    whole, pieces = decoded_in_pieces(row, model)
    assert torch.allclose(pieces, whole, atol=1e-5)
    write_out(model)
    assert torch.allclose(row.logits(model), whole, atol=1e-5)


def test_the_local_layers_of_modernbert_are_written_out_too():
    row = next(row for row in rows.ROWS if row.name == "modernbert")
    model = repaired(row, "features=1+bias", local_attention=4, global_attn_every_n_layers=2)
    with torch.no_grad():
        found = row.logits(model)
        write_out(model)
        assert torch.allclose(row.logits(model), found, atol=1e-5)


@rows.named([row for row in DECODERS if row.name in ("gpt2", "llama", "gpt-neox")])
@pytest.mark.parametrize("parts", ["features", "bias", "features=1+mix+shift"])
def test_a_static_cache_knows_where_it_is(row, parts):
    from transformers import StaticCache

    model, ids = repaired(row, parts), row.feed()["input_ids"]
    with torch.no_grad():
        whole, cache = model(ids).logits, StaticCache(config=model.config, max_cache_len=16)
        pieces = [model(piece, past_key_values=cache).logits for piece in ids.split([5, 1, 3], dim=1)]
    assert torch.allclose(torch.cat(pieces, 1), whole, atol=1e-5)
    settings = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    static = model.generate(ids, cache_implementation="static", disable_compile=True, **settings)
    assert torch.equal(static, model.generate(ids, **settings))


def test_a_static_cache_of_a_sliding_window_is_refused():
    row = next(row for row in rows.ROWS if row.name == "mistral")
    model = repaired(row, "features", sliding_window=4)
    with pytest.raises(NotCarriedOut, match="default"):
        model.generate(row.feed()["input_ids"], cache_implementation="static", disable_compile=True, max_new_tokens=2)


@rows.named([row for row in REPAIRED if row.biased and row.distances])
def test_biases_that_train_are_narrowed_with_their_weights(row, tmp_path):
    model = row.build()
    method = MethodSpec(
        init={"shape": "slice"}, freeze={"roles": ("q", "k"), "biases": False}, repair={"position_features": 1}
    )
    oelm.apply(model, method)
    row.logits(model).square().mean().backward()
    for each in qk(model):
        content_size = 8 if each.site == "cross" else 6
        assert each.weight.grad is None
        if each.role not in row.biased:
            continue
        assert each.bias.shape == (each.num_heads * content_size,)
        assert each.bias.requires_grad
        assert each.bias.grad is not None
    model.save_pretrained(tmp_path)
    with torch.no_grad():
        assert torch.equal(row.logits(oelm.load(tmp_path).eval()), row.logits(model.eval()))


@rows.named([row for row in DECODERS if row.name in ("gpt2", "gpt-neox", "llama", "opt")])
@pytest.mark.parametrize("parts", AT_LOGITS)
@pytest.mark.parametrize("implementation", ["oelm_sdpa", "oelm_eager"])
def test_padding_on_the_left_changes_nothing(row, parts, implementation):
    model = repaired(row, parts)
    use(row, model, implementation)
    ids = row.feed()["input_ids"][:1]
    padded = torch.cat((torch.zeros(1, 3, dtype=torch.long), ids), 1)
    mask = (torch.arange(padded.shape[1]) >= 3).long()[None]
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        found = model(padded, attention_mask=mask, position_ids=positions).logits[:, 3:]
        assert torch.allclose(found, model(ids).logits, atol=1e-5)


@rows.named(ENCODERS)
@pytest.mark.parametrize("parts", AT_LOGITS)
@pytest.mark.parametrize("implementation", ["oelm_sdpa", "oelm_eager"])
def test_padding_at_the_end_changes_nothing(row, parts, implementation):
    model = repaired(row, parts)
    use(row, model, implementation)
    ids = row.feed()["input_ids"]
    pad = model.config.pad_token_id or 0
    padded = torch.cat((ids, torch.full((2, 3), pad)), 1)
    with torch.no_grad():
        found = model(padded, attention_mask=(torch.arange(12) < 9).long().expand(2, 12)).logits[:, :9]
        assert torch.allclose(found, model(ids).logits, atol=1e-5)


@rows.named([row for row in REPAIRED if not row.eager_only])
def test_features_add_no_mask_where_there_was_none(row, monkeypatch):
    model, masks = repaired(row, "features") if row.distances else pytest.skip("no features"), []
    attend = F.scaled_dot_product_attention

    def spy(*tensors, attn_mask=None, **options):
        masks.append(attn_mask)
        return attend(*tensors, attn_mask=attn_mask, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
    row.logits(model)
    plain = masks[:]
    masks.clear()
    row.logits(row.build().eval())
    assert [mask is None for mask in plain] == [mask is None for mask in masks]
    if row.name != "modernbert":  # which hands its local layers a mask
        assert plain == [None] * 2 * len(row.sites)


@rows.named(REPAIRED)
@pytest.mark.parametrize("base", ["oelm", "baseline"])
def test_all_that_trains_has_a_gradient_and_nothing_else(row, base):
    model = repaired(row, TOGETHER, base).train()
    feed = row.feed()
    plain = row.build().train()
    model(**feed).logits.square().mean().backward()
    plain(**feed).logits.square().mean().backward()
    idle = {name for name, parameter in plain.named_parameters() if parameter.grad is None or not parameter.grad.any()}
    unused = {name for name, parameter in plain.named_parameters() if parameter.grad is None}  # CLIP, SigLIP, wav2vec 2
    for name, parameter in model.named_parameters():
        assert (parameter.grad is None) == (not parameter.requires_grad or name in unused), name
        if parameter.requires_grad and name not in idle:
            assert parameter.grad.any(), name
    assert all(each.weight.requires_grad == (base == "baseline") for each in qk(model))


@rows.named(REPAIRED)
@pytest.mark.parametrize("parts", ["features", "bias", "mix", "low-rank=2", TOGETHER])
def test_frozen_weights_hold_repairs_move_and_both_come_back_from_a_checkpoint(row, parts, tmp_path):
    model = repaired(row, parts)
    held = {each.name: sha256(each.weight) for each in qk(model)}
    before = {name: sha256(each) for name, each in repair_parameters(model).items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    for step in range(3):
        row.logits(model, step).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert {each.name: sha256(each.weight) for each in qk(model)} == held
    assert all(sha256(each) != before[name] for name, each in repair_parameters(model).items())
    assert set(oelm.verify_frozen(model)) >= {f"{name}.weight" for name in held}
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items() if "oelm_" not in name}
    assert shapes == {name: tensor.shape for name, tensor in row.build().state_dict().items()}
    model.save_pretrained(tmp_path)
    back = oelm.load(tmp_path).eval()
    assert oelm.verify_frozen(back) == oelm.verify_frozen(model)
    with torch.no_grad():
        expected = row.logits(model)
        assert torch.equal(row.logits(back), expected)
        assert torch.equal(row.logits(copy.deepcopy(model)), expected)
    assert {n: p.requires_grad for n, p in back.named_parameters()} == {
        n: p.requires_grad for n, p in model.named_parameters()
    }


@rows.named([row for row in REPAIRED if row.distances])
@pytest.mark.parametrize("name", ["position-only", "position-only-bias"])
def test_without_queries_and_keys_attention_is_a_function_of_distance(row, name, tmp_path):
    model, draw = row.build().eval(), torch.Generator().manual_seed(3)
    audit = oelm.apply(model, name)
    assert audit.qk == 0 < audit.repair
    assert sum(p.numel() for p in model.parameters()) == audit.total
    with torch.no_grad():
        for parameter in repair_parameters(model).values():
            parameter.normal_(0, 0.4, generator=draw)
        found = row.logits(model)
        assert not any(each.weight.numel() for each in qk(model))
        model.save_pretrained(tmp_path)
        assert torch.equal(row.logits(oelm.load(tmp_path).eval()), found)
        if name == "position-only-bias":
            write_out(model)
            assert torch.allclose(row.logits(model), found, atol=1e-5)
    row.logits(model).square().mean().backward()
    assert all(parameter.grad.any() for parameter in repair_parameters(model).values())
    oelm.verify_frozen(model)


@rows.named(REPAIRED)
@pytest.mark.parametrize("parts", ["bias", "mix", "low-rank=2", "temperature"])
def test_no_repair_shifts_the_draw_of_queries_and_keys(row, parts):
    model, plain = repaired(row, parts), row.build()
    oelm.apply(plain, "oelm-freeze")
    assert all(torch.equal(one.read(), two.read()) for one, two in zip(qk(model), qk(plain), strict=True))


@rows.named([row for row in REPAIRED if row.distances])
def test_the_audit_counts_content_and_features(row):
    model, plain = row.build(), row.build()
    audit, bare = oelm.apply(model, "oelm-freeze+features=1"), oelm.apply(plain, "oelm-freeze")
    at_self = sum(p.shape[0] for p in qk(plain) if p.site != "cross")
    heads = sum(2 * p.shape[0] if p.role == "q" else p.shape[0] for p in qk(plain) if p.site != "cross")
    assert bare.qk - audit.qk == 2 * 32 * at_self
    assert audit.repair == heads
    assert audit.trainable == bare.trainable + audit.repair - row.normed
    assert audit.max_departure < 1e-6


@pytest.mark.programs
@pytest.mark.parametrize("parts", [TOGETHER, "features"])
@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
@pytest.mark.parametrize("base", ["oelm", "oelm-slice"])
def test_half_precision_dropout_checkpointing_and_compiling_carry_them_out(name, parts, base):
    row = next(row for row in rows.ROWS if row.name == name)
    dropout = {"gpt2": "attn_pdrop", "llama": "attention_dropout", "bert": "attention_probs_dropout_prob"}[name]
    model = repaired(row, parts, base, **{dropout: 0.1})
    with torch.no_grad():
        whole = row.logits(model)
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.allclose(row.logits(model).float(), whole, atol=0.05)
        half = copy.deepcopy(model).bfloat16()
        assert torch.allclose(row.logits(half).float(), whole, atol=0.1)
    oelm.verify_frozen(half)
    torch._dynamo.reset()
    assert torch.allclose(row.logits(torch.compile(model, backend="aot_eager")), whole, atol=1e-5)
    model.train()
    model.gradient_checkpointing_enable()
    row.logits(model).square().mean().backward()
    assert all(parameter.grad.isfinite().all() for parameter in repair_parameters(model).values())


REFUSED = [
    ("too many frequencies", "gpt2", "baseline+features=4", BadShape, "from 1 to 3"),
    ("as many as the head has", "llama", "oelm+features=9", BadShape, "position_features=9"),
    ("heads too small for any", "bert", "baseline+features", BadShape, "position_features"),
    ("into the rotated coordinates", "gpt-neox", "baseline+features=2", BadShape, "at most 1"),
    ("a family with its own bias", "t5", "baseline+features", NotCarriedOut, "position_features"),
    ("a family with its own bias, twice", "t5", "baseline+bias", NotCarriedOut, "position_bias"),
    ("outside the interface", "deberta-v2", "oelm+features", NotCarriedOut, "deberta-v2"),
    ("outside the interface, torch", "torch", "oelm+bias", NotCarriedOut, "torch"),
    ("outside the interface, folded", "torch", "oelm+low-rank", NotCarriedOut, "torch"),
    ("a residual as large as the map", "bert", "oelm+low-rank=32", BadShape, "at most 32"),
    ("a norm that comes before positions", "gpt2", "oelm+qk-norm", NotCarriedOut, "qk_norm"),
    ("mixed keys of a window", "mistral", "oelm+mix", NotCarriedOut, "sliding window"),
    ("no distances", "bart", MethodSpec(repair={"position_features": 1}, sites=("cross",)), NotCarriedOut, "cross"),
]
CHANGES = {
    "heads too small for any": {"num_attention_heads": 16},
    "into the rotated coordinates": {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.75,
                                                        "rope_theta": 10000.0}},
    "mixed keys of a window": {"sliding_window": 4},
}  # fmt: skip


@pytest.mark.parametrize(("case", "name", "method", "error", "words"), REFUSED, ids=[each[0] for each in REFUSED])
def test_what_does_not_fit_is_refused_and_leaves_the_model_untouched(case, name, method, error, words):
    row = next(row for row in rows.ROWS if row.name == name)
    model = row.build(**CHANGES.get(case, {}))
    before, classes = model.state_dict(), [type(each) for each in model.modules()]
    implementation = model.config._attn_implementation if row.from_transformers else None
    with pytest.raises(error, match=words):
        oelm.apply(model, method)
    assert [type(each) for each in model.modules()] == classes
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.requires_grad for parameter in model.parameters())
    if row.from_transformers:
        assert model.config._attn_implementation == implementation


def test_a_text_longer_than_the_table_of_a_bias_is_refused_and_features_go_on():
    row = next(row for row in rows.ROWS if row.name == "llama")
    ids = torch.ones(1, 70, dtype=torch.long)
    with pytest.raises(BadShape, match="64 distances"):
        repaired(row, "bias")(input_ids=ids)
    assert repaired(row, "features")(input_ids=ids).logits.isfinite().all()


def test_another_attention_implementation_is_refused_unless_it_knows_the_repairs():
    row = next(row for row in rows.ROWS if row.name == "gpt2")
    model = repaired(row, "features")
    model.set_attn_implementation("eager")
    with pytest.raises(NotCarriedOut, match="oelm_eager"):
        row.logits(model)
    model.set_attn_implementation("oelm_eager")
    row.logits(model)


@rows.named(REPAIRED)
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_a_temperature_of_one_changes_nothing_and_another_does(row, implementation):
    model = row.build().eval()
    use(row, model, implementation)
    with torch.no_grad():
        before = row.logits(model)
        oelm.apply(model, MethodSpec(repair=RepairSpec(temperature=True)))
        assert torch.allclose(row.logits(model), before, atol=1e-6)
        assert len(attentions(model)) == 2 * len(row.sites)
        for attention in attentions(model):
            attention._modules[TEMPERATURE].log_factor_H.fill_(1.0)
        assert not torch.equal(row.logits(model), before)


@rows.named(REPAIRED)
def test_key_shift_changes_the_logits_and_both_implementations_agree(row):
    model = row.build().eval()
    with torch.no_grad():
        plain = row.logits(model)
        oelm.apply(model, MethodSpec(repair=RepairSpec(key_shift=1.0)))
        shifted = row.logits(model)
        assert not torch.allclose(shifted, plain, atol=1e-5)
        other = row.build().eval()
        other.set_attn_implementation("eager")
        oelm.apply(other, MethodSpec(repair=RepairSpec(key_shift=1.0)))
        assert torch.allclose(row.logits(other), shifted, atol=1e-5)


@rows.named(REPAIRED, all_quick=True)
def test_the_repair_trains_and_comes_back_from_a_checkpoint(row, tmp_path):
    model = row.build().eval()
    oelm.apply(model, BOTH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    row.logits(model).square().mean().backward()
    optimizer.step()
    factors = [attention._modules[TEMPERATURE].log_factor_H for attention in attentions(model)]
    assert all(bool(factor.any()) for factor in factors)
    model.save_pretrained(tmp_path)
    back = oelm.load(tmp_path).eval()
    with torch.no_grad():
        assert torch.equal(row.logits(back), row.logits(model))


def test_heads_of_some_sites_only_are_repaired():
    row = next(row for row in rows.ROWS if row.name == "bart")
    model = row.build()
    oelm.apply(model, BOTH.model_copy(update={"sites": ("cross",)}))
    names = [name for name, module in model.named_modules() if SHIFT in module._modules]
    assert names
    assert all("encoder_attn" in name for name in names)


@rows.named([row for row in rows.ROWS if not row.repairs])
def test_families_outside_the_interface_are_refused_and_untouched(row):
    model = row.build()
    before = model.state_dict()
    with pytest.raises(NotCarriedOut, match="not implemented"):
        oelm.apply(model, "oelm-shift")
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_a_sliding_cache_refuses_the_key_shift():
    row = next(row for row in rows.ROWS if row.name == "mistral")
    model = row.build(sliding_window=4)
    with pytest.raises(NotCarriedOut, match="sliding window"):
        oelm.apply(model, "baseline-shift")
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_a_checkpoint_without_its_repairs_is_refused(tmp_path):
    row = rows.ROWS[0]
    model = row.build()
    oelm.apply(model, BOTH)
    kept = {name: tensor for name, tensor in model.state_dict().items() if "oelm_" not in name}
    model.save_pretrained(tmp_path, state_dict=kept)
    with pytest.raises(CheckpointError, match="lacks"):
        oelm.load(tmp_path)


ROTARY = [row for row in REPAIRED if row.rotary]


def seen_by_attention(row, model):
    """Return the queries and keys of the first attention as the attention function gets them."""
    from transformers import AttentionInterface

    seen = []

    def look(module, queries, keys, values, *rest, **options):
        seen.append((queries, keys))
        return written_out(module, queries, keys, values)

    AttentionInterface.register("oelm_look", look)
    model.set_attn_implementation("oelm_look")
    with torch.no_grad():
        row.logits(model)
    return seen[0]


@rows.named(ROTARY)
def test_rotary_positions_turn_no_head_that_finds_the_same_token(row):
    model = row.build().eval().double()
    oelm.apply(model, "oelm-slice+same")
    still = copy.deepcopy(model)
    for name, buffer in still.named_buffers():
        if "rotary" in name:
            buffer.zero_()  # every angle is zero, so nothing is turned
    for own, unturned in zip(seen_by_attention(row, model), seen_by_attention(row, still), strict=True):
        half = own.shape[1] // 2
        assert torch.allclose(own[:, :half], unturned[:, :half], atol=1e-12)
        assert not torch.allclose(own[:, half:], unturned[:, half:], atol=1e-3)


@rows.named(ROTARY)
def test_oelm_fast_decodes_with_a_cache_and_comes_back_from_a_checkpoint(row, tmp_path):
    model = row.build().eval()
    oelm.apply(model, "oelm-fast")
    with torch.no_grad():
        for parameter in repair_parameters(model).values():
            parameter.normal_(0, 0.4, generator=torch.Generator().manual_seed(7))
        whole = row.logits(model)
        if row.cached:
            ids = row.feed()["input_ids"]
            first = model(input_ids=ids[:, :5], use_cache=True)
            rest = model(input_ids=ids[:, 5:], past_key_values=first.past_key_values, use_cache=True)
            assert torch.allclose(torch.cat((first.logits, rest.logits), 1), whole, atol=1e-5)
        model.save_pretrained(tmp_path)
        assert torch.equal(row.logits(oelm.load(tmp_path).eval()), whole)
        assert torch.equal(row.logits(copy.deepcopy(model)), whole)


def test_oelm_fast_attends_in_the_memory_layout_that_the_output_projection_reads_without_a_copy(monkeypatch):
    attend, seen = F.scaled_dot_product_attention, []

    def look(queries, keys, *rest, **options):
        mixed = attend(queries, keys, *rest, **options)
        seen.extend((queries, keys, mixed))
        return mixed

    monkeypatch.setattr(F, "scaled_dot_product_attention", look)
    row = next(row for row in rows.ROWS if row.name == "bert")
    model = row.build().eval()
    oelm.apply(model, "oelm-fast")
    row.logits(model)
    assert seen
    assert all(each.transpose(1, 2).is_contiguous() for each in seen)


def test_an_adapter_on_heads_that_must_not_be_turned_is_refused():
    peft = pytest.importorskip("peft")
    row = next(row for row in rows.ROWS if row.name == "llama")
    model = row.build()
    oelm.apply(model, "oelm-fast")
    wrapped = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
    with pytest.raises(NotCarriedOut, match="target_modules"):
        row.logits(wrapped)
