from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from oelm.analysis.compare import Comparison, Gap, compare_records
from oelm.analysis.statistics import Estimate
from oelm.published.claims import LEAST_GROWTH, ClaimName, ClaimRule, ClaimSize, Range, Words, published_claims
from oelm.published.ledger import (
    ALPHA,
    DECIDED,
    ClaimFinding,
    LedgerEntry,
    find,
    judge_rule,
    ledger,
    probabilities,
    read_benches,
)
from oelm.record.folder import METRICS
from oelm.record.record import CostRecord, MetricRecord, RunRecord, SecondsRecord
from oelm.record.stages import index_by_declaration, stage_of
from oelm.spec.run import DataSpec, ExamplesSpec, HuggingFaceSpec, RunSpec
from oelm.spec.study import Study, replace_fields


def tuned(study: Study, arms: tuple[str, ...]) -> Study:
    """Tune every arm, on a grid whose middle value is the best of all."""
    middle = study.base.train.learning_rate
    grid = {"train.learning_rate": (middle / 2, middle, middle * 2)}
    fields = study.model_dump(exclude={"arms", "tuned", "tuning_seeds", "reference"})
    return Study(**fields, arms=arms, reference=arms[0], tuned=grid, tuning_seeds=(100,))


def _worse(path: Path, record: RunRecord) -> tuple[Path, RunRecord]:
    assert record.result is not None
    accuracy = record.result.val_accuracy
    worse = {"val_loss": record.result.val_loss + 1, "val_accuracy": accuracy and accuracy / 2}
    return path, record.model_copy(update={"result": record.result.model_copy(update=worse)})


def in_two_stages(study: Study, found: Callable[[RunSpec], tuple[Path, RunRecord]]) -> Comparison:
    """Carry out the tuning, then what confirms it."""
    middle = study.base.train.learning_rate
    tuning = [
        found(run) if run.train.learning_rate == middle else _worse(*found(run)) for run in stage_of(study, {}).tune
    ]
    stage = stage_of(study, index_by_declaration(record for _, record in tuning))
    return compare_records(study, [*tuning, *(found(run) for run in stage.confirm)])


def compared(study: Study, make_record: Any, effects: dict[str, float], **fields: Any) -> Comparison:
    """Compare arms with known effects; `tokens` is the size of the corpus, `accuracy` makes it a classification.

    Effects differ a little from seed to seed. Language models have an arm of uniform attention, far behind by default.
    """
    accuracy, tokens, faster = (fields.pop(name, None) for name in ("accuracy", "tokens", "faster"))
    noise = fields.pop("noise", 0.005)
    effects = effects if accuracy else {**effects, "uniform": fields.pop("uniform", 0.5)}

    def found(run: RunSpec) -> tuple[Path, RunRecord]:
        loss = 1.4 + 0.3 * run.seed + effects[run.arm] * (1 + noise * (run.seed % 3))
        record = make_record(run, loss, **fields)
        if tokens:
            record = record.model_copy(update={"data": record.data.model_copy(update={"tokens": {"train": tokens}})})
        if accuracy:
            share = accuracy - effects[run.arm] + 0.001 * run.seed * (1 + bool(effects[run.arm]))
            update = {"test_accuracy": share, "val_accuracy": share}
            data = record.data.model_copy(update={"labels": ("bad", "good")})
            record = record.model_copy(update={"data": data, "result": record.result.model_copy(update=update)})
        if faster is not None:
            spent = 100 * (1 - faster * bool(run.method.freeze.roles)) + 0.1 * run.seed
            seconds = SecondsRecord(total=spent, train=spent, validation=0, checkpoint=0)
            record = record.model_copy(update={"seconds": seconds})
        return Path(f"{run.arm}-{run.seed}"), record

    return in_two_stages(tuned(study, tuple(effects)), found)


def entry(claim: ClaimName, *comparisons: Comparison) -> LedgerEntry:
    return next(item for item in ledger(comparisons) if item.claim.name == claim)


def alone(claim: ClaimName, *comparisons: Comparison) -> str:
    """Return the verdict before the correction for the other claims, which have no evidence in most tests."""
    return entry(claim, *comparisons).alone


def counted(found: LedgerEntry) -> list[ClaimFinding]:
    return [item for part in found.judged for item in part.findings if item.reason is None]


