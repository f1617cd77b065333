"""Applying a method: refusals leave the model untouched, audits describe it, other packages add families."""

import copy
from importlib.metadata import EntryPoint
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import oelm
from oelm.errors import (
    AlreadyApplied,
    BadData,
    BadShape,
    CheckpointError,
    InvalidSpec,
    MethodError,
    NotCarriedOut,
    UnknownName,
    UnusableWeight,
)
from oelm.method.freeze import multipliers, sha256
from oelm.models import apply as surgery
from oelm.models import families
from oelm.models.gpt import GPT
from oelm.spec.method import FreezeSpec, MethodSpec, RatesSpec
from oelm.spec.run import GPT_SIZES

transformers = pytest.importorskip("transformers")


def gpt2(**changes):
    config = transformers.GPT2Config(
        **{"vocab_size": 61, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, **changes}
    )
    return transformers.GPT2LMHeadModel(config)


def bert(**changes):
    sizes = {
        "vocab_size": 61,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
    }
    return transformers.BertForSequenceClassification(transformers.BertConfig(**{**sizes, **changes}))


def t5(**changes):
    config = transformers.T5Config(
        **{"vocab_size": 61, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, **changes}
    )
    return transformers.T5ForConditionalGeneration(config)


def applied_bert():
    model = bert()
    oelm.apply(model, "oelm-freeze")
    return model


def tied_bert():
    model = bert()
    attention = model.bert.encoder.layer[1].attention.self
    attention.key.weight = attention.query.weight
    return model


def quantised(dtype):
    def make():
        model = bert()
        query = model.bert.encoder.layer[1].attention.self.query
        query.weight = nn.Parameter(torch.zeros(32, 32).to(dtype), requires_grad=False)
        return model

    return make


def bitsandbytes_like():
    class Params4bit(nn.Parameter):
        """A packed weight, as bitsandbytes keeps them."""

    model = gpt2()
    model.transformer.h[0].attn.c_attn.weight = Params4bit(torch.zeros(48, 1, dtype=torch.uint8), requires_grad=False)
    return model


def dynamically_quantised():
    return torch.ao.quantization.quantize_dynamic(bert(), {nn.Linear})


def on_meta():
    with torch.device("meta"):
        return gpt2()


def data_parallel():
    return nn.DataParallel(bert())


class Unknown(nn.Module):
    def __init__(self):
        super().__init__()
        self.config = SimpleNamespace(model_type="novelformer")
        self.wq = nn.Linear(4, 4)


REFUSALS = [
    ("an unknown method", bert, "oelm-freez", UnknownName, "Did you mean 'oelm-freeze'"),
    ("a head wider than its input", lambda: t5(d_kv=64), "oelm-freeze", BadShape, "holds at most 32"),
    ("one frame for all heads that is too wide", lambda: t5(d_kv=16), "oelm-global", BadShape, "init.scope='head'"),
    ("a layer that does not exist", gpt2, "oelm-partial:5", BadShape, "has 2 layers"),
    ("a rate of a layer that does not exist", bert, MethodSpec(rates=RatesSpec(layers={4: 0.5})), BadShape, "2 layers"),
    (
        "a site that does not exist",
        bert,
        MethodSpec(sites=("cross",), freeze=FreezeSpec(roles=("q",))),
        BadShape,
        "this model has \\['self'\\]",
    ),
    ("a method on a method", applied_bert, "oelm-random", AlreadyApplied, "oelm.unfreeze"),
    ("tied Q and K", tied_bert, "oelm-freeze", UnusableWeight, "are tied"),
    ("an int8 weight", quantised(torch.int8), "oelm-freeze", UnusableWeight, "quantised"),
    ("an fp8 weight", quantised(torch.float8_e4m3fn), "oelm-freeze", UnusableWeight, "quantised"),
    ("a packed 4-bit weight", bitsandbytes_like, "oelm-freeze", UnusableWeight, "then quantise"),
    ("a dynamically quantised model", dynamically_quantised, "oelm-freeze", UnusableWeight, "not a parameter"),
    ("the meta device", on_meta, "oelm-freeze", UnusableWeight, "meta device"),
    ("a model in DataParallel", data_parallel, "oelm-freeze", MethodError, "model inside"),
    ("a compiled model", lambda: torch.compile(bert(), backend="eager"), "oelm-freeze", MethodError, "model inside"),
    (
        "an unknown architecture",
        Unknown,
        "oelm-freeze",
        UnknownName,
        r"(?s)Unknown.*novelformer.*Name its modules.*oelm\.apply",
    ),
    ("a repair that no code carries out", gpt2, MethodSpec(repair={"qk_norm": True}), NotCarriedOut, "'qk_norm'"),
    ("a correlation with no room for it", lambda: gpt2(n_head=1), "oelm-correlated", BadShape, "16 or less"),
    ("uniform attention with a position term", t5, "uniform", NotCarriedOut, "not uniform"),
]


