from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from oelm.analysis.compare import Comparison, compare_folder, compare_records
from oelm.errors import IncomparableRuns, UsageError
from oelm.record.record import EnvironmentRecord
from oelm.report.wording import DIRTY, marks
from oelm.spec.run import fingerprint
from oelm.spec.study import Study, replace_fields

LOSSES = {("baseline", 0): 1.40, ("baseline", 1): 1.50, ("baseline", 2): 1.30,
          ("oelm-freeze", 0): 1.55, ("oelm-freeze", 1): 1.66, ("oelm-freeze", 2): 1.44}  # fmt: skip


def made(study: Study, make_record: Any, changes: dict[tuple[str, int], Any]) -> Comparison:
    """Compare the study's records; `changes` maps arm and seed to other fields, or to None: no record."""
    records = []
    for run in study.runs():
        fields = changes.get((run.arm, run.seed), {})
        if fields is not None:
            loss = fields.pop("loss", LOSSES[run.arm, run.seed])
            records.append((Path(f"{run.arm}-{run.seed}"), make_record(run, loss, **fields)))
    return compare_records(study, records)


def test_arms_are_paired_by_seed_and_averaged_geometrically(study: Study, make_record: Any) -> None:
    reference, frozen = made(study, make_record, {}).rows
    assert (reference.arm, reference.difference, reference.verdict) == ("baseline", None, None)
    assert reference.figure == pytest.approx(math.exp(1.40))
    assert frozen.figure == pytest.approx(math.exp(1.55))
    assert frozen.difference is not None
    assert frozen.difference.mean == pytest.approx(0.15)
    assert frozen.difference.pairs == 3
    assert frozen.verdict == "not met"  # the seeds differ widely, their differences hardly: pairing sees it


def test_a_row_carries_parameters_speed_floor_and_its_evidence(study: Study, make_record: Any) -> None:
    frozen = made(study, make_record, {}).rows[1]
    assert frozen.parameters is not None
    assert (frozen.parameters.trainable, frozen.parameters.frozen) == (900, 100)
    assert frozen.tokens_per_second == pytest.approx(12_345.6)
    assert frozen.floor == pytest.approx(math.exp(1.1))
    assert [item.spec.seed for item in frozen.evidence] == [0, 1, 2]


def test_only_shared_seeds_are_paired_and_the_missing_one_is_listed(study: Study, make_record: Any) -> None:
    comparison = made(study, make_record, {("baseline", 1): None})
    difference = comparison.rows[1].difference
    assert difference is not None
    assert difference.pairs == 2
    assert len(comparison.rows[1].evidence) == 3
    assert [(gap.arm, gap.seed, gap.state) for gap in comparison.gaps] == [("baseline", 1, "missing")]


@pytest.mark.parametrize("status", ["running", "interrupted", "failed"])
def test_incomplete_runs_are_listed_and_not_counted(study: Study, make_record: Any, status: str) -> None:
    comparison = made(study, make_record, {("oelm-freeze", 2): {"status": status, "error": "why"}})
    (gap,) = comparison.gaps
    assert (gap.state, gap.seed) == (status, 2)
    assert gap.evidence is not None
    assert len(comparison.rows[1].evidence) == 2


def test_a_diverged_run_is_listed_and_its_arm_cannot_pass_without_it(study: Study, make_record: Any) -> None:
    close = {("oelm-freeze", seed): {"loss": LOSSES["baseline", seed] + 0.001 * seed} for seed in range(3)}
    assert made(study, make_record, {k: dict(v) for k, v in close.items()}).rows[1].verdict == "met"
    for loss in (math.nan, math.inf):
        lost = {**{k: dict(v) for k, v in close.items()}, ("oelm-freeze", 0): {"loss": loss}}
        comparison = made(study, make_record, lost)
        assert comparison.gaps[0].state == "diverged"
        assert comparison.rows[1].difference is not None
        assert comparison.rows[1].difference.verdict == "met"
        assert comparison.rows[1].verdict == "undecided"
        assert comparison.rows[1].more_seeds is None, "no seed would undo that one was lost"


