"""Every family through every invariant."""

import copy
import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import oelm
from oelm.errors import FrozenWeightsMoved
from oelm.method.freeze import sha256
from oelm.models.families import architecture_of


def _rows():
    """Load the table next to this file; tests are not a package."""
    spec = importlib.util.spec_from_file_location("family_rows", Path(__file__).with_name("family_rows.py"))
    module = sys.modules.setdefault("family_rows", importlib.util.module_from_spec(spec))
    if not hasattr(module, "ROWS"):
        spec.loader.exec_module(module)
    return module


rows = _rows()
every_family, every_fused_family = rows.named(rows.ROWS), rows.named(rows.FUSED)
every_family_quickly = rows.named(rows.ROWS, all_quick=True)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def projections(model, roles=("q", "k", "v", "o", "ffn")):
    return [each for each in architecture_of(model).projections(model) if each.role in roles]


def steps(row, model, count=2, wrapped=None):
    """Take decayed steps with an optimiser built the way users do; learning rate x weight decay = 1e-3."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    for step in range(count):
        row.logits(model if wrapped is None else wrapped, seed=step).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=step % 2 == 0)


@pytest.fixture(scope="module")
def process_group(tmp_path_factory):
    file = tmp_path_factory.mktemp("ddp") / "store"
    torch.distributed.init_process_group("gloo", init_method=f"file://{file}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@every_family_quickly
def test_every_role_is_found_in_every_layer_and_site(row):
    found = projections(row.build())
    assert {each.site for each in found} == set(row.sites)
    for site in row.sites:
        for role in ("q", "k", "v", "o"):
            assert [each.layer for each in found if (each.role, each.site) == (role, site)] == [0, 1]
    assert {each.layer for each in found if each.role == "ffn"} == ({0, 1} if row.ffn else set())
    assert len({each.name for each in found}) == len(found)
    assert all(each.shape[:2] == (row.key_heads, 8) for each in found if each.role == "k")


@every_family_quickly
@pytest.mark.parametrize("method", ["baseline", "frozen-as-is", "oelm-qk-ffn"])
def test_locating_and_freezing_leave_the_logits_alone(row, method):
    model = row.build().eval()
    spec = oelm.named_method(method)
    spec = spec.model_copy(update={"init": oelm.MethodSpec().init})
    if not row.ffn and "ffn" in spec.freeze.roles:
        pytest.skip("its experts are not a role")
    with torch.no_grad():
        before = row.logits(model)
        oelm.apply(model, spec)
        after = row.logits(model)
    assert (after - before).abs().max() <= 1e-6 * before.abs().max()


@every_fused_family
def test_fused_families_keep_their_logits_at_a_real_width(row):
    model = row.build(wide=True).eval()
    with torch.no_grad():
        before = row.logits(model)
        oelm.apply(model, "frozen-as-is")
        after = row.logits(model)
    assert (after - before).abs().max() <= 1e-6 * before.abs().max()


@every_family_quickly
@pytest.mark.parametrize(
    "method", ["oelm-freeze", "oelm-from-current", "orthogonal-trained", "oelm-slice", "oelm-hadamard"]
)
def test_each_heads_gram_matrix_is_the_identity(row, method):
    model = row.build()
    audit = oelm.apply(model, method)
    assert audit.max_departure < 1e-6
    for each in projections(model, ("q", "k")):
        for head_KI in each.read():
            assert torch.allclose(head_KI @ head_KI.T, torch.eye(8), atol=1e-6)
    assert all(each.departure is None for each in audit.projections if each.role not in ("q", "k"))


@every_family
def test_frozen_bytes_survive_fifty_decayed_steps_while_the_rest_moves(row):
    model = row.build()
    oelm.apply(model, "oelm-freeze")
    held = {each.name: sha256(each.weight) for each in projections(model, ("q", "k"))}
    moving = {each.name: sha256(each.weight) for each in projections(model, ("v", "o", "ffn"))}
    steps(row, model, 50)
    assert {each.name: sha256(each.weight) for each in projections(model, ("q", "k"))} == held
    stayed = [each.name for each in projections(model, ("v", "o", "ffn")) if sha256(each.weight) == moving[each.name]]
    assert stayed == []
    assert set(oelm.verify_frozen(model)) >= {f"{name}.weight" for name in held}


@every_family_quickly
def test_counts_add_up_and_biases_are_counted_by_choice(row):
    model = row.build()
    total = sum(parameter.numel() for parameter in model.parameters())
    fixed = sum(parameter.numel() for parameter in model.parameters() if not parameter.requires_grad)  # Whisper
    shapes = [(each.role, *each.shape) for each in projections(model, ("q", "k"))]
    weights = sum(heads * size * width for _, heads, size, width in shapes)
    biases = sum(heads * size for role, heads, size, _ in shapes if role in row.biased)
    audit = oelm.apply(model, "oelm-freeze")
    held = weights + biases + fixed
    assert (audit.total, audit.frozen, audit.trainable) == (total, held, total - held)
    unbiased = oelm.MethodSpec(freeze={"roles": ("q", "k"), "biases": False})
    assert oelm.apply(row.build(), unbiased).frozen == weights + fixed


@every_family
def test_biases_keep_their_values_when_weights_are_drawn(row):
    model, plain = row.build(), row.build()
    oelm.apply(model, "oelm-freeze")
    drawn = {each.module_name for each in projections(model, ("q", "k"))}
    state, before = model.state_dict(), plain.state_dict()
    assert set(state) == set(before)
    for name, tensor in before.items():
        if not (name.rpartition(".")[0] in drawn and "weight" in name):
            assert torch.equal(tensor, state[name]), name


@every_family_quickly
def test_what_is_saved_is_loaded_by_plain_tools_with_equal_logits(row, tmp_path):
    model = row.build()
    oelm.apply(model, "oelm-freeze")
    steps(row, model)
    if row.from_transformers:
        model.save_pretrained(tmp_path)
        plain = type(model).from_pretrained(tmp_path)
        assert plain.config.oelm["seed"] == 0
    else:
        plain = row.build()
        plain.load_state_dict(model.state_dict())
    assert all(parameter.requires_grad for parameter in plain.parameters())
    with torch.no_grad():
        # Split roles are multiplied one by one, so that sums differ in their last bits.
        assert torch.allclose(row.logits(plain.eval()), row.logits(model.eval()), rtol=1e-5, atol=1e-6)


@every_family_quickly
def test_oelm_load_brings_back_the_method_frozen(row, tmp_path):
    if not row.from_transformers:
        pytest.skip("torch's modules have no save_pretrained")
    model = row.build()
    oelm.apply(model, "oelm-freeze", seed=3)
    steps(row, model)
    model.save_pretrained(tmp_path)
    back = oelm.load(tmp_path)
    assert oelm.verify_frozen(back) == oelm.verify_frozen(model)
    # from_pretrained trains the fixed positions of Whisper, so only projections can be compared
    assert [each.frozen for each in oelm.audit(back).projections] == [
        each.frozen for each in oelm.audit(model).projections
    ]
    steps(row, back)
    oelm.verify_frozen(back)


@every_family
def test_a_plain_state_dict_loads_into_a_split_model(row):
    model, plain = row.build(), row.build()
    oelm.apply(model, "frozen-as-is")
    for parameter in plain.parameters():
        parameter.data.mul_(1.5)
    model.load_state_dict(plain.state_dict())
    with torch.no_grad():
        # Split roles are multiplied one by one, so that sums differ in their last bits.
        assert torch.allclose(row.logits(plain.eval()), row.logits(model.eval()), rtol=1e-5, atol=1e-6)
    with pytest.raises(FrozenWeightsMoved):
        oelm.verify_frozen(model)


@every_family
def test_unfreezing_one_layer_moves_that_layer_only(row):
    model = row.build()
    oelm.apply(model, "oelm-freeze")
    before = {each.name: sha256(each.weight) for each in projections(model, ("q", "k"))}
    oelm.unfreeze(model, layers=(-1,))
    steps(row, model)
    moved = {each.layer for each in projections(model, ("q", "k")) if sha256(each.weight) != before[each.name]}
    assert moved == {1}
    oelm.verify_frozen(model)


@every_family
def test_a_movement_in_the_last_bit_is_caught(row):
    model = row.build()
    oelm.apply(model, "oelm-freeze")
    each = projections(model, ("k",))[-1]
    flat = each.weight.detach().view(-1)
    flat[0] = torch.nextafter(flat[0], torch.tensor(9.0))
    with pytest.raises(FrozenWeightsMoved, match=each.name):
        oelm.verify_frozen(model)


@every_family
def test_a_copy_is_frozen_too_and_independent(row):
    model = row.build()
    oelm.apply(model, "oelm-freeze")
    twin = copy.deepcopy(model)
    steps(row, twin)
    oelm.verify_frozen(twin)
    oelm.unfreeze(twin)
    assert not any(each.weight.requires_grad for each in projections(model, ("q", "k")))
    oelm.verify_frozen(model)


@every_family
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_cast_is_no_movement_and_stays_frozen(row, dtype):
    model = row.build()
    oelm.apply(model, "oelm-freeze")
    model.to(dtype)
    oelm.verify_frozen(model)
    if row.inputs in ("tokens", "pair"):
        steps(row, model)
    oelm.verify_frozen(model)
    each = projections(model, ("q",))[0]
    each.weight.data.view(-1)[0] += 1e-2
    with pytest.raises(FrozenWeightsMoved, match=each.name):
        oelm.verify_frozen(model)


@pytest.mark.programs
@every_family
def test_a_compiled_model_stays_frozen(row):
    model = row.build()
    oelm.apply(model, "oelm-freeze")
    torch._dynamo.reset()
    model.eval()  # BART and OPT draw in training whether to drop a layer, which breaks the graph layer by layer
    compiled = torch.compile(model, backend="eager")
    assert torch.allclose(row.logits(compiled), row.logits(model), atol=1e-5)
    steps(row, model, wrapped=compiled)
    oelm.verify_frozen(compiled)


@every_family
def test_gradient_checkpointing_stays_frozen(row):
    model = row.build()
    oelm.apply(model, "oelm-freeze")
    if row.from_transformers:
        if not model.supports_gradient_checkpointing:
            pytest.skip("transformers has no gradient checkpointing for it")
        model.gradient_checkpointing_enable()
        model.train()
        steps(row, model)
    else:
        forward = model.encoder.forward
        model.encoder.forward = lambda x: torch.utils.checkpoint.checkpoint(forward, x, use_reentrant=False)
        steps(row, model)
    oelm.verify_frozen(model)


@every_family
def test_ddp_stays_frozen(row, process_group):
    model = row.build()
    oelm.apply(model, "oelm-freeze")
    # CLIP, SigLIP and wav2vec 2 have parameters that they do not use
    wrapped = DistributedDataParallel(model, find_unused_parameters=not row.quick)
    before = {each.name: sha256(each.weight) for each in projections(model, ("v",))}
    steps(row, model, wrapped=wrapped)
    oelm.verify_frozen(wrapped)
    assert all(sha256(each.weight) != before[each.name] for each in projections(model, ("v",)))


@every_family
def test_the_same_seed_draws_the_same_and_another_seed_draws_other_weights(row):
    audits = [oelm.apply(row.build(), "oelm-freeze", seed=seed) for seed in (1, 1, 2)]
    one, two, three = ([each.sha256 for each in audit.projections if each.role in ("q", "k")] for audit in audits)
    assert one == two
    assert set(one).isdisjoint(three)
    assert len(set(one)) == len(one)


@every_family_quickly
def test_without_q_and_k_attention_is_uniform_or_refused(row):
    # Models outside the attention interface cannot be asked later for an attention that shows its weights.
    model = row.build() if row.repairs or not row.from_transformers else row.build(attn_implementation="eager")
    if not row.uniform:
        with pytest.raises(oelm.OelmError, match="not uniform"):
            oelm.apply(model, "uniform")
        return
    oelm.apply(model, "uniform")
    steps(row, model)
    oelm.verify_frozen(model)
    assert not any(each.read().any() for each in projections(model, ("q",)))
    if row.from_transformers:
        model.eval().set_attn_implementation("eager")
        output = model(**row.feed(), output_attentions=True)
        for attention in output.get("attentions") or output.decoder_attentions:
            seen = (attention > 0).sum(-1, keepdim=True)
            assert torch.allclose(attention, (attention > 0) / seen, atol=1e-6)


@every_fused_family
def test_split_modules_keep_their_name_and_type(row):
    model, plain = row.build(), row.build()
    oelm.apply(model, "oelm-freeze")
    names = [name for name, _ in plain.named_modules() if name.endswith(row.fused)]
    assert len(names) == 2
    for name in names:
        assert isinstance(model.get_submodule(name), type(plain.get_submodule(name)))


def test_every_built_in_family_has_a_row():
    from oelm.models.families import ARCHITECTURES

    known = {architecture_of(row.build()).name for row in rows.ROWS}
    assert {each.name for each in ARCHITECTURES} - known == {"gpt"}