def reasons(found: LedgerEntry) -> set[str | None]:
    return {item.reason for part in found.judged for item in part.findings}


@pytest.fixture
def bert(study: Study) -> Study:
    base = study.base.model_copy(update={"model": HuggingFaceSpec(name="bert-base", labels=2), "data": ExamplesSpec()})
    return study.model_copy(update={"base": base})


def on(study: Study, corpus: str) -> Study:
    return study.model_copy(update={"base": study.base.model_copy(update={"data": DataSpec(corpus=corpus)})})


def rule(low: float, high: float, *sizes: float, no_effect: float | None = None) -> ClaimRule:
    nothing, nowhere = Words("", ""), tuple(ClaimSize(size, Words("", "")) for size in sizes)
    return ClaimRule("freezing", "percent", nowhere, Range(low, high), no_effect, nothing, nothing, 1)


SOME = rule(0.1, 0.15, 0.1, 0.15, no_effect=0.01)


def near(mean: float, error: float = 0.001, freedom: int = 8) -> Estimate:
    return Estimate(mean, error, freedom)


def verdict(a_rule: ClaimRule, *estimates: Estimate, censored: bool = False) -> str:
    p = probabilities(a_rule, estimates, censored=censored)
    return next((name for name in DECIDED if p[name] <= ALPHA), "undecided")


@pytest.mark.parametrize(
    ("mean", "error", "expected"),
    [
        (0.12, 0.001, "supported"), (0.3, 0.001, "contradicted"), (-0.1, 0.001, "contradicted"),
        (0.002, 0.001, "no effect"), (0.05, 0.001, "contradicted"), (0.12, 0.1, "undecided"), (0.3, 0.3, "undecided"),
    ],
)  # fmt: skip
def test_a_size_is_supported_contradicted_nothing_or_undecided(mean: float, error: float, expected: str) -> None:
    assert verdict(SOME, near(mean, error)) == expected


def test_a_verdict_says_what_the_two_sided_interval_says() -> None:
    for mean in (0.08, 0.1, 0.12, 0.14, 0.16, 0.2):
        for error in (0.001, 0.005, 0.01, 0.02):
            interval = near(mean, error).interval(1 - ALPHA)
            p = probabilities(SOME, [near(mean, error)])
            assert (p["supported"] < ALPHA) == (interval.low > 0.1 and interval.high < 0.15)
            assert (p["contradicted"] < ALPHA) == (interval.low > 0.15 or interval.high < 0.1)


def test_no_effect_is_two_one_sided_tests() -> None:
    from scipy.stats import t

    item = near(0.004, 0.003)
    expected = max(t.sf((0.004 + 0.01) / 0.003, 8), t.sf((0.01 - 0.004) / 0.003, 8))
    assert probabilities(SOME, [item])["no effect"] == pytest.approx(expected)


def test_a_direction_is_supported_by_a_smaller_effect_than_the_published_one() -> None:
    beats = rule(-math.inf, -0.01, -0.06, no_effect=0.01)
    assert verdict(beats, near(-0.03)) == "supported"
    assert verdict(beats, near(-0.1)) == "supported"
    assert verdict(beats, near(0.03)) == "contradicted"
    assert verdict(beats, near(-0.005, 0.01)) == "contradicted"  # it excludes the published size


def test_two_places_must_both_decide_and_three_are_pooled() -> None:
    assert verdict(SOME, near(0.3), near(0.31)) == "contradicted"
    assert verdict(SOME, near(0.3), near(0.12)) == "undecided"
    assert verdict(SOME, near(0.3), near(0.0)) == "undecided"  # beyond on both sides
    assert verdict(SOME, near(0.3), near(0.31, 0.3)) == "undecided"
    assert verdict(SOME, near(0.3), near(0.31), near(0.32, 0.3)) == "contradicted"  # the vague one hardly weighs
    assert verdict(SOME, near(0.3), near(0.1), near(0.2)) == "undecided"  # too far apart to pool into a verdict


def test_values_that_are_lower_bounds_can_only_show_that_an_effect_is_larger() -> None:
    assert verdict(SOME, near(0.3), censored=True) == "contradicted"
    for mean in (0.12, 0.0, -0.1):
        assert verdict(SOME, near(mean), censored=True) == "undecided"


