"""What a study takes before it runs, against what was counted and published."""

import json
import time
from pathlib import Path

import pytest
import torch

from oelm.cli import run as cli_run
from oelm.data import probes
from oelm.data.meta import read_meta
from oelm.models import apply as surgery
from oelm.models.flops import training_cost
from oelm.models.gpt import GPT
from oelm.runs import plan as module
from oelm.runs.board import Board
from oelm.runs.execute import execute
from oelm.runs.plan import ASSUMED_UTILISATION, DEVICES, Timing, calibrate, plan
from oelm.runs.resolve import resolve
from oelm.spec.method import named_method
from oelm.spec.run import GPT_SIZES, DataSpec, ExamplesSpec, GPTSpec, HuggingFaceSpec, RunSpec, TrainSpec
from oelm.spec.study import Listing, Study, load_study
from oelm.tasks import make_task

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def published():
    return plan(Board(load_study(ROOT / "studies/published.py"), Path("/nowhere")), "a5000")


def test_the_published_matrix_has_its_counts_and_ids(published):
    by_id = {run.run.partition("_")[0]: run for run in published.runs}
    assert len(by_id) == 14
    assert (by_id["GPT-02"].trained, by_id["GPT-02"].frozen) == (41_751_040, 3_145_728)
    assert (by_id["XNLI-02"].trained, by_id["XNLI-02"].frozen) == (95_310_339, 14_174_208)


def test_times_come_from_flops_the_data_sheet_and_one_utilisation(published):
    for run in published.runs:
        assert run.step_seconds == pytest.approx(
            run.step_flops / (DEVICES["a5000"].flops["fp32"] * ASSUMED_UTILISATION)
        )
        assert run.seconds == pytest.approx(run.steps * run.step_seconds)
    assert published.seconds == pytest.approx(sum(run.seconds for run in published.runs))


def test_the_committed_matrix_is_the_plan(published):
    data = cli_run.plan_data(published, load_study(ROOT / "studies/published.py"))
    assert json.loads((ROOT / "configs/experiments.json").read_text()) == json.loads(json.dumps(data))


def test_a_plan_states_every_setting_defaults_included(published):
    for run in published.runs:
        assert run.settings["train"].keys() == TrainSpec.model_fields.keys()
        assert run.settings["method"]["freeze"].keys() == {"roles", "layers", "biases"}
        assert "token_types" in run.settings["data"] or run.settings["data"]["kind"] == "text"


@pytest.mark.programs
def test_a_plan_counts_shapes_as_real_weights_would(tmp_path, monkeypatch):
    """Shapes alone give the counts and FLOPs of a model with weights, for dense and for other methods."""
    monkeypatch.setattr(module, "costs_file", lambda: tmp_path / "costs.json")
    for model in (GPT_SIZES["nano"], HuggingFaceSpec(name="bert-tiny", pretrained=False, labels=2)):
        for name in ("baseline", "oelm-freeze", "random-trained", "oelm-partial:-1", "oelm-slice", "oelm-bias"):
            data = DataSpec() if isinstance(model, GPTSpec) else ExamplesSpec(padding="max_length", max_length=16)
            run = RunSpec(model=model, data=data, method=named_method(name), train=TrainSpec(batch_size=2))
            counts, cost = module.count_cost(run)
            real = module._shape(run).build()
            audit = surgery.apply(real, run.method)
            assert (counts.trained, counts.frozen) == (audit.trainable, audit.frozen), name
            assert cost.total_flops == training_cost(real.train(), 2, module._length(run)).total_flops, name


def test_counts_are_kept_for_the_same_code_and_counted_again_for_other_code(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "costs_file", lambda: tmp_path / "costs.json")
    counted = []
    count = module.count_cost
    monkeypatch.setattr(module, "count_cost", lambda run: counted.append(run) or count(run))
    run = RunSpec(model=GPT_SIZES["nano"])
    first, second = planned(run), planned(run)
    assert first == second
    assert len(counted) == 1
    monkeypatch.setattr(module, "_digest_code", lambda: "other")
    assert planned(run) == first
    assert len(counted) == 2
    (tmp_path / "costs.json").write_text("{")  # a damaged cache is counted again
    assert planned(run) == first
    assert len(counted) == 3


