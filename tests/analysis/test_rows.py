"""The lines of a comparison: what guessing means for a verdict."""

from pathlib import Path
from typing import Any

import pytest

from oelm.analysis.compare import compare
from oelm.analysis.rows import Row
from oelm.record.schema import DataRecord
from oelm.spec.data import DataSpec
from oelm.study import Study

GUESS = 0.5


@pytest.fixture
def probed(study: Study, make_record: Any) -> Any:
    """Return a maker of the row of a frozen arm on a probe, from the accuracies of both arms."""
    probe = DataSpec(corpus="recall:4")
    asked = study.model_copy(update={"base": study.base.model_copy(update={"data": probe})})

    def row(baseline: float, frozen: float, spread: float = 0.001) -> Row:
        accuracy = {"baseline": baseline, "oelm-freeze": frozen}
        data = DataRecord(corpus="recall:4", checksum="c0ffee", tokens={"test": 500}, vocab_size=97, guess=GUESS)
        records = []
        for run in asked.runs():
            record = make_record(run, data=data)
            wobble = spread * run.seed if run.arm != "baseline" else 0.0
            result = record.result.model_copy(update={"test_accuracy": accuracy[run.arm] + wobble})
            records.append((Path(f"{run.arm}{run.seed}"), record.model_copy(update={"result": result})))
        (found,) = (row for row in compare(asked, records).rows if row.arm != "baseline")
        return found

    return row


def test_keeping_up_with_a_reference_that_guesses_passes_nothing(probed: Any) -> None:
    row = probed(0.51, 0.51)
    assert row.at_chance
    assert (row.verdict, row.more_seeds) == ("undecided", None)


def test_no_seeds_are_asked_for_where_both_guess(probed: Any) -> None:
    assert probed(0.99, 0.98, spread=0.01).more_seeds  # it would, if somebody had learned
    row = probed(0.51, 0.50, spread=0.01)
    assert (row.verdict, row.more_seeds) == ("undecided", None)


def test_an_arm_that_finds_what_the_reference_only_guesses_has_lost_nothing(probed: Any) -> None:
    row = probed(0.51, 0.99)
    assert not row.at_chance
    assert row.verdict == "met"


def test_an_arm_without_an_answer_does_not_lighten_the_correction_of_the_others(study: Study, make_record: Any) -> None:
    arms = ("baseline", "oelm-freeze", "oelm-random", "uniform")
    several = study.model_copy(update={"arms": Study.model_validate(study.model_dump() | {"arms": arms}).arms})

    def adjusted(*there: str) -> float | None:
        records = [
            (Path(f"{run.arm}{run.seed}"), make_record(run, 1.5 + (run.arm != "baseline") * (0.2 + 0.04 * run.seed)))
            for run in several.runs() if run.arm in there
        ]  # fmt: skip
        return compare(several, records).row("oelm-freeze", ()).adjusted

    assert adjusted("baseline", "oelm-freeze") == pytest.approx(adjusted(*arms))


def test_no_seeds_are_asked_for_where_one_was_lost_and_none_can_pass(study: Study, make_record: Any) -> None:
    def row(lost: float) -> Row:
        losses = {0: lost, 1: 1.51, 2: 1.44}
        records = [
            (Path(f"{run.arm}{run.seed}"), make_record(run, 1.5 if run.arm == "baseline" else losses[run.seed]))
            for run in study.runs()
        ]
        return compare(study, records).row("oelm-freeze", ())

    assert row(1.6).more_seeds
    assert (row(float("nan")).verdict, row(float("nan")).more_seeds) == ("undecided", None)
