"""Half precision on a CPU: each function against float64, and a whole step against float32."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from oelm.models import apply as surgery
from oelm.models import linear as half
from oelm.models import loss as loss_module
from oelm.models.gpt import GPT
from oelm.models.linear import attend, gelu_linear
from oelm.models.loss import chunked_cross_entropy
from oelm.spec.run import GPTSpec, TrainSpec
from oelm.train.loop import Optimizer

BF16 = torch.bfloat16
LENGTH = 300  # two whole blocks and a part of one
SMALL = GPTSpec(context=160, model_dim=64, num_layers=2, num_heads=4, vocab_size=97)


def heads(dtype=torch.float64, length=LENGTH, size=16, value_size=8, scale=2.0):
    """Return queries, keys and values of two texts and three heads."""
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(2, 3, length, width, generator=generator) for width in (size, size, value_size)]
    return [(scale * x).to(dtype).requires_grad_() for x in drawn]


def blockwise(*tensors, block=half.BLOCK):
    return half._BlockwiseAttention.apply(*tensors, block, tensors[0].shape[-1] ** -0.5)


def gradients(function, tensors, seed=1):
    out = function(*tensors)
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(seed)).to(out.dtype)
    return out, *torch.autograd.grad(out, tensors, weights)


def error(found, exact):
    return ((found.double() - exact).norm() / exact.norm()).item()


@pytest.mark.parametrize("length", [1, 127, 128, 129, LENGTH])
def test_attention_by_blocks_is_causal_attention(length):
    tensors = heads(length=length)
    ours = gradients(blockwise, tensors)
    theirs = gradients(lambda *x: F.scaled_dot_product_attention(*x, is_causal=True), tensors)
    for mine, other in zip(ours, theirs, strict=True):
        assert torch.allclose(mine, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("length", [1, 129, LENGTH])
def test_attention_that_computes_its_weights_again_has_the_same_gradients(monkeypatch, length):
    kept = gradients(blockwise, heads(BF16, length=length))
    monkeypatch.setattr(half, "KEPT_CONTEXT", 0)
    again = gradients(blockwise, heads(BF16, length=length))
    assert all(torch.equal(one, other) for one, other in zip(kept, again, strict=True))


def test_the_gradient_of_attention_by_blocks_is_that_of_finite_differences():
    tensors = heads(length=5, size=3, value_size=2, scale=1.0)
    assert torch.autograd.gradcheck(lambda *x: blockwise(*x, block=2), tensors)


def test_bf16_attention_is_within_half_again_of_the_error_of_the_fused_kernel():
    exact = gradients(lambda *x: F.scaled_dot_product_attention(*x, is_causal=True), heads())
    rounded = heads(BF16)
    ours = gradients(lambda *x: attend(*x, is_causal=True), rounded)
    fused = gradients(lambda *x: F.scaled_dot_product_attention(*x, is_causal=True), rounded)
    for mine, other, true in zip(ours, fused, exact, strict=True):
        assert mine.dtype == BF16
        assert error(mine, true) < 1.5 * error(other, true)


@pytest.mark.parametrize("length", [LENGTH, half.KEPT_CONTEXT + 1])
def test_autocast_does_not_round_the_logits_of_attention(length):
    def under_autocast(*tensors):
        with torch.autocast("cpu", BF16):
            return attend(*tensors, is_causal=True)

    tensors = heads(BF16, length=length, scale=8.0)
    plain = gradients(lambda *x: attend(*x, is_causal=True), tensors)
    assert all(torch.equal(*pair) for pair in zip(plain, gradients(under_autocast, tensors), strict=True))
    with torch.autocast("cpu", BF16):  # also where a backward pass computes the weights again
        assert all(torch.equal(*pair) for pair in zip(plain, gradients(under_autocast, tensors), strict=True))


@pytest.mark.parametrize("trained", [0, 1, 2])
def test_attention_gives_a_gradient_to_what_needs_one_and_multiplies_for_no_other(trained):
    tensors = heads(torch.float32)
    for number, tensor in enumerate(tensors):
        tensor.requires_grad_(number == trained)
    with FlopCounterMode(display=False) as counter:
        out = blockwise(*tensors).sum()
    forward = counter.get_total_flops()
    with FlopCounterMode(display=False) as counter:
        out.backward()
    assert [tensor.grad is not None for tensor in tensors] == [number == trained for number in range(3)]
    assert counter.get_total_flops() < forward * (1.1 if trained == 2 else 1.7)


@pytest.mark.parametrize(
    "options",
    [
        {"is_causal": False},
        {"attn_mask": torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()},
        {"is_causal": True, "dropout_p": 0.5},
    ],
)
def test_other_attention_is_left_to_the_fused_kernel(monkeypatch, options):
    monkeypatch.setattr(half._BlockwiseAttention, "apply", None)
    tensors = [x.detach() for x in heads(BF16)]
    torch.manual_seed(0)
    ours = attend(*tensors, **options)
    torch.manual_seed(0)
    assert torch.equal(ours, F.scaled_dot_product_attention(*tensors, **options))


def test_grouped_keys_are_left_to_the_fused_kernel():
    queries, keys, values = (x.detach() for x in heads(BF16))
    grouped = attend(queries, keys[:, :1], values[:, :1], is_causal=True, enable_gqa=True)
    expected = F.scaled_dot_product_attention(queries, keys[:, :1], values[:, :1], is_causal=True, enable_gqa=True)
    assert torch.equal(grouped, expected)


def test_gelu_keeps_one_wide_tensor_under_autocast_as_well():
    before, weight, bias = (torch.randn(shape, requires_grad=True) for shape in ((2, 3, 8), (4, 8), (4,)))
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(kept.append, lambda _: None):  # noqa: SIM117
        with torch.autocast("cpu", BF16):
            gelu_linear(before, weight, bias)
    assert sorted(tensor.numel() for tensor in kept) == sorted([before.numel(), weight.numel()])
    assert {tensor.dtype for tensor in kept} == {BF16}


def test_gelu_under_autocast_has_the_gradients_of_the_plain_composition():
    tensors = [torch.randn(shape, requires_grad=True) for shape in ((2, 3, 8), (4, 8), (4,))]
    with torch.autocast("cpu", BF16):
        ours = gradients(gelu_linear, tensors)
        plain = gradients(lambda x, w, b: F.linear(F.gelu(x), w, b), tensors)
    doubles = [x.detach().double().requires_grad_() for x in tensors]
    exact = gradients(lambda x, w, b: F.linear(F.gelu(x), w, b), doubles)
    for mine, other, true in zip(ours, plain, exact, strict=True):
        assert mine.dtype == other.dtype
        assert error(mine, true) < max(1.5 * error(other, true), 0.005)


def test_the_gradient_of_the_vocabulary_is_not_rounded_to_bf16(monkeypatch):
    monkeypatch.setattr(loss_module, "CHUNK_BYTES", 16 * 11 * 2)  # four chunks: their sum has more digits than bf16
    hidden, weight = torch.randn(1, 64, 8), torch.randn(11, 8, requires_grad=True)
    with torch.autocast("cpu", BF16):
        chunked_cross_entropy(hidden, weight, torch.randint(0, 11, (1, 64))).backward()
    assert weight.grad.dtype == torch.float32
    assert not torch.equal(weight.grad, weight.grad.bfloat16().float())


def test_a_target_of_no_probability_has_its_loss_all_the_same():
    hidden, weight = torch.full((1, 2, 1), 100.0), torch.tensor([[1.0], [-1.0]])
    with torch.autocast("cpu", BF16):
        loss = chunked_cross_entropy(hidden, weight, torch.tensor([[1, 0]]))
    assert loss.item() == pytest.approx(100.0)


def trained(precision, steps, method="baseline", spec=SMALL):
    """Return the losses of some steps and the model."""
    model = GPT(spec)
    surgery.apply(model, method)
    optimizer = Optimizer(model, TrainSpec(), dict.fromkeys((name for name, _ in model.named_parameters()), 1.0))
    generator = torch.Generator().manual_seed(0)
    losses = []
    for _ in range(steps):
        # Every token follows from the one before, so that there is something to learn.
        first = torch.randint(0, 97, (4, 1), generator=generator)
        tokens = (first + 5 * torch.arange(spec.context + 1)) % 97
        with torch.autocast("cpu", BF16, enabled=precision == "bf16"):
            loss = model(tokens[:, :-1], tokens[:, 1:])
        optimizer.backward(loss)
        optimizer.step(3e-3)
        losses.append(loss.item())
    return losses, model


@pytest.mark.programs
def test_forty_bf16_steps_lose_no_more_than_a_hundredth_of_a_nat_to_float32():
    full, _ = trained("fp32", 40)
    short, model = trained("bf16", 40)
    assert full[-1] < full[0] - 2
    assert max(abs(a - b) for a, b in zip(full, short, strict=True)) < 0.02
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_bf16_steps_are_repeated_to_the_bit():
    one, two = trained("bf16", 3)[1], trained("bf16", 3)[1]
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


def step_flops(method):
    model = GPT(SMALL)
    surgery.apply(model, method)
    tokens = torch.randint(0, 97, (2, SMALL.context))
    with FlopCounterMode(display=False) as counter:
        with torch.autocast("cpu", BF16):
            loss = model(tokens, tokens)
        loss.backward()
    return counter.get_total_flops(), model


def test_frozen_weights_get_no_gradient_and_no_product_in_bf16():
    full, _ = step_flops("baseline")
    frozen, model = step_flops("oelm-freeze")
    products = 2 * SMALL.num_layers * 2 * (2 * SMALL.context) * SMALL.model_dim**2
    assert full - frozen == products
    assert all(parameter.grad is None for parameter in model.parameters() if not parameter.requires_grad)


def test_the_residual_stream_and_the_norms_stay_float32_under_autocast():
    model = GPT(SMALL)
    seen = {}
    model.norm.register_forward_hook(lambda _, inputs, output: seen.update(stream=inputs[0].dtype, norm=output.dtype))
    model.blocks[0].attention.v.register_forward_hook(lambda _, inputs, __: seen.update(value=inputs[0].dtype))
    tokens = torch.randint(0, 97, (2, SMALL.context))
    with torch.autocast("cpu", BF16):
        loss = model(tokens, tokens)
    assert seen == {"stream": torch.float32, "norm": torch.float32, "value": BF16}
    assert loss.dtype == torch.float32


def test_attention_by_blocks_takes_the_scale_it_is_given():
    exact = [x.detach() for x in heads()]
    ours = attend(*(x.to(BF16) for x in exact), is_causal=True, scale=0.7)
    theirs = F.scaled_dot_product_attention(*(x.to(BF16).double() for x in exact), is_causal=True, scale=0.7)
    assert torch.allclose(ours.double(), theirs, atol=0.05)
    other = F.scaled_dot_product_attention(*exact, is_causal=True)
    assert not torch.allclose(ours.double(), other, atol=0.2)
