"""Arms, axes and seeds to runs."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from oelm.errors import InvalidSpec, UnknownName, UsageError
from oelm.record.stages import stage_of
from oelm.spec.method import METHODS, MethodSpec, named_method
from oelm.spec.run import GPT_SIZES, DataSpec, ExamplesSpec, HuggingFaceSpec, RunSpec, TrainSpec, fingerprint
from oelm.spec.study import Arm, Listing, Study, load_study, replace_fields

BASE = RunSpec(model=GPT_SIZES["nano"])


def make(**fields):
    return Study(**({"name": "s", "question": "?", "base": BASE, "arms": ("baseline", "oelm-freeze")} | fields))


def test_a_study_is_the_product_of_arms_axes_and_seeds():
    study = make(axes={"train.learning_rate": (1e-3, 1e-4), "model.num_layers": (1, 2, 3)}, seeds=(0, 1))
    runs = study.runs()
    assert len(runs) == 2 * 2 * 3 * 2
    assert len({fingerprint(run) for run in runs}) == len(runs)
    assert all(run.method == METHODS[run.arm] for run in runs)


def test_whole_pairs_of_arms_come_first():
    assert [(run.arm, run.seed) for run in make(seeds=(0, 1)).runs()] == [
        ("baseline", 0),
        ("oelm-freeze", 0),
        ("baseline", 1),
        ("oelm-freeze", 1),
    ]


def test_an_arm_may_change_fields_of_the_model():
    thin = Arm(name="thin", method=METHODS["baseline"], model={"qk_head_size": 2})
    runs = make(arms=("baseline", thin)).runs()
    assert [run.model.qk_head_size for run in runs] == [None, 2]


def test_a_study_survives_json():
    study = make(axes={"seed": (1,)}, seeds=(3,))
    assert Study.model_validate_json(study.model_dump_json()) == study


def test_one_run_declared_twice_is_refused():
    same = Arm(name="again", method=METHODS["baseline"])
    with pytest.raises(InvalidSpec, match="'baseline' and 'again'"):
        make(arms=("baseline", same)).runs()


RESOLVED = BASE.model_copy(update={"data": DataSpec(checksum="c0ffee")})
HUGGING_FACE = BASE.model_copy(
    update={"model": HuggingFaceSpec(name="mine", checksum="c0ffee"), "data": ExamplesSpec()}
)
EPOCHS = BASE.model_copy(update={"train": TrainSpec(epochs=2, steps=70)})


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"base": RESOLVED}, "'baseline' with data.checksum='c0ffee', .* Leave it out"),
        ({"axes": {"data.checksum": ("c0ffee",)}}, "data.checksum='c0ffee'"),
        ({"base": HUGGING_FACE}, "model.checksum='c0ffee', .* Leave it out"),
        ({"base": EPOCHS}, "train.steps=70, in addition to train.epochs=2.0, .* Leave one of them out"),
        (
            {"axes": {"train.steps": (1000, 70), "train.epochs": (2.0,)}},
            "train.steps=70, in addition to train.epochs=2.0",
        ),
    ],
)
def test_a_study_cannot_declare_fields_that_resolving_a_run_fills_in(fields, words):
    with pytest.raises(InvalidSpec, match=words):
        make(**fields).runs()
    if "base" in fields:
        with pytest.raises(InvalidSpec, match=words):
            Listing(name="l", question="?", listed=(fields["base"].model_copy(update={"label": "baseline"}),)).runs()
        tuned = make(**fields, tuned={"train.learning_rate": (1e-3, 2e-3)}, tuning_seeds=(1,))
        with pytest.raises(InvalidSpec, match=words):
            stage_of(tuned, {})


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"arms": ("baseline", "baseline")}, "share a name"),
        (
            {"arms": "oelm+bias+mix"},
            r"one name and not a tuple of names; a tuple of one needs a comma: \('oelm\+bias\+mix',\)",
        ),
        ({"reference": "nobody"}, "none of the arms"),
        ({"seeds": ()}, "seeds is empty"),
        ({"axes": {"train.steps": ()}}, "train.steps is empty"),
    ],
)
def test_a_study_that_is_not_a_matrix_is_refused(fields, words):
    with pytest.raises(ValidationError, match=words):
        make(**fields)


@pytest.mark.parametrize("name", ["", " ", "../escaped", "/absolute", "a/b", "a\\b", ".", "..", ".hidden"])
def test_a_name_that_cannot_be_a_folder_is_refused(name):
    for declare in (
        make,
        lambda **fields: Listing(question="?", listed=(BASE.model_copy(update={"label": "A"}),), **fields),
    ):
        with pytest.raises(ValidationError, match="the runs of a study go into a folder of its name"):
            declare(name=name)
        assert declare(name="gap-1.5 (a:b)").name == "gap-1.5 (a:b)"


def test_an_axis_of_an_unknown_field_suggests_the_nearest():
    with pytest.raises(UnknownName, match="Did you mean 'train.learning_rate'"):
        make(axes={"train.learnig_rate": (1,)}).runs()
    with pytest.raises(UnknownName, match="field of a run"):
        replace_fields(BASE, {"seed.deeper": 1})


def test_a_value_that_does_not_fit_is_refused():
    with pytest.raises(InvalidSpec, match="train.steps=-1 does not fit"):
        make(axes={"train.steps": (-1,)}).runs()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def rate():\n    return 1 / 0\n\nrate()", r"^line 2 of .*study\.py raised ZeroDivisionError while"),
        ("\nimport json\njson.loads('{')", r"^line 3 of .*study\.py raised JSONDecodeError"),
        ("\nx = (", r"study\.py raised SyntaxError while it was read: .* \(study.py, line 2\)"),
        ("study = 3", "does not define `study`"),
        ("import oelm\nstudy = oelm.Study()", r"^line 2 of .*study\.py does not declare a valid study: name: Field"),
        ("import oelm\noelm.named_method('x')", r"^line 2 of .*study\.py: There is no method named 'x'\."),
    ],
)
def test_an_error_in_a_study_file_names_the_line_and_the_reason(tmp_path, text, words):
    path = tmp_path / "study.py"
    path.write_text(text)
    with pytest.raises(UsageError, match=words):
        load_study(path)


def test_a_missing_study_file_says_what_one_is():
    with pytest.raises(UsageError, match="oelm new study NAME"):
        load_study(Path("nowhere.py"))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tuned": {"train.learning_rate": (1e-3,)}}, "tuning_seeds"),
        ({"tuned": {"train.learning_rate": ()}, "tuning_seeds": (9,)}, "is empty"),
        ({"tuned": {"train.learning_rate": (1e-3,)}, "tuning_seeds": (0,)}, "fresh seeds"),
        ({"tuned": {"train.steps": (10,)}, "axes": {"train.steps": (10,)}, "tuning_seeds": (9,)}, "axis and tuned"),
        ({"family": ("nobody",)}, "nobody"),
        ({"tuned": {"method.rates.roles": ({}, {"v": 0.5})}, "tuning_seeds": (9,)}, "make an arm of each"),
    ],
)
def test_stages_that_make_no_sense_are_refused_in_words(study, fields, words):
    with pytest.raises(ValidationError, match=words):
        Study(**{**study.__dict__, **fields})


def test_a_tuned_field_that_no_run_has_is_refused_with_the_nearest_name(study):
    with pytest.raises(UnknownName, match=r"train\.learning_rate"):
        Study(**{**study.__dict__, "tuned": {"train.learning_rat": (1e-3,)}, "tuning_seeds": (9,)})


def test_a_file_may_declare_its_study_at_several_scales(tmp_path):
    path = tmp_path / "scaled.py"
    path.write_text(
        "from oelm import RunSpec, Study\nfrom oelm.spec.run import named_size\n"
        "def at(size):\n"
        "    base = RunSpec(model=named_size(size))\n"
        "    return Study(name='scaled-' + size, question='?', base=base, arms=('baseline',))\n"
        "study = at('medium-512')\nscales = {'mini': at('mini')}\n"
    )
    assert load_study(path).name == "scaled-medium-512"
    assert load_study(path, "mini").name == "scaled-mini"
    with pytest.raises(UnknownName, match="Did you mean 'mini'"):
        load_study(path, "minni")


def test_a_scale_of_a_file_that_has_none_is_refused_without_an_empty_list(tmp_path):
    path = tmp_path / "plain.py"
    path.write_text(
        "from oelm import RunSpec, Study\nfrom oelm.spec.run import named_size\n"
        "study = Study(name='plain', question='?', base=RunSpec(model=named_size('nano')), arms=('baseline',))\n"
    )
    with pytest.raises(UsageError, match=r"--scale foo was given, but .*plain\.py declares one study and no scales\."):
        load_study(path, "foo")


def test_a_listing_needs_a_label_for_every_run(study):
    run = study.runs()[0]
    with pytest.raises(ValidationError, match="label of its own"):
        Listing(name="l", question="?", listed=(run,))
    twice = tuple(run.model_copy(update={"label": label}) for label in ("A", "B"))
    with pytest.raises(InvalidSpec, match="one run twice"):
        Listing(name="l", question="?", listed=twice).runs()


def test_fields_that_fit_only_together_are_replaced_together():
    arm = Arm(name="six", method=named_method("baseline"), model={"num_heads": 6, "model_dim": 96})
    runs = make(arms=("baseline", arm)).runs()
    assert {(run.model.num_heads, run.model.model_dim) for run in runs if run.arm == "six"} == {(6, 96)}


@pytest.mark.parametrize("field", ["model.num_heads", "model"])
def test_an_arm_whose_model_the_study_varies_is_refused(study, field):
    values = {"model.num_heads": (2, 4), "model": (study.base.model,)}
    arms = (*study.arms, Arm(name="more-heads", method=MethodSpec(), model={"num_heads": 8}))
    with pytest.raises(ValidationError, match="would not have the values that the arm sets"):
        Study(**{**study.model_dump(), "arms": arms, "axes": {field: values[field]}})