def state(model):
    tensors = {
        name: None if tensor.is_meta else sha256(tensor)
        for name, tensor in model.state_dict().items()
        if isinstance(tensor, torch.Tensor)
    }
    return tensors, {name: parameter.requires_grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize(
    ("make", "method", "error", "words"), [row[1:] for row in REFUSALS], ids=[row[0] for row in REFUSALS]
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_cannot_be_done_is_refused_in_words_and_leaves_the_model_untouched(make, method, error, words):
    model = make()
    before, modules, note = state(model), [type(each) for each in model.modules()], surgery.find_applied(model)
    with pytest.raises(error, match=words) as caught:
        oelm.apply(model, method)
    assert type(caught.value) is error
    assert state(model) == before
    assert [type(each) for each in model.modules()] == modules
    assert surgery.find_applied(model) is note


def test_freezing_a_role_the_model_lacks_is_refused():
    class NoValues(oelm.Architecture):
        name = "no-values"

        def matches(self, model):
            return True

        def projections(self, model):
            return [oelm.Projection("q", 0, "wq", model.wq)]

    families._REGISTERED.insert(0, NoValues())
    try:
        with pytest.raises(BadShape, match=r"only the roles \['q'\]"):
            oelm.apply(Unknown(), MethodSpec(freeze=FreezeSpec(roles=("v",))))
    finally:
        families._REGISTERED.pop(0)


def test_the_audit_tells_what_is_never_frozen_and_peft_users_know_its_words(capsys):
    model = bert()
    audit = oelm.apply(model, "oelm-qk-ffn")
    assert set(audit.never_frozen) == {
        "bert.embeddings",
        "bert.pooler",
        "classifier",
        "norms and biases inside the layers",
    }
    oelm.print_trainable_parameters(model)
    printed = capsys.readouterr().out
    assert printed.startswith(f"trainable params: {audit.trainable:,} || all params: {audit.total:,} || trainable%: ")


def test_a_site_can_be_frozen_by_itself():
    model = t5()
    audit = oelm.apply(model, oelm.named_method("oelm-freeze").model_copy(update={"sites": ("cross",)}))
    assert {row.site for row in audit.projections if row.frozen} == {"cross"}
    assert {row.site for row in audit.projections if row.departure is not None and row.departure < 1e-6} == {"cross"}


def test_torn_weights_are_refused_in_words(tmp_path):
    model = gpt2()
    oelm.apply(model, "oelm-freeze")
    model.save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(BadData, match="weights of .* could not be read"):
        oelm.load(tmp_path)
    weights.unlink()
    with pytest.raises(BadData, match="weights of .* could not be read"):
        oelm.load(tmp_path)


def test_an_edited_checkpoint_is_refused_on_loading(tmp_path):
    model = gpt2()
    oelm.apply(model, "oelm-freeze")
    model.transformer.h[0].attn.c_attn.q.weight.data[0, 0] += 1
    model.save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=r"h\.0\.attn\.c_attn\.q\.weight"):
        oelm.load(tmp_path)


@pytest.mark.parametrize(("note", "words"), [(None, "has no method"), ({"method": {"speed": 9}}, "cannot be read")])
def test_a_checkpoint_without_a_readable_method_is_refused(tmp_path, note, words):
    model = gpt2()
    if note is not None:
        model.config.oelm = note
    model.save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=words):
        oelm.load(tmp_path)


def test_a_checkpoint_saved_halfway_through_a_schedule_comes_back_as_it_was(tmp_path):
    model = gpt2()
    oelm.apply(model, "oelm-progressive:0.2-0.8", seed=4)
    schedule = surgery.FreezeSchedule(model, 10)
    schedule.advance(5)
    model.save_pretrained(tmp_path)
    back = oelm.load(tmp_path)
    assert surgery.find_applied(back).method == oelm.named_method("oelm-progressive:0.2-0.8")
    assert oelm.verify_frozen(back) == oelm.verify_frozen(model)
    assert [name for name, parameter in back.named_parameters() if parameter.requires_grad] == [
        name for name, parameter in model.named_parameters() if parameter.requires_grad
    ]


@pytest.mark.parametrize(
    ("method", "steps", "frozen"),
    [("train-then-freeze:0.1", 4, True), ("unfreeze-late:0.2", 2, False)],
)
def test_a_moment_that_rounds_to_the_first_step_is_kept(method, steps, frozen):
    model = gpt2()
    oelm.apply(model, method)
    schedule = surgery.FreezeSchedule(model, steps)
    assert schedule.advance(0)
    assert bool(oelm.verify_frozen(model)) is frozen
    saved = schedule.save()
    surgery.FreezeSchedule(model, steps).restore(0, saved)


def test_freezing_again_reaches_the_layers_of_the_method_alone():
    model = GPT(GPT_SIZES["nano"])
    oelm.apply(
        model, oelm.named_method("oelm-freeze").model_copy(update={"freeze": FreezeSpec(roles=("q", "k"), layers=(0,))})
    )
    frozen = oelm.verify_frozen(model)
    oelm.unfreeze(model)
    oelm.freeze(model)
    assert oelm.verify_frozen(model).keys() == frozen.keys()
    assert all(name.startswith("blocks.0.") for name in frozen)


