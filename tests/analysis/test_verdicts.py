"""The lines of a comparison: what guessing means for a verdict, and which runs it waits for."""

import random
from pathlib import Path
from typing import Any

import pytest

from oelm.analysis.compare import compare_records, gather
from oelm.analysis.evidence import Row
from oelm.record.record import DataRecord
from oelm.spec.method import named_method
from oelm.spec.run import DataSpec
from oelm.spec.study import Study

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
        (found,) = (row for row in compare_records(asked, records).rows if row.arm != "baseline")
        return found

    return row


def test_keeping_up_with_a_reference_that_guesses_passes_nothing(probed: Any) -> None:
    row = probed(0.51, 0.51)
    assert row.at_chance
    assert (row.verdict, row.more_seeds) == ("undecided", None)


def test_no_seeds_are_asked_for_where_both_guess(probed: Any) -> None:
    assert probed(0.99, 0.98, spread=0.01).more_seeds  # more seeds help only if an arm has learned
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
        return compare_records(several, records).row("oelm-freeze", ()).adjusted

    assert adjusted("baseline", "oelm-freeze") == pytest.approx(adjusted(*arms))


def test_no_seeds_are_asked_for_where_one_was_lost_and_none_can_pass(study: Study, make_record: Any) -> None:
    def row(lost: float) -> Row:
        losses = {0: lost, 1: 1.51, 2: 1.44}
        records = [
            (Path(f"{run.arm}{run.seed}"), make_record(run, 1.5 if run.arm == "baseline" else losses[run.seed]))
            for run in study.runs()
        ]
        return compare_records(study, records).row("oelm-freeze", ())

    assert row(1.6).more_seeds
    assert (row(float("nan")).verdict, row(float("nan")).more_seeds) == ("undecided", None)


MET = {"baseline": 1.5, "oelm-freeze": 1.49}


@pytest.fixture
def judged(study: Study, make_record: Any) -> Any:
    """Return a maker of the frozen arm's row from some runs of a study, with any fields of records and study."""

    def row(*there: tuple[str, int], records: Any = None, wobble: float = 0.0003, **fields: Any) -> Row:
        asked = Study.model_validate(study.model_dump() | fields)
        found = [
            (Path(f"{run.arm}{run.seed}"), make_record(run, MET[run.arm] + wobble * (run.seed % 3) * len(run.arm),
                                                       **(records or {}).get((run.arm, run.seed), {})))
            for run in asked.runs() if (run.arm, run.seed) in there
        ]  # fmt: skip
        return compare_records(asked, found).row("oelm-freeze", ())

    return row


def both(*seeds: int) -> list[tuple[str, int]]:
    return [(arm, seed) for arm in MET for seed in seeds]


@pytest.mark.parametrize(
    ("there", "records", "awaits"),
    [
        (both(0, 1), {}, (2, 3)),
        ([*both(0, 1), ("baseline", 2)], {}, (2, 3)),
        ([*both(0, 1), ("oelm-freeze", 2)], {}, (2, 3)),
        (both(0, 1, 2), {("oelm-freeze", 2): {"status": "running", "result": None}}, (2, 3)),
        (both(0, 1, 2), {("baseline", 0): {"status": "interrupted", "result": None}}, (2, 3)),
        (both(0, 1, 2), {}, None),
    ],
)
def test_no_verdict_is_given_before_all_declared_seeds_of_arm_and_reference_are_there(
    judged: Any, there: list[tuple[str, int]], records: Any, awaits: tuple[int, int] | None
) -> None:
    row = judged(*there, records=records)
    assert (row.verdict, row.awaits) == ("undecided" if awaits else "met", awaits)
    assert (row.adjusted is None, row.more_seeds) == (awaits is not None, None)


def test_a_run_that_failed_is_not_waited_for_and_cannot_pass(judged: Any) -> None:
    row = judged(*both(0, 1, 2), records={("oelm-freeze", 2): {"status": "failed", "result": None}})
    assert (row.verdict, row.awaits, row.lost) == ("undecided", None, True)


def test_runs_that_no_study_declares_wait_for_none(study: Study, make_record: Any) -> None:
    found = [(Path(f"{run.arm}{run.seed}"), make_record(run, MET[run.arm] + 0.0003 * run.seed * len(run.arm)))
             for run in study.runs() if (run.arm, run.seed) != ("oelm-freeze", 2)]  # fmt: skip
    (comparison,) = gather(found).comparisons
    row = comparison.row("oelm-freeze", ())
    assert (row.verdict, row.awaits) == ("met", None)


