from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oelm.analysis.compare import Comparison, compare
from oelm.analysis.ledger import Claim, Entry, ledger
from oelm.record.schema import CostRecord, MetricRecord, RunRecord, SecondsRecord
from oelm.record.stages import by_declaration, stage_of
from oelm.record.store import METRICS
from oelm.spec.data import DataSpec, ExamplesSpec
from oelm.spec.model import ForeignSpec
from oelm.spec.run import RunSpec
from oelm.study import Study, replaced


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
    stage = stage_of(study, by_declaration(record for _, record in tuning))
    return compare(study, [*tuning, *(found(run) for run in stage.confirm)])


def compared(study: Study, make_record: Any, effects: dict[str, float], **fields: Any) -> Comparison:
    """Compare arms with known effects; `tokens` is the size of the corpus, `accuracy` makes it a classification.

    Language models have uniform attention beside them, far behind unless told, so that attention matters.
    """
    accuracy, tokens, faster = (fields.pop(name, None) for name in ("accuracy", "tokens", "faster"))
    effects = effects if accuracy else {**effects, "uniform": fields.pop("uniform", 0.5)}

    def found(run: RunSpec) -> tuple[Path, RunRecord]:
        loss = 1.4 + 0.3 * run.seed + effects[run.arm] * (1 + 0.005 * run.seed)
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


def entry(claim: Claim, *comparisons: Comparison) -> Entry:
    return next(item for item in ledger(comparisons) if item.claim == claim)


@pytest.fixture
def bert(study: Study) -> Study:
    base = study.base.model_copy(update={"model": ForeignSpec(name="bert-base", labels=2), "data": ExamplesSpec()})
    return study.model_copy(update={"base": base})


def test_without_records_every_claim_is_not_yet_tested() -> None:
    entries = ledger([])
    assert len(entries) == 8
    assert {item.verdict for item in entries} == {"not yet tested"}


def test_probes_are_no_evidence_about_text(study: Study, make_record: Any) -> None:
    base = study.base.model_copy(update={"data": DataSpec(corpus="copy:16")})
    arms = {"baseline": 0.0, "oelm-random-matched": 0.3, "oelm-freeze": 0.1}
    probing = compared(study.model_copy(update={"base": base}), make_record, arms, accuracy=0.9)
    assert probing.measure.name == "accuracy"
    assert {item.verdict for item in ledger([probing])} == {"not yet tested"}


def test_beside_a_frozen_reference_nothing_is_said_about_freezing(study: Study, make_record: Any) -> None:
    among = study.model_copy(update={"reference": "oelm-random-matched"})
    found = compared(among, make_record, {"oelm-random-matched": 0.0, "oelm-freeze": 0.02})
    assert {item.verdict for item in ledger([found])} <= {"not yet tested", "undecided"}
    assert entry("no-gain-on-gpt", found).verdict == "not yet tested"


def test_only_the_matched_control_can_support_that_orthogonal_beats_random(study: Study, make_record: Any) -> None:
    arms = {"baseline": 0.0, "oelm-random": 0.3, "oelm-freeze": 0.1}
    claim: Claim = "orthogonal-beats-random"
    assert entry(claim, compared(study, make_record, arms)).verdict == "undecided"
    for matched, verdict in ((0.12, "supported"), (0.08, "contradicted")):
        found = entry(claim, compared(study, make_record, arms | {"oelm-random-matched": matched}))
        assert found.verdict == verdict
        assert {item.arm for item in found.findings[0].evidence} == {"oelm-random-matched", "oelm-freeze"}


def test_what_pretrained_weights_keep_says_nothing_about_orthogonal_and_random(bert: Study, make_record: Any) -> None:
    arms = {"baseline": 0.0, "oelm-random-from-current": 0.12, "oelm-from-current": 0.01}
    found = entry("orthogonal-beats-random", compared(bert, make_record, arms, accuracy=0.9))
    assert (found.verdict, found.findings) == ("not yet tested", ())


@pytest.mark.parametrize(("effect", "verdict"), [(0.11, "supported"), (0.02, "contradicted"), (0.3, "contradicted")])
def test_freezing_costs_what_was_published_or_does_not(
    study: Study, make_record: Any, effect: float, verdict: str
) -> None:
    found = compared(study, make_record, {"baseline": 0.0, "oelm-freeze": effect})
    assert entry("freezing-costs-10-to-15", found).verdict == verdict


