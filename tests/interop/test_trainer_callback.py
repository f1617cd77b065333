"""The method's schedule in the Hugging Face Trainer."""

import copy

import pytest
import torch

import oelm
from oelm.errors import CheckpointError, FrozenWeightsMoved, MethodError, NotCarriedOut
from oelm.interop.trainer_callback import OelmCallback, divide_groups
from oelm.method.freeze import sha256
from oelm.spec.method import MethodSpec, RatesSpec

transformers = pytest.importorskip("transformers")


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, index):
        ids = torch.randint(0, 61, (8,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}


class Watch(transformers.TrainerCallback):
    """Note at each step which layers' Q moved and which rates the optimiser used."""

    def __init__(self, stop_after=None):
        self.moved, self.before, self.stop_after = [], None, stop_after

    def weights(self, model):
        return [sha256(block.attn.c_attn.q.weight) for block in model.transformer.h]

    def on_step_begin(self, args, state, control, model=None, **given):
        self.before = self.weights(model)

    def on_step_end(self, args, state, control, model=None, **given):
        self.moved.append([old != new for old, new in zip(self.before, self.weights(model), strict=True)])
        if self.stop_after and state.global_step == self.stop_after:
            control.should_training_stop = True


def model(method, seed=0):
    torch.manual_seed(7)
    config = transformers.GPT2Config(
        vocab_size=61, n_embd=32, n_layer=3, n_head=4, n_positions=16, attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0
    )
    made = transformers.GPT2LMHeadModel(config)
    oelm.apply(made, method, seed=seed)
    return made


def trainer(made, folder, *watchers, **options):
    arguments = transformers.TrainingArguments(
        str(folder),
        max_steps=12,
        per_device_train_batch_size=4,
        learning_rate=1e-2,
        weight_decay=0.1,
        save_steps=options.pop("save_steps", 100),
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        seed=3,
        **options,
    )
    return transformers.Trainer(
        made, arguments, train_dataset=Rows(), eval_dataset=Rows(), callbacks=[OelmCallback(), *watchers]
    )


def test_a_frozen_model_trains_and_stays_frozen(tmp_path):
    made, watch = model("oelm-freeze"), Watch()
    before = oelm.verify_frozen(made)
    trainer(made, tmp_path, watch).train()
    assert watch.moved == [[False] * 3] * 12
    assert oelm.verify_frozen(made) == before


def test_layers_unfreeze_one_by_one_from_the_last(tmp_path):
    made, watch = model("oelm-progressive:0.25-0.75"), Watch()
    trainer(made, tmp_path, watch).train()
    assert watch.moved == [[False] * 3] * 3 + [[False, False, True]] * 3 + [[False, True, True]] * 3 + [[True] * 3] * 3


def test_some_layers_train_from_the_start_and_the_rest_never(tmp_path):
    made, watch = model("oelm-partial:-1"), Watch()
    trainer(made, tmp_path, watch).train()
    assert watch.moved == [[False, False, True]] * 12


def test_every_third_step_updates_q_and_k(tmp_path):
    made, watch = model("oelm-every:3"), Watch()
    trainer(made, tmp_path, watch).train()
    assert watch.moved == [[False] * 3, [False] * 3, [True] * 3] * 4


def test_layers_that_freeze_lose_their_moments(tmp_path):
    method = MethodSpec(
        freeze={"roles": ("q", "k")}, schedule={"changes": ({"kind": "change", "action": "freeze", "at": 5},)}
    )
    made, watch = model(method), Watch()
    train = trainer(made, tmp_path, watch)
    train.train()
    assert watch.moved == [[True] * 3] * 5 + [[False] * 3] * 7
    with_moments = {id(parameter) for parameter in train.optimizer.optimizer.state}
    assert not any(id(parameter) in with_moments for name, parameter in made.named_parameters() if "c_attn.q" in name)
    assert any(id(parameter) in with_moments for name, parameter in made.named_parameters() if "c_attn.v" in name)


def test_rates_by_layer_and_role_reach_the_optimiser(tmp_path):
    method = MethodSpec(rates=RatesSpec(layer_decay=0.5, roles={"v": 4.0}))
    made = model(method)
    used = {}

    def note(optimizer, *_):
        for group in optimizer.param_groups:
            used.update({id(parameter): (group["lr"], group["weight_decay"]) for parameter in group["params"]})

    train = trainer(made, tmp_path, lr_scheduler_type="constant")
    train.create_optimizer()
    layout = [len(group["params"]) for group in train.optimizer.param_groups]
    train.optimizer.register_step_pre_hook(note)
    train.train()
    rate = {name: used[id(parameter)][0] for name, parameter in made.named_parameters()}
    assert rate["transformer.h.2.mlp.c_fc.weight"] == pytest.approx(1e-2)
    assert rate["transformer.h.0.mlp.c_fc.weight"] == pytest.approx(0.25e-2)
    assert rate["transformer.h.0.attn.c_attn.v.weight"] == pytest.approx(1e-2)
    assert rate["transformer.h.0.attn.c_attn.q.weight"] == pytest.approx(0.25e-2)
    assert used[id(made.transformer.h[0].ln_1.weight)][1] == 0.0
    assert [len(group["params"]) for group in train.optimizer.param_groups] == layout


@pytest.mark.parametrize("method", ["oelm-progressive:0.25-0.75", "oelm-every:3", "oelm-freeze"])
def test_a_resumed_training_ends_where_an_undisturbed_one_ends(tmp_path, method):
    spec = oelm.named_method(method).model_copy(update={"rates": RatesSpec(layer_decay=0.5)})
    whole = model(spec)
    trainer(whole, tmp_path / "whole").train()
    trainer(model(spec), tmp_path / "cut", Watch(stop_after=7), save_steps=7).train()
    again, watch = model(spec), Watch()
    trainer(again, tmp_path / "cut", watch).train(resume_from_checkpoint=True)
    assert len(watch.moved) == 5
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name
    assert oelm.verify_frozen(again) == oelm.verify_frozen(whole)


@pytest.mark.parametrize("method", ["oelm-every:5", "train-then-freeze:0.75", "oelm-progressive:0.25-0.75"])
def test_the_best_checkpoint_that_is_loaded_at_the_end_is_frozen_as_it_was(tmp_path, method):
    made = model(method)
    options = {"eval_strategy": "steps", "eval_steps": 4, "save_steps": 4, "load_best_model_at_end": True}
    train = trainer(made, tmp_path, **options)
    train.train()
    assert train.state.best_model_checkpoint.endswith("checkpoint-8"), "the best is not to be the last"
    made.save_pretrained(tmp_path / "best")
    assert oelm.verify_frozen(oelm.load(tmp_path / "best")) == oelm.verify_frozen(made)


def test_a_model_that_the_trainer_cannot_resume_whole_is_refused(tmp_path):
    def neox():
        sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 32}
        made = transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(vocab_size=61, **sizes))
        oelm.apply(made, "oelm-freeze")
        return made

    trainer(neox(), tmp_path, save_steps=6).train()
    with pytest.raises(NotCarriedOut, match=r"the first: lm_head\.weight"):
        trainer(neox(), tmp_path).train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))


