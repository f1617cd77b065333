"""Whether a regime is representative, and where a study that did not measure it takes that from."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from oelm.analysis.compare import compare_folder
from oelm.analysis.regime import Regime, change_over_last_doubling, find_regimes, loss_at, regimes_of
from oelm.record.archive import open_archives
from oelm.record.folder import find_records, read_study, run_directory, write_record, write_study
from oelm.record.record import MetricRecord
from oelm.record.stages import index_by_declaration, stage_of
from oelm.spec.study import Study

ARMS = ("baseline", "baseline+features", "oelm-fast", "position-only")
LOSSES = {"baseline": 2.02, "baseline+features": 2.0, "oelm-fast": 2.05, "position-only": 2.2}
RESULTS = Path(__file__).parents[2] / "docs" / "results"


def with_arms(study: Study, *arms: str, **fields: Any) -> Study:
    return Study.model_validate({**dict(study), "arms": arms, "reference": arms[0], **fields})


def curve(end: float, half: float, steps: int = 100) -> list[MetricRecord]:
    points = {steps // 4: end + 1.0, steps // 2: half, steps: end}
    return [MetricRecord(kind="val", step=step, loss=loss, seconds=float(step)) for step, loss in points.items()]


def only(found: Any) -> Regime:
    (regime,) = found.values() if isinstance(found, dict) else found
    return regime


def test_a_regime_that_meets_all_three_criteria_is_representative(study: Study, write_study_runs: Any) -> None:
    whole = with_arms(study, *ARMS)
    root = write_study_runs(
        whole,
        at_half={"baseline": 2.5, "baseline+features": 2.48, "oelm-fast": 2.5, "position-only": 2.48 + 0.21},
        repeats={"baseline": 1.0, "baseline+features": 0.9, "oelm-fast": 1.0, "position-only": 1.2},
    )
    regime = only(regimes_of(compare_folder(whole, root), []))
    assert regime.worth.value.mean == pytest.approx(0.2, abs=0.003)
    assert regime.against_reference == pytest.approx(0.18, abs=0.003)
    assert regime.change == pytest.approx(0.2 / 0.21 - 1, abs=0.02)
    assert regime.on_repeats == pytest.approx(0.3)
    assert [criterion.is_met for criterion in regime.criteria] == [True, True, True]
    assert regime.is_representative is True
    (kept,) = regime.worth.kept
    assert kept.share == pytest.approx(1 - 0.05 / 0.2, abs=0.02)


@pytest.mark.parametrize(
    ("changes", "violated"),
    [
        ({"losses": {**LOSSES, "position-only": 2.08}}, "worth"),
        ({"at_half": {**LOSSES, "baseline+features": 2.5, "position-only": 2.65}}, "doubling"),
        ({"repeats": {**dict.fromkeys(ARMS, 1.0), "position-only": 1.19}}, "repeats"),
    ],
)
def test_each_violated_criterion_makes_a_regime_unrepresentative(
    study: Study, write_study_runs: Any, changes: dict[str, Any], violated: str
) -> None:
    whole = with_arms(study, *ARMS)
    good = {
        "at_half": {**LOSSES, "baseline+features": 2.5, "position-only": 2.7},
        "repeats": {**dict.fromkeys(ARMS, 1.0), "position-only": 1.21},
    }
    if violated == "worth":  # the curves follow the losses
        good["at_half"]["position-only"] = 2.58
    root = write_study_runs(whole, **{**good, **changes})
    regime = only(regimes_of(compare_folder(whole, root), []))
    assert [criterion.name for criterion in regime.criteria if not criterion.is_met] == [violated]
    assert regime.is_representative is False


def test_what_was_not_measured_is_unknown_and_not_met(study: Study, write_study_runs: Any) -> None:
    whole = with_arms(study, *ARMS)
    root = write_study_runs(whole, at_half={**LOSSES, "baseline+features": 2.5, "position-only": 2.7})
    regime = only(regimes_of(compare_folder(whole, root), []))
    assert regime.on_repeats is None
    assert regime.is_representative is None


def test_a_margin_of_content_does_not_make_its_own_regime_representative(tuned_study: Any) -> None:
    from oelm.analysis.compare import compare_records
    from oelm.analysis.regime import judged_margin

    study = tuned_study(arms=ARMS, margin="content", tuning_seeds=(100, 101))
    assert judged_margin(compare_records(study, [])) == pytest.approx(math.log(1.05))


def test_a_study_without_the_control_takes_it_from_one_at_the_same_regime(study: Study, write_study_runs: Any) -> None:
    measured = with_arms(study, *ARMS, name="measured")
    other_rate = study.base.model_copy(
        update={"train": study.base.train.model_copy(update={"learning_rate": 1e-2, "eval_every": 7, "threads": 2})}
    )
    asking = with_arms(study, "baseline", "oelm-features", name="asking", base=other_rate)
    write_study_runs(measured)
    root = write_study_runs(asking, losses={"baseline": 2.02, "oelm-features": 2.1})
    regime = only(find_regimes(compare_folder(asking, root), root, []))
    assert (regime.study, regime.same_text) == ("measured", True)
    (kept,) = regime.worth.kept
    assert kept.arm == "oelm-features"
    assert kept.share == pytest.approx(1 - 0.1 / 0.2, abs=0.02)
    assert find_regimes(compare_folder(asking, root), None, []) == {}


def test_a_control_at_one_rate_is_not_paired_with_arms_that_were_tuned(
    study: Study, write_study_runs: Any, make_record: Any, tmp_path: Path
) -> None:
    write_study_runs(with_arms(study, *ARMS, name="measured"))
    tuned = {"train.learning_rate": (1e-3, 2e-3, 4e-3)}
    asking = with_arms(study, "baseline", "oelm-features", name="asking", tuned=tuned, tuning_seeds=(100,))
    root = tmp_path / asking.name
    for _ in range(2):  # first the runs that tune, then those that confirm
        records = index_by_declaration(record for _, record in find_records(root)[0])
        for run in stage_of(asking, records).runs:
            write_record(run_directory(root, run), make_record(run, 2.02 + 10 * abs(run.train.learning_rate - 2e-3)))
    write_study(root, asking)
    regime = only(find_regimes(compare_folder(asking, root), root, []))
    assert (regime.study, regime.is_tuned) == ("measured", False)
    assert regime.worth.kept == ()


def test_another_text_is_named_as_such_and_another_model_or_length_says_nothing(
    study: Study, write_study_runs: Any
) -> None:
    measured = with_arms(study, *ARMS, name="measured")
    write_study_runs(measured)
    base = study.base
    text = base.model_copy(update={"data": base.data.model_copy(update={"corpus": "sotu"})})
    longer = base.model_copy(update={"train": base.train.model_copy(update={"steps": 200})})
    wider = base.model_copy(update={"model": base.model.model_copy(update={"num_layers": 3})})
    found = {}
    for name, changed in {"text": text, "longer": longer, "wider": wider}.items():
        asking = with_arms(study, "baseline", "oelm-features", name=name, base=changed)
        root = write_study_runs(asking, losses={"baseline": 2.02, "oelm-features": 2.1})
        found[name] = find_regimes(compare_folder(asking, root), root, [])
    assert found["longer"] == found["wider"] == {}
    assert not only(found["text"]).same_text
    assert only(found["text"]).worth.kept == (), "arms are not paired across texts"


def test_a_neighbour_that_cannot_be_read_is_reported(study: Study, write_study_runs: Any, tmp_path: Path) -> None:
    asking = with_arms(study, "baseline", "oelm-features", name="asking")
    root = write_study_runs(asking, losses={"baseline": 2.02, "oelm-features": 2.1})
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "study.json").write_text("{")
    complaints: list[str] = []
    assert find_regimes(compare_folder(asking, root), root, complaints) == {}
    assert len(complaints) == 1
    assert complaints[0].startswith("torn: ")


def test_the_change_over_the_last_doubling_is_between_points_on_a_line_against_log_steps() -> None:
    points = [MetricRecord(kind="val", step=step, loss=8 - math.log2(step), seconds=0.0) for step in (30, 70, 100)]
    assert loss_at(points, 50) == pytest.approx(8 - math.log2(50))
    assert loss_at(points, 20) is None
    trained, position = {0: curve(1.0, 2.0), 1: curve(1.0, 2.0)}, {0: curve(1.3, 2.2), 2: curve(9.0, 9.0)}
    assert change_over_last_doubling(trained, position) == pytest.approx(0.5)
    assert change_over_last_doubling(trained, {0: curve(1.3, 1.9)}) == math.inf
    assert change_over_last_doubling(trained, {0: curve(1.3, 2.2, steps=200)}) is None


def test_the_small_regime_on_record_is_not_representative() -> None:
    root = RESULTS / "gap-bias-speeches"
    study = read_study(root)
    assert isinstance(study, Study)
    with open_archives(root) as runs:
        regime = only(find_regimes(compare_folder(study, runs), runs, []))
    assert regime.is_representative is False
    assert 100 * math.expm1(regime.worth.value.mean) == pytest.approx(4.5, abs=0.05)
    assert regime.against_reference is not None
    assert 100 * math.expm1(regime.against_reference) == pytest.approx(3.15, abs=0.05)
    kept = {item.arm: item for item in regime.worth.kept}["oelm-bias"]
    assert kept.interval is not None
    bounds = (kept.share, kept.interval.low, kept.interval.high)
    assert [round(100 * bound) for bound in bounds if bound is not None] == [25, 10, 41]
