"""One tiny run through every verb that works on a run, as a user would type them."""

import json
import math
import shlex
from pathlib import Path

import pytest
import torch

from oelm.cli import dispatch
from oelm.cli.report import conclude
from oelm.data.prepare import prepare
from oelm.record.folder import read_record, write_study
from oelm.spec.method import named_method
from oelm.spec.run import DataSpec
from oelm.spec.study import Arm

SMALL = shlex.split(
    "--size nano --model.vocab-size None --model.dropout 0 --train.steps 40 --train.warmup-steps 4 "
    "--train.learning-rate 3e-3 --train.eval-every 20 --train.eval-tokens 512"
)


@pytest.fixture(scope="module")
def trained(tiny_data, tmp_path_factory):
    out = tmp_path_factory.mktemp("cli") / "run"
    words = [
        "train",
        *SMALL,
        "--method",
        "oelm-freeze",
        "--data.directory",
        str(tiny_data),
        "--out",
        str(out),
        "--quiet",
    ]
    assert dispatch(words) == 0
    return out


def test_train_makes_the_run_its_flags_say(trained):
    record = read_record(trained)
    assert record.status == "complete"
    assert (record.spec.arm, record.spec.train.steps, record.spec.model.model_dim) == ("oelm-freeze", 40, 32)
    assert record.data.vocab_size == 300


def test_the_same_command_again_says_that_the_run_is_complete_and_where(trained, capsys):
    before = (trained / "record.json").read_bytes()
    again = ["train", "--spec", str(trained / "record.json"), "--out", str(trained)]
    assert dispatch(again) == 0
    assert f"{trained} holds this run, complete already" in capsys.readouterr().out
    assert dispatch([*again, "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["status"] == "complete"
    assert "complete already" in said.err
    assert dispatch([*again, "--quiet"]) == 0
    assert capsys.readouterr().out == ""
    assert (trained / "record.json").read_bytes() == before


def test_train_takes_a_record_as_its_spec_and_prints_json(trained, tmp_path, capsys):
    words = ["train", "--spec", str(trained / "record.json"), "--out", str(tmp_path / "again"), "--json"]
    assert dispatch(words) == 0
    said = capsys.readouterr()
    again = json.loads(said.out)
    assert "[Step 40]" in said.err
    assert again["result"]["test_loss"] == read_record(trained).result.test_loss


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--train.steps 0", "--train.steps must be greater than 0, found 0"),
        ("--train.eval-every 0", "--train.eval-every must be greater than 0, or should be 'epoch', found 0"),
        ("--train.batch-size 3 --train.accumulation 2", "--train.batch-size 3 does not divide"),
        ("--model.num-heads 7", "--model.model-dim 128 is not a multiple of --model.num-heads 7"),
        ("--task sst2 --train.steps 0", "--train.steps must be greater than 0, found 0"),
    ],
)
def test_an_impossible_value_is_refused_in_one_sentence_that_names_the_flag(capsys, flags, words):
    assert dispatch(["train", *flags.split()]) == 2
    assert words in capsys.readouterr().err


def test_the_help_still_says_what_each_spec_is(capsys):
    assert dispatch(["train", "--help"]) == 0
    assert "AdamW with warm-up and decay" in capsys.readouterr().out


def test_train_refuses_what_it_does_not_know(tmp_path, capsys):
    (tmp_path / "bad.json").write_text('{"model": {"kind": "gpt", "depth": 3}}')
    assert dispatch(["train", "--spec", str(tmp_path / "bad.json")]) == 2
    assert "model.gpt.depth: Extra inputs are not permitted, found 3." in capsys.readouterr().err
    (tmp_path / "torn.json").write_text('{"model": ')
    assert dispatch(["train", "--spec", str(tmp_path / "torn.json")]) == 2
    assert "not whole JSON" in capsys.readouterr().err
    (tmp_path / "list.json").write_text("[1, 2]")
    assert dispatch(["train", "--spec", str(tmp_path / "list.json")]) == 2
    assert dispatch(["train", "--spec", str(tmp_path / "none.json")]) == 2
    assert dispatch(["train", "--method", "oelm-frieze"]) == 2
    assert dispatch(["train", "--size", "minii"]) == 2
    assert dispatch(["train", "--seed", "-1"]) == 2
    assert "Did you mean 'mini'" in capsys.readouterr().err


