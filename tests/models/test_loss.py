"""The chunked cross-entropy against the plain one."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from oelm.models import loss as loss_module
from oelm.models.gpt import GPT
from oelm.models.loss import chunked_cross_entropy, embed_tied
from oelm.spec.run import GPTSpec


def inputs(dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(3, 7, 5, generator=generator, dtype=dtype, requires_grad=True)
    weight = torch.randn(11, 5, generator=generator, dtype=dtype, requires_grad=True)
    return hidden, weight, torch.randint(0, 11, (3, 7), generator=generator)


@pytest.mark.parametrize("rows_per_chunk", [1, 4, 21, 100])
def test_value_and_gradients_equal_the_plain_computation(monkeypatch, rows_per_chunk, plain_cross_entropy):
    hidden, weight, targets = inputs()
    monkeypatch.setattr(loss_module, "CHUNK_BYTES", rows_per_chunk * 11 * 8)
    ours = chunked_cross_entropy(hidden, weight, targets)
    expected = plain_cross_entropy(hidden, weight, targets)
    assert torch.allclose(ours.double(), expected.double(), rtol=1e-6)
    scale = torch.tensor(3.0)
    mine = torch.autograd.grad(ours * scale, (hidden, weight))
    theirs = torch.autograd.grad(expected * scale, (hidden, weight))
    for left, right in zip(mine, theirs, strict=True):
        assert torch.allclose(left, right, rtol=1e-5, atol=1e-7)


def test_a_frozen_vocabulary_gets_no_gradient_and_the_hidden_states_still_do():
    hidden, weight, targets = inputs()
    weight.requires_grad_(False)
    chunked_cross_entropy(hidden, weight, targets).backward()
    assert weight.grad is None
    assert hidden.grad is not None


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("rows_per_chunk", [4, 100])
def test_embedding_and_loss_that_share_a_gradient_have_the_bits_of_two_gradients(monkeypatch, rows_per_chunk, half):
    monkeypatch.setattr(loss_module, "CHUNK_BYTES", rows_per_chunk * 11 * 4)
    generator = torch.Generator().manual_seed(0)
    ids, targets = (torch.randint(0, 11, (3, 7), generator=generator) for _ in range(2))  # most tokens occur twice

    def gradient(share):
        weight = torch.randn(11, 5, generator=torch.Generator().manual_seed(1), requires_grad=True)
        for scale in (1.0, 0.3):  # two parts of a batch
            embedded, tied = embed_tied(ids, weight) if share else (torch.nn.functional.embedding(ids, weight), None)
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                (chunked_cross_entropy(embedded.tanh(), weight, targets, tied) * scale).backward()
        return weight.grad

    assert torch.equal(gradient(share=True), gradient(share=False))


def test_an_embedding_whose_shared_gradient_no_loss_uses_has_its_own():
    weight = torch.randn(11, 5, requires_grad=True)
    embedded, _ = embed_tied(torch.tensor([[1, 2, 1]]), weight)
    embedded.sum().backward()
    assert torch.equal(weight.grad[:, 0], torch.tensor([0.0, 2, 1, *[0] * 8]))


def test_a_frozen_embedding_shares_nothing():
    weight = torch.randn(11, 5)
    embedded, tied = embed_tied(torch.tensor([[1, 2]]), weight)
    assert tied is None
    assert not embedded.requires_grad


# A whole GPT against the plain loss of its logits, in uncommon uses of autograd.

IDS, TARGETS = torch.randint(0, 53, (2, 3, 20), generator=torch.Generator().manual_seed(0))


def detached(model, loss_of):
    model.blocks[0].register_forward_hook(lambda _module, _inputs, output: output.detach())
    loss_of(model).backward()


def checkpointed(model, loss_of, *, reentrant):
    one = torch.ones((), requires_grad=True)
    (0.5 * checkpoint(lambda factor: loss_of(model) * factor, one, use_reentrant=reentrant)).backward()


def kept(model, loss_of):
    loss = 0.5 * loss_of(model)
    loss.backward(retain_graph=True)
    loss.backward()


def one_by_one(model, loss_of):
    loss = 0.5 * loss_of(model)
    for parameter in model.parameters():
        (parameter.grad,) = torch.autograd.grad(loss, parameter, retain_graph=True)


def of_another_part_first(model, loss_of):
    embedded = []
    model.blocks[0].register_forward_pre_hook(lambda _, inputs: embedded.append(inputs[0]))
    torch.autograd.grad(loss_of(model), model.norm.weight, retain_graph=True)
    embedded[0].square().sum().backward()


def hooked(model, loss_of):
    model.token_embedding.register_forward_hook(lambda _module, _inputs, output: 2 * output)
    loss_of(model).backward()


def replaced(model, loss_of):
    forward = model.token_embedding.forward
    model.token_embedding.forward = lambda ids: 2 * forward(ids)
    loss_of(model).backward()


def in_two_forward_passes(model, loss_of):
    one, two = loss_of(model), loss_of(model)
    with torch.no_grad():
        loss_of(model)
    (2 * two).backward()
    one.backward()


USES = {
    "detached": detached,
    "checkpointed": lambda *given: checkpointed(*given, reentrant=False),
    "checkpointed, reentrant": lambda *given: checkpointed(*given, reentrant=True),
    "kept": kept,
    "one by one": one_by_one,
    "of another part first": of_another_part_first,
    "hooked": hooked,
    "replaced": replaced,
    "in two forward passes": in_two_forward_passes,
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_the_gradients_of_a_gpt_are_those_of_the_plain_loss(use):
    found = []
    for loss_of in (
        lambda model: model(IDS, TARGETS),
        lambda model: F.cross_entropy(model(IDS).flatten(0, 1), TARGETS.flatten()),
    ):
        model = GPT(GPTSpec(context=32, model_dim=32, num_layers=2, num_heads=4, vocab_size=53)).double()
        use(model, loss_of)
        found.append({name: each.grad for name, each in model.named_parameters() if each.grad is not None})
    ours, plain = found
    assert ours.keys() == plain.keys()
    assert all(torch.allclose(ours[name], plain[name], rtol=1e-6, atol=1e-9) for name in plain)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_a_matrix_in_half_precision_shares_its_gradient_too(kind, plain_cross_entropy):
    _, weight, targets = inputs(kind)
    ids = targets.flip(0)
    embedded, tied = embed_tied(ids, weight)
    (ours,) = torch.autograd.grad(chunked_cross_entropy(embedded, weight, targets, tied), weight)
    exact = weight.detach().double().requires_grad_()
    (expected,) = torch.autograd.grad(plain_cross_entropy(F.embedding(ids, exact), exact, targets), exact)
    assert ours.dtype == kind
    assert torch.allclose(ours.double(), expected, rtol=0.02, atol=0.02 * expected.abs().max().item())


def test_a_second_derivative_is_refused():
    hidden, weight, targets = inputs()
    loss = chunked_cross_entropy(hidden, weight, targets)
    (grad,) = torch.autograd.grad(loss.square(), hidden, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.square().sum().backward()


def test_half_precision_autocast_stays_near_the_full_one():
    hidden, weight, targets = inputs(torch.float32)
    full = chunked_cross_entropy(hidden, weight, targets)
    with torch.autocast("cpu", torch.bfloat16):
        half = chunked_cross_entropy(hidden, weight, targets)
    assert half.dtype == torch.float32
    assert torch.allclose(half, full, rtol=0.05)


def test_bf16_does_not_lose_what_many_chunks_add_up_to(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(1, 2048, 8, generator=generator)
    weight = torch.zeros(4, 8, requires_grad=True)
    targets = torch.zeros(1, 2048, dtype=torch.long)
    found = {}
    for rows_per_chunk in (4, 2048):
        monkeypatch.setattr(loss_module, "CHUNK_BYTES", rows_per_chunk * 4 * 2)
        with torch.autocast("cpu", torch.bfloat16):
            (found[rows_per_chunk],) = torch.autograd.grad(chunked_cross_entropy(hidden, weight, targets), weight)
    assert torch.allclose(found[4], found[2048], rtol=0.02, atol=2e-4)


def test_what_a_scaler_does_for_fp16_reaches_tokens_that_are_hardly_likely(plain_cross_entropy):
    generator = torch.Generator().manual_seed(0)
    vocabulary, rows = 5000, 2048
    hidden = torch.randn(1, rows, 16, generator=generator, requires_grad=True)
    weight = (0.02 * torch.randn(vocabulary, 16, generator=generator)).requires_grad_()
    targets = torch.randint(0, 10, (1, rows), generator=generator)
    exact = torch.autograd.grad(plain_cross_entropy(hidden, weight, targets), (hidden, weight))
    with torch.autocast("cpu", torch.float16):
        half = chunked_cross_entropy(hidden, weight, targets)
    scaled = torch.autograd.grad(half * 65536.0, (hidden, weight))
    assert torch.allclose(scaled[0] / 65536, exact[0], atol=2e-3 * exact[0].abs().max().item())
    never, expected = scaled[1][10:] / 65536, exact[1][10:]
    assert (never - expected).norm() < 5e-3 * expected.norm()


def test_all_logits_are_never_held(monkeypatch):
    # The largest allocation in forward and backward is that of one chunk, not of all rows.
    rows, vocabulary = 4096, 2048
    hidden = torch.randn(rows, 8, requires_grad=True)
    weight = torch.randn(vocabulary, 8, requires_grad=True)
    monkeypatch.setattr(loss_module, "CHUNK_BYTES", 64 * vocabulary * 4)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        chunked_cross_entropy(hidden[None], weight, torch.zeros(1, rows, dtype=torch.long)).backward()
    largest = max(abs(event.cpu_memory_usage) for event in profile.events())
    assert largest < rows * vocabulary * 4 / 8