def test_without_records_every_claim_is_not_yet_tested_and_says_what_would_decide_it() -> None:
    entries = ledger([])
    assert len(entries) == 8
    assert {item.verdict for item in entries} == {"not yet tested"}
    assert all(part.need and not part.need.seeds for item in entries for part in item.judged)


def test_probes_are_no_evidence_about_text(study: Study, make_record: Any) -> None:
    base = study.base.model_copy(update={"data": DataSpec(corpus="copy:16")})
    arms = {"baseline": 0.0, "oelm-random-matched": 0.3, "oelm-freeze": 0.1}
    probing = compared(study.model_copy(update={"base": base}), make_record, arms, accuracy=0.9)
    assert probing.measure.name == "accuracy"
    assert {item.verdict for item in ledger([probing])} == {"not yet tested"}


def test_compared_with_a_frozen_reference_nothing_is_said_about_freezing(study: Study, make_record: Any) -> None:
    among = study.model_copy(update={"reference": "oelm-random-matched"})
    found = compared(among, make_record, {"oelm-random-matched": 0.0, "oelm-freeze": 0.02})
    assert {item.verdict for item in ledger([found])} <= {"not yet tested", "undecided"}
    assert entry("no-gain-on-gpt", found).verdict == "not yet tested"


def test_only_the_matched_control_counts_for_orthogonal_against_random(study: Study, make_record: Any) -> None:
    arms = {"baseline": 0.0, "oelm-random": 0.3, "oelm-freeze": 0.1}
    claim: ClaimName = "orthogonal-beats-random"
    confounded = entry(claim, compared(study, make_record, arms))
    assert (confounded.verdict, reasons(confounded)) == ("undecided", {"scale-confounded"})
    for matched, expected in ((0.16, "supported"), (0.101, "no effect"), (0.08, "contradicted")):
        found = entry(claim, compared(study, make_record, arms | {"oelm-random-matched": matched}))
        assert found.alone == expected
        assert {item.arm for item in counted(found)[0].evidence} == {"oelm-random-matched", "oelm-freeze"}


def test_what_pretrained_weights_keep_says_nothing_about_orthogonal_and_random(bert: Study, make_record: Any) -> None:
    arms = {"baseline": 0.0, "oelm-random-from-current": 0.12, "oelm-from-current": 0.01}
    found = entry("orthogonal-beats-random", compared(bert, make_record, arms, accuracy=0.9))
    assert (found.verdict, counted(found)) == ("not yet tested", [])


@pytest.mark.parametrize(("effect", "expected"), [(0.11, "supported"), (0.04, "contradicted"), (0.3, "contradicted"),
                                                  (0.001, "no effect")])  # fmt: skip
def test_freezing_costs_what_was_published_or_does_not(
    study: Study, make_record: Any, effect: float, expected: str
) -> None:
    found = compared(study, make_record, {"baseline": 0.0, "oelm-freeze": effect})
    assert alone("freezing-costs-10-to-15", found) == expected


def test_a_verdict_is_corrected_for_all_the_claims(study: Study, make_record: Any) -> None:
    claim: ClaimName = "freezing-costs-10-to-15"
    clear, faint = (
        entry(claim, compared(study, make_record, {"baseline": 0.0, "oelm-freeze": effect}, noise=noise))
        for effect, noise in ((0.3, 0.005), (0.3, 0.12))
    )
    p = clear.judged[0].p["contradicted"]
    assert (clear.verdict, clear.p) == ("contradicted", pytest.approx(8 * p))
    assert faint.judged[0].p["contradicted"] < ALPHA < 8 * faint.judged[0].p["contradicted"]
    assert (faint.verdict, faint.alone) == ("undecided", "contradicted")


def test_an_undecided_claim_says_how_many_seeds_would_decide_it(study: Study, make_record: Any) -> None:
    vague = compared(study, make_record, {"baseline": 0.0, "oelm-freeze": 0.2}, noise=0.8)
    (part,) = entry("freezing-costs-10-to-15", vague).judged
    assert part.need is not None
    (more,) = part.need.seeds.values()
    assert part.need.runs == 2 * more
    (place,) = part.places
    level = ALPHA / 8
    for count, decides in ((more, True), (0, False)):
        p = probabilities(part.rule, [place.estimate.with_more(count)])
        assert (min(p.values()) <= level) == decides
    fewest = next(
        n for n in range(99) if min(probabilities(part.rule, [place.estimate.with_more(n)]).values()) <= level
    )
    assert more > fewest  # which would decide in about half of the cases