def test_a_checkpoint_of_another_draw_is_refused(tmp_path):
    trainer(model("oelm-freeze"), tmp_path, Watch(stop_after=7), save_steps=7).train()
    with pytest.raises(FrozenWeightsMoved):
        trainer(model("oelm-freeze", seed=1), tmp_path).train(resume_from_checkpoint=True)


def test_a_checkpoint_whose_thawed_weights_were_edited_is_refused(tmp_path):
    from safetensors.torch import load_file, save_file

    trainer(model("oelm-progressive:0.25-0.75"), tmp_path, Watch(stop_after=7), save_steps=7).train()
    file = next(tmp_path.glob("checkpoint-*/model.safetensors"))
    tensors = load_file(file)
    tensors["transformer.h.0.attn.c_attn.weight"][0, 0] += 1
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"h\.0\.attn\.c_attn\.q"):
        trainer(model("oelm-progressive:0.25-0.75"), tmp_path).train(resume_from_checkpoint=True)


def test_a_movement_is_found_at_the_next_save(tmp_path):
    class Meddler(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, model=None, **given):
            if state.global_step == 3:
                model.transformer.h[1].attn.c_attn.k.weight.data.add_(1e-3)

    with pytest.raises(FrozenWeightsMoved, match=r"h\.1\.attn\.c_attn\.k\.weight"):
        trainer(model("oelm-freeze"), tmp_path, Meddler(), save_steps=4).train()


def test_a_callback_that_comes_too_late_is_refused(tmp_path):
    made = model("oelm-progressive:0.25-0.75")
    arguments = transformers.TrainingArguments(str(tmp_path), max_steps=12, report_to=[], use_cpu=True)
    late = transformers.Trainer(made, arguments, train_dataset=Rows())
    late.add_callback(OelmCallback())
    with pytest.raises(MethodError, match="Pass the callback to the constructor"):
        late.train()


def test_a_model_without_a_method_is_refused(tmp_path):
    made = model("baseline")
    bare = copy.deepcopy(made)
    del bare._oelm
    with pytest.raises(MethodError, match=r"oelm\.apply"):
        trainer(bare, tmp_path)


def test_groups_are_divided_by_factor_and_keep_their_options():
    one, two, three = (torch.nn.Parameter(torch.zeros(1)) for _ in range(3))
    groups = divide_groups([{"params": [one, two, three], "lr": 2.0, "weight_decay": 0.3}], {id(two): 0.5})
    assert [(len(group["params"]), group["lr"], group["weight_decay"]) for group in groups] == [
        (2, 2.0, 0.3),
        (1, 1.0, 0.3),
    ]