def test_findings_that_disagree_leave_a_claim_undecided(study: Study, make_record: Any) -> None:
    both = [
        compared(study, make_record, {"baseline": 0.0, "oelm-freeze": effect}, checksum=text)
        for text, effect in (("one", 0.11), ("other", 0.3))
    ]
    found = entry("freezing-costs-10-to-15", *both)
    assert (found.verdict, len(found.findings)) == ("undecided", 2)


def test_two_studies_that_share_their_runs_are_one_finding(study: Study, make_record: Any) -> None:
    one = compared(study, make_record, {"baseline": 0.0, "oelm-freeze": 0.11})
    assert len(entry("freezing-costs-10-to-15", one, one).findings) == 1


def test_a_study_that_cannot_decide_does_not_hide_one_that_can(study: Study, make_record: Any) -> None:
    arms = {"baseline": 0.0, "oelm-freeze": 0.3}
    decides, useless = (compared(study, make_record, arms, uniform=uniform) for uniform in (0.5, 0.05))
    for order in ((decides, useless), (useless, decides)):
        found = entry("freezing-costs-10-to-15", *order)
        assert (found.verdict, len(found.findings)) == ("contradicted", 1)


def test_only_tuned_arms_where_attention_matters_decide(study: Study, make_record: Any) -> None:
    arms = {"baseline": 0.0, "oelm-freeze": 0.11}
    useless = compared(study, make_record, arms, uniform=0.05)
    assert entry("freezing-costs-10-to-15", useless).verdict == "undecided"
    untuned = Study(**{**study.model_dump(exclude={"arms"}), "arms": (*arms, "uniform")})
    losses = {"baseline": 1.4, "oelm-freeze": 1.51, "uniform": 1.9}
    records = [
        (Path(str(number)), make_record(run, losses[run.arm] + 0.001 * run.seed * (run.arm != "baseline")))
        for number, run in enumerate(untuned.runs())
    ]
    found = entry("freezing-costs-10-to-15", compare(untuned, records))
    assert (found.verdict, len(found.findings)) == ("undecided", 1)


def test_only_a_plain_baseline_decides(study: Study, make_record: Any) -> None:
    plain, repaired = (
        entry("freezing-costs-10-to-15", compared(study, make_record, {reference: 0.0, "oelm-freeze": 0.11}))
        for reference in ("baseline", "baseline-bias")
    )
    assert plain.verdict == "supported"
    assert (repaired.verdict, len(repaired.findings)) == ("undecided", 1)


def test_the_corpus_trend_needs_two_sizes_of_one_model(study: Study, make_record: Any) -> None:
    arms = {"baseline": 0.0, "oelm-freeze": 0.1}
    small = compared(study, make_record, arms, tokens=10**6, checksum="small")
    assert entry("loss-grows-with-the-corpus", small).verdict == "not yet tested"
    worse = compared(study, make_record, {"baseline": 0.0, "oelm-freeze": 0.2}, tokens=10**8, checksum="large")
    better = compared(study, make_record, {"baseline": 0.0, "oelm-freeze": 0.05}, tokens=10**8, checksum="large")
    assert entry("loss-grows-with-the-corpus", small, worse).verdict == "supported"
    assert entry("loss-grows-with-the-corpus", small, better).verdict == "contradicted"
    as_large = compared(study, make_record, {"baseline": 0.0, "oelm-freeze": 0.2}, tokens=2 * 10**6, checksum="other")
    assert entry("loss-grows-with-the-corpus", small, as_large).verdict == "not yet tested"


