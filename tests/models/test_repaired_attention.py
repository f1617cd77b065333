"""Repairs of foreign models through the attention interface."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

import oelm
from oelm.errors import CheckpointError, NotCarriedOut
from oelm.models.repaired_attention import SHIFT, TEMPERATURE
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
BOTH = MethodSpec(repair=RepairSpec(key_shift=0.5, temperature=True))


def attentions(model):
    return [module for module in model.modules() if TEMPERATURE in module._modules]


@rows.named(REPAIRED)
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_a_temperature_of_one_changes_nothing_and_another_does(row, implementation):
    model = row.build().eval()
    model.set_attn_implementation(implementation)
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


@rows.named(CACHED)
def test_a_cache_gives_what_the_whole_sequence_gives(row):
    model = row.build().eval()
    oelm.apply(model, BOTH)
    feed = row.feed()
    name = "decoder_input_ids" if "decoder_input_ids" in feed else "input_ids"
    ids = feed.pop(name)
    with torch.no_grad():
        for attention in attentions(model):
            attention._modules[TEMPERATURE].log_factor_H.add_(torch.randn(4) * 0.5)
        whole = model(**feed, **{name: ids}).logits
        past, parts = None, []
        for start, stop in ((0, 5), (5, 6), (6, 9)):
            output = model(**feed, **{name: ids[:, start:stop]}, past_key_values=past, use_cache=True)
            past = output.past_key_values
            parts.append(output.logits)
    assert torch.allclose(torch.cat(parts, 1), whole, atol=1e-5)


@rows.named(REPAIRED)
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
    with pytest.raises(NotCarriedOut, match="not carried out"):
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


@rows.named([row for row in CACHED if row.name in ("gpt2", "gpt-neox", "llama", "opt")])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_padding_on_the_left_is_no_token_before_the_first(row, implementation):
    model = row.build().eval()
    model.set_attn_implementation(implementation)
    oelm.apply(model, oelm.named_method("oelm-shift"))
    ids = row.feed()["input_ids"][:1]
    padded = torch.cat((torch.zeros(1, 3, dtype=torch.long), ids), 1)
    mask = (torch.arange(padded.shape[1]) >= 3).long()[None]
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        found = model(padded, attention_mask=mask, position_ids=positions).logits[:, 3:]
        assert torch.allclose(found, model(ids).logits, atol=1e-5)
