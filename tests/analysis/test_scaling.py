"""Fits over sizes and what they predict, against closed forms, scipy and simulation."""

import json
import math

import numpy as np
import pytest
from scipy import stats

from oelm.analysis.compare import compare_folder, compare_records
from oelm.analysis.scaling import (
    PREDICTION,
    Observation,
    Series,
    extrapolate,
    hull_of_predictions,
    predictions,
    read_prediction,
    series_of,
    size_of,
    write_prediction,
)
from oelm.errors import BadRecord
from oelm.record.folder import find_records
from oelm.record.stages import index_by_declaration, stage_of
from oelm.report.sections import scaling_sections
from oelm.report.study import verdict_section
from oelm.report.wording import wording
from oelm.runs.board import Board
from oelm.spec.run import DataSpec, GPTSpec, RunSpec, TrainSpec, block_parameters, named_size, steps_for
from oelm.spec.study import Study

LADDER = ((300_000, 6), (670_000, 3), (1_190_000, 2))
HELD = 2_670_000


def make(truth, quantity="loss", noise=0.0, seed=0, ladder=LADDER, ratio=20.0):
    draw = np.random.default_rng(seed)
    points = tuple(
        Observation(str(number), number, ratio, tuple(truth(number) + noise * draw.standard_normal(count)))
        for number, count in ladder
    )
    return Series(quantity, "arm", points)


def test_each_form_finds_its_own_law_again():
    power, offset, line = (
        lambda n: 60 * n**-0.2,
        lambda n: 2 + 40 * n**-0.25,
        lambda n: 0.3 - 0.01 * math.log(n),
    )
    for truth, quantity, form in ((power, "loss", "power"), (offset, "loss", "offset"), (line, "freezing", "line")):
        series = make(truth, quantity, noise=1e-7)
        found = {item.form: item for item in predictions(series, HELD, 20, 1)}
        assert found[form].value == pytest.approx(truth(HELD), rel=2e-3)


def test_a_line_has_the_interval_of_the_textbook():
    series = make(lambda n: 0.3 - 0.01 * math.log(n), "freezing", noise=0.004, seed=3)
    x = np.array([math.log(point.parameters) for point in series.points for _ in point.values])
    y = np.array([value for point in series.points for value in point.values])
    fit = stats.linregress(x, y)
    new, residual = math.log(HELD), y - fit.intercept - fit.slope * x
    deviation = math.sqrt((residual**2).sum() / (len(y) - 2))
    spread = deviation * math.sqrt(1 / 2 + 1 / len(y) + (new - x.mean()) ** 2 / ((x - x.mean()) ** 2).sum())
    half = stats.t.ppf(0.975, len(y) - 2) * spread
    found = next(item for item in predictions(series, HELD, 20, 2) if item.form == "line")
    assert found.value == pytest.approx(fit.intercept + fit.slope * new)
    assert (found.low, found.high) == pytest.approx((found.value - half, found.value + half))


@pytest.mark.programs
@pytest.mark.parametrize(
    ("truth", "quantity", "form"),
    [
        (lambda n: 60 * n**-0.2, "loss", "power"),
        (lambda n: 2 + 40 * n**-0.25, "loss", "offset"),
        (lambda n: 0.3 - 0.01 * math.log(n), "freezing", "line"),
    ],
)
def test_prediction_intervals_hold_what_comes_out_about_as_often_as_they_say(truth, quantity, form):
    draw, hits, trials, noise = np.random.default_rng(1), 0, 250, 0.01
    for trial in range(trials):
        series = make(truth, quantity, noise=noise, seed=trial)
        outcome = truth(HELD) + noise * draw.standard_normal(2).mean()
        found = next(item for item in predictions(series, HELD, 20, 2) if item.form == form)
        hits += found.low <= outcome <= found.high
    assert 0.92 <= hits / trials <= 0.985  # 0.95 with a standard error of 0.014; the profile may be a little wide


def test_a_mean_just_below_zero_does_not_narrow_the_prediction():
    draw = np.random.default_rng(0)
    first = [
        Observation(str(n), n, 20, tuple(m + 0.001 * draw.standard_normal(3))) for n, m in ((3e5, 0.02), (6e5, 0.01))
    ]
    widths = []
    for last in (0.0004, -0.0004):
        series = Series("freezing", "arm", (*first, Observation("last", 1_190_000, 20, (last - 1e-3, last + 1e-3))))
        found = hull_of_predictions(predictions(series, HELD, 20, 1))
        widths.append(found.high - found.low)
    assert widths[0] == pytest.approx(widths[1], rel=0.2)


