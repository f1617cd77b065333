"""What must hold for every repair on our GPT."""

import math

import pytest
import torch

import oelm
from oelm.errors import BadShape
from oelm.method.freeze import multipliers
from oelm.method.repair import Repair
from oelm.models.families import architecture_of
from oelm.models.gpt import GPT, _weights, generate_tokens, rotate
from oelm.spec.method import METHODS, RatesSpec, named_method
from oelm.spec.run import GPT_SIZES

NANO = GPT_SIZES["nano"]
VARIANTS = {
    "plain": NANO,
    "rope": NANO.model_copy(update={"positions": "rope"}),
    "grouped": NANO.model_copy(update={"num_key_heads": 2}),
    "thin, rope, grouped": NANO.model_copy(update={"qk_head_size": 4, "positions": "rope", "num_key_heads": 2}),
}
SINGLE = ["shift", "temperature", "qk-norm", "core", "diagonal", "low-rank", "bias", "mix", "features", "query-bias"]
ALL = "core+diagonal+query-bias+low-rank=3+shift+mix+bias+features=1"
TOGETHER = [f"{ALL}+temperature", f"{ALL}+qk-norm"]
STARTS_AS_NOTHING = [
    *sorted({*SINGLE} - {"shift", "qk-norm", "features"}),
    f"{ALL.replace('+shift', '').replace('+features=1', '')}+temperature",
]
IDS = torch.randint(0, 97, (2, 20), generator=torch.Generator().manual_seed(1))


def repaired(parts, spec=NANO, base="oelm", seed=0, *, trained=True):
    """Build a model with repairs, by default with values that training might have given them."""
    model = GPT(spec, seed).eval()
    oelm.apply(model, f"{base}+{parts}", seed=seed)
    if trained:
        generator = torch.Generator().manual_seed(7)
        with torch.no_grad():
            for parameter in repair_parameters(model).values():
                parameter.normal_(0, 0.4, generator=generator)
    return model


def repair_parameters(model):
    return {
        f"{name}.{inner}": parameter
        for name, module in model.named_modules()
        if isinstance(module, Repair)
        for inner, parameter in module.named_parameters(recurse=False)
    }


def neutral_or_trained(attention):
    """Return every tensor of an attention; those of repairs that are off are zero."""
    spec, size = attention.spec, attention.content_size
    neutral = {
        "query_fold.core_HKK": (spec.num_heads, size, size),
        "query_bias.bias_HK": (spec.num_heads, size),
        "position_features.cosine_HM": (spec.num_heads, 1),
        "position_features.sine_HM": (spec.num_heads, 1),
        "position_features.log_frequency_GM": (spec.key_heads, 1),
        "temperature.log_factor_H": (spec.num_heads,),
        "key_mix.share_H": (spec.key_heads,),
        "position_bias.bias_HT": (spec.num_heads, spec.context),
    }
    for fold, heads in (("query_fold", spec.num_heads), ("key_fold", spec.key_heads)):
        neutral[f"{fold}.diagonal_I"] = (spec.model_dim,)
        neutral[f"{fold}.outer_CR"] = (heads * size, 1)
        neutral[f"{fold}.inner_RI"] = (1, spec.model_dim)
    off = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in neutral.items()}
    return off | dict(attention.named_parameters())


def projected(attention, role, x_D, head, position):
    """One query or key: scaled, projected, multiplied by its core, normalised, turned."""
    spec, of = attention.spec, neutral_or_trained(attention)
    fold = {"q": "query_fold", "k": "key_fold"}[role]
    rows = slice(head * attention.content_size, (head + 1) * attention.content_size)
    x_D = x_D + of[f"{fold}.diagonal_I"] * x_D
    y_K = of[f"{role}.weight"][rows] @ x_D + of[f"{fold}.outer_CR"][rows] @ (of[f"{fold}.inner_RI"] @ x_D)
    if role == "q":
        y_K = y_K + of["query_fold.core_HKK"][head] @ y_K + of["query_bias.bias_HK"][head]
    if attention.qk_norm is not None:
        y_K = y_K / (y_K.square().mean() + 1e-6).sqrt()
    return rotate(y_K.view(1, 1, 1, -1), position).view(-1) if spec.positions == "rope" else y_K


