"""The published command lines, as they were typed, at a small size."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from oelm.data.prepare import prepare
from oelm.data.stories import generate_stories
from oelm.published.checkpoints import parser, translate_flags
from oelm.record.folder import read_record
from oelm.spec.run import DataSpec

pytestmark = pytest.mark.programs

SCRIPT = Path(__file__).parents[2] / "scripts" / "train_v2.py"
SMALL = shlex.split("--vocab_size 300 --d_model 32 --num_layers 2 --num_heads 4 --d_ff 64 --seq_len 32 --max_steps 8 "
                    "--val_interval 4 --save_interval 4")  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    directory = tmp_path_factory.mktemp("published")
    (directory / "stories.txt").write_text("<|endoftext|>".join(story.text for story in generate_stories(0, 400)))
    spec = DataSpec(corpus="tinystories", vocab_size=300, tokens=10_000, source=directory / "stories.txt")
    prepare(spec, directory / "data" / "tinystories")
    return directory


# With two threads, 3 of 91 short runs on a loaded machine differed from the others in the last bits, from the first
# step on; the cause is not known (LOG.md, 2026-11-18). One thread has always been exact.
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}


def run(folder, *words, launcher=(sys.executable,)):
    command = [*launcher, str(SCRIPT), *words]
    return subprocess.run(command, cwd=folder, env=ONE_THREAD, capture_output=True, text=True, check=False, timeout=280)


PUBLISHED_KEYS = [
    "model_type", "init_method", "dataset", "total_wall_time", "total_formatted", "num_steps_measured", "warmup_steps",
    "mean_step_time", "std_step_time", "median_step_time", "min_step_time", "max_step_time", "p95_step_time",
    "p99_step_time", "total_validation_time", "mean_validation_time", "num_validations", "epoch_times",
    "final_perplexity", "best_val_loss",
]  # fmt: skip
PUBLISHED = {
    "outputs/GPT-01_baseline": "--model_type baseline    --dataset tinystories --max_lr 3e-4 --max_steps 100000",
    "outputs/GPT-02_oelm_freeze": "--model_type oelm_v2     --dataset tinystories --max_lr 1e-3 --max_steps 100000",
    "outputs/GPT-03_oelm_random": "--model_type oelm_random --dataset tinystories --max_lr 1e-3 --max_steps 100000",
}


@pytest.mark.parametrize("out", PUBLISHED)
def test_a_published_command_leaves_the_published_files(folder, out):
    done = run(folder, *shlex.split(PUBLISHED[out]), "--out_dir", out, *SMALL)
    assert done.returncode == 0, done.stderr
    log = (folder / out / "training.log").read_text()
    assert "[Step 8] Validation - Loss: " in log
    assert log.splitlines()[-1] in done.stdout
    timing = json.loads((folder / out / "timing_stats.json").read_text())
    method = shlex.split(PUBLISHED[out])[1]
    assert timing["model_type"] == method
    assert timing["note"].startswith("No timing data collected")  # the published form of short runs
    assert timing["init_method"] == {"baseline": "n/a", "oelm_v2": "orthogonal", "oelm_random": "normal"}[method]
    assert timing["final_perplexity"] == pytest.approx(torch.tensor(timing["best_val_loss"]).exp().item(), rel=1e-5)
    for name in ("best.pt", "latest.pt"):
        plain = torch.load(folder / out / name, weights_only=True)
        assert plain.keys() == {"model", "optimizer", "step", "best_val_loss", "args"}
        assert "layers.1.self_attn.W_q.weight" in plain["model"]
    assert len(plain["optimizer"]["state"]) == (28 if method == "baseline" else 24)
    if method == "baseline":
        again = run(folder, *shlex.split(PUBLISHED[out]), "--out_dir", out, *SMALL)
        assert again.returncode == 0
        assert again.stdout == f"{out} holds this run, complete already: nothing is left to do.\n"


def test_the_published_torchrun_command_runs_and_takes_its_default_folder(folder):
    launcher = (sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone")
    done = run(folder, *shlex.split("--model_type oelm_v2 --dataset tinystories"), *SMALL, launcher=launcher)
    assert done.returncode == 0, done.stderr[-2000:]
    record = read_record(folder / "outputs" / "oelm_v2_tinystories")
    assert record.status == "complete"
    assert record.spec.train.batch_size == 16


def test_resuming_from_latest_pt_gives_the_weights_of_the_run_that_went_on(folder, tmp_path):
    whole = "outputs/GPT-02_oelm_freeze"
    if not (folder / whole).exists():
        run(folder, *shlex.split(PUBLISHED[whole]), "--out_dir", whole, *SMALL)
    # The same run stopped by the published means: its latest.pt of step 4, taken elsewhere.
    flags = [*shlex.split(PUBLISHED[whole]), *SMALL]
    half = torch.load(folder / whole / "latest.pt", weights_only=True)
    assert half["step"] == 8
    first = run(folder, *flags, "--out_dir", "outputs/first", "--max_steps", "8", "--save_interval", "100")
    assert first.returncode == 0
    mid = tmp_path / "mid.pt"
    _stop_at_4(folder, flags, mid)
    done = run(folder, *flags, "--out_dir", "outputs/resumed", "--resume", str(mid))
    assert done.returncode == 0, done.stderr
    resumed = torch.load(folder / "outputs/resumed/latest.pt", weights_only=True)
    assert resumed["step"] == 8
    for name, tensor in half["model"].items():
        assert torch.equal(resumed["model"][name], tensor), name
    other = run(folder, *flags, "--seed", "7", "--out_dir", "outputs/other", "--resume", str(mid))
    assert other.returncode == 2
    assert "was made with --seed 42, but this run has 7" in other.stderr
    ended = run(folder, *flags, "--out_dir", "outputs/ended", "--resume", str(folder / whole / "latest.pt"))
    assert ended.returncode != 0
    assert "so --max_steps 8 leaves nothing to train" in ended.stderr


def _stop_at_4(folder, flags, target):
    """Copy the latest.pt after step 4 of a run."""
    code = (
        "import runpy, shutil, sys\n"
        "from oelm.published import checkpoints\n"
        "write = checkpoints.PublishedCheckpoints._write\n"
        "def spy(self, name, model, training, state):\n"
        "    write(self, name, model, training, state)\n"
        "    if name == 'latest.pt' and state['progress']['step'] == 4:\n"
        f"        shutil.copy(self.directory.parent / name, {str(target)!r})\n"
        "checkpoints.PublishedCheckpoints._write = spy\n"
        f"sys.argv = ['train_v2.py', *{flags!r}, '--out_dir', 'outputs/spied']\n"
        f"runpy.run_path({str(SCRIPT)!r}, run_name='__main__')\n"
    )
    subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=ONE_THREAD, check=False, capture_output=True, timeout=280
    )
    assert target.exists()


def test_the_launch_scripts_may_write_the_log_through_tee(folder):
    """Two writers of training.log would overwrite each other, so the one that has it open writes alone."""
    out = folder / "outputs" / "tee"
    out.mkdir(parents=True)
    words = shlex.join([sys.executable, str(SCRIPT), *SMALL, "--out_dir", str(out)])
    command = f"{words} 2>&1 | tee {shlex.quote(str(out / 'training.log'))}"
    done = subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, text=True, check=False, timeout=200)
    log = (out / "training.log").read_text()
    assert log == done.stdout
    assert [line.split("]")[0] for line in log.splitlines() if "Validation" in line] == ["[Step 4", "[Step 8"]
    assert "\0" not in log


def test_a_training_file_alone_trains_without_validation_and_says_so(folder):
    alone = folder / "alone"
    alone.mkdir()
    tokens = np.random.default_rng(0).integers(0, 250, 2000).astype(np.uint16)
    np.save(alone / "train.npy", tokens)
    flags = [*SMALL, "--vocab_size", "250", "--data_path", "alone/train.npy", "--max_steps", "110"]
    done = run(folder, *flags, "--save_interval", "110", "--out_dir", "outputs/alone")
    assert done.returncode == 0, done.stderr
    assert "there are no validation tokens, so the run is trained without validation" in done.stdout
    timing = json.loads((folder / "outputs/alone/timing_stats.json").read_text())
    assert list(timing) == PUBLISHED_KEYS
    assert (timing["num_steps_measured"], timing["warmup_steps"], timing["best_val_loss"]) == (9, 100, None)
    assert timing["dataset"] == "tinystories"
    assert timing["total_formatted"].startswith("0h 0m ")


def test_data_prepared_under_another_name_keep_that_name(folder):
    flags = parser().parse_args(["--data_path", str(folder / "mine" / "train.bin"), *SMALL])
    spec = DataSpec(corpus="mine", vocab_size=300, tokens=5_000, source=folder / "stories.txt")
    prepare(spec, folder / "mine")
    assert translate_flags(flags).data.corpus == "mine"


def test_data_in_the_folder_of_our_name_are_found(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert str(translate_flags(parser().parse_args(["--dataset", "wikitext103"])).data.directory) == (
        "data/wikitext103/train.bin"
    )
    (folder / "data" / "wikitext-103").mkdir()
    (folder / "data" / "wikitext-103" / "train.bin").write_bytes(b"12")
    assert str(translate_flags(parser().parse_args(["--dataset", "wikitext103"])).data.directory) == (
        "data/wikitext-103/train.bin"
    )


@pytest.mark.parametrize(("words", "code", "message"), [
    (["--resume", "nowhere.pt"], 2, "no checkpoint nowhere.pt"),
    (["--data_path", "nowhere/train.bin"], 2, "nowhere/train.bin"),
    (["--vocab_size", "100"], 2, "vocabulary of 300"),
    (["--num_heads", "5"], 2, "num_heads"),
    (["--max_steps", "0"], 2, "not describe a valid run: steps: Input should be greater than 0, found 0."),
])  # fmt: skip
def test_bad_input_ends_with_a_message_and_leaves_nothing(folder, words, code, message):
    done = run(folder, *SMALL, *words, "--out_dir", "outputs/bad")
    assert done.returncode == code, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert "validation error" not in done.stderr
