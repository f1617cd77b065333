from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oelm.record.record import RunRecord
from oelm.record.stages import EXTENSIONS, index_by_declaration, stage_of
from oelm.spec.run import GPT_SIZES, RunSpec, TrainSpec, fingerprint
from oelm.spec.study import Study, field_at

RATES = (1e-3, 2e-3, 4e-3)


def bowl(best: dict[str, float]):
    """Losses that are least at each arm's own rate."""
    return lambda run: 2 + math.log(run.train.learning_rate / best[run.arm]) ** 2


def carried_out(study: Study, make_record, loss) -> tuple[Any, dict[str, RunRecord]]:
    """Complete every run that each stage asks for, until the study has no more of them."""
    records: dict[str, RunRecord] = {}
    while True:
        stage = stage_of(study, records)
        missing = [run for run in stage.runs if fingerprint(run) not in records]
        if not missing:
            return stage, records
        records |= index_by_declaration(make_record(run, loss(run)) for run in missing)


def test_tuning_comes_first_and_every_arm_has_the_same_grid(tuned_study):
    stage = stage_of(tuned_study(), {})
    assert stage.name == "tune"
    assert stage.confirm == []
    by_arm = {arm: [r.train.learning_rate for r in stage.tune if r.arm == arm] for arm in ("baseline", "oelm-freeze")}
    assert by_arm == {"baseline": list(RATES), "oelm-freeze": list(RATES)}
    assert {run.seed for run in stage.tune} == {100}


def test_each_arm_is_confirmed_at_its_own_best_rate_with_fresh_seeds(tuned_study, make_record):
    study = tuned_study((5e-4, 1e-3, 2e-3, 4e-3))
    stage, records = carried_out(study, make_record, bowl({"baseline": 1e-3, "oelm-freeze": 2e-3}))
    assert {(run.arm, run.train.learning_rate, run.seed) for run in stage.confirm} == {
        (arm, rate, seed) for arm, rate in (("baseline", 1e-3), ("oelm-freeze", 2e-3)) for seed in (0, 1, 2)
    }
    assert stage.choice is not None
    (cell,) = stage.choice.cells
    known = {record.fingerprint for record in records.values()}
    for arm in cell.arms:
        assert not arm.at_edge
        assert len(arm.runs) == 4
        assert set(arm.runs) <= known


def test_an_optimum_at_the_edge_extends_the_grid_for_every_arm(tuned_study, make_record):
    stage, _ = carried_out(tuned_study(), make_record, bowl({"baseline": 8e-3, "oelm-freeze": 2e-3}))
    rates = {
        arm: sorted({r.train.learning_rate for r in stage.tune if r.arm == arm}) for arm in ("baseline", "oelm-freeze")
    }
    assert rates["baseline"] == rates["oelm-freeze"] == [1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2]


def test_a_grid_that_never_finds_its_optimum_stops_growing_and_says_so(tuned_study, make_record):
    stage, _ = carried_out(tuned_study(), make_record, bowl({"baseline": 1e3, "oelm-freeze": 2e-3}))
    (cell,) = stage.choice.cells
    assert len(cell.grid["train.learning_rate"]) == len(RATES) + EXTENSIONS
    assert {arm.arm: arm.at_edge for arm in cell.arms} == {"baseline": True, "oelm-freeze": False}


def test_a_diverged_tuning_run_is_an_answer_and_a_broken_one_is_not(tuned_study, make_record):
    study = tuned_study()
    runs = stage_of(study, {}).tune
    loss = bowl({"baseline": 2e-3, "oelm-freeze": 2e-3})
    rest = [make_record(run, loss(run)) for run in runs[1:]]
    lost = {"status": "failed", "result": None, "error": "Traceback ..."}
    assert stage_of(study, index_by_declaration([*rest, make_record(runs[0], failure="error", **lost)])).name == "tune"
    assert (
        stage_of(study, index_by_declaration([*rest, make_record(runs[0], failure="diverged", **lost)])).name
        == "confirm"
    )


def test_cells_are_tuned_apart(tuned_study, make_record):
    study = tuned_study((5e-4, 1e-3, 2e-3, 4e-3), axes={"model.num_layers": (2, 3)})

    def loss(run: RunSpec) -> float:
        return bowl(dict.fromkeys(("baseline", "oelm-freeze"), 1e-3 if run.model.num_layers == 2 else 2e-3))(run)

    stage, _ = carried_out(study, make_record, loss)
    assert {(run.model.num_layers, run.train.learning_rate) for run in stage.confirm} == {(2, 1e-3), (3, 2e-3)}
    assert [cell.axes for cell in stage.choice.cells] == [{"model.num_layers": 2}, {"model.num_layers": 3}]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25, deadline=None)
