"""Whole runs: what they leave, and that nothing stops them for good."""

import errno
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from oelm.errors import BadData, BadRecord, OelmError, RunFailed, RunLocked, UsageError
from oelm.files import parse_checked
from oelm.models import apply as surgery
from oelm.models.gpt import GPT
from oelm.record import folder as folder_module
from oelm.record.folder import RunFolder, read_attention, read_metrics, read_record
from oelm.runs import execute as execute_module
from oelm.runs import lock
from oelm.runs.execute import execute
from oelm.runs.resolve import resolve
from oelm.runs.restore import load_run
from oelm.spec.run import GPTSpec
from oelm.tasks import make_task
from oelm.train.checkpoint import Checkpoints
from oelm.train.loop import TrainingState

from .conftest import carried_out, forked, killed_at


def final_weights(directory):
    return load_file(directory / "checkpoints" / "latest" / "model.safetensors")


def curve(directory):
    return [(metric.kind, metric.step, metric.loss, metric.learning_rate) for metric in read_metrics(directory)]


def assert_same_run(one, other):
    """Weights, metrics and results to the bit."""
    left, right = final_weights(one), final_weights(other)
    assert left.keys() == right.keys()
    for name in left:
        assert torch.equal(left[name], right[name]), name
    assert curve(one) == curve(other)
    assert read_attention(one) == read_attention(other)  # none where labelled text is read
    results = [read_record(directory).result for directory in (one, other)]
    for field in ("val_loss", "test_loss", "best_val_loss", "best_step"):
        assert getattr(results[0], field) == getattr(results[1], field)


@pytest.fixture(scope="module")
def complete(tiny_run, tmp_path_factory):
    directory = tmp_path_factory.mktemp("complete")
    run = tiny_run("oelm-freeze")
    return run, directory, carried_out(run, directory)


def test_a_complete_run_leaves_its_record_curve_log_times_samples_and_checkpoints(complete):
    _, directory, record = complete
    assert record == read_record(directory)
    assert record.status == "complete"
    assert record.step == 30
    assert record.result.train_tokens == 30 * 4 * 32
    assert 0 < record.result.flop_utilisation < 1.5
    assert record.parameters.frozen == record.parameters.qk == 2 * 2 * 32 * 32
    assert len(record.frozen_hashes) == 4
    assert 0 < record.data.floor["test"] < record.result.test_loss
    assert record.seconds.total > record.seconds.train > 0
    assert record.seconds.timed_steps == 30
    timing = json.loads((directory / "timing_stats.json").read_text())
    assert timing["init_method"] == "orthogonal"
    assert timing["num_validations"] == 3
    log = (directory / "training.log").read_text()
    last = [metric for metric in read_metrics(directory) if metric.kind == "val"][-1]
    assert f"[Step 30] Validation - Loss: {last.loss:.4f}, PPL:" in log
    assert "[...]" in (directory / "samples.txt").read_text()
    seen = read_attention(directory)
    assert [record.step for record in seen] == [10, 20, 30]
    assert [len(layer) for layer in seen[-1].entropy] == [4, 4]
    assert {path.name for path in (directory / "checkpoints").iterdir()} == {"latest", "previous", "best"}


def test_a_repaired_run_says_what_its_repairs_train_and_comes_back_with_them(tiny_run, tmp_path):
    record = carried_out(tiny_run("oelm+core+bias+low-rank"), tmp_path)
    assert record.parameters.repair == 2 * (4 * 8 * 8 + 4 * 32 + 2 * 4 * 64)
    restored = load_run(tmp_path).model
    trained = [restored.blocks[0].attention.query_fold.core_HKK, restored.blocks[1].attention.position_bias.bias_HT]
    assert all(parameter.any() for parameter in trained)


