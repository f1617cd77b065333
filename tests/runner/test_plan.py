"""What a study takes before it runs, against what was counted and published."""

import json
from pathlib import Path

import pytest

from oelm.runner.plan import DEVICES, UTILISATION, plan
from oelm.runner.queue import Board
from oelm.study import Listing, load_study

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
        assert run.step_seconds == pytest.approx(run.step_flops / (DEVICES["a5000"].flops["fp32"] * UTILISATION))
        assert run.seconds == pytest.approx(run.steps * run.step_seconds)
    assert published.seconds == pytest.approx(sum(run.seconds for run in published.runs))


def test_the_committed_matrix_is_the_plan(published):
    assert json.loads((ROOT / "configs/experiments.json").read_text()) == json.loads(json.dumps(published.as_dict()))


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
    from oelm.spec.data import ExamplesSpec

    study = load_study(ROOT / "studies/published.py")
    run = study.listed[-1].model_copy(update={"data": ExamplesSpec(corpus="mine")})
    result = plan(Board(study.model_copy(update={"listed": (run,)}), Path("/nowhere")), "h100")
    assert result.runs[0].steps is None
    assert result.seconds is None


def test_batches_by_length_are_planned_with_the_tokens_that_rows_have(published):
    """The published runs pad every row to 128, nine times what SST-2 has; ours do not."""
    padded = load_study(ROOT / "studies/published.py").listed[9]
    assert padded.data.corpus == "sst2"
    grouped = padded.model_copy(update={"data": padded.data.model_copy(update={"padding": "longest"})})
    listing = Listing(name="grouped", question="?", listed=(grouped,))
    (found,) = plan(Board(listing, Path("/nowhere")), "a5000").runs
    assert 8 < published.runs[9].step_flops / found.step_flops < 11