def test_the_answer_is_the_envelope_of_the_forms():
    found = predictions(make(lambda n: 2 + 40 * n**-0.25, noise=0.01), HELD, 20, 2)
    both = hull_of_predictions(found)
    assert len(found) == 2
    assert both.low == min(item.low for item in found)
    assert both.high == max(item.high for item in found)
    assert hull_of_predictions([]) is None


def test_a_form_is_left_out_where_it_cannot_be_fitted():
    two = make(lambda n: 60 * n**-0.2, noise=0.01, ladder=LADDER[:2])
    assert [item.form for item in predictions(two, HELD, 20, 1)] == ["power"]
    draw = np.random.default_rng(0)
    points = [
        Observation("", n, ratio, tuple(0.001 * draw.standard_normal(3))) for n, _ in LADDER for ratio in (5.0, 20.0)
    ]
    of_both_signs = Series("freezing", "arm", tuple(points))  # fitted in logarithms, because tokens vary, too
    assert [item.form for item in predictions(of_both_signs, HELD, 20, 1)] == ["line"]
    one_seed = make(lambda n: 60 * n**-0.2, ladder=((300_000, 1), (670_000, 1)))
    assert predictions(one_seed, HELD, 20, 1) == []


def test_tokens_per_parameter_are_a_term_of_their_own_where_they_vary():
    def truth(number, ratio):
        return 0.3 - 0.01 * math.log(number) - 0.02 * math.log(ratio)

    draw = np.random.default_rng(0)
    points = tuple(
        Observation(f"{number}/{ratio}", number, ratio, tuple(truth(number, ratio) + 1e-5 * draw.standard_normal(3)))
        for number in (300_000, 670_000, 1_190_000)
        for ratio in (5.0, 20.0)
    )
    found = next(item for item in predictions(Series("freezing", "arm", points), HELD, 40, 1) if item.form == "line")
    assert found.value == pytest.approx(truth(HELD, 40), abs=1e-4)


def test_an_extrapolation_carries_differences_to_the_published_size():
    content = make(lambda n: 0.01 * math.log(n / 1e4), "content", noise=1e-4)
    far = extrapolate([make(lambda n: 60 * n**-0.2), content])
    assert [(item.quantity, item.size, item.seeds) for item in far] == [("content", "medium-512", 1)]
    published = block_parameters(named_size("medium-512"))
    assert published == pytest.approx(18.9e6, rel=0.01)
    assert far[0].forms == tuple(predictions(content, published, 20, 1))
    assert far[0].low < 0.01 * math.log(published / 1e4) < far[0].high


def test_what_the_sizes_do_not_bound_is_not_extrapolated():
    steep = make(lambda n: 1e-15 * n**2.5, "freezing", noise=1e-4)
    assert {form.form: form.is_open for form in predictions(steep, HELD, 20, 1)} == {"power": True, "line": False}
    (far,) = extrapolate([steep])
    assert [form.form for form in far.forms] == ["line"]


def test_ladders_that_reach_the_published_size_are_not_extrapolated():
    published = block_parameters(named_size("medium-512"))
    reaching = make(lambda n: 0.01 * math.log(n), "content", 1e-4, ladder=(*LADDER[:2], (published, 2)))
    assert extrapolate([reaching]) == []


def test_two_sizes_or_unequal_tokens_are_not_extrapolated():
    assert extrapolate([make(lambda n: 1e-7 * n, "content", noise=1e-4, ladder=LADDER[:2])]) == []
    mixed = make(lambda n: 1e-7 * n, "content", noise=1e-4)
    mixed = Series("content", "arm", (*mixed.points[:2], make(lambda n: 1e-7 * n, "content", ratio=5).points[2]))
    assert extrapolate([mixed]) == []