def test_a_diverged_reference_blocks_a_pass_as_well(study: Study, make_record: Any) -> None:
    same: dict[tuple[str, int], Any] = {
        ("oelm-freeze", seed): {"loss": LOSSES["baseline", seed] + 0.001 * seed} for seed in range(3)
    }
    assert made(study, make_record, {**same, ("baseline", 0): {"loss": math.nan}}).rows[1].verdict == "undecided"


def test_one_seed_has_a_difference_without_an_interval(study: Study, make_record: Any) -> None:
    single = study.model_copy(update={"seeds": (0,)})
    frozen = made(single, make_record, {}).rows[1]
    assert frozen.difference is not None
    assert frozen.difference.mean == pytest.approx(0.15)
    assert (frozen.difference.interval, frozen.verdict) == (None, "undecided")


def test_no_records_at_all_leave_a_table_of_gaps(study: Study) -> None:
    comparison = compare_records(study, [])
    assert len(comparison.gaps) == 6
    assert [row.figure for row in comparison.rows] == [None, None]
    assert comparison.rows[1].verdict == "undecided"


def test_data_without_a_test_split_are_judged_on_validation(study: Study, make_record: Any) -> None:
    records = []
    for run in study.runs():
        record = make_record(run, LOSSES[run.arm, run.seed])
        result = record.result.model_copy(update={"test_loss": None})
        records.append((Path(f"{run.arm}{run.seed}"), record.model_copy(update={"result": result})))
    comparison = compare_records(study, records)
    assert comparison.judged == "val"
    assert comparison.rows[0].figure == pytest.approx(math.exp(1.41))
    assert comparison.rows[0].floor == pytest.approx(math.exp(1.0))


def test_one_run_without_a_test_loss_is_a_gap_not_a_validation_figure(study: Study, make_record: Any) -> None:
    record = make_record(study.runs()[0])
    result = record.result.model_copy(update={"test_loss": None})
    comparison = made(study, make_record, {("baseline", 0): {"result": result}})
    assert comparison.judged == "test"
    assert [gap.state for gap in comparison.gaps] == ["unmeasured"]


def test_the_reference_comes_first_wherever_the_study_puts_it(study: Study, make_record: Any) -> None:
    turned = study.model_copy(update={"arms": study.arms[::-1]})
    assert [row.arm for row in made(turned, make_record, {}).rows] == ["baseline", "oelm-freeze"]


def test_a_run_known_under_another_name_is_the_same_run(study: Study, make_record: Any) -> None:
    run = study.runs()[0].model_copy(update={"arm": "called otherwise"})
    comparison = compare_records(study, [(Path("x"), make_record(run))])
    assert len(comparison.rows[0].evidence) == 1


def test_a_repeated_run_counts_once_and_the_complete_one_wins(study: Study, make_record: Any) -> None:
    run = study.runs()[0]
    records = [(Path("a"), make_record(run, status="interrupted")), (Path("b"), make_record(run)),
               (Path("c"), make_record(run))]  # fmt: skip
    comparison = compare_records(study, records)
    assert [item.directory for item in comparison.rows[0].evidence] == [Path("b")]
    assert {(item.directory, item.twin) for item in comparison.ignored} == {
        (Path("a"), Path("b")),
        (Path("c"), Path("b")),
    }


def test_of_two_complete_records_of_one_run_the_first_counts(study: Study, make_record: Any) -> None:
    run = study.runs()[0]
    first, second = (make_record(run, loss).model_copy(update={"started": f"2026-01-0{day}T00:00:00+00:00"})
                     for day, loss in ((1, 3.0), (2, 2.0)))  # fmt: skip
    for records in ([(Path("a"), second), (Path("b"), first)], [(Path("a"), first), (Path("b"), second)]):
        kept = compare_records(study, records).rows[0].evidence
        assert [item.record.started for item in kept] == [first.started]