def distance_bias(attention, head, key_head, distance):
    """The function of distance of position features, as a sum of cosines and sines."""
    of, context = neutral_or_trained(attention), attention.spec.context
    cosine, sine = of["position_features.cosine_HM"][head], of["position_features.sine_HM"][head]
    number = len(cosine)
    total = 0.0
    for m in range(number):
        start = math.pi * (2 / context) ** (m / max(number - 1, 1))
        angle = start * of["position_features.log_frequency_GM"][key_head, m].exp() * distance
        total = total + cosine[m] * angle.cos() + sine[m] * angle.sin()
    return total


def written_out(attention, x_TD):
    """Causal attention with repairs as one would explain it: vector by vector, in float64."""
    spec, of, times = attention.spec, neutral_or_trained(attention), range(x_TD.shape[0])
    heads = []
    for head in range(spec.num_heads):
        key_head = head // (spec.num_heads // spec.key_heads)
        keys = [projected(attention, "k", x_TD[t], key_head, t) for t in times]
        if attention.key_shift is not None and key_head < attention.key_shift.shifted:
            keys = [keys[0], *keys[:-1]]
        share = of["key_mix.share_H"][key_head]
        keys = [keys[0], *((1 - share) * keys[t] + share * keys[t - 1] for t in times[1:])]
        values = (x_TD @ of["v.weight"].T)[:, key_head * spec.head_size : (key_head + 1) * spec.head_size]
        factor, bias = of["temperature.log_factor_H"][head].exp(), of["position_bias.bias_HT"][head]
        mixed = []
        for t in times:
            query = factor * projected(attention, "q", x_TD[t], head, t)
            logits = [
                query @ keys[s] / math.sqrt(attention.content_size)
                + bias[t - s]
                + distance_bias(attention, head, key_head, t - s)
                for s in range(t + 1)
            ]
            mixed.append(torch.stack(logits).softmax(0) @ values[: t + 1])
        heads.append(torch.stack(mixed))
    return torch.cat(heads, -1) @ of["o.weight"].T


