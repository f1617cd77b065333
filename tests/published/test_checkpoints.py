"""The published study's checkpoints and flags."""

import argparse
import math
import os
import pickle

import numpy as np
import pytest
import torch
from torch import nn

import oelm
from oelm.cli import dispatch
from oelm.errors import CheckpointError, UsageError
from oelm.method.freeze import sha256
from oelm.models.gpt import GPT
from oelm.published.bert import import_bert
from oelm.published.checkpoints import import_published, parser, published_checkpoint, read_published, translate_flags
from oelm.spec.method import named_method
from oelm.spec.run import GPTSpec


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


def saved(path, model, adam, *, frozen=False, **changed):
    own = {"model_type": "oelm_random" if frozen else "baseline", "max_lr": 5e-4, "seed": 7, "max_steps": 9}
    args = {**FLAGS, "out_dir": None, "data_path": None, "resume": None, **own, **changed}
    torch.save(
        {"model": model.state_dict(), "optimizer": adam.state_dict(), "step": 2, "best_val_loss": 3.5, "args": args},
        path,
    )
    return path


@pytest.mark.parametrize("frozen", [False, True])
def test_an_imported_checkpoint_has_the_same_logits_and_its_moments_under_the_right_names(tmp_path, frozen):
    model, adam, ids = theirs(frozen=frozen)
    found = import_published(saved(tmp_path / "best.pt", model, adam, frozen=frozen))
    ours, checkpoint = found.model, found.checkpoint
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
    found = import_published(saved(tmp_path / "a.pt", model, adam, frozen=frozen))
    ours, checkpoint = found.model, found.checkpoint
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


def test_an_import_recognises_the_arm_freezes_and_hashes_it_and_takes_over_the_settings(tmp_path):
    model, adam, _ = theirs(frozen=True)
    found = import_published(saved(tmp_path / "best.pt", model, adam, frozen=True))
    assert (found.run.arm, found.run.seed, found.run.train.learning_rate, found.run.train.steps) == (
        "oelm_random", 7, 5e-4, 9,
    )  # fmt: skip
    hashes = found.checkpoint.state["freezing"]["hashes"]
    assert len(hashes) == 4
    query = model.layers[0].self_attn.W_q.weight
    assert hashes["blocks.0.attention.q.weight"] == sha256(query)
    assert not found.model.blocks[0].attention.q.weight.requires_grad
    assert any("24 tensors" in sentence for sentence in found.said)


def test_the_paths_in_a_file_are_text_of_another_machine_and_are_not_looked_up(tmp_path):
    model, adam, _ = theirs()
    places = {"data_path": "/elsewhere/data/train.bin", "out_dir": "outputs/GPT-01", "resume": "outputs/latest.pt"}
    run = import_published(saved(tmp_path / "best.pt", model, adam, **places)).run
    assert (run.arm, run.data.corpus, run.data.directory) == ("baseline", "tinystories", None)


def test_orthogonal_weights_are_recognised_without_flags(tmp_path):
    model, _, _ = theirs(frozen=True)
    for layer in model.layers:
        for linear in (layer.self_attn.W_q, layer.self_attn.W_k):
            heads = [torch.linalg.qr(torch.randn(32, 8))[0].T for _ in range(4)]
            linear.weight.data = torch.cat(heads)
    adam = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    path = saved(tmp_path / "best.pt", model, adam, frozen=True, model_type="oelm_v2")
    assert import_published(path).run.method == named_method("oelm-freeze")
    plain = torch.load(path, weights_only=True)
    torch.save({**plain, "args": {"num_heads": 4}}, path)
    found = import_published(path)
    assert found.run.arm == "oelm_v2"
    assert found.run.data.corpus == "unknown"
    assert any("recognised from the weights" in sentence for sentence in found.said)


@pytest.mark.parametrize(("frozen", "stated"), [(True, "baseline"), (True, "oelm_v2"), (False, "oelm_random")])
def test_flags_that_contradict_the_weights_are_refused(tmp_path, frozen, stated):
    model, adam, _ = theirs(frozen=frozen)
    with pytest.raises(CheckpointError, match="of different runs"):
        import_published(saved(tmp_path / "best.pt", model, adam, model_type=stated))