def test_seeds_are_asked_for_only_where_they_are_missing(study: Study, make_record: Any) -> None:
    arms = {"baseline": 0.0, "oelm-freeze": 0.3}
    sure = compared(on(study, "imdb"), make_record, arms, noise=0.0005)
    vague = compared(on(study, "sotu"), make_record, arms, noise=0.3)
    (part,) = entry("freezing-costs-10-to-15", sure, vague).judged
    assert part.need is not None
    assert list(part.need.seeds) == ["sotu"]


def test_corpora_that_disagree_leave_a_claim_undecided(study: Study, make_record: Any) -> None:
    both = [
        compared(on(study, corpus), make_record, {"baseline": 0.0, "oelm-freeze": effect})
        for corpus, effect in (("imdb", 0.11), ("sotu", 0.3))
    ]
    found = entry("freezing-costs-10-to-15", *both)
    assert (found.alone, len(counted(found)), len(found.judged[0].places)) == ("undecided", 2, 2)


def test_seeds_of_two_studies_on_one_corpus_are_one_sample(study: Study, make_record: Any) -> None:
    arms = {"baseline": 0.0, "oelm-freeze": 0.3}
    one = compared(study, make_record, arms)
    more = compared(study.model_copy(update={"name": "more", "seeds": (3, 4, 5)}), make_record, arms)
    (place,) = entry("freezing-costs-10-to-15", one, more).judged[0].places
    assert ([item.study for item in place.findings], place.estimate.freedom) == (["tiny", "more"], 5)


def test_two_studies_that_share_their_runs_are_one_finding(study: Study, make_record: Any) -> None:
    one = compared(study, make_record, {"baseline": 0.0, "oelm-freeze": 0.11})
    found = entry("freezing-costs-10-to-15", one, one)
    assert (len(counted(found)), found.judged[0].places[0].estimate.freedom) == (1, 2)


def test_a_study_that_does_not_count_does_not_hide_one_that_does(study: Study, make_record: Any) -> None:
    arms = {"baseline": 0.0, "oelm-freeze": 0.3}
    counts = compared(study, make_record, arms)
    hidden = replace(counts, study=counts.study.model_copy(update={"name": "untuned", "tuned": {}, "tuning_seeds": ()}))
    for order in ((counts, hidden), (hidden, counts)):
        (finding,) = counted(entry("freezing-costs-10-to-15", *order))
        assert finding.study == "tiny"


def test_only_tuned_arms_with_a_plain_baseline_and_all_their_seeds_count(study: Study, make_record: Any) -> None:
    claim: ClaimName = "freezing-costs-10-to-15"
    arms = {"baseline": 0.0, "oelm-freeze": 0.11}
    found = compared(study, make_record, arms)
    assert reasons(entry(claim, found)) == {None}
    untuned = replace(found, study=found.study.model_copy(update={"tuned": {}, "tuning_seeds": ()}))
    repaired = compared(study, make_record, {"baseline-bias": 0.0, "oelm-freeze": 0.11})
    gap = Gap("oelm-freeze", (), 2, "missing")
    incomplete, lost = (replace(found, gaps=(replace(gap, state=state),)) for state in ("missing", "diverged"))
    cases = {"untuned": untuned, "repaired-baseline": repaired, "incomplete": incomplete, "lost": lost}
    for reason, comparison in cases.items():
        judged = entry(claim, comparison)
        assert (judged.verdict, reasons(judged)) == ("undecided", {reason})


@pytest.mark.parametrize(
    ("worth", "uniform", "regime"),
    [(0.2, 0.5, "representative"), (0.04, 0.5, "small"), (None, 0.05, "small"), (None, 0.5, "unknown")],
)
def test_evidence_about_quality_carries_its_regime(
    study: Study, make_record: Any, worth: float | None, uniform: float, regime: str
) -> None:
    arms = {"baseline": 0.0, "oelm-freeze": 0.3}
    if worth is not None:
        arms |= {"baseline-bias": -0.01, "position-only-bias": worth - 0.01}
    (part,) = entry("freezing-costs-10-to-15", compared(study, make_record, arms, uniform=uniform)).judged
    assert part.regime == regime
    assert part.worth == ([pytest.approx(worth, abs=0.01)] if worth else [])