def test_the_published_runs_are_planned_without_counting(tmp_path, monkeypatch):
    """Their counts come with the program: counting them takes 20 seconds of processor time, and planning 2."""
    monkeypatch.setattr(module, "costs_file", lambda: tmp_path / "costs.json")
    monkeypatch.setattr(module, "count_cost", lambda run: pytest.fail(f"{run.label} is counted"))
    plan(Board(load_study(ROOT / "studies/published.py"), Path("/nowhere")), "a5000")


@pytest.mark.programs
def test_the_counts_that_come_with_the_program_are_those_of_its_code():
    runs = load_study(ROOT / "studies/published.py").listed
    assert json.loads(module.COUNTED.read_text()) == module.count_kinds(runs), (
        "write json.dumps(oelm.runs.plan.count_kinds(runs), indent=1) to src/oelm/runs/costs.json"
    )


def test_a_tuned_study_counts_the_stage_to_come_and_what_is_done(tuned_study, tmp_path, write_run):
    study = tuned_study()
    write_run(Board(study, tmp_path / "runs").stage.tune[0])
    result = plan(Board(study, tmp_path / "runs"), "cpu")
    assert [run.state for run in result.runs] == ["complete"] + ["waiting"] * 5
    assert {run.stage for run in result.runs} == {"tune"}
    assert result.confirm_runs == 6
    assert result.seconds == pytest.approx(sum(run.seconds for run in result.runs[1:]))
    assert set(result.peak_flops) == {"1 threads"}


def test_epochs_over_data_nobody_knows_have_no_time(published):
    study = load_study(ROOT / "studies/published.py")
    run = study.listed[-1].model_copy(update={"data": ExamplesSpec(corpus="mine")})
    result = plan(Board(study.model_copy(update={"listed": (run,)}), Path("/nowhere")), "h100")
    assert result.runs[0].steps is None
    assert result.seconds is None


def planned(run, device="a5000"):
    """Plan one run, as if it were a study."""
    listing = Listing(name="one", question="?", listed=(run.model_copy(update={"label": "one"}),))
    return plan(Board(listing, Path("/nowhere")), device).runs[0]


@pytest.mark.parametrize(
    ("model", "data", "answers"),
    [
        (GPTSpec(context=32, model_dim=32, num_layers=1, num_heads=4), {"vocab_size": 300}, "label"),
        (HuggingFaceSpec(name="bert-tiny", pretrained=False), {"vocab_size": 300}, "label"),
        (HuggingFaceSpec(name="t5-tiny", pretrained=False), {"vocab_size": 300}, "text"),
    ],
)
def test_a_plan_counts_the_model_that_is_trained_on_labelled_text(reviewing, model, data, answers):
    run = reviewing(model=model, data={**data, "answers": answers})
    named, rows = resolve(run)
    built = make_task(named, rows, torch.device("cpu")).build_model()
    found = planned(run.model_copy(update={"data": run.data.model_copy(update={"rows": 160})}))
    assert found.trained == sum(parameter.numel() for parameter in built.parameters())
    assert found.steps == named.train.steps


def test_a_plan_counts_the_vocabulary_that_a_probe_has():
    model = GPTSpec(context=32, model_dim=32, num_layers=1, num_heads=4)
    recall = planned(RunSpec(model=model, data=DataSpec(corpus="recall:2")))
    text = planned(RunSpec(model=model, data=DataSpec(corpus="stories")))
    assert text.trained - recall.trained == 32 * (50257 - probes.VOCAB_SIZE)


def test_labels_that_nobody_has_counted_still_make_a_classifier():
    data = ExamplesSpec(corpus="mine", texts=("text",), label="label", vocab_size=300)
    model = HuggingFaceSpec(name="bert-tiny", pretrained=False)
    least = planned(RunSpec(model=model, data=data))
    assert least.trained == planned(RunSpec(model=model.model_copy(update={"labels": 2}), data=data)).trained
    assert planned(RunSpec(model=model, data=data.model_copy(update={"corpus": "mnli"}))).trained > least.trained