def test_the_time_left_runs_down_during_an_evaluation_and_counts_what_comes_after_it(tiny_run, tmp_path, monkeypatch):
    now = 1000.0
    monkeypatch.setattr(execute_module.time, "monotonic", lambda: now)
    run = tiny_run(steps=20, eval_every=10)
    observer = execute_module.RunObserver(RunFolder(tmp_path), run, units_per_step=100, quiet=True)
    observer.looks = execute_module.Looks(steps=30, val=2, test=3, every=10)
    observer.turn_to("starting")
    assert observer._left() == ""  # nothing was timed yet
    observer.validating(TrainingState(step=10, step_seconds=[2.0] * 10))
    # 10 steps of 2 s; 1 validation now, 1 at the end, 2 + 3 for the whole splits, each 30 steps of a third of 2 s
    assert observer._left() == "160 s left"
    now += 15
    assert observer._left() == "145 s left"
    state = TrainingState(step=20, step_seconds=[2.0] * 20, validation_seconds=[10.0, 10.0])
    for doing, left in ((execute_module.WHOLE_VAL, "50 s left"), (execute_module.WHOLE_TEST, "30 s left")):
        observer._state = state
        observer.turn_to(doing)
        assert observer._left() == left
    now += 100
    assert observer._left() == "0 s left"
    observer.turn_to("writing samples and statistics")
    assert observer._left() == ""


def test_training_learns(complete):
    losses = [loss for kind, _, loss, _ in curve(complete[1]) if kind == "val"]
    assert losses[-1] < losses[0] < 6


def test_the_same_run_again_does_nothing(complete):
    run, directory, record = complete
    before = {path: path.stat().st_mtime_ns for path in directory.rglob("*")}
    assert carried_out(run, directory) == record
    assert {path: path.stat().st_mtime_ns for path in directory.rglob("*")} == before


def test_another_run_in_its_folder_is_refused_and_nothing_overwritten(complete, tiny_run):
    _, directory, record = complete
    with pytest.raises(UsageError, match="Nothing is overwritten"):
        carried_out(tiny_run("baseline"), directory)
    assert read_record(directory) == record


def test_two_runs_of_one_spec_are_equal_to_the_bit(complete, tmp_path):
    run, directory, _ = complete
    carried_out(run, tmp_path)
    assert_same_run(directory, tmp_path)


def test_a_restored_model_is_the_trained_one_and_still_frozen(complete):
    _, directory, record = complete
    restored = load_run(directory)
    assert isinstance(restored.model, GPT)
    assert not restored.model.blocks[0].attention.q.weight.requires_grad
    tokens = resolve(restored.run).data
    task = make_task(restored.run, tokens, torch.device("cpu"))
    assert task.measure(restored.model, "test").loss == record.result.test_loss


METHODS = ["baseline", "oelm-progressive:0.2-0.8", "oelm-every:3", "oelm+core+diagonal+low-rank+bias+mix+temperature"]