@pytest.mark.parametrize("spec", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("parts", [*SINGLE, *TOGETHER])
def test_attention_is_the_one_written_out_vector_by_vector(parts, spec):
    model = repaired(parts, spec).double()
    x_BTD = torch.randn(1, 7, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    attention = model.blocks[1].attention
    with torch.no_grad():
        # RoPE's angles are float32 by design; both sides use them.
        assert torch.allclose(attention(x_BTD)[0], written_out(attention, x_BTD[0]), atol=1e-12)


@pytest.mark.parametrize("base", ["oelm", "baseline"])
@pytest.mark.parametrize("parts", STARTS_AS_NOTHING)
def test_it_starts_as_if_it_were_not_there(parts, base):
    model, plain = repaired(parts, base=base, trained=False), GPT(NANO).eval()
    oelm.apply(plain, "oelm-freeze" if base == "oelm" else base)
    with torch.no_grad():
        ours, theirs = model(IDS), plain(IDS)
    if "bias" in parts:  # with a mask torch sums in another order
        assert torch.allclose(ours, theirs, atol=1e-6)
    else:
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("parts", ["shift", "qk-norm", "features"])
def test_what_changes_the_function_itself_shows_at_once(parts):
    plain = repaired("temperature", trained=False)
    with torch.no_grad():
        assert not torch.allclose(repaired(parts, trained=False)(IDS), plain(IDS), atol=1e-4)


@pytest.mark.parametrize("parts", [*SINGLE, *TOGETHER])
def test_every_repair_has_a_gradient_from_the_first_step_and_frozen_weights_have_none(parts):
    model = repaired(parts, trained=False)
    model(IDS[:, :-1], IDS[:, 1:]).backward()
    for name, parameter in repair_parameters(model).items():
        # Inner factors and frequencies wait for outer factors and amplitudes, which start at zero.
        assert bool(parameter.grad.any()) == (not name.endswith(("inner_RI", "log_frequency_GM"))), name
    assert all(block.attention.q.weight.grad is block.attention.k.weight.grad is None for block in model.blocks)


@pytest.mark.parametrize("parts", ["low-rank", "features"])
def test_what_starts_without_a_gradient_learns_once_its_factor_has_moved(parts):
    model = repaired(parts)
    model(IDS[:, :-1], IDS[:, 1:]).backward()
    assert all(parameter.grad.any() for parameter in repair_parameters(model).values())


@pytest.mark.parametrize("parts", [*SINGLE, *TOGETHER])
def test_no_repair_shifts_any_other_draw(parts):
    model, plain = GPT(NANO, 5), GPT(NANO, 5)
    oelm.apply(plain, "oelm-freeze", seed=5)
    before = torch.random.get_rng_state()
    oelm.apply(model, f"oelm+{parts}", seed=5)
    assert torch.equal(torch.random.get_rng_state(), before)
    ours, theirs = dict(model.named_parameters()), dict(plain.named_parameters())
    assert ours.keys() - theirs.keys() == repair_parameters(model).keys()
    # Features make queries and keys smaller, so that those two are other draws of the same law.
    narrowed = ("q.weight", "k.weight") if "features" in parts else ()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs if not name.endswith(narrowed))


def test_residuals_are_drawn_apart_for_each_layer_and_role_and_alike_for_each_seed_and_arm():
    def inner(base, seed):
        model = repaired("low-rank", base=base, seed=seed, trained=False)
        return [p for name, p in repair_parameters(model).items() if name.endswith("inner_RI")]

    first, again, other = inner("oelm", 1), inner("baseline", 1), inner("oelm", 2)
    assert all(torch.equal(one, two) for one, two in zip(first, again, strict=True))
    sums = {float(tensor.detach().sum()) for tensor in (*first, *other)}
    assert len(sums) == 8


@pytest.mark.parametrize("spec", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("parts", [*SINGLE, *TOGETHER])
def test_a_cache_gives_the_hidden_states_of_the_whole_text(parts, spec):
    model = repaired(parts, spec)
    with torch.no_grad():
        whole, cache = model.hidden(IDS), model.empty_cache()
        pieces = [model.hidden(piece, cache) for piece in IDS.split([7, 1, 1, 5, 6], dim=1)]
    assert torch.allclose(torch.cat(pieces, 1), whole, atol=2e-5)


@pytest.mark.parametrize("parts", TOGETHER)
def test_generation_goes_on_past_the_context_and_takes_the_likeliest_of_the_whole_text(parts):
    model, text = repaired(parts), [5, 6, 7]
    for token in generate_tokens(model, text, new_tokens=20, temperature=0):
        assert token == int(model(torch.tensor([text]))[0, -1].argmax())
        text.append(token)
    assert len(list(generate_tokens(model, text, new_tokens=40))) == 40


@pytest.mark.parametrize("parts", [*SINGLE, *TOGETHER])
def test_no_token_sees_its_successors(parts):
    model, changed = repaired(parts), IDS.clone()
    changed[:, 12:] = (changed[:, 12:] + 1) % 97
    with torch.no_grad():
        assert torch.allclose(model(IDS)[:, :12], model(changed)[:, :12], atol=1e-6)


@pytest.mark.parametrize("parts", TOGETHER)
@pytest.mark.parametrize("spec", VARIANTS.values(), ids=VARIANTS)
def test_the_summary_of_attention_sees_the_repairs(parts, spec):
    # With values equal to one-hot positions the output of sdpa is the attention matrix itself.
    attention, x = repaired(parts, spec).blocks[0].attention, torch.randn(1, 8, 32)
    values = torch.eye(8).expand(1, spec.key_heads, 8, 8)
    with torch.no_grad():
        computed = attention._attend(*attention.queries_and_keys(x), values)
        assert torch.allclose(computed, _weights(attention, x), atol=1e-6)


@pytest.mark.parametrize("parts", [*SINGLE, *TOGETHER])
def test_mixed_precision_carries_it_out(parts):
    model = repaired(parts)
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(IDS[:, :-1], IDS[:, 1:])
    loss.backward()
    with torch.no_grad():
        assert float(loss) == pytest.approx(float(model(IDS[:, :-1], IDS[:, 1:])), rel=0.01)
    assert all(parameter.grad.isfinite().all() for parameter in repair_parameters(model).values())


@pytest.mark.parametrize("parts", [*SINGLE, *TOGETHER])
def test_a_model_in_half_precision_carries_it_out(parts):
    half = GPT(NANO).bfloat16()
    oelm.apply(half, f"oelm+{parts}")
    with torch.no_grad():
        assert half(IDS).isfinite().all()


@pytest.mark.programs
@pytest.mark.parametrize("parts", TOGETHER)
def test_compiling_changes_nothing_but_the_time(parts):
    model = repaired(parts)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    loss, expected = compiled(IDS[:, :-1], IDS[:, 1:]), model(IDS[:, :-1], IDS[:, 1:])
    assert torch.allclose(loss, expected, rtol=1e-5)
    loss.backward()
    assert all(parameter.grad is not None for parameter in repair_parameters(model).values())


@pytest.mark.parametrize("parts", TOGETHER)
def test_thawing_and_freezing_qk_never_touches_a_repair(parts):
    model = repaired(parts, trained=False)
    oelm.unfreeze(model)
    names = oelm.freeze(model)
    assert not repair_parameters(model).keys() & set(names)
    assert all(parameter.requires_grad for parameter in repair_parameters(model).values())


@pytest.mark.parametrize(("parts", "count"), [
    ("temperature", 4), ("qk-norm", 4), ("core", 4 * 8 * 8), ("diagonal", 2 * 32), ("low-rank", 2 * 4 * (32 + 32)),
    ("query-bias", 32), ("bias", 4 * 32), ("mix", 4), ("shift", 0), ("features", 3 * 4 * 2), ("features=3", 3 * 4 * 3),
])  # fmt: skip
def test_the_audit_counts_what_repairs_train_against_the_weights_of_q_and_k(parts, count):
    model, plain = GPT(NANO), GPT(NANO)
    audit, bare = oelm.apply(model, f"oelm+{parts}"), oelm.apply(plain, "oelm-freeze")
    content = model.blocks[0].attention.content_size
    assert (audit.repair, audit.qk, bare.qk) == (2 * count, 2 * 2 * 4 * content * 32, 2 * 2 * 32 * 32)
    assert audit.repair_share == count / (2 * 4 * content * 32)
    assert audit.trainable - bare.trainable == audit.repair
    assert audit.never_frozen.get("repairs of the logits", 0) == audit.repair
    assert bare.repair == 0


def test_grouped_keys_have_a_core_for_each_query_head_and_a_mixture_for_each_key_head():
    attention = repaired("core+mix+bias", VARIANTS["grouped"]).blocks[0].attention
    assert attention.query_fold.core_HKK.shape == (4, 8, 8)
    assert attention.key_mix.share_H.shape == (2,)
    assert attention.position_bias.bias_HT.shape == (4, 32)


def test_a_repair_learns_at_the_rate_of_its_layer_and_not_at_that_of_q():
    model = repaired(TOGETHER[0])
    rates = RatesSpec(roles={"q": 0.1, "k": 0.1}, layer_decay=0.5)
    found = multipliers(dict(model.named_parameters()), architecture_of(model).projections(model), rates)
    for name in repair_parameters(model):
        assert found[name] == (0.5 if name.startswith("blocks.0.") else 1.0)
    assert found["blocks.1.attention.q.weight"] == 0.1


@pytest.mark.parametrize("parts", ["core", "diagonal", "low-rank", "core+diagonal+low-rank+features"])
def test_slices_with_linear_repairs_are_read_and_give_what_the_product_gives(parts):
    model = GPT(NANO).double()
    oelm.apply(model, f"oelm-slice+gain=2+same+{parts}")
    attention, x = model.blocks[0].attention, torch.randn(1, 5, 32, dtype=torch.float64)
    with torch.no_grad():
        for parameter in repair_parameters(model).values():
            parameter.normal_(0, 0.4)
        attention.double()
        read = attention.project(x)
        for role in ("q", "k"):
            assert type(getattr(attention, role)).__name__ == "SlicedLinear"
            getattr(attention, role).has_trained = True
        multiplied = attention.project(x)
    assert all(torch.allclose(one, two, atol=1e-12) for one, two in zip(read, multiplied, strict=True))


def test_a_residual_as_large_as_the_projection_is_refused():
    with pytest.raises(BadShape, match=r"low_rank=32 .* at most 32"):
        oelm.apply(GPT(NANO), "oelm+low-rank=32")


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.repair.active()])
def test_other_families_refuse_by_name_what_they_cannot_carry_out(name):
    from oelm.errors import NotCarriedOut
    from oelm.models.build import build, parse_model_name

    lacking = set(named_method(name).repair.active()) & {"qk_norm"}
    model = build(parse_model_name("bert-tiny"))
    if not lacking:
        oelm.apply(model, name)
        return
    with pytest.raises(NotCarriedOut, match=min(lacking)):
        oelm.apply(model, name)


def test_more_and_smaller_heads_are_an_arm_like_any_other():
    from oelm.spec.run import RunSpec
    from oelm.spec.study import Arm, Study

    arm = Arm(name="small-heads", method=METHODS["oelm-core"], model={"num_heads": 8})
    study = Study(name="heads", question="?", base=RunSpec(model=NANO), arms=("baseline", arm))
    assert {run.model.num_heads for run in study.runs() if run.arm == "small-heads"} == {8}
