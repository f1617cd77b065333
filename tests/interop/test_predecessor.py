"""The published study's checkpoints and flags."""

import argparse
import math
import os
import pickle

import numpy as np
import pytest
import torch
from torch import nn

from oelm.errors import CheckpointError, UsageError
from oelm.interop.predecessor import import_published, parser, published_checkpoint, read_published, run_of
from oelm.models.gpt import GPT
from oelm.spec.model import GPTSpec


class PublishedGPT(nn.Module):
    """The published model as SPEC describes it, written here independently: the reference for names and logits."""

    def __init__(self, vocab, width, layers, heads, hidden, context):
        super().__init__()
        self.heads = heads
        self.token_embedding = nn.Embedding(vocab, width)
        self.position_embedding = nn.Embedding(context, width)
        self.layers = nn.ModuleList()
        for _ in range(layers):
            layer = nn.Module()
            layer.self_attn = nn.Module()
            for name in ("W_q", "W_k", "W_v", "W_o"):
                setattr(layer.self_attn, name, nn.Linear(width, width, bias=False))
            layer.ffn = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Dropout(0), nn.Linear(hidden, width))
            layer.norm1, layer.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.layers.append(layer)
        self.norm = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, vocab, bias=False)
        self.lm_head.weight = self.token_embedding.weight

    def forward(self, ids):
        batch, length = ids.shape
        x = self.token_embedding(ids) + self.position_embedding(torch.arange(length))
        mask = torch.full((length, length), -math.inf).triu(1)
        for layer in self.layers:
            h = layer.norm1(x)
            q, k, v = (
                getattr(layer.self_attn, name)(h).view(batch, length, self.heads, -1).transpose(1, 2)
                for name in ("W_q", "W_k", "W_v")
            )
            mixed = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + mask).softmax(-1) @ v
            x = x + layer.self_attn.W_o(mixed.transpose(1, 2).reshape(batch, length, -1))
            x = x + layer.ffn(layer.norm2(x))
        return self.lm_head(self.norm(x))


FLAGS = vars(parser().parse_args(["--num_heads", "4"]))


def theirs(*, frozen=False):
    torch.manual_seed(0)
    model = PublishedGPT(50, 32, 2, 4, 64, 16)
    for parameter in model.parameters():
        nn.init.normal_(parameter, 0, 0.3)
    if frozen:
        for layer in model.layers:
            layer.self_attn.W_q.requires_grad_(False)
            layer.self_attn.W_k.requires_grad_(False)
    adam = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    ids = torch.randint(0, 50, (2, 16))
    for _ in range(2):
        nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
        adam.step()
        adam.zero_grad()
    return model, adam, ids


def saved(path, model, adam):
    args = {**FLAGS, "out_dir": None, "data_path": None, "resume": None}
    torch.save(
        {"model": model.state_dict(), "optimizer": adam.state_dict(), "step": 2, "best_val_loss": 3.5, "args": args},
        path,
    )
    return path


@pytest.mark.parametrize("frozen", [False, True])
def test_an_imported_checkpoint_has_the_same_logits_and_its_moments_under_the_right_names(tmp_path, frozen):
    model, adam, ids = theirs(frozen=frozen)
    ours, checkpoint = import_published(saved(tmp_path / "best.pt", model, adam))
    with torch.no_grad():
        assert torch.allclose(ours(ids), model.eval()(ids), atol=1e-5)
    assert checkpoint.state["progress"] == {"step": 2, "best_loss": 3.5, "best_step": 0}
    published = {id(parameter): name for name, parameter in model.named_parameters()}
    for parameter, moments in adam.state.items():
        name = published[id(parameter)]
        own = [
            key
            for key, tensor in checkpoint.training.items()
            if key.endswith("/exp_avg_sq") and torch.equal(tensor, moments["exp_avg_sq"])
        ]
        assert len(own) == 1
        assert checkpoint.model[own[0].removesuffix("/exp_avg_sq")].shape == dict(model.named_parameters())[name].shape


@pytest.mark.parametrize("frozen", [False, True])
def test_what_we_write_loads_into_the_published_model_and_its_optimiser(tmp_path, frozen):
    model, adam, ids = theirs(frozen=frozen)
    ours, checkpoint = import_published(saved(tmp_path / "a.pt", model, adam))
    if frozen:
        for block in ours.blocks:
            block.attention.q.requires_grad_(False)
            block.attention.k.requires_grad_(False)
    torch.save(published_checkpoint(ours, checkpoint.training, checkpoint.state, FLAGS), tmp_path / "b.pt")
    plain = torch.load(tmp_path / "b.pt", weights_only=True)
    twin = PublishedGPT(50, 32, 2, 4, 64, 16)
    twin.load_state_dict(plain["model"])
    assert torch.allclose(twin.eval()(ids), model.eval()(ids), atol=1e-6)
    if frozen:
        for layer in twin.layers:
            layer.self_attn.W_q.requires_grad_(False)
            layer.self_attn.W_k.requires_grad_(False)
    fresh = torch.optim.AdamW([p for p in twin.parameters() if p.requires_grad], lr=1e-3)
    fresh.load_state_dict(plain["optimizer"])
    for mine, original in zip(fresh.param_groups[0]["params"], adam.param_groups[0]["params"], strict=True):
        assert torch.equal(fresh.state[mine]["exp_avg"], adam.state[original]["exp_avg"])


class Evil:
    def __reduce__(self):
        return (os.system, ("touch pwned",))


def test_flags_as_argparse_leaves_them_and_a_loss_as_numpy_averages_it_are_read(tmp_path):
    model, adam, _ = theirs(frozen=False)
    path = saved(tmp_path / "best.pt", model, adam)
    plain = torch.load(path, weights_only=True)
    torch.save({**plain, "args": argparse.Namespace(**plain["args"]), "best_val_loss": np.mean([3.0, 4.0])}, path)
    state = read_published(path).state
    assert state["progress"]["best_loss"] == 3.5
    assert state["args"] == plain["args"]


def test_a_pickle_with_code_in_it_is_refused_and_does_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.pt").write_bytes(pickle.dumps({"model": Evil()}))
    torch.save({"model": {"x": Evil()}}, tmp_path / "evil2.pt")
    for name in ("evil.pt", "evil2.pt"):
        with pytest.raises(CheckpointError, match="hold code are refused"):
            read_published(tmp_path / name)
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize(("content", "words"), [
    ({"weights": {}}, "no 'model' dict"),
    ({"model": {"layers.0.other.weight": torch.zeros(1)}}, "does not have"),
    ({"model": {"norm.weight": torch.zeros(1)}}, "lacks a tensor"),
])  # fmt: skip
def test_a_file_of_another_layout_is_told_in_words(tmp_path, content, words):
    torch.save(content, tmp_path / "x.pt")
    with pytest.raises(CheckpointError, match=words):
        import_published(tmp_path / "x.pt")


def test_a_missing_file_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match="no checkpoint"):
        read_published(tmp_path / "none.pt")


def test_the_flags_have_the_published_defaults():
    run = run_of(parser().parse_args([]))
    assert run.model == GPTSpec(vocab_size=50257, dropout=0.1, ffn_dim=2048)
    assert GPT(run.model, device="meta").spec.head_size == 64
    assert (run.train.steps, run.train.learning_rate, run.train.warmup_steps, run.seed) == (10000, 1e-4, 1000, 42)
    assert run.method.init.shape == "orthogonal"
    assert str(run.data.directory) == "data/tinystories/train.bin"
    assert run.train.eval_tokens is None