@pytest.mark.programs
@pytest.mark.parametrize("method", METHODS)
def test_a_run_killed_at_random_moments_ends_with_the_bits_of_an_undisturbed_one(tiny_run, tmp_path, method):
    kill_campaign(tiny_run(method, steps=60), tmp_path, kills=3, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_twenty_kills_change_nothing(tiny_run, tmp_path, method):
    kill_campaign(tiny_run(method, steps=1000), tmp_path, kills=20, seed=2)


@pytest.mark.programs
def test_a_bf16_run_that_is_killed_ends_with_the_bits_of_an_undisturbed_one(tiny_run, tmp_path):
    # Without dropout and with more than one block of queries, so that attention is computed by blocks.
    model = GPTSpec(context=130, model_dim=32, num_layers=2, num_heads=4)
    kill_campaign(tiny_run("oelm-freeze", model=model, precision="bf16", steps=40), tmp_path, kills=2, seed=1)


def kill_campaign(run, tmp_path, kills, seed):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    carried_out(run, whole)
    moments = random.Random(seed)
    lines = len(curve(whole))
    done = sum(not killed_at(run, parts, moments.randint(1, max(2, 2 * lines // (kills + 4)))) for _ in range(kills))
    assert done == kills, "the run finished before it could be killed often enough"
    carried_out(run, parts)
    assert_same_run(whole, parts)


def test_the_time_of_a_killed_session_is_counted_up_to_its_last_checkpoint(tiny_run, tmp_path):
    run = tiny_run()
    killed_at(run, tmp_path, 25)
    path = tmp_path / "checkpoints" / "latest" / "state.json"
    state = parse_checked(path.read_bytes())
    for name in ("train_seconds", "wall_seconds"):  # as if it had been at work for an hour
        state["progress"][name] = state["progress"].get(name, 0.0) + 3600
    path.write_text(json.dumps(state))
    seconds = carried_out(run, tmp_path).seconds
    assert seconds.total >= seconds.train + seconds.validation + seconds.checkpoint
    assert seconds.total < 2 * 3600, "no session is counted twice"


def test_a_damaged_latest_checkpoint_costs_some_steps_and_is_mentioned(tiny_run, tmp_path):
    run = tiny_run()
    carried_out(run, tmp_path / "whole")
    killed_at(run, tmp_path / "parts", 25)
    weights = tmp_path / "parts" / "checkpoints" / "latest" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    carried_out(run, tmp_path / "parts")
    assert_same_run(tmp_path / "whole", tmp_path / "parts")
    assert "is used instead" in (tmp_path / "parts" / "training.log").read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_leaves_an_interrupted_record_that_continues(tiny_run, tmp_path, number):
    run = tiny_run(steps=2000, checkpoint_every=1000, eval_every=2000)
    spec = tmp_path / "spec.json"
    spec.write_text(run.model_dump_json())
    out = tmp_path / "run"
    command = [sys.executable, "-m", "oelm", "train", "--spec", str(spec), "--out", str(out), "--quiet"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while not (out / "metrics.jsonl").exists() or not curve(out):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(number)
    _, words = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "The same command continues it" in words
    record = read_record(out)
    assert record.status == "interrupted"
    assert number.name in record.error
    assert 0 < record.step < 2000
    assert load_run(out).state["progress"]["step"] == record.step


def test_a_run_that_diverges_leaves_a_failed_record_with_its_traceback(tiny_run, tmp_path):
    with pytest.raises(RunFailed, match="learning_rate"):
        carried_out(tiny_run(learning_rate=1e6, grad_clip=0.0, steps=300), tmp_path)
    record = read_record(tmp_path)
    assert record.status == "failed"
    assert record.failure == "diverged"
    assert "Diverged" in record.error
    assert record.parameters is not None


def test_a_second_process_in_the_same_folder_is_refused(tiny_run, tmp_path):
    run = tiny_run(steps=5000)
    pid = forked(run, tmp_path)
    try:
        while not (tmp_path / "metrics.jsonl").exists():
            time.sleep(0.01)
        with pytest.raises(RunLocked, match="Another live process"):
            carried_out(run, tmp_path)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@pytest.mark.programs
@pytest.mark.parametrize("line", [1, 3, 6])
def test_a_process_that_slept_while_another_finished_its_run_writes_nothing(tiny_run, tmp_path, monkeypatch, line):
    """The sleeper is as if on another machine: only from there a live lock can expire."""
    run, directory, curve_file = tiny_run(steps=60), tmp_path / "run", tmp_path / "run" / "metrics.jsonl"
    with monkeypatch.context() as far:
        far.setattr(lock, "_place", lambda: "another kernel")
        far.setattr(lock.socket, "gethostname", lambda: "far")
        far.setattr(lock, "BEAT_SECONDS", 0.05)
        pid = forked(run, directory)
    try:
        while not curve_file.exists() or len(curve_file.read_bytes().splitlines()) < line:
            time.sleep(0.001)
        os.kill(pid, signal.SIGSTOP)
        monkeypatch.setattr(lock, "WATCH_SECONDS", 0.2)
        # The files that are open on another machine cannot be seen from here.
        monkeypatch.setattr(folder_module, "is_open_elsewhere", lambda _: False)
        os.utime(directory / "claim.1", (0, 0))  # as after a sleep that is longer than the lease
        carried_out(run, directory)
        before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    finally:
        os.kill(pid, signal.SIGCONT)
        _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 1
    assert {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()} == before
    assert read_record(directory).status == "complete"
    carried_out(run, tmp_path / "undisturbed")
    assert_same_run(tmp_path / "undisturbed", directory)


def test_a_folder_that_cannot_be_made_is_told_in_words(tiny_run, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(UsageError, match="cannot be written to"):
        carried_out(tiny_run(), tmp_path / "file" / "run")


def test_a_full_disk_is_told_in_words_and_the_run_continues_afterwards(tiny_run, tmp_path):
    run = tiny_run()
    carried_out(run, tmp_path / "whole")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, limits[1]))  # checkpoints no longer fit
    try:
        with pytest.raises(RunFailed, match="make room"):
            carried_out(run, tmp_path / "parts")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert read_record(tmp_path / "parts").status == "failed"
    carried_out(run, tmp_path / "parts")
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "make room"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "make room"),
        (SafetensorError("I/O error: No space left on device (os error 28)"), "make room"),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "train.bin"), "failed .*train.bin"),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), "failed .BrokenPipeError"),
        (SafetensorError("InvalidHeader"), "failed .SafetensorError: InvalidHeader"),
    ],
)
def test_room_is_asked_for_where_it_helps_and_other_troubles_are_told_as_they_are(tiny_run, tmp_path, error, words):
    class Broken(Checkpoints):
        def save(self, *_):
            raise error

    with pytest.raises(RunFailed, match=words) as told:
        execute(*resolve(tiny_run()), tmp_path, quiet=True, make_checkpoints=Broken)
    assert ("make room" in str(told.value)) == (words == "make room")
    assert read_record(tmp_path).status == "failed"