def test_what_content_is_worth_is_known_from_another_study_of_the_same_runs(study: Study, make_record: Any) -> None:
    plain = compared(study, make_record, {"baseline": 0.0, "oelm-freeze": 0.3})
    arms = {"baseline": 0.0, "baseline-bias": -0.01, "position-only-bias": 0.03}
    content = compared(study.model_copy(update={"name": "content"}), make_record, arms)
    assert entry("freezing-costs-10-to-15", plain, content).judged[0].regime == "small"
    elsewhere = compared(on(study, "imdb"), make_record, arms)
    assert entry("freezing-costs-10-to-15", plain, elsewhere).judged[0].regime == "unknown"


def test_evidence_from_a_representative_regime_replaces_that_from_a_small_one(study: Study, make_record: Any) -> None:
    content = {"baseline-bias": -0.01, "position-only-bias": 0.2}
    large = compared(on(study, "imdb"), make_record, {"baseline": 0.0, "oelm-freeze": 0.11} | content)
    small = compared(study, make_record, {"baseline": 0.0, "oelm-freeze": 0.3}, uniform=0.05)
    found = entry("freezing-costs-10-to-15", small, large)
    assert (found.alone, found.judged[0].regime) == ("supported", "representative")
    assert reasons(found) == {None, "small-regime"}


def test_the_corpus_trend_is_a_difference_of_differences(study: Study, make_record: Any) -> None:
    claim: ClaimName = "loss-grows-with-the-corpus"
    arms = {"baseline": 0.0, "oelm-freeze": 0.1}
    small = compared(study, make_record, arms, tokens=10**6, checksum="small")
    assert alone(claim, small) == "not yet tested"
    for cost, expected in ((0.2, "supported"), (0.05, "contradicted"), (0.1005, "no effect")):
        large = compared(study, make_record, {"baseline": 0.0, "oelm-freeze": cost}, tokens=10**8, checksum="large")
        found = entry(claim, small, large)
        assert found.alone == expected
        assert counted(found)[0].mean == pytest.approx(cost - 0.1, abs=0.002)
    almost = (LEAST_GROWTH * 10**6) - 1
    near_size = compared(study, make_record, {"baseline": 0.0, "oelm-freeze": 0.2}, tokens=almost, checksum="other")
    assert alone(claim, small, near_size) == "not yet tested"


def test_overlapping_intervals_may_still_differ_in_the_difference_of_differences(
    study: Study, make_record: Any
) -> None:
    small, large = (
        compared(
            study, make_record, {"baseline": 0.0, "oelm-freeze": cost}, tokens=tokens, checksum=str(tokens), noise=0.11
        )
        for cost, tokens in ((0.1, 10**6), (0.16, 10**7))
    )
    one, other = (find("freezing", [item])[0].estimate for item in (small, large))
    assert one is not None
    assert other is not None
    assert one.interval(0.95).high > other.interval(0.95).low
    assert alone("loss-grows-with-the-corpus", small, large) == "supported"


def test_classification_tolerates_needs_encoders_with_and_without_pretraining_and_a_gpt(
    study: Study, bert: Study, make_record: Any
) -> None:
    claim: ClaimName = "classification-tolerates-freezing"
    parted = {"baseline": 0.0, "orthogonal-from-current-trained": 0.0, "oelm-from-current": 0.001}
    pretrained = compared(bert, make_record, parted, accuracy=0.9)
    scratch_study = bert.model_copy(update={"base": replace_fields(bert.base, {"model.pretrained": False})})
    fresh = compared(scratch_study, make_record, {"baseline": 0.0, "oelm-freeze": 0.001}, accuracy=0.9)
    gpt = compared(study, make_record, {"baseline": 0.0, "oelm-freeze": 0.3})
    assert alone(claim, pretrained, gpt) == alone(claim, fresh, gpt) == alone(claim, pretrained, fresh) == "undecided"
    assert alone(claim, pretrained, fresh, gpt) == "supported"
    cheaper = compared(study, make_record, {"baseline": 0.0, "oelm-freeze": 0.07})
    assert alone(claim, pretrained, fresh, cheaper) == "supported"  # beyond the margin, though less than published
    assert alone(claim, fresh, cheaper) == "undecided"  # so it does not contradict either
    tolerant = compared(study, make_record, {"baseline": 0.0, "oelm-freeze": 0.02})
    assert alone(claim, pretrained, fresh, tolerant) == "contradicted"
    parted["oelm-from-current"] = 0.08
    assert alone(claim, compared(bert, make_record, parted, accuracy=0.9)) == "contradicted"