@pytest.mark.parametrize(("rows", "epochs", "batch_size"), [(160, 2.5, 48), (10, 3, 16), (161, 3, 16), (5, 0.01, 16)])
def test_epochs_have_as_many_steps_as_binding_gives_them(reviewing, rows, epochs, batch_size):
    run = reviewing(data={"rows": rows}, epochs=epochs, batch_size=batch_size)
    named, examples = resolve(run)
    taken = len(examples.splits["train"])  # `rows` is what is asked for; there may be fewer
    asked = run.model_copy(update={"data": run.data.model_copy(update={"rows": taken})})
    assert planned(asked).steps == named.train.steps


def test_a_run_that_does_not_fit_on_the_device_is_told(reviewing, published, capsys, tmp_path):
    assert {run.fits for run in published.runs} == {True}
    run = RunSpec(model=GPT_SIZES["mini"], train=TrainSpec(batch_size=16_384, device="cuda"))
    assert planned(run, "a5000").fits is False
    assert planned(run, "a100").fits
    assert planned(run.model_copy(update={"train": run.train.model_copy(update={"accumulation": 64})}), "a5000").fits
    assert planned(reviewing(), "cpu").fits
    study = tmp_path / "large.py"
    study.write_text(
        "import oelm\n"
        f"run = oelm.RunSpec.model_validate_json({run.model_dump_json()!r}).model_copy(update={{'label': 'L-01'}})\n"
        "study = oelm.Listing(name='large', question='?', listed=(run,))\n"
    )
    assert cli_run.plan_command([str(study), "--runs", str(tmp_path)]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "1 of them do not fit into the memory of one a5000: L-01. Set train.accumulation" in told


def test_batches_by_length_are_planned_with_the_tokens_that_rows_have(published):
    """The published runs pad every row to 128, nine times what SST-2 has; ours do not."""
    padded = load_study(ROOT / "studies/published.py").listed[9]
    assert padded.data.corpus == "sst2"
    grouped = padded.model_copy(update={"data": padded.data.model_copy(update={"padding": "longest"})})
    listing = Listing(name="grouped", question="?", listed=(grouped,))
    (found,) = plan(Board(listing, Path("/nowhere")), "a5000").runs
    assert 8 < published.runs[9].step_flops / found.step_flops < 11


def test_a_calibrated_plan_takes_its_times_from_real_steps_and_counts_evaluation(tiny_run, tmp_path):
    run = tiny_run(steps=1000, eval_every=100, eval_tokens=1024).model_copy(update={"label": "one"})
    board = Board(Listing(name="one", question="?", listed=(run,)), tmp_path)
    asked = []

    def timed(timed_run, build):
        asked.append(type(build(timed_run)).__name__)
        return Timing(step=0.5, evaluation=0.25)

    result = plan(board, "cpu", calibration=timed)
    meta = read_meta(run.data.directory)
    tokens = 11 * 1024 + meta.splits["val"].num_tokens + meta.splits["test"].num_tokens
    assert asked == ["GPT"]
    assert result.seconds == pytest.approx(1000 * 0.5 + tokens / (4 * 32) * 0.25)
    assert result.core_hours == pytest.approx(result.seconds / 3600)
    assert result.calibrated


@pytest.mark.programs
def test_a_calibration_is_near_what_the_run_then_takes_and_is_kept(tiny_run, tmp_path, monkeypatch):
    model = GPTSpec(context=64, model_dim=64, num_layers=2, num_heads=2, vocab_size=300)
    run = tiny_run("oelm-freeze", model=model, steps=60, eval_every=60, batch_size=8)
    timing = calibrate(run, lambda one: GPT(one.model), tmp_path / "calibration.json")
    began = time.process_time()
    execute(*resolve(run), tmp_path / "run", quiet=True)
    spent = time.process_time() - began
    assert 0.3 < 60 * timing.step / spent < 1.3  # so short a run also builds, saves, samples and measures
    monkeypatch.setattr("oelm.runs.plan._measure", None)
    assert calibrate(run, lambda one: GPT(one.model), tmp_path / "calibration.json") == timing


def test_a_branch_is_planned_with_the_steps_that_it_does_itself(tiny_run, tmp_path):
    study = Study(
        name="budgets",
        question="?",
        base=tiny_run("baseline", decay="wsd"),
        arms=("baseline",),
        sizes={"short": {"train.steps": 100}, "long": {"train.steps": 400}},
    )
    times = {run.steps: run.seconds for run in plan(Board(study, tmp_path), "cpu").runs}
    assert times[100] == pytest.approx(times[400] / 4 / 5)