def test_a_schedule_counts_the_layers_of_the_sites_it_is_about():
    model = t5(num_layers=2, num_decoder_layers=4)
    method = oelm.named_method("oelm-partial:-1").model_copy(update={"sites": ("encoder",)})
    oelm.apply(model, method)
    frozen = oelm.verify_frozen(model)
    assert {name.split(".")[2] for name in frozen} == {"0"}
    surgery.FreezeSchedule(model, 10).restore(3, {"hashes": frozen})
    assert oelm.verify_frozen(model) == frozen


def test_rates_reach_the_sites_of_the_method_alone():
    model = t5()
    method = oelm.MethodSpec(sites=("encoder",), rates=RatesSpec(roles={"q": 0.1}))
    oelm.apply(model, method)
    names = [name for name, _ in model.named_parameters()]
    rates = multipliers(names, surgery.projections_in_reach(model), method.rates)
    slow = {name for name, rate in rates.items() if rate != 1.0}
    assert slow
    assert all(name.startswith("encoder.") for name in slow)


def test_loading_in_another_type_is_no_movement(tmp_path):
    model = gpt2()
    oelm.apply(model, "oelm-freeze")
    model.save_pretrained(tmp_path)
    assert next(oelm.load(tmp_path, dtype=torch.bfloat16).parameters()).dtype == torch.bfloat16


# A new family from outside: this class and one call.
class Novel(oelm.Architecture):
    name = "novel"

    def matches(self, model):
        return type(model).__name__ == "Novelformer"

    def projections(self, model):
        found = []
        fused = oelm.Fused((("k", 16), ("q", 16)))
        for layer, block in enumerate(model.blocks):
            kq = f"blocks.{layer}.kq"
            found += [oelm.Projection(role, layer, f"{kq}.{role}", block["kq"], 2, fused=fused) for role in "qk"]
            found.append(oelm.Projection("v", layer, f"blocks.{layer}.v", block["v"], 2))
        return found


class Novelformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.ModuleDict({"kq": nn.Linear(16, 32), "v": nn.Linear(16, 16)}) for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            keys, queries = block["kq"](x).chunk(2, -1)
            x = x + nn.functional.scaled_dot_product_attention(queries, keys, block["v"](x))
        return x


@pytest.fixture
def forgotten():
    yield
    families._REGISTERED.clear()
    families._from_entry_points.cache_clear()


def goes_through_the_method():
    model, x = Novelformer(), torch.randn(2, 5, 16)
    plain = copy.deepcopy(model)
    oelm.apply(plain, "frozen-as-is")
    assert torch.equal(plain(x), model(x))
    audit = oelm.apply(model, "oelm-freeze")
    assert audit.max_departure < 1e-6
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()
    oelm.verify_frozen(model)
    Novelformer().load_state_dict(model.state_dict())


def test_an_outsider_registers_a_family(forgotten):
    oelm.register_architecture(Novel())
    goes_through_the_method()


def test_a_package_brings_a_family_by_entry_point(forgotten, monkeypatch):
    point = EntryPoint("novel", f"{__name__}:Novel", families.ENTRY_POINTS)
    monkeypatch.setattr(EntryPoint, "load", lambda _: Novel)
    monkeypatch.setattr(families, "entry_points", lambda group: [point] if group == families.ENTRY_POINTS else [])
    families._from_entry_points.cache_clear()
    goes_through_the_method()


@pytest.mark.parametrize("wrong", [Novel, object(), oelm.Architecture()])
def test_what_is_no_architecture_is_not_registered(forgotten, wrong):
    with pytest.raises(InvalidSpec, match="Give an instance"):
        oelm.register_architecture(wrong)


def test_two_architectures_of_one_name_are_refused(forgotten):
    oelm.register_architecture(Novel())
    with pytest.raises(InvalidSpec, match="another name"):
        oelm.register_architecture(Novel())


def test_a_restored_gpt_is_frozen_as_it_was():
    model = GPT(GPT_SIZES["nano"])
    oelm.apply(model, "oelm-slice")
    twin = GPT(GPT_SIZES["nano"])
    twin.load_state_dict(model.state_dict())
    surgery.restore_method(twin, surgery.find_applied(model))
    assert oelm.verify_frozen(twin) == oelm.verify_frozen(model)


def test_models_made_from_one_configuration_keep_their_methods_apart(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=61, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    one, other = transformers.BertModel(config), transformers.BertModel(config)
    oelm.apply(one, "oelm-freeze")
    oelm.apply(other, "baseline")
    one.save_pretrained(tmp_path)
    assert oelm.verify_frozen(oelm.load(tmp_path)) == oelm.verify_frozen(one) != {}
    assert one.encoder.config is one.config is not config
