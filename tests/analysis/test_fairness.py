from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from oelm.analysis.compare import compare_records, covers, gather, select
from oelm.analysis.evidence import cell_of, list_meaning
from oelm.errors import IncomparableRuns
from oelm.spec.run import ExamplesSpec, HuggingFaceSpec, fingerprint
from oelm.spec.study import Arm, Study, replace_fields


def whole(study: Study, make_record: Any) -> list[tuple[Path, Any]]:
    return [(Path(str(number)), make_record(run)) for number, run in enumerate(study.runs())]


def changed(study: Study, make_record: Any, field: str, value: Any, arm: str = "oelm-freeze") -> Any:
    """Return the study's records, with one field changed in those of one arm."""
    return [
        (Path(str(number)), make_record(replace_fields(run, {field: value}) if run.arm == arm else run))
        for number, run in enumerate(study.runs())
    ]


def test_a_study_as_declared_is_fair(study: Study, make_record: Any) -> None:
    compare_records(study, whole(study, make_record))


def test_an_undeclared_difference_is_refused_by_field_and_values(study: Study, make_record: Any) -> None:
    with pytest.raises(IncomparableRuns) as caught:
        compare_records(study, changed(study, make_record, "train.learning_rate", 0.001))
    assert str(caught.value) == (
        "'oelm-freeze' and 'baseline' differ in train.learning_rate (0.001, 0.0003), which this study does "
        "not declare. Add it to tuned= with a shared grid, or fix it in the base run."
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("train.steps", 200),
        ("train.threads", 2),
        ("train.betas", (0.9, 0.95)),
        ("model.num_layers", 4),
        ("data.corpus", "speeches"),
        ("data.seed", 5),
    ],
)
def test_every_field_that_changes_numbers_is_guarded(study: Study, make_record: Any, field: str, value: Any) -> None:
    with pytest.raises(IncomparableRuns, match=rf"differ in {field} "):
        compare_records(study, changed(study, make_record, field, value))


def test_a_field_that_cannot_change_numbers_is_free(study: Study, make_record: Any) -> None:
    compare_records(study, changed(study, make_record, "train.checkpoint_every", 7))


def test_another_kind_of_model_is_refused(study: Study, make_record: Any) -> None:
    with pytest.raises(IncomparableRuns, match=r"differ in model\.kind"):
        compare_records(study, changed(study, make_record, "model", HuggingFaceSpec(name="bert-base")))


def test_two_seeds_of_one_arm_are_named_in_the_message(study: Study, make_record: Any) -> None:
    first, *_, last = (run for run in study.runs() if run.arm == "baseline")
    records = [(Path("a"), make_record(first)), (Path("b"), make_record(replace_fields(last, {"train.steps": 50})))]
    with pytest.raises(IncomparableRuns, match="'baseline' with seed 2 and 'baseline' with seed 0 differ"):
        compare_records(study, records)


def test_a_declared_axis_may_differ_and_is_never_mixed(study: Study, make_record: Any) -> None:
    swept = study.model_copy(update={"axes": {"train.learning_rate": (3e-4, 1e-3)}})
    comparison = compare_records(swept, whole(swept, make_record))
    assert len(comparison.rows) == 4
    assert {row.cell for row in comparison.rows} == {
        (("train.learning_rate", "0.0003"),),
        (("train.learning_rate", "0.001"),),
    }


def test_an_arms_own_model_fields_may_differ_but_no_other_arms(study: Study, make_record: Any) -> None:
    thin = Arm(name="thin", method=study.arms[0].method, model={"qk_head_size": 2})
    wider = study.model_copy(update={"arms": (*study.arms, thin)})
    compare_records(wider, whole(wider, make_record))
    with pytest.raises(IncomparableRuns, match=r"differ in model\.qk_head_size \(4, null\)"):
        compare_records(wider, changed(wider, make_record, "model.qk_head_size", 4))
    with pytest.raises(IncomparableRuns, match=r"'thin' has model\.qk_head_size 4.*has 2"):
        compare_records(wider, changed(wider, make_record, "model.qk_head_size", 4, arm="thin"))


def test_without_the_reference_arm_the_others_are_still_guarded(study: Study, make_record: Any) -> None:
    thin = Arm(name="thin", method=study.arms[0].method, model={"qk_head_size": 2})
    wider = study.model_copy(update={"arms": (*study.arms, thin)})
    runs = [run for run in wider.runs() if run.arm != "baseline"]
    records = [(Path(str(i)), make_record(run)) for i, run in enumerate(runs)]
    odd = next(run for run in runs if run.arm == "oelm-freeze" and run.seed == 2)
    records[runs.index(odd)] = (Path("odd"), make_record(replace_fields(odd, {"model.qk_head_size": 4})))
    with pytest.raises(IncomparableRuns, match=r"model\.qk_head_size"):
        compare_records(wider, records)


def test_a_record_whose_method_is_not_its_arms_is_refused(study: Study, make_record: Any) -> None:
    with pytest.raises(IncomparableRuns, match=r"'oelm-freeze' has method\.init\.gain 2\.0.*has 1\.0"):
        compare_records(study, changed(study, make_record, "method.init.gain", 2.0))


def test_mixed_numerics_are_refused(study: Study, make_record: Any) -> None:
    records = whole(study, make_record)
    records[1] = (Path("old"), make_record(study.runs()[1], numerics=0))
    with pytest.raises(IncomparableRuns, match=r"differ in numerics \(0, 1\).*run the older ones again"):
        compare_records(study, records)