def test_freezing_is_not_blamed_for_what_orthogonalising_does(bert: Study, make_record: Any) -> None:
    claim: ClaimName = "classification-tolerates-freezing"
    arms = {"baseline": 0.0, "oelm-from-current": 0.08}
    found = entry(claim, compared(bert, make_record, arms, accuracy=0.9))
    assert (found.verdict, reasons(found)) == ("undecided", {"no-counterpart"})
    fresh = compared(bert, make_record, {"baseline": 0.0, "oelm-freeze": 0.08}, accuracy=0.9)
    assert reasons(entry(claim, fresh)) == set()  # no published run discards pretrained weights
    guessing = compared(bert, make_record, {"baseline": 0.0, "orthogonal-from-current-trained": 0.0,
                                            "oelm-from-current": 0.001}, accuracy=0.52)  # fmt: skip
    assert reasons(entry(claim, guessing)) == {"at-chance"}


@pytest.mark.parametrize(("faster", "expected"), [(0.57, "supported"), (0.2, "contradicted"), (0.001, "no effect")])
def test_the_saving_of_time_on_bert_is_what_the_clocks_say(
    bert: Study, make_record: Any, faster: float, expected: str
) -> None:
    found = compared(bert, make_record, {"baseline": 0.0, "oelm-from-current": 0.01}, accuracy=0.9, faster=faster)
    assert alone("57-percent-faster-on-bert", found) == expected


@pytest.mark.parametrize(("faster", "expected"), [(-0.02, "supported"), (0.03, "supported"), (0.3, "contradicted")])
def test_no_gain_on_gpt_is_what_the_clocks_say(study: Study, make_record: Any, faster: float, expected: str) -> None:
    found = compared(study, make_record, {"baseline": 0.0, "oelm-freeze": 0.1}, faster=faster)
    assert alone("no-gain-on-gpt", found) == expected


def test_more_time_than_freezing_can_save_does_not_count(study: Study, bert: Study, make_record: Any) -> None:
    cost = CostRecord(
        forward_flops={"q": 100}, backward_flops={"q": 200}, removed_flops=0, weight_bytes=400, optimizer_bytes=800
    )
    gpt = compared(study, make_record, {"baseline": 0.0, "oelm-freeze": 0.1}, faster=0.3, cost=cost)
    arms = {"baseline": 0.0, "oelm-from-current": 0.01}
    encoder = compared(bert, make_record, arms, accuracy=0.9, faster=0.57, cost=cost)
    claims: dict[ClaimName, Comparison] = {"no-gain-on-gpt": gpt, "57-percent-faster-on-bert": encoder}
    for claim, comparison in claims.items():
        assert reasons(entry(claim, comparison)) == {"unexplained"}
        assert entry(claim, comparison).verdict == "undecided"


def test_the_clocks_of_runs_do_not_count_where_a_bench_does(bert: Study, make_record: Any) -> None:
    clocks = compared(bert, make_record, {"baseline": 0.0, "oelm-from-current": 0.01}, accuracy=0.9, faster=0.57)
    benches, _ = read_benches(Path(__file__).parents[2] / "docs" / "results")
    found = next(item for item in ledger([clocks], benches) if item.claim.name == "57-percent-faster-on-bert")
    assert (found.verdict, reasons(found)) == ("contradicted", {None, "bench-instead"})
    assert all(item.bench for item in counted(found))


@pytest.mark.parametrize(
    ("saved", "expected"),
    [
        ((0.05,), "undecided"), ((0.05, 0.051, 0.05), "supported"), ((0.02, 0.022, 0.02), "contradicted"),
        ((0.001, 0.0012, 0.001), "no effect"), ((0.05, -0.3, 0.02), "undecided"),
    ],
)  # fmt: skip
def test_less_memory_is_decided_by_pairs_of_seeds_and_never_by_one(
    study: Study, make_record: Any, saved: tuple[float, ...], expected: str
) -> None:
    found = entry("less-memory", weighed(study, make_record, saved, weights=400_000))
    assert found.alone == expected
    (finding,) = found.judged[0].findings
    assert finding.mean == pytest.approx(sum(saved) / len(saved), abs=1e-5)
    assert (finding.reason == "no-interval") == (len(saved) == 1)