def test_data_other_than_declared_is_refused(tiny_run):
    run, _ = resolve(tiny_run())
    other = run.model_copy(update={"data": run.data.model_copy(update={"checksum": "0" * 64})})
    with pytest.raises(BadData, match="declared for data with checksum 000"):
        resolve(other)


def test_a_vocabulary_smaller_than_the_datas_is_refused(tiny_run, tmp_path):
    small = GPTSpec(context=32, model_dim=32, num_layers=1, num_heads=4, vocab_size=100)
    with pytest.raises(BadData, match="vocabulary of 300"):
        carried_out(tiny_run(model=small), tmp_path)


def test_more_processes_than_are_running_are_refused(tiny_run, tmp_path):
    with pytest.raises(UsageError, match="torchrun --nproc_per_node=2"):
        carried_out(tiny_run(processes=2), tmp_path)
    assert not list(tmp_path.iterdir())


def test_nothing_but_oelm_errors_reaches_a_person(tiny_run, tmp_path):
    missing = tiny_run().model_copy(update={"data": tiny_run().data.model_copy(update={"directory": tmp_path / "no"})})
    with pytest.raises(OelmError):
        resolve(missing)


@pytest.mark.programs
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_learns_too(tiny_run, tmp_path, precision):
    record = carried_out(tiny_run(precision=precision), tmp_path)
    assert record.result.val_loss < 6


