"""Runs that train decoders of transformers on text: a new one, and a pretrained one with its own vocabulary."""

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from oelm.cli import dispatch
from oelm.data.meta import read_meta
from oelm.data.prepare import default_directory, find_or_prepare, prepare
from oelm.data.tokenizer import load_tokenizer
from oelm.errors import BadShape, InvalidSpec, UsageError
from oelm.interop.pretrained import tokenizer_of
from oelm.runs.resolve import resolve
from oelm.runs.restore import export_run, load_run
from oelm.spec.method import named_method
from oelm.spec.run import DataSpec, HuggingFaceSpec, RunSpec, TrainSpec
from oelm.tasks import make_task

from .conftest import carried_out
from .test_run import kill_campaign

ENTRIES = 300
TEXT = [
    f"The {a} {b} the {a}, and {number} more.\n" for number in range(60) for a in ("dog", "cat") for b in ("saw", "ate")
]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A text whose lines are documents."""
    path = tmp_path_factory.mktemp("text") / "mine.txt"
    path.write_text("".join(TEXT))
    return path


def prepared(text, folder, **vocabulary):
    """Prepare the text, and return the spec of the data."""
    spec = DataSpec(corpus="mine", **vocabulary)
    prepare(spec.model_copy(update={"source": text}), folder, tokenizer_of=tokenizer_of)
    return spec.model_copy(update={"directory": folder})


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    """A small Llama with 4 query and 2 key heads and a vocabulary whose special tokens come first, as SmolLM2's do."""
    folder = tmp_path_factory.mktemp("pretrained") / "llama"
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=ENTRIES, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    backend.train_from_iterator(TEXT, trainer)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=backend.get_vocab_size(), hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=64, max_position_embeddings=64,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    backend.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def run(text, pretrained, tmp_path_factory):
    """Return a function that declares a run on the text, prepared with the vocabulary of the model."""
    data = prepared(text, tmp_path_factory.mktemp("data") / "mine", tokenizer=str(pretrained))

    def declare(method="oelm-from-current", context=16, **changed):
        return RunSpec(
            arm=method,
            method=named_method(method),
            model=HuggingFaceSpec(name=str(pretrained), context=context),
            data=data,
            train=TrainSpec(steps=6, batch_size=4, learning_rate=3e-3, warmup_steps=1, eval_every=3, eval_tokens=64),
        ).model_copy(update=changed)

    return declare


@pytest.fixture(scope="module")
def complete(run, tmp_path_factory):
    """Return a finished run and its folder."""
    folder = tmp_path_factory.mktemp("complete")
    return carried_out(run(), folder), folder


def test_a_pretrained_decoder_learns_a_text_and_leaves_perplexity_losses_and_samples(complete):
    record, folder = complete
    result = record.result
    assert result.test_loss < torch.log(torch.tensor(float(ENTRIES))).item()
    assert len(record.frozen_hashes) == 2 * 2
    assert record.spec.model.checksum is not None
    assert "PPL: " in (folder / "training.log").read_text()
    assert "[...]" in (folder / "samples.txt").read_text()
    assert (folder / "test_losses.json").exists()
    assert (folder / "window_losses.json").exists()


def test_a_restored_decoder_is_the_trained_one_and_its_export_too(complete, tmp_path):
    record, folder = complete
    restored = load_run(folder)
    task = make_task(*resolve(restored.run), torch.device("cpu"))
    assert task.measure(restored.model, "test").loss == record.result.test_loss
    assert "AutoModelForCausalLM" in export_run(restored, tmp_path / "model")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval()
    ids = torch.arange(3, 13)[None]
    with torch.no_grad():
        assert torch.equal(theirs(ids).logits, restored.model(ids).logits)
    assert (tmp_path / "model" / "tokenizer.json").read_bytes() == restored.tokenizer().files["tokenizer.json"]
    with pytest.raises(UsageError, match="LlamaForCausalLM, and this is for our GPT"):
        _ = restored.gpt


def test_the_losses_of_a_decoder_are_those_of_transformers(complete, run):
    _, folder = complete
    restored = load_run(folder)
    task = make_task(*resolve(restored.run), torch.device("cpu"))
    ids, targets = task.batch(0, slice(0, 2))
    whole = torch.cat([ids, targets[:, -1:]], 1)
    with torch.no_grad():
        theirs = torch.nn.functional.cross_entropy(restored.model(whole[:, :-1]).logits.mT, whole[:, 1:])
        assert torch.allclose(task.module(restored.model)(ids, targets), theirs)


def test_a_run_of_a_decoder_killed_at_random_moments_ends_with_the_bits_of_an_undisturbed_one(run, tmp_path):
    kill_campaign(run(), tmp_path, kills=1, seed=3)


def test_the_text_is_encoded_as_the_model_was_trained_and_decodes_again(complete, run, pretrained):
    folder = find_or_prepare(run().data)
    tokenizer, meta = load_tokenizer(folder), read_meta(folder)
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(pretrained / "tokenizer.json"))
    line = "The dog saw 1789 cats.\n"
    (ids,) = tokenizer.encode_batch([line])
    assert ids.tolist() == theirs(line, add_special_tokens=False).input_ids
    assert tokenizer.decode(ids) == line
    assert (tokenizer.end_of_text, meta.tokenizer.end_of_text, meta.tokenizer.name) == (0, 0, str(pretrained))


def test_a_new_decoder_learns_with_the_vocabulary_of_the_data(text, tmp_path):
    data = prepared(text, tmp_path / "data", vocab_size=280)
    model = HuggingFaceSpec(name="llama-tiny", pretrained=False, context=16)
    train = TrainSpec(steps=2, batch_size=2, eval_tokens=32)
    record = carried_out(RunSpec(model=model, data=data, train=train), tmp_path / "run")
    assert record.result.test_loss is not None
    assert load_run(tmp_path / "run").model.config.vocab_size == 280


def test_a_pretrained_decoder_refuses_another_vocabulary_than_its_own(run, text, tmp_path):
    other = prepared(text, tmp_path / "data", vocab_size=280)
    with pytest.raises(InvalidSpec, match="Set data.tokenizer="):
        resolve(run(data=other))


def test_an_encoder_does_not_learn_running_text(text, tmp_path):
    data = prepared(text, tmp_path / "data", vocab_size=280)
    model = HuggingFaceSpec(name="bert-tiny", pretrained=False, context=16)
    with pytest.raises(InvalidSpec, match="does not predict the next token"):
        carried_out(RunSpec(model=model, data=data), tmp_path / "run")


def test_windows_longer_than_the_positions_are_refused(run, tmp_path):
    with pytest.raises(BadShape, match="the model reads 64 at most"):
        carried_out(run(context=65), tmp_path)


def test_one_vocabulary_is_named_and_not_two(text, tmp_path):
    with pytest.raises(ValueError, match="is a vocabulary of its own"):
        DataSpec(corpus="mine", vocab_size=280, tokenizer="smollm2")
    with pytest.raises(UsageError, match="oelm prepare mine --tokenizer smollm2"):
        prepare(DataSpec(corpus="mine", tokenizer="smollm2", source=text), tmp_path / "data")
    assert default_directory(DataSpec(corpus="mine", tokenizer="owner/model")).name == "mine-model"


def test_the_command_prepares_text_for_a_model(text, pretrained, tmp_path, capsys):
    command = ["prepare", "mine", "--from", str(text), "--tokenizer", str(pretrained), "--out", str(tmp_path / "data")]
    assert dispatch(command) == 0
    assert read_meta(tmp_path / "data").request.tokenizer == str(pretrained)