def test_runs_from_different_machines_are_noted(study: Study, make_record: Any) -> None:
    assert made(study, make_record, {}).mixed == {}
    here = make_record(study.runs()[0]).environment
    elsewhere = EnvironmentRecord(**{**here.model_dump(), "device": "B processor", "dirty": True})
    comparison = made(study, make_record, {("baseline", 0): {"environment": elsewhere}})
    assert comparison.mixed == {"device": ("A processor", "B processor")}
    assert [DIRTY in marks(row) for row in comparison.rows] == [True, False]


def test_a_folder_is_compared_with_everything_in_it_accounted_for(study: Study, write_run: Any, tmp_path: Path) -> None:
    for run in study.runs():
        write_run(run, LOSSES[run.arm, run.seed])
    write_run(replace_fields(study.runs()[0], {"train.steps": 50}))
    (tmp_path / "runs" / "torn").mkdir()
    (tmp_path / "runs" / "torn" / "record.json").write_text("{")
    comparison = compare_folder(study, tmp_path / "runs")
    assert (comparison.gaps, len(comparison.ignored), len(comparison.unreadable)) == ((), 1, 1)
    assert "torn" in comparison.unreadable[0]


def test_a_study_that_was_run_again_on_data_prepared_again_is_compared_as_it_is_now(
    study: Study, make_record: Any
) -> None:
    def once(checksum: str, day: int) -> list[Any]:
        started = f"2026-01-0{day}T00:00:00+00:00"
        return [
            (Path(f"{checksum}-{n}"), make_record(run, 1.0 + day, checksum=checksum, started=started))
            for n, run in enumerate(study.runs())
        ]

    comparison = compare_records(study, [*once("new", 2), *once("old", 1)])
    assert {cost for row in comparison.rows for cost in row.costs} == {3.0}
    assert len(comparison.ignored) == 6
    assert comparison.ignored[0].differs == {"data.checksum": ("old", "new")}
    with pytest.raises(IncomparableRuns, match="different bytes"):
        compare_records(study, [*once("new", 2)[:-1], *once("old", 1)])


def test_a_run_that_diverged_on_the_newest_bytes_has_answered_there(study: Study, make_record: Any) -> None:
    old = [(Path(f"old-{n}"), make_record(run, checksum="old")) for n, run in enumerate(study.runs())]
    later = {"checksum": "new", "started": "2026-02-01T00:00:00+00:00"}
    lost = {"status": "failed", "failure": "diverged", "result": None}
    new = [
        (Path(f"new-{n}"), make_record(run, **later, **(lost if n == 5 else {}))) for n, run in enumerate(study.runs())
    ]
    comparison = compare_records(study, [*new, *old])
    assert [(gap.arm, gap.state) for gap in comparison.gaps] == [("oelm-freeze", "diverged")]
    assert {str(item.directory)[:3] for item in comparison.ignored} == {"old"}


def test_what_others_did_never_takes_the_place_of_our_own_run(study: Study, make_record: Any) -> None:
    own = [(Path(f"own-{n}"), make_record(run, 3.0)) for n, run in enumerate(study.runs())]
    theirs = []
    for n, run in enumerate(study.runs()):
        record = make_record(run, 9.0, started="unknown", imported=True)
        theirs.append((Path(f"their-{n}"), record.model_copy(update={"spec": run, "fingerprint": fingerprint(run)})))
    comparison = compare_records(study, [*own, *theirs])
    assert {cost for row in comparison.rows for cost in row.costs} == {3.0}
    assert len(comparison.ignored) == 6


def test_a_folder_that_does_not_exist_is_refused_with_a_reason(study: Study, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a folder"):
        compare_folder(study, tmp_path / "typo")


def test_a_margin_that_the_study_declares_is_the_one_that_counts(study: Study, make_record: Any) -> None:
    def verdict(margin: float | None) -> str | None:
        declared = study.model_copy(update={"margin": margin})
        losses = {"baseline": 1.0, "oelm-freeze": 1.0 + math.log(1.03)}
        records = [
            (Path(str(n)), make_record(run, losses[run.arm] + 0.0005 * run.seed * len(run.arm)))
            for n, run in enumerate(declared.runs())
        ]
        return compare_records(declared, records).row("oelm-freeze", ()).verdict

    assert (verdict(None), verdict(5), verdict(2)) == ("met", "met", "not met")