@given(best=st.tuples(*[st.floats(1e-4, 1e-1)] * 2), order=st.randoms())
def test_the_stage_depends_on_the_records_alone_and_not_on_their_order(tuned_study, make_record, best, order):
    loss = bowl(dict(zip(("baseline", "oelm-freeze"), best, strict=True)))
    stage, records = carried_out(tuned_study(), make_record, loss)
    shuffled = list(records.values())
    order.shuffle(shuffled)
    again = stage_of(tuned_study(), index_by_declaration(shuffled))
    assert again == stage
    chosen = {arm.arm: arm.values["train.learning_rate"] for arm in stage.choice.cells[0].arms}
    grid = stage.choice.cells[0].grid["train.learning_rate"]
    for arm, rate in chosen.items():
        assert rate == min(
            grid,
            key=lambda value: loss(RunSpec(arm=arm, model=GPT_SIZES["nano"], train=TrainSpec(learning_rate=value))),
        )


def field_bowl(field: str, best: float):
    """Losses that are least where one field has one value, whatever the arm."""
    return lambda run: 2 + abs(field_at(run, field) - best)


@pytest.mark.parametrize(
    ("field", "grid", "best", "ended", "at_edge"),
    [
        ("train.warmup_steps", (5, 10, 20), 40, (5, 10, 20, 40, 80), False),
        ("train.warmup_steps", (4, 6), 0, (1, 2, 3, 4, 6), True),
        ("train.warmup_steps", (1, 2, 3), 1, (1, 2, 3), True),
        ("train.warmup_steps", (0, 10), 10, (0, 10), True),
        ("train.weight_decay", (0.0, 0.01, 0.1), 1.0, (0.0, 0.01, 0.1, 1.0, 10.0), False),
        ("train.weight_decay", (0.0, 0.01, 0.1), 0.0, (0.0, 0.01, 0.1), False),  # nothing lies beyond
        ("train.weight_decay", (0.0, 0.01, 0.1), 0.01, (0.0, 0.01, 0.1), False),
        ("train.weight_decay", (0.01,), 0.01, (0.01,), False),
        ("train.grad_clip", (1, 2), 0.5, (0.25, 0.5, 1, 2), False),
        ("train.precision", ("fp32", "bf16"), None, ("fp32", "bf16"), False),
        ("train.compiled", (False, True), True, (False, True), False),
    ],
)
def test_any_numbers_grow_where_the_best_is_their_last_and_what_cannot_grow_is_marked(
    tuned_study, make_record, field, grid, best, ended, at_edge
):
    study = tuned_study(tuned={field: grid})
    loss = field_bowl(field, best) if best is not None else lambda run: 2.0 + (run.train.precision == "fp32")
    stage, _ = carried_out(study, make_record, loss)
    (cell,) = stage.choice.cells
    assert cell.grid[field] == ended
    assert {type(value) for value in cell.grid[field]} == {type(value) for value in (*grid, *ended)}
    assert {arm.at_edge for arm in cell.arms} == {at_edge}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25, deadline=None)
@given(grid=st.sets(st.integers(0, 300), min_size=2, max_size=3), best=st.integers(0, 3000))
def test_a_grid_of_whole_numbers_stays_one_and_keeps_what_it_had(tuned_study, make_record, grid, best):
    stage, _ = carried_out(
        tuned_study(tuned={"train.warmup_steps": tuple(grid)}), make_record, field_bowl("train.warmup_steps", best)
    )
    (cell,) = stage.choice.cells
    ended = cell.grid["train.warmup_steps"]
    assert all(type(value) is int for value in ended)
    assert len(set(ended)) == len(ended)
    assert set(grid) <= set(ended)
    for arm in cell.arms:
        assert arm.at_edge == (arm.values["train.warmup_steps"] in {min(ended), max(ended)} - {0})


def test_a_grid_grows_only_to_values_that_a_run_can_have(tuned_study, make_record):
    base = RunSpec(model=GPT_SIZES["nano"], train=TrainSpec(steps=100, warmup_steps=10, min_learning_rate=1e-4))
    study = tuned_study((2e-4, 1e-3), base=base)
    stage, _ = carried_out(study, make_record, bowl({"baseline": 1e-6, "oelm-freeze": 1e-3}))
    (cell,) = stage.choice.cells
    assert min(cell.grid["train.learning_rate"]) == 2e-4
    assert {arm.arm: arm.at_edge for arm in cell.arms}["baseline"], "it is at the edge all the same, and says so"


def test_records_of_another_numerics_choose_nothing(tuned_study, make_record):
    runs = stage_of(tuned_study(), {}).tune
    loss = bowl({"baseline": 2e-3, "oelm-freeze": 2e-3})
    assert stage_of(tuned_study(), index_by_declaration(make_record(run, loss(run)) for run in runs)).name == "confirm"
    old = index_by_declaration(make_record(run, loss(run), numerics=0) for run in runs)
    assert stage_of(tuned_study(), old).name == "tune"


def test_where_every_setting_diverges_the_grid_grows_downwards(tuned_study, make_record):
    study = tuned_study((4e-3, 2e-3, 1e-3))
    runs = stage_of(study, {}).tune
    lost = {"status": "failed", "result": None, "error": "nan", "failure": "diverged"}
    loss = bowl({"baseline": 2e-3, "oelm-freeze": 2e-3})
    records = [make_record(run, **lost) if run.arm == "baseline" else make_record(run, loss(run)) for run in runs]
    grown = {run.train.learning_rate for run in stage_of(study, index_by_declaration(records)).tune}
    assert grown == {4e-3, 2e-3, 1e-3, 5e-4}
