from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from oelm.analysis.compare import Comparison, compare_records
from oelm.analysis.tuning import sensitivities
from oelm.errors import IncomparableRuns
from oelm.record.stages import index_by_declaration, stage_of
from oelm.spec.run import GPT_SIZES, NUMERICS, RunSpec, TrainSpec, fingerprint
from oelm.spec.study import Study

BEST = {"baseline": 1e-3, "oelm-freeze": 2e-3}


def tuned_study(**fields: Any) -> Study:
    return Study(**{
        "name": "tuned", "question": "?", "base": RunSpec(model=GPT_SIZES["nano"], train=TrainSpec(steps=100)),
        "arms": ("baseline", "oelm-freeze"), "tuned": {"train.learning_rate": (5e-4, 1e-3, 2e-3, 4e-3)},
        "tuning_seeds": (100, 101), "seeds": (0, 1, 2), **fields,
    })  # fmt: skip


def loss(run: RunSpec) -> float:
    return 2 + math.log2(run.train.learning_rate / BEST[run.arm]) ** 2 / 100 + 0.001 * (run.seed % 7)


def carried_out(study: Study, make_record: Any, stages: int = 2) -> Comparison:
    found: list[Any] = []
    for _ in range(stages):
        stage = stage_of(study, index_by_declaration(found))
        done = {fingerprint(record.spec) for record in found}
        found += [record for run in stage.runs if fingerprint((record := make_record(run, loss(run))).spec) not in done]
    return compare_records(study, [(Path(str(number)), record) for number, record in enumerate(found)])


def test_each_arm_is_compared_at_its_own_tuned_setting(make_record: Any) -> None:
    comparison = carried_out(tuned_study(), make_record)
    assert comparison.stage.name == "confirm"
    assert len(comparison.tuning) == 2 * 4 * 2
    assert [(row.arm, len(row.evidence)) for row in comparison.rows] == [("baseline", 3), ("oelm-freeze", 3)]
    assert {item.spec.train.learning_rate for item in comparison.rows[1].evidence} == {2e-3}
    assert comparison.gaps == ()
    assert comparison.ignored == ()


def test_the_curve_of_an_arm_has_its_best_point_and_the_cost_of_the_next(make_record: Any) -> None:
    baseline, frozen = sensitivities(carried_out(tuned_study(), make_record))
    assert [point.value for point in baseline.points] == [5e-4, 1e-3, 2e-3, 4e-3]
    assert (baseline.chosen, frozen.chosen) == (1e-3, 2e-3)
    assert baseline.penalty == pytest.approx(0.01)
    assert not baseline.at_edge


def test_the_edge_is_that_of_the_field_that_is_shown(make_record: Any) -> None:
    grids = {"train.learning_rate": (5e-4, 1e-3, 2e-3, 4e-3), "train.warmup_steps": (1, 2, 3)}
    comparison = carried_out(tuned_study(tuned=grids), make_record)  # all alike: the first is chosen, at its end
    assert comparison.stage.choice is not None
    assert all(arm.at_edge for cell in comparison.stage.choice.cells for arm in cell.arms)
    assert not any(item.at_edge for item in sensitivities(comparison))


def test_while_tuning_goes_on_what_is_known_is_there_and_nothing_is_confirmed(make_record: Any) -> None:
    study = tuned_study()
    runs = stage_of(study, {}).tune
    records = [(Path(str(n)), make_record(run, loss(run))) for n, run in enumerate(runs[:6])]
    comparison = compare_records(study, records)
    assert comparison.stage.name == "tune"
    assert [row.figure for row in comparison.rows] == [None, None]
    assert len(comparison.gaps) == 10
    assert comparison.gaps[0].cell == (("train.learning_rate", "0.004"),)
    found = sensitivities(comparison)
    assert [item.chosen for item in found] == [None, None]
    assert len(found[0].points) == 3


def test_a_diverged_point_cannot_be_best(make_record: Any) -> None:
    study = tuned_study()
    runs = stage_of(study, {}).tune
    records = [
        (Path(str(n)), make_record(run, math.nan if run.train.learning_rate == 1e-3 else loss(run)))
        for n, run in enumerate(runs)
    ]
    baseline = sensitivities(compare_records(study, records))[0]
    assert [point.diverged for point in baseline.points] == [0, 2, 0, 0]
    assert baseline.points[1].mean == math.inf


def test_a_screen_tunes_confirms_nothing_and_ranks_its_arms(make_record: Any) -> None:
    study = tuned_study(arms=("baseline", "oelm-freeze", "uniform"), seeds=())
    penalties = {"baseline": 0.0, "oelm-freeze": 0.2, "uniform": 0.1}
    assert study.is_screen
    runs = stage_of(study, {}).runs
    records = [make_record(run, 2 + penalties[run.arm] + abs(run.train.learning_rate - 1e-3)) for run in runs]
    comparison = compare_records(study, [(Path(str(number)), record) for number, record in enumerate(records)])
    assert comparison.stage.name == "confirm"
    assert comparison.stage.confirm == []
    assert [item.arm for item in sensitivities(comparison)] == ["baseline", "uniform", "oelm-freeze"]
    assert [item.chosen for item in sensitivities(comparison)] == [1e-3, 1e-3, 1e-3]


def test_a_study_without_any_seed_is_refused() -> None:
    with pytest.raises(ValueError, match="seeds is empty"):
        tuned_study(seeds=(), tuned={}, tuning_seeds=())


def test_a_tuning_run_counts_once_whatever_copies_and_older_results_there_are(make_record: Any) -> None:
    study = tuned_study(seeds=())
    found = [(Path(str(n)), make_record(run, loss(run))) for n, run in enumerate(stage_of(study, {}).tune)]
    older = (Path("older"), make_record(found[0][1].spec, 1.0, numerics=0))
    later = found[1][1].model_copy(update={"started": "2026-01-02T00:00:00+00:00"})
    comparison = compare_records(study, [older, (Path("copy"), later), *found])
    assert len(comparison.tuning) == len(found)
    assert {str(item.directory): (item.differs, item.twin) for item in comparison.ignored} == {
        "older": ({"numerics": (0, NUMERICS)}, None), "copy": ({}, Path("1")),
    }  # fmt: skip
    assert sensitivities(comparison) == sensitivities(compare_records(study, found))


def test_arms_that_were_tuned_on_different_bytes_are_refused(make_record: Any) -> None:
    study = tuned_study(seeds=())
    runs = stage_of(study, {}).tune
    found = [(Path(str(n)), make_record(run, checksum="c0ffee" if n else "decade")) for n, run in enumerate(runs)]
    with pytest.raises(IncomparableRuns, match="different bytes"):
        compare_records(study, found)


def test_a_grid_of_one_value_tunes_nothing() -> None:
    assert tuned_study().is_tuned
    assert not tuned_study(tuned={"train.learning_rate": (1e-3,)}).is_tuned