def test_different_weights_from_one_folder_are_refused_by_name(study: Study, make_record: Any) -> None:
    base = study.base.model_copy(update={"model": HuggingFaceSpec(name="mine"), "data": ExamplesSpec()})
    study = study.model_copy(update={"base": base})
    records = whole(study, make_record)
    assert compare_records(study, records)
    run = study.runs()[1]
    other = run.model_copy(update={"model": run.model.model_copy(update={"checksum": "decaf"})})
    with pytest.raises(IncomparableRuns, match=r'model\.checksum \("decaf", null\).*run them again'):
        compare_records(study, [*records[:1], (Path("other"), make_record(other)), *records[2:]])


def test_different_bytes_of_data_are_refused_by_name(study: Study, make_record: Any) -> None:
    records = whole(study, make_record)
    records[1] = (Path("other"), make_record(study.runs()[1], checksum="decaf"))
    with pytest.raises(IncomparableRuns, match=r'data\.checksum \("decaf", "c0ffee"\).*different bytes'):
        compare_records(study, records)


def test_an_axis_of_corpora_has_different_bytes_by_right_but_one_corpus_has_not(study: Study, make_record: Any) -> None:
    wide = study.model_copy(update={"axes": {"data.corpus": ("stories", "speeches")}})
    records = [
        (Path(str(number)), make_record(run, checksum=run.data.corpus)) for number, run in enumerate(wide.runs())
    ]
    compare_records(wide, records)
    records[-1] = (Path("other"), make_record(wide.runs()[-1], checksum="decaf"))
    with pytest.raises(IncomparableRuns, match=r"data\.checksum"):
        compare_records(wide, records)


def test_a_run_that_failed_before_it_saw_data_blocks_nothing(study: Study, make_record: Any) -> None:
    records = whole(study, make_record)
    run = study.runs()[1]
    records[1] = (Path("failed"), make_record(run, status="failed", spec=run, data=None, result=None))
    assert [gap.state for gap in compare_records(study, records).gaps] == ["failed"]


def test_an_arm_the_study_does_not_have_is_refused(study: Study, make_record: Any) -> None:
    run = study.runs()[0].model_copy(update={"arm": "mystery", "seed": 99})
    with pytest.raises(IncomparableRuns, match="'mystery', which is not an arm of study 'tiny'"):
        compare_records(study, [(Path("x"), make_record(run))])


def test_selection_tells_where_a_foreign_record_departs_from_the_nearest_run(study: Study, make_record: Any) -> None:
    own, longer = study.runs()[1], replace_fields(study.runs()[1], {"train.steps": 999})
    members, ignored = select(study, [(Path("own"), make_record(own)), (Path("long"), make_record(longer))])
    assert [directory for directory, _ in members] == [Path("own")]
    assert [(item.directory, item.differs) for item in ignored] == [(Path("long"), {"train.steps": (999, 100)})]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("train.steps", 101),
        ("train.steps", 100),
        ("train.checkpoint_every", 7),
        ("data.source", "/elsewhere"),
        ("label", "a name"),
        ("method.rates.roles", {"v": 2.0}),
        ("method.repair.temperature", True),
        ("model.dropout", 0.1),
    ],
)
def test_two_runs_mean_the_same_exactly_if_they_have_the_same_fingerprint(study: Study, field: str, value: Any) -> None:
    one, other = study.base, replace_fields(study.base, {field: value})
    assert (list_meaning(one) == list_meaning(other)) == (fingerprint(one) == fingerprint(other))


def test_a_declared_field_covers_what_it_contains_and_no_namesake() -> None:
    assert covers(["method"], "method.init.gain")
    assert covers(["train.steps"], "train.steps")
    assert not covers(["train.step"], "train.steps")


def test_a_cell_keeps_numbers_and_text_apart(study: Study) -> None:
    swept = study.model_copy(update={"axes": {"model.positions": ("rope",), "model.dropout": (0.1,)}})
    assert cell_of(swept, swept.runs()[0]) == (("model.positions", '"rope"'), ("model.dropout", "0.1"))


def in_precision(run: Any, precision: str) -> Any:
    """Return a run of the precision `auto` as it is bound on some machine."""
    return replace_fields(run, {"train.precision": precision, "train.chose_precision": True})


def test_runs_that_auto_gave_different_precisions_are_not_compared(study: Study, make_record: Any) -> None:
    auto = study.model_copy(update={"base": replace_fields(study.base, {"train.precision": "auto"})})
    found = [
        (Path(str(number)), make_record(in_precision(run, "bf16" if run.arm == "oelm-freeze" else "fp32")))
        for number, run in enumerate(auto.runs())
    ]
    with pytest.raises(IncomparableRuns, match=r'differ in train\.precision \("bf16", "fp32"\).*instead of \'auto\''):
        compare_records(auto, found)
    same = [(path, make_record(in_precision(record.spec, "bf16"))) for path, record in found]
    compare_records(auto, same)


def test_a_precision_that_was_chosen_and_one_that_was_declared_are_compared_where_they_are_equal(
    study: Study, make_record: Any
) -> None:
    found = [
        (Path(str(number)), make_record(in_precision(run, "fp32") if run.arm == "oelm-freeze" else run))
        for number, run in enumerate(study.runs())
    ]
    assert gather(found).comparisons


def test_a_mix_of_declared_precisions_is_refused(study: Study, make_record: Any) -> None:
    with pytest.raises(IncomparableRuns, match=r"differ in train\.precision"):
        compare_records(study, changed(study, make_record, "train.precision", "bf16"))