SIX = {"seeds": tuple(range(6)), "looks": (3, 6)}


@pytest.mark.parametrize(
    ("seeds", "verdict", "look", "awaits"),
    [
        ((0, 1), "undecided", None, (2, 6)),
        ((0, 1, 3, 4), "undecided", None, (4, 6)),
        ((0, 1, 2), "met", 1, (3, 6)),
        ((0, 1, 2, 3, 4), "met", 1, (5, 6)),
        ((0, 1, 2, 3, 4, 5), "met", 2, None),
    ],
)
def test_an_early_verdict_is_given_at_a_completed_look_alone(
    judged: Any, seeds: tuple[int, ...], verdict: str, look: int | None, awaits: tuple[int, int] | None
) -> None:
    row = judged(*both(*seeds), **SIX)
    assert (row.verdict, row.awaits) == (verdict, awaits)
    found = row.difference.look
    assert (found.number if found else None) == look
    if found:
        assert row.difference.pairs == found.count


def test_an_early_look_asks_for_more_than_5_percent(judged: Any) -> None:
    alone = judged(*both(0, 1, 2))
    early = judged(*both(0, 1, 2), **SIX)
    assert early.difference.bounds.high > alone.difference.bounds.high
    assert early.adjusted > alone.adjusted
    close = {"margin": 0.1, "wobble": 0.001}
    assert (judged(*both(0, 1, 2), **close).verdict, judged(*both(0, 1, 2), **SIX, **close).verdict) == (
        "met", "undecided",
    )  # fmt: skip


@pytest.mark.parametrize("looks", [(3,), (6, 3), (3, 3, 6), (3, 7), (0, 6)])
def test_looks_that_do_not_lead_to_all_seeds_are_refused(study: Study, looks: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="looks"):
        Study.model_validate(study.model_dump() | {"seeds": tuple(range(6)), "looks": looks})


FROZEN = ("oelm-freeze", "oelm-random", "oelm-random-matched", "oelm-slice")


@pytest.fixture
def several(study: Study, make_record: Any) -> Any:
    """Return a maker of the rows of four plain frozen arms and a trained one."""

    def rows(**fields: Any) -> dict[str, Row]:
        arms = ("baseline", *FROZEN, "orthogonal-trained")
        asked = Study.model_validate(study.model_dump() | {"arms": arms} | fields)
        draw = random.Random(0)
        found = [(Path(f"{run.arm}{run.seed}"), make_record(run, 1.5 + draw.gauss(0, 0.01))) for run in asked.runs()]
        return {row.arm: row for row in compare_records(asked, found).rows}

    return rows


def test_like_arms_moderate_one_another_and_an_arm_alone_is_plain(several: Any) -> None:
    rows = several()
    moderated = [rows[arm].difference for arm in FROZEN]
    assert {found.prior.arms for found in moderated} == {4}
    assert any(found.freedom > 2 and found.interval != found.plain for found in moderated)
    alone = rows["orthogonal-trained"].difference
    assert (alone.prior, alone.freedom) == (None, 2)
    assert alone.interval == alone.plain


def test_a_declared_prior_takes_the_place_of_the_studys_own_arms(several: Any) -> None:
    rows = several(prior={"trained": (8.0, 0.02), "frozen": (100.0, 0.02)})
    trained, frozen = rows["orthogonal-trained"].difference, rows["oelm-slice"].difference
    assert (trained.prior.arms, trained.freedom) == (0, 10)
    assert frozen.freedom == 102
    assert frozen.deviation == pytest.approx(0.02, rel=0.05)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("baseline", "trained"), ("orthogonal-trained", "trained"), ("baseline-shift", "trained"),
     ("oelm-freeze", "frozen"), ("oelm-shift", "frozen"), ("uniform", "frozen"), ("oelm-partial:1", "frozen"),
     ("oelm-bias", "repaired"), ("oelm+low-rank=3+bias+mix", "repaired"), ("position-only", "repaired")],
)  # fmt: skip
def test_the_class_of_an_arm_follows_from_its_method(name: str, expected: str) -> None:
    assert named_method(name).arm_class == expected
