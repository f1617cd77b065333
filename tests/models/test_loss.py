"""The chunked cross-entropy against the plain one."""

import pytest
import torch

from oelm.models import loss as loss_module
from oelm.models.loss import chunked_cross_entropy, embed_tied


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
