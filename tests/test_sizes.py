"""Named sizes: fields varied together, as one axis of a study."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from oelm.analysis.compare import compare_records
from oelm.analysis.tuning import misfits
from oelm.errors import InvalidSpec
from oelm.record.stages import follow_width, index_by_declaration, stage_of
from oelm.report.study import verdict_section
from oelm.report.wording import wording
from oelm.spec.run import GPTSpec, RunSpec, TrainSpec, block_parameters, fingerprint, steps_for
from oelm.spec.study import Study

SIZES = {
    "8": {"model.model_dim": 8, "model.num_heads": 1, "train.steps": 100},
    "16": {"model.model_dim": 16, "model.num_heads": 2, "train.steps": 200},
    "32": {"model.model_dim": 32, "model.num_heads": 4, "train.steps": 400},
}
BASE = RunSpec(model=GPTSpec(context=32, num_layers=2, vocab_size=97), train=TrainSpec(steps=100, warmup_steps=10))


def make(**fields):
    return Study(
        **{"name": "s", "question": "?", "base": BASE, "arms": ("baseline", "oelm-freeze"), "sizes": SIZES} | fields
    )


def make_tuned(**fields):
    return make(**{"tuned": {"train.learning_rate": (1e-3, 2e-3, 4e-3)}, "tuning_seeds": (100,)} | fields)


def carry_out(study, make_record, loss):
    records = {}
    while missing := [run for run in stage_of(study, records).runs if fingerprint(run) not in records]:
        records |= index_by_declaration(make_record(run, loss(run)) for run in missing)
    return stage_of(study, records), records


def test_the_fields_of_a_size_vary_together_and_not_as_a_product():
    runs = make(seeds=(0, 1)).runs()
    assert len(runs) == 3 * 2 * 2
    assert {(run.model.model_dim, run.model.num_heads, run.train.steps) for run in runs} == {
        (8, 1, 100),
        (16, 2, 200),
        (32, 4, 400),
    }


def test_sizes_and_axes_are_crossed():
    study = make(axes={"model.positions": ("learned", "rope")})
    assert len(study.runs()) == 3 * 2 * 2
    assert study.axis_names == ("size", "model.positions")
    assert study.place(study.runs()[0]) == {"size": "8", "model.positions": "learned"}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"sizes": {**SIZES, "64": {"model.model_dim": 64}}},
            "size '8' sets model.num_heads, train.steps and size '64'",
        ),
        ({"sizes": {**SIZES, "64": {**SIZES["8"], "train.batch_size": 4}}}, "size '64' sets train.batch_size and"),
        ({"sizes": {**SIZES, "again": SIZES["8"]}}, "sizes '8' and 'again' are the same"),
        ({"sizes": {"none": {}}}, "size 'none' sets no field"),
        ({"axes": {"train.steps": (1, 2)}}, "train.steps.* is set by sizes= and varied by axes="),
        ({"size_seeds": {"9": 1}}, r"size_seeds names \['9'\]"),
        ({"size_seeds": {"8": 2}}, "more seeds than the 1"),
        ({"held_back": ("64",)}, r"held_back names \['64'\]"),
        ({"held_back": ("8", "16", "32")}, "every size"),
        ({"tuned_at": ("8",)}, "no grid"),
    ],
)
def test_sizes_that_do_not_fit_together_are_refused_by_size_and_field(fields, words):
    with pytest.raises(ValidationError, match=words):
        make(**fields)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"held_back": ("32",)}, "name in tuned_at the sizes that are"),
        ({"held_back": ("32",), "tuned_at": ("8", "32")}, "is tuned and held back"),
        ({"checked_at": ("32",)}, "checked_at checks values that were tuned"),
        ({"tuned_at": ("8",), "transfer": "line"}, "at least two values of model.model_dim"),
        ({"tuned_at": ("8",), "transfer": -1.0, "tuned": {"train.weight_decay": (0.0, 0.1)}}, "takes logarithms"),
    ],
)
def test_an_impossible_transfer_is_refused(fields, words):
    with pytest.raises(ValidationError, match=words):
        make_tuned(**fields)


def test_a_size_that_no_model_can_have_is_refused_by_its_name():
    with pytest.raises(InvalidSpec, match="size '30' of study 's'.*not a multiple of num_heads"):
        make(sizes={**SIZES, "30": {**SIZES["32"], "model.model_dim": 30}})


def test_larger_sizes_can_have_fewer_seeds():
    runs = make(seeds=(0, 1, 2), size_seeds={"16": 2, "32": 1}).runs()
    seeds = {dim: {run.seed for run in runs if run.model.model_dim == dim} for dim in (8, 16, 32)}
    assert seeds == {8: {0, 1, 2}, 16: {0, 1}, 32: {0}}


def test_a_study_with_sizes_survives_json():
    study = make_tuned(tuned_at=("8", "16"), checked_at=("32",), transfer=-0.5, size_seeds={"32": 1})
    assert Study.model_validate_json(study.model_dump_json()) == study


def test_arms_are_compared_within_a_size(make_record):
    study = make(seeds=(0, 1))
    cost = {8: 0.2, 16: 0.1, 32: 0.05}
    records = [
        make_record(run, 2 + run.seed / 100 + (cost[run.model.model_dim] if run.arm == "oelm-freeze" else 0))
        for run in study.runs()
    ]
    comparison = compare_records(study, [(f"/{number}", record) for number, record in enumerate(records)])
    found = {row.cell: row.difference.mean for row in comparison.rows if row.arm == "oelm-freeze"}
    assert found == {
        (("size", f'"{dim}"'),): pytest.approx(cost, abs=1e-12) for dim, cost in ((8, 0.2), (16, 0.1), (32, 0.05))
    }


def bowl(run):
    """Return a loss that is least at a rate of 32 ms over width: 4e-3, 2e-3, 1e-3."""
    return 2 + math.log(run.train.learning_rate * run.model.model_dim / 0.032) ** 2


def test_every_size_is_tuned_separately_by_default(make_record):
    stage, _ = carry_out(make_tuned(), make_record, bowl)
    assert {(run.model.model_dim, run.train.learning_rate) for run in stage.confirm} == {
        (8, 4e-3),
        (16, 2e-3),
        (32, 1e-3),
    }
    assert [cell.axes for cell in stage.choice.cells] == [{"size": "8"}, {"size": "16"}, {"size": "32"}]


@pytest.mark.parametrize(("transfer", "rate"), [("line", 1e-3), ("nearest", 2e-3), (-1.0, 1e-3), (0.0, 2.83e-3)])
def test_other_sizes_take_the_tuned_value_by_the_rule(make_record, transfer, rate):
    stage, _ = carry_out(make_tuned(tuned_at=("8", "16"), transfer=transfer), make_record, bowl)
    assert {run.model.model_dim for run in stage.tune} == {8, 16}
    assert {run.train.learning_rate for run in stage.confirm if run.model.model_dim == 32} == {rate}
    assert [item.transferred for item in stage.choice.cells[2].arms] == [True, True]


def test_a_checked_size_is_tried_on_the_grid_and_keeps_the_transferred_value(make_record):
    study = make_tuned(tuned_at=("8", "16"), checked_at=("32",), transfer="nearest")
    stage, records = carry_out(study, make_record, bowl)
    assert {run.train.learning_rate for run in stage.tune if run.model.model_dim == 32} == {1e-3, 2e-3, 4e-3}
    assert {run.train.learning_rate for run in stage.confirm if run.model.model_dim == 32} == {2e-3}
    assert [item.best_here for item in stage.choice.cells[2].arms] == [{"train.learning_rate": 1e-3}] * 2
    comparison = compare_records(study, [(f"/{number}", record) for number, record in enumerate(records.values())])
    assert len(comparison.rows) == 6
    # 2e-3 is a whole step from the best value of the grid; the rule of the inverse width finds 1e-3.
    assert {(item.size, item.used, item.best) for item in misfits(comparison)} == {("32", 2e-3, 1e-3)}
    words = "32.*baseline .*0.002.*0.001"
    assert any(re.search(words, line) for line in verdict_section(comparison, wording("en")).paragraphs)
    fitting = make_tuned(tuned_at=("8", "16"), checked_at=("32",), transfer=-1.0)
    _, records = carry_out(fitting, make_record, bowl)
    pairs = [(f"/{number}", record) for number, record in enumerate(records.values())]
    assert misfits(compare_records(fitting, pairs)) == []


@given(base=st.floats(1e-4, 1e-1), slope=st.floats(-1.5, 0.5), width=st.sampled_from((24, 48, 256, 1024)))
def test_a_line_through_a_power_law_is_the_power_law(base, slope, width):
    study = make_tuned(tuned_at=("8", "16"), transfer="line")
    known = [(other, base * other**slope) for other in (8, 16)]
    assert follow_width(known, width, study) == pytest.approx(base * width**slope, rel=5e-3)  # three digits


@pytest.mark.parametrize(
    "spec",
    [
        GPTSpec(vocab_size=97, model_dim=24, num_heads=4, num_layers=3),
        GPTSpec(vocab_size=97, model_dim=24, num_heads=4, num_layers=2, num_key_heads=2, qk_head_size=2, norm="rms"),
        GPTSpec(vocab_size=97, model_dim=24, num_heads=4, num_layers=1, ffn_dim=10, positions="rope"),
    ],
)
def test_block_parameters_in_closed_form_are_those_of_the_model(spec):
    from oelm.models.gpt import GPT

    counted = sum(parameter.numel() for parameter in GPT(spec).blocks.parameters())
    assert block_parameters(spec) == counted
    steps = steps_for(20, spec, batch_size=4)
    assert steps * 4 * spec.context == pytest.approx(20 * counted, abs=2 * spec.context)