def test_a_gpu_that_is_not_there_is_told_in_words(tiny_run, tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(UsageError, match=r"finds no GPU.*train\.device=cpu"):
        carried_out(tiny_run(device="cuda"), tmp_path)


@pytest.mark.slow
def test_a_compiled_run_has_the_losses_of_a_plain_one(tiny_run, tmp_path):
    plain = tiny_run(steps=5, model=tiny_run().model.model_copy(update={"dropout": 0.0}))
    compiled = plain.model_copy(update={"train": plain.train.model_copy(update={"compiled": True})})
    carried_out(plain, tmp_path / "plain")
    carried_out(compiled, tmp_path / "compiled")
    losses = [[loss for *_, loss, _ in curve(tmp_path / name)] for name in ("plain", "compiled")]
    assert losses[1] == pytest.approx(losses[0], abs=1e-4)


@pytest.mark.parametrize("stated", [{"corpus": "wikitext-103"}, {"vocab_size": 512}, {"tokens": 7_000}])
def test_a_folder_of_another_corpus_than_the_run_names_is_refused(tiny_run, stated):
    run = tiny_run()
    other = run.model_copy(update={"data": run.data.model_copy(update=stated)})
    with pytest.raises(BadData, match=f"was made with {next(iter(stated))}"):
        resolve(other)


def test_a_warm_up_that_never_ends_is_told_once_before_the_first_step(tiny_run, tmp_path):
    run = tiny_run(warmup_steps=40)
    killed_at(run, tmp_path, 25)
    carried_out(run, tmp_path)
    log = (tmp_path / "training.log").read_text()
    assert log.startswith("note: the warm-up of 40 steps is not shorter than the run of 30")
    assert "continuing after step" in log
    assert log.count("warm-up") == 1


def test_the_record_says_which_precision_auto_became(tiny_run, tmp_path, monkeypatch):
    monkeypatch.setattr("oelm.train.device.has_native_bf16", lambda _: True)
    record = carried_out(tiny_run(precision="auto"), tmp_path)
    assert (record.spec.train.precision, record.spec.train.chose_precision) == ("bf16", True)
    assert read_record(tmp_path).spec.train.precision == "bf16"


def test_data_order_initial_weights_and_the_draw_can_be_seeded_apart(tiny_run):
    run = tiny_run("oelm-freeze")

    def parts(**seeds):
        other = run.model_copy(update=seeds)
        named, data = resolve(other)
        task = make_task(named, data, torch.device("cpu"))
        model = task.build_model()
        surgery.apply(model, named.method, seed=named.seed_of("draw"))
        ids, _ = task.batch(0, slice(0, 4))
        attention = model.blocks[0].attention
        return ids, attention.v.weight, attention.q.weight

    plain = parts()
    for field, changed in (("data_seed", 0), ("init_seed", 1), ("draw_seed", 2)):
        found = parts(**{field: 5})
        assert [not torch.equal(one, other) for one, other in zip(plain, found, strict=True)] == [
            place == changed for place in range(3)
        ]
        same = parts(**{field: run.seed})
        assert all(torch.equal(one, other) for one, other in zip(plain, same, strict=True))


def test_the_run_itself_uses_the_seed_of_the_draw(tiny_run, tmp_path):
    run = tiny_run("oelm-freeze", steps=2)
    hashes = [
        carried_out(run.model_copy(update=seeds), tmp_path / str(number)).frozen_hashes
        for number, seeds in enumerate(({}, {"draw_seed": 9}, {"init_seed": 9, "data_seed": 9}, {"draw_seed": 0}))
    ]
    assert hashes[0] == hashes[2] == hashes[3] != hashes[1]


def test_restoring_a_run_uses_its_seeds(tiny_run, tmp_path):
    run = tiny_run("oelm-freeze", steps=2).model_copy(update={"draw_seed": 9, "init_seed": 8})
    carried_out(run, tmp_path)
    assert surgery.verify_frozen(load_run(tmp_path).model) == read_record(tmp_path).frozen_hashes


def test_a_token_file_that_changes_during_training_ends_the_run_and_its_weights_are_not_saved(
    tiny_run, tiny_data, tmp_path
):
    """Tokens are mapped into memory, so training would go on with whatever the file holds now."""
    folder = tmp_path / "data"
    shutil.copytree(tiny_data, folder)
    run = tiny_run("oelm-freeze", steps=12, eval_every=4, checkpoint_every=3)
    run = run.model_copy(update={"data": run.data.model_copy(update={"directory": folder})})
    whole = execute(*resolve(run), tmp_path / "whole", quiet=True)
    content = (folder / "train.bin").read_bytes()

    class Changing(Checkpoints):
        def save(self, *state):
            super().save(*state)
            with (folder / "train.bin").open("r+b") as file:
                file.write(content[2000:4000])

    with pytest.raises(BadData, match=r"train\.bin has changed since it was opened"):
        execute(*resolve(run), tmp_path / "run", quiet=True, make_checkpoints=Changing)
    assert read_record(tmp_path / "run").status == "failed"
    (folder / "train.bin").write_bytes(content)
    again = execute(*resolve(run), tmp_path / "run", quiet=True)
    assert again.result.test_loss == whole.result.test_loss
    assert curve(tmp_path / "run") == curve(tmp_path / "whole")


def test_a_file_that_the_record_lists_is_missed_and_that_of_another_run_is_refused(tiny_run, tmp_path):
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder, method in zip(folders, ("oelm-freeze", "baseline"), strict=True):
        execute(*resolve(tiny_run(method, steps=4)), folder, quiet=True)
    own, other = map(RunFolder, folders)
    readers = {
        "test_losses.json": own.read_test_losses,
        "window_losses.json": own.read_window_losses,
        "logit_variance.json": own.read_logit_variance,
    }
    for name, read in readers.items():
        assert read() is not None
        shutil.copy2(other.path / name, own.path / name)  # whole, with a checksum that is right
        with pytest.raises(BadRecord, match="is not as the run left it"):
            read()
        (own.path / name).unlink()
        with pytest.raises(BadRecord, match="is missing, although the record lists it"):
            read()