def small_bert(frozen, init, heads=2):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=60, hidden_size=128, num_hidden_layers=2, num_attention_heads=heads, intermediate_size=64,
        max_position_embeddings=16, num_labels=3,
    )  # fmt: skip
    model = transformers.BertForSequenceClassification(config)
    for layer in model.bert.encoder.layer:
        for linear in (layer.attention.self.query, layer.attention.self.key):
            if init == "orthogonal":
                drawn = [torch.linalg.qr(torch.randn(128, 128 // heads))[0].T for _ in range(heads)]
                linear.weight.data = torch.cat(drawn)
            linear.requires_grad_(not frozen)
    adam = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    args = {"freeze_mode": frozen, "init_method": init, "lr": 1e-4, "seed": 42, "dataset": "xnli"}
    return model, {
        "step": 500, "model_state_dict": model.state_dict(), "optimizer_state_dict": adam.state_dict(),
        "accuracy": np.float64(0.7779), "args": args,
    }  # fmt: skip


@pytest.mark.parametrize(("frozen", "init", "method"), [
    (True, "orthogonal", "oelm-from-current"), (True, "normal", "oelm-random"),
    (False, "orthogonal", "orthogonal-from-current-trained"), (False, "normal", "random-trained"),
])  # fmt: skip
def test_a_published_bert_is_imported_with_its_method_and_loads_again(tmp_path, capsys, frozen, init, method):
    model, plain = small_bert(frozen, init)
    torch.save(plain, tmp_path / "best_model.pt")
    assert dispatch(["import-checkpoint", str(tmp_path / "best_model.pt"), str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert method in said
    assert "0.7779" in said
    again = oelm.load(tmp_path / "out")
    ids = torch.arange(10)[None]
    with torch.no_grad():
        assert torch.equal(again.eval()(input_ids=ids).logits, model.eval()(input_ids=ids).logits)
    assert len(oelm.verify_frozen(again)) == (8 if frozen else 0)
    if frozen:
        plain["args"]["init_method"] = "normal" if init == "orthogonal" else "orthogonal"
        torch.save(plain, tmp_path / "best_model.pt")
        with pytest.raises(CheckpointError, match="of different runs"):
            import_bert(tmp_path / "best_model.pt")


@pytest.mark.parametrize(("heads", "init", "words"), [
    (8, "orthogonal", "Heads of 16: the rows of Q and K are orthonormal"), (2, "normal", "Heads of 64 are assumed"),
])  # fmt: skip
def test_the_heads_of_a_published_bert_are_those_whose_rows_are_orthonormal(tmp_path, heads, init, words):
    model, plain = small_bert(frozen=True, init=init, heads=heads)
    torch.save(plain, tmp_path / "best_model.pt")
    found = import_bert(tmp_path / "best_model.pt")
    assert found.model.config.num_attention_heads == heads
    assert any(words in sentence for sentence in found.said)
    ids = torch.arange(10)[None]
    with torch.no_grad():
        assert torch.equal(found.model(input_ids=ids).logits, model.eval()(input_ids=ids).logits)


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
        with pytest.raises(CheckpointError, match="with code are refused"):
            read_published(tmp_path / name)
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize(("content", "words"), [
    ({"weights": {}}, "no 'model' dict"),
    ({"model": {"layers.0.other.weight": torch.zeros(1)}}, "does not have"),
    ({"model": {"norm.weight": torch.zeros(1)}}, "lacks a tensor"),
])  # fmt: skip
def test_a_file_of_another_layout_is_refused_with_a_reason(tmp_path, content, words):
    torch.save(content, tmp_path / "x.pt")
    with pytest.raises(CheckpointError, match=words):
        import_published(tmp_path / "x.pt")


def test_a_missing_file_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match="no checkpoint"):
        read_published(tmp_path / "none.pt")


def test_the_flags_have_the_published_defaults():
    run = translate_flags(parser().parse_args([]))
    assert run.model == GPTSpec(vocab_size=50257, dropout=0.1, ffn_dim=2048)
    assert GPT(run.model, device="meta").spec.head_size == 64
    assert (run.train.steps, run.train.learning_rate, run.train.warmup_steps, run.seed) == (10000, 1e-4, 1000, 42)
    assert run.method.init.shape == "orthogonal"
    assert str(run.data.directory) == "data/tinystories/train.bin"
    assert run.train.eval_tokens is None


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "change",
    [
        {"model": {3: torch.zeros(1)}},
        {"model": {"token_embedding.weight": 3}},
        {"model": {"token_embedding.weight": torch.zeros(1)}},
        {"step": "many"},
        {"best_val_loss": [1]},
        {"optimizer": {"state": {0: {}}, "param_groups": [{}]}},
        {"optimizer": {"state": {7: 1}, "param_groups": [{"params": [0, 1, 2, 3]}]}},
        {"args": {"num_heads": "x"}},
        {"args": {"num_heads": 0}},
    ],
    ids=str,
)
@pytest.mark.parametrize("layer", [0, 10**9])
def test_a_file_of_another_layout_is_refused_and_not_built_for_ever(tmp_path, change, layer):
    names = (
        "token_embedding.weight",
        "position_embedding.weight",
        f"layers.{layer}.ffn.0.weight",
        "layers.0.ffn.3.weight",
    )
    whole = {"model": {name: torch.zeros(4, 4) for name in names}, "optimizer": {}, "step": 1, "args": {}}
    torch.save(whole | change, tmp_path / "best.pt")
    with pytest.raises(CheckpointError):
        import_published(tmp_path / "best.pt")