def test_evaluate_gives_the_loss_of_the_record(trained, capsys):
    assert dispatch(["evaluate", str(trained), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["loss"] == read_record(trained).result.test_loss
    assert result["perplexity"] == pytest.approx(math.exp(result["loss"]))


def test_evaluate_counts_the_answers_of_a_probe(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert dispatch(["prepare", "recall:4", "--tokens", "20000"]) == 0
    flags = (
        "--size nano --model.context 128 --model.vocab-size 257 --data.corpus recall:4 --data.tokens 20000 "
        "--train.steps 2 --train.batch-size 2 --train.warmup-steps 1 --train.eval-tokens 256 --out probe --quiet"
    )
    assert dispatch(["train", *flags.split()]) == 0
    capsys.readouterr()
    assert dispatch(["evaluate", "probe", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["accuracy"] == read_record(Path("probe")).result.test_accuracy


@pytest.mark.parametrize("size", [300, 400])
@pytest.mark.parametrize("verb", ["evaluate", "generate"])
def test_tokens_that_mean_something_else_than_those_of_the_run_are_refused(trained, tmp_path, capsys, verb, size):
    prepare(DataSpec(corpus="stories", vocab_size=size, tokens=20_000, seed=1), tmp_path / "other")
    assert dispatch([verb, str(trained), "--data", str(tmp_path / "other")]) == 2
    assert "was made with another vocabulary" in capsys.readouterr().err


def test_generate_continues_the_prompt_and_repeats_itself_by_seed(trained, capsys):
    texts = []
    for seed in ("1", "1", "2"):
        assert dispatch(["generate", str(trained), "--prompt", "Tom went", "--tokens", "20", "--seed", seed]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != texts[2]
    assert all(text.startswith("Tom went") for text in texts)


def test_generate_refuses_a_folder_without_the_tokenizer_of_the_model(trained, tmp_path, capsys):
    assert dispatch(["generate", str(trained), "--data", str(tmp_path), "--prompt", "Tom went"]) == 2
    assert "has neither a tokenizer nor tokens" in capsys.readouterr().err


@pytest.mark.parametrize("tokens", ["0", "-1"])
def test_a_continuation_of_no_tokens_is_refused(trained, capsys, tokens):
    assert dispatch(["generate", str(trained), "--tokens", tokens]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert f"--tokens must be at least 1, found {tokens}" in said.err


def test_export_gives_transformers_a_model_and_a_tokenizer(trained, tmp_path, capsys):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    assert dispatch(["export", str(trained), str(tmp_path / "gpt2")]) == 0
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "gpt2")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "gpt2")
    ids = tokenizer("Tom went to the park.", return_tensors="pt").input_ids
    assert ids.max() < 300
    assert tokenizer.decode(ids[0]) == "Tom went to the park."
    with torch.no_grad():
        assert model(ids).logits.shape[-1] == 300


def test_a_published_checkpoint_is_imported_and_used(trained, tmp_path, capsys):
    from oelm.published.checkpoints import parser, published_checkpoint
    from oelm.runs.restore import load_run

    restored = load_run(trained)
    flags = vars(parser().parse_args(["--num_heads", "4"]))
    torch.save(published_checkpoint(restored.model, {}, restored.state, flags), tmp_path / "best.pt")
    assert dispatch(["import-checkpoint", str(tmp_path / "best.pt"), str(tmp_path / "ours")]) == 0
    data = str(restored.run.data.directory)
    assert dispatch(["evaluate", str(tmp_path / "ours"), "--data", data, "--json"]) == 0
    loss = json.loads(capsys.readouterr().out.splitlines()[-1])["loss"]
    assert loss == pytest.approx(read_record(trained).result.test_loss, abs=1e-6)
    assert dispatch(["import-checkpoint", str(tmp_path / "best.pt"), str(tmp_path / "ours")]) == 2


STUDY = """
from pathlib import Path
from oelm import DataSpec, GPTSpec, RunSpec, Study, TrainSpec
study = Study(name="tiny", question="Does it run?", arms=("baseline", "oelm-freeze"), seeds=(0, 1), base=RunSpec(
    model=GPTSpec(context=32, model_dim=32, num_layers=2, num_heads=4),
    data=DataSpec(directory=Path({data!r})),
    train=TrainSpec(steps=30, batch_size=4, warmup_steps=3, learning_rate=3e-3, eval_every=10, eval_tokens=512)))
"""


@pytest.mark.programs
def test_a_study_runs_reports_and_is_done_the_second_time(tiny_data, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.py").write_text(STUDY.format(data=str(tiny_data)))
    assert dispatch(["run", "study.py"]) == 0
    said = capsys.readouterr().out
    assert "Does it run?" in said
    assert said.index("data: ") < said.index("oelm-freeze, seed 1")  # prepared before anything runs
    assert said.count("data: ") == 1  # four runs, one corpus
    assert "oelm-freeze, seed 1: test perplexity" in said
    assert "report.html" in said
    page = (tmp_path / "runs/tiny/report/report.html").read_text()
    assert "oelm-freeze" in page
    records = list((tmp_path / "runs/tiny").glob("*/record.json"))
    assert len(records) == 4
    before = {path: path.stat().st_mtime_ns for path in records}
    assert dispatch(["run", "study.py"]) == 0
    assert "4 of 4 runs are done already" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in records} == before
    assert dispatch(["report", "study.py", "--lang", "zh"]) == 0


def test_a_study_that_has_not_run_is_not_reported_over_the_runs_of_others(tiny_data, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.py").write_text(STUDY.format(data=str(tiny_data)))
    loose = tmp_path / "runs" / "some-run"
    loose.mkdir(parents=True)
    (loose / "record.json").write_text("{}")
    assert dispatch(["report", "study.py"]) == 2
    assert "oelm run study.py" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["some-run"]


def test_what_is_in_the_way_of_every_run_is_said_once(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = STUDY.format(data="x").replace("directory=Path('x')", "corpus='mine', vocab_size=300")
    (tmp_path / "study.py").write_text(text)
    assert dispatch(["run", "study.py"]) == 2
    said = capsys.readouterr().err
    assert said.count("no corpus named 'mine'") == 1
    assert "`oelm prepare mine --from PATH --vocab-size 300`" in said
    assert not (tmp_path / "runs").exists()


@pytest.mark.programs
def test_tuning_is_shown_by_its_values_and_by_validation_alone(tiny_data, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    tuned = 'seeds=(0,), tuning_seeds=(9,), tuned={"train.learning_rate": (1e-3, 3e-3)}'
    (tmp_path / "study.py").write_text(STUDY.format(data=str(tiny_data)).replace("seeds=(0, 1)", tuned))
    assert dispatch(["run", "study.py"]) == 0
    said = capsys.readouterr().out
    trials = [line for line in said.splitlines() if ", seed 9 at 0.00" in line and "tokens/s" in line]
    assert len(trials) >= 4
    assert all("validation loss" in line and "test" not in line for line in trials)
    assert "Tuning has ended: 2 runs confirm the choice" in said
    assert "baseline, seed 0: test perplexity" in said


@pytest.mark.programs
def test_a_failing_run_is_told_and_does_not_stop_the_others(tiny_data, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = STUDY.format(data=str(tiny_data)).replace(
        "seeds=(0, 1)", 'seeds=(0,), axes={"train.learning_rate": (1e9, 1e-3)}'
    )
    (tmp_path / "study.py").write_text(text)
    assert dispatch(["run", "study.py"]) == 1
    said = capsys.readouterr().out
    assert said.count("diverged: ") == 2
    assert said.count("test perplexity ") >= 2


def test_the_sample_that_is_shown_is_of_the_reference_and_of_no_arm_whose_name_begins_alike(
    study, write_run, tmp_path, capsys
):
    names = {"baseline": "baseline", "every:10": "oelm-every:10"}
    arms = tuple(Arm(name=name, method=named_method(method)) for name, method in names.items())
    study = study.model_copy(update={"arms": arms, "seeds": (0,)})
    for run in study.runs():
        write_run(run, samples=f"I am {run.arm}")
    write_run(study.runs()[0].model_copy(update={"arm": "baseline-h8", "seed": 7}), samples="I am another")
    for reference in ("baseline", "every:10"):
        conclude(study.model_copy(update={"reference": reference}), tmp_path / "runs", "en")
        assert f"I am {reference}" in capsys.readouterr().out


def test_what_is_kept_of_a_study_are_its_own_runs_without_their_weights(study, write_run, tmp_path, capsys):
    for run in study.runs():
        (write_run(run) / "latest.safetensors").write_text("heavy")
    other = write_run(study.runs()[0].model_copy(update={"seed": 7}))
    write_study(tmp_path / "runs", study)
    kept = tmp_path / "kept"
    assert dispatch(["report", str(tmp_path / "runs"), "--keep", str(kept)]) == 0
    assert "6 runs of tiny kept" in capsys.readouterr().out
    names = {path.parent.name for path in kept.glob("*/record.json")}
    assert len(names) == 6
    assert other.name not in names
    assert not list(kept.rglob("*.safetensors"))
    (tmp_path / "runs").rename(tmp_path / "gone")
    assert dispatch(["report", str(kept)]) == 0
    assert (kept / "report" / "report.html").exists()


@pytest.mark.parametrize("flags", [("--rows", "0"), ("--max-length", "0")])
def test_a_task_with_an_impossible_number_is_refused(capsys, flags):
    assert dispatch(["train", "--task", "sst2", *flags]) == 2
    assert f"{flags[0]} must be" in capsys.readouterr().err