def test_a_model_that_is_a_small_part_of_the_memory_does_not_count(study: Study, make_record: Any) -> None:
    found = entry("less-memory", weighed(study, make_record, (0.001, 0.0012, 0.001), weights=4000))
    assert (found.verdict, reasons(found)) == ("undecided", {"little-of-the-memory"})


def weighed(study: Study, make_record: Any, saved: tuple[float, ...], weights: int) -> Comparison:
    study = study.model_copy(update={"seeds": tuple(range(len(saved)))})
    cost = CostRecord(
        forward_flops={}, backward_flops={"q": 1}, removed_flops=0, weight_bytes=weights, optimizer_bytes=2 * weights
    )
    records = []
    for number, run in enumerate(study.runs()):
        record = make_record(run, 1.4 + 0.01 * run.seed, cost=cost)
        peak = 1_000_000 * (1 + run.seed)  # the pair shares its scale
        peak = round(peak * (1 - saved[run.seed] * (run.arm != "baseline")))
        result = record.result.model_copy(update={"peak_memory_bytes": peak})
        records.append((Path(str(number)), record.model_copy(update={"result": result})))
    return compare_records(study, records)


@pytest.mark.parametrize(
    ("reached", "expected"),
    [
        ((80,), "undecided"), ((None,), "undecided"), ((70, 71, 72), "supported"), ((40, 40, 84), "undecided"),
        ((95, 96, 97), "contradicted"), ((99, 100, 100), "no effect"), ((96, 97, None), "contradicted"),
        ((70, 71, None), "undecided"), ((None, None), "undecided"),
    ],
)  # fmt: skip
def test_fewer_epochs_are_decided_by_pairs_of_seeds_and_never_by_one(
    bert: Study, make_record: Any, tmp_path: Path, reached: tuple[int | None, ...], expected: str
) -> None:
    arms = ("baseline", "orthogonal-from-current-trained", "oelm-from-current")
    study = tuned(bert.model_copy(update={"seeds": tuple(range(len(reached)))}), arms)

    def found(run: RunSpec) -> tuple[Path, RunRecord]:
        directory = tmp_path / f"{run.arm}-{run.seed}-{run.train.learning_rate}"
        directory.mkdir()
        at = 100 if not run.method.freeze.roles or run.seed not in range(len(reached)) else reached[run.seed]
        last = 0.5 if at else 0.6 + 0.001 * run.seed
        points = {0: 1.0} | ({at: last} if at else {}) | {100: last}
        (directory / METRICS).write_text("".join(
            MetricRecord(kind="val", step=step, loss=loss, seconds=step).model_dump_json() + "\n"
            for step, loss in points.items()
        ))  # fmt: skip
        record = make_record(run)
        share = 0.9 + 0.001 * run.seed
        result = record.result.model_copy(update={"test_accuracy": share, "val_accuracy": share})
        return directory, record.model_copy(update={"result": result})

    judged = entry("converges-in-fewer-epochs", in_two_stages(study, found))
    assert judged.alone == expected
    (finding,) = judged.judged[0].findings
    assert finding.at_least == (None in reached)


def test_a_rule_whose_range_overlaps_that_of_no_effect_is_refused() -> None:
    with pytest.raises(ValueError, match="overlaps"):
        rule(0.005, 0.15, 0.1, no_effect=0.01)
    with pytest.raises(ValueError, match="bound of no effect"):
        rule(0.1, 0.15, 0.1)
    with pytest.raises(ValueError, match="bound of no effect"):
        rule(-0.1, 0.15, 0.1, no_effect=0.01)


def test_every_claim_of_the_table_says_everything_in_both_languages() -> None:
    for claim in published_claims():
        for each in claim.rules:
            texts = [claim.title, each.counts, each.experiment, *(size.source for size in each.sizes)]
            assert all(text.en and text.zh for text in texts)
            assert each.runs > 0


def test_findings_without_an_estimate_leave_a_rule_undecided_with_its_experiment() -> None:
    single = ClaimFinding("tiny", "oelm-freeze", "here", "percent", values={frozenset("a"): 0.1})
    judged = judge_rule(SOME, [single])
    assert (judged.verdict, judged.places, judged.findings[0].reason) == ("undecided", (), "no-interval")