def test_a_pretrained_encoder_cannot_show_that_classification_tolerates_freezing(bert: Study, make_record: Any) -> None:
    arms = {"baseline": 0.0, "oelm-from-current": 0.001}
    claim: Claim = "classification-tolerates-freezing"
    assert entry(claim, compared(bert, make_record, arms, accuracy=0.9)).verdict == "undecided"
    scratch = bert.model_copy(update={"base": replaced(bert.base, {"model.pretrained": False})})
    fresh = {"baseline": 0.0, "oelm-freeze": 0.001}
    assert entry(claim, compared(scratch, make_record, fresh, accuracy=0.9)).verdict == "supported"
    assert entry(claim, compared(scratch, make_record, fresh, accuracy=0.52)).verdict == "undecided"  # at chance
    assert entry(claim, compared(bert, make_record, fresh, accuracy=0.9)).findings == ()  # no published run did that
    arms["oelm-from-current"] = 0.08
    assert entry(claim, compared(bert, make_record, arms, accuracy=0.9)).verdict == "undecided"  # or orthogonalising
    parted = {"baseline": 0.0, "orthogonal-from-current-trained": 0.079, "oelm-from-current": 0.08}
    (alike,) = entry(claim, compared(bert, make_record, parted, accuracy=0.9)).findings
    assert alike.verdict == "undecided"
    assert alike.what == "orthogonal-from-current-trained → oelm-from-current"
    parted["orthogonal-from-current-trained"] = 0.0
    assert entry(claim, compared(bert, make_record, parted, accuracy=0.9)).verdict == "contradicted"


@pytest.mark.parametrize(("faster", "verdict"), [(0.57, "supported"), (0.03, "contradicted")])
def test_the_saving_of_time_on_bert_is_what_the_clocks_say(
    bert: Study, make_record: Any, faster: float, verdict: str
) -> None:
    found = compared(bert, make_record, {"baseline": 0.0, "oelm-from-current": 0.01}, accuracy=0.9, faster=faster)
    assert entry("57-percent-faster-on-bert", found).verdict == verdict


@pytest.mark.parametrize(("faster", "verdict"), [(-0.02, "supported"), (0.03, "supported"), (0.3, "contradicted")])
def test_no_gain_on_gpt_is_what_the_clocks_say(study: Study, make_record: Any, faster: float, verdict: str) -> None:
    found = compared(study, make_record, {"baseline": 0.0, "oelm-freeze": 0.1}, faster=faster)
    assert entry("no-gain-on-gpt", found).verdict == verdict


def test_more_time_than_freezing_can_save_decides_nothing(study: Study, bert: Study, make_record: Any) -> None:
    cost = CostRecord(
        forward_flops={"q": 100}, backward_flops={"q": 200}, removed_flops=0, weight_bytes=400, optimizer_bytes=800
    )
    gpt = compared(study, make_record, {"baseline": 0.0, "oelm-freeze": 0.1}, faster=0.3, cost=cost)
    arms = {"baseline": 0.0, "oelm-from-current": 0.01}
    encoder = compared(bert, make_record, arms, accuracy=0.9, faster=0.57, cost=cost)
    assert entry("no-gain-on-gpt", gpt).verdict == "undecided"
    assert entry("57-percent-faster-on-bert", encoder).verdict == "undecided"


@pytest.mark.parametrize(
    ("saved", "verdict"),
    [
        ((0.05,), "undecided"), ((0.01,), "undecided"), ((0.05, 0.051, 0.05), "supported"),
        ((0.01, 0.012, 0.01), "contradicted"), ((0.05, -0.3, 0.02), "undecided"),
    ],
)  # fmt: skip
def test_less_memory_is_decided_by_pairs_of_seeds_and_never_by_one(
    study: Study, make_record: Any, saved: tuple[float, ...], verdict: str
) -> None:
    (finding,) = entry("less-memory", weighed(study, make_record, saved, weights=400_000)).findings
    assert finding.verdict == verdict
    assert finding.mean == pytest.approx(sum(saved) / len(saved), abs=1e-5)


def test_a_model_that_is_a_small_part_of_the_memory_decides_nothing_about_it(study: Study, make_record: Any) -> None:
    (finding,) = entry("less-memory", weighed(study, make_record, (0.001, 0.0012, 0.001), weights=4000)).findings
    assert finding.verdict == "undecided"


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
    return compare(study, records)


@pytest.mark.parametrize(
    ("reached", "verdict"),
    [
        ((80,), "undecided"), ((None,), "undecided"), ((70, 71, 72), "supported"), ((40, 40, 84), "undecided"),
        ((100, 100, 100), "undecided"), ((None, None), "contradicted"), ((50, None, None), "undecided"),
    ],
)  # fmt: skip
def test_fewer_epochs_are_decided_by_pairs_of_seeds_and_never_by_one(
    bert: Study, make_record: Any, tmp_path: Path, reached: tuple[int | None, ...], verdict: str
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

    (finding,) = entry("converges-in-fewer-epochs", in_two_stages(study, found)).findings
    assert finding.verdict == verdict
    assert (finding.mean is None) == (None in reached)