def small_ladder(**fields):
    model = GPTSpec(context=32, num_layers=2, vocab_size=97, model_dim=8, num_heads=1)
    sizes = {
        str(width): {
            "model.model_dim": width,
            "model.num_heads": width // 8,
            "train.steps": steps_for(20, model.model_copy(update={"model_dim": width, "num_heads": width // 8}), 8),
        }
        for width in (8, 16, 32, 64)
    }
    declared = {
        "name": "ladder",
        "question": "?",
        "base": RunSpec(model=model, train=TrainSpec(steps=100, warmup_steps=10)),
        "arms": ("baseline", "baseline+features", "position-only", "oelm-fast", "oelm-freeze"),
        "sizes": sizes,
        "seeds": (0, 1, 2),
        "size_seeds": {"32": 2, "64": 1},
        "held_back": ("64",),
    }
    return Study(**declared | fields)


EXTRA = {"baseline": 0.01, "baseline+features": 0.0, "position-only": 0.1, "oelm-fast": 0.03, "oelm-freeze": 0.2}


def loss_of(run):
    parameters, _ = size_of(run)
    wobble = 1e-3 * math.sin(1 + 7 * run.seed + run.model.model_dim + len(run.arm))
    return 1.5 + 5 * parameters**-0.2 + EXTRA[run.arm] + wobble


def test_the_quantities_of_a_ladder_are_gathered_by_what_the_arms_are(make_record):
    study = small_ladder()
    records = [(f"/{number}", make_record(run, loss_of(run))) for number, run in enumerate(study.runs())]
    found = {(item.quantity, item.arm): item for item in series_of(compare_records(study, records))}
    assert {key for key in found if key[0] != "loss"} == {
        ("content", "position-only"),
        ("freezing", "oelm-fast"),
        ("lost", "oelm-fast"),
        ("freezing", "oelm-freeze"),
    }
    assert found["content", "position-only"].points[0].mean == pytest.approx(0.1, abs=3e-3)
    assert found["freezing", "oelm-freeze"].points[0].mean == pytest.approx(0.19, abs=3e-3)
    assert found["lost", "oelm-fast"].points[0].mean == pytest.approx(0.3, abs=0.03)
    assert [len(point.values) for point in found["loss", "baseline"].points] == [3, 3, 2, 1]
    assert found["loss", "baseline"].points[0].ratio == pytest.approx(20, rel=0.02)


def bind(run):
    return run.model_copy(update={"data": run.data.model_copy(update={"checksum": "c0ffee"})})


@pytest.fixture
def ladder(tmp_path, write_run):
    study = small_ladder(base=small_ladder().base.model_copy(update={"data": DataSpec(corpus="stories")}))
    own = [run for run in study.runs() if study.size_of(run) != "64"]
    for run in own[:-1]:
        write_run(run, loss_of(run))
    return study, tmp_path / "runs", own[-1]


def sizes_of(board):
    return {board.study.size_of(entry.run) for entry in board.entries}


def test_held_back_runs_wait_until_all_others_have_ended_and_the_prediction_is_written(ladder, write_run):
    study, root, last = ladder
    board = Board(study, root, bind=bind)
    assert "64" not in sizes_of(board)
    assert not (root / PREDICTION).exists()
    write_run(last, loss_of(last))
    later = Board(study, root, bind=bind)
    assert "64" in sizes_of(later)
    found = read_prediction(root)
    assert found.held_back == ("64",)
    assert len(found.rests_on) == 5 * (3 + 3 + 2)
    assert {(item.quantity, item.arm) for item in found.predicted} >= {
        ("loss", "baseline"),
        ("content", "position-only"),
        ("freezing", "oelm-fast"),
        ("lost", "oelm-fast"),
    }
    truth = next(run for run in study.runs() if study.size_of(run) == "64" and run.arm == "oelm-freeze")
    loss = next(item for item in found.predicted if (item.quantity, item.arm) == ("loss", "oelm-freeze"))
    assert loss.low <= loss_of(truth) <= loss.high


def test_a_running_board_takes_up_the_held_back_size_by_itself(ladder, write_run):
    study, root, last = ladder
    board = Board(study, root, bind=bind)
    write_run(last, loss_of(last))
    for entry in list(board.entries):
        board.refresh(entry)
    assert board.advance()
    assert "64" in sizes_of(board)


def test_those_who_only_look_see_every_run_and_write_nothing(ladder, write_run):
    study, root, last = ladder
    write_run(last, loss_of(last))
    assert "64" in sizes_of(Board(study, root))
    assert not (root / PREDICTION).exists()


def test_a_prediction_is_never_overwritten(ladder, write_run):
    study, root, last = ladder
    write_run(last, loss_of(last))
    first = write_prediction(study, root)
    text = (root / PREDICTION).read_text()
    write_run(last, loss_of(last) + 1)
    assert write_prediction(study, root) == first
    assert (root / PREDICTION).read_text() == text
    assert json.loads(text)["study"] == "ladder"
    (root / PREDICTION).write_text("{")
    with pytest.raises(BadRecord, match="Restore the file"):
        read_prediction(root)


def test_the_prediction_does_not_look_at_the_held_back_size(ladder, write_run, tmp_path):
    study, root, last = ladder
    write_run(last, loss_of(last))
    blind = write_prediction(study, root)
    (root / PREDICTION).unlink()
    assert isinstance(study, Study)
    for run in study.runs():
        if study.size_of(run) == "64":
            write_run(run, 9.0)
    seeing = write_prediction(study, root)
    assert seeing.predicted == blind.predicted
    assert seeing.rests_on == blind.rests_on


@pytest.mark.programs
@pytest.mark.parametrize(("lang", "words"), [("en", "measured"), ("zh", "实际结果")])
def test_the_report_shows_prediction_and_outcome_side_by_side(ladder, write_run, tmp_path, lang, words):
    study, root, last = ladder
    write_run(last, loss_of(last))
    before = {section.anchor: section for section in scaling_sections(compare_folder(study, root), root, lang)}
    assert len(before["scaling"].paragraphs) == 2  # what it shows, and that a size is held back
    write_prediction(study, root)
    later = {"started": "2999-01-01T00:00:00+00:00"}
    for run in study.runs():
        if study.size_of(run) == "64":
            shift = 1.0 if run.arm == "oelm-freeze" else 0.0
            write_run(run, loss_of(run) + shift, **later)
    section, far = scaling_sections(compare_folder(study, root), root, lang)
    assert section.table.columns[-1].heading == words
    carried = {wording(lang)(f"scaling_{quantity}") for quantity in ("content", "freezing")}
    assert {line.cells[:2] for line in far.table.lines} == {
        line.cells[:2] for line in section.table.lines if line.cells[0] in carried
    }
    assert "18,902,016" in far.paragraphs[0]
    by_name = {line.cells[:2]: line.cells for line in section.table.lines}
    inside, outside = (wording(lang)(f"scaling_{where}", value="").strip() for where in ("inside", "outside"))
    loss = wording(lang)("scaling_loss")
    assert by_name[loss, "baseline"][-1].endswith(inside)
    assert by_name[loss, "oelm-freeze"][-1].endswith(outside)
    assert wording(lang)("scaling_first") in section.paragraphs
    assert section.figure.svg.startswith("<svg")


def test_a_held_back_run_that_started_before_the_prediction_is_reported(ladder, write_run):
    study, root, last = ladder
    write_run(last, loss_of(last))
    write_prediction(study, root)
    for run in study.runs():
        if study.size_of(run) == "64":
            write_run(run, loss_of(run))
    section = next(iter(scaling_sections(compare_folder(study, root), root, "en")))
    assert wording("en")("scaling_early", runs=5) in section.paragraphs


def test_the_report_of_a_study_over_draws_says_what_comes_from_the_draw(study, write_run, tmp_path):
    study = study.model_copy(update={"axes": {"draw_seed": (7, 8)}})
    for run in study.runs():
        write_run(run, 2 + 0.01 * run.seed + 0.1 * run.draw_seed * (run.arm == "oelm-freeze") + 1e-4 * len(run.arm))
    root = tmp_path / "runs"
    section = next(iter(scaling_sections(compare_folder(study, root), root, "en")))
    assert section.anchor == "draws"
    assert {line.cells[0]: line.cells[1] for line in section.table.lines}["baseline"] == "0.0 %"


@pytest.mark.parametrize(("checked", "expected"), [((), True), (("16",), False)])
def test_a_report_names_the_sizes_whose_tuned_values_were_only_taken_over(tmp_path, write_run, checked, expected):
    plain, root = small_ladder(), tmp_path / "runs"
    study = small_ladder(
        base=plain.base.model_copy(update={"data": DataSpec(corpus="stories")}),
        arms=("baseline", "oelm-fast"),
        sizes={name: plain.sizes[name] for name in ("8", "16")},
        size_seeds={},
        held_back=(),
        tuned={"train.learning_rate": (1e-3, 2e-3, 4e-3)},
        tuning_seeds=(100,),
        tuned_at=("8",),
        checked_at=checked,
    )
    for _ in range(2):  # first the runs that tune, then those that confirm
        records = index_by_declaration(record for _, record in find_records(root)[0])
        for run in stage_of(study, records).runs:
            write_run(run, 1.5 + 100 * abs(run.train.learning_rate - 2e-3))
    paragraphs = verdict_section(compare_folder(study, root), wording("en")).paragraphs
    assert any("not tuned, nor checked: 16" in words for words in paragraphs) == expected
