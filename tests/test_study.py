"""Arms, axes and seeds to runs."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from oelm.errors import InvalidSpec, UnknownName, UsageError
from oelm.spec.method import METHODS
from oelm.spec.model import GPT_SIZES
from oelm.spec.run import RunSpec, fingerprint
from oelm.study import Arm, Study, load_study, replaced

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


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"arms": ("baseline", "baseline")}, "share a name"),
        ({"reference": "nobody"}, "none of the arms"),
        ({"seeds": ()}, "seeds is empty"),
        ({"axes": {"train.steps": ()}}, "train.steps is empty"),
    ],
)
def test_a_study_that_is_no_matrix_is_refused(fields, words):
    with pytest.raises(ValidationError, match=words):
        make(**fields)


def test_an_axis_of_an_unknown_field_suggests_the_nearest():
    with pytest.raises(UnknownName, match="Did you mean 'train.learning_rate'"):
        make(axes={"train.learnig_rate": (1,)}).runs()
    with pytest.raises(UnknownName, match="field of a run"):
        replaced(BASE, "seed.deeper", 1)


def test_a_value_that_does_not_fit_is_refused():
    with pytest.raises(InvalidSpec, match="train.steps=-1 does not fit"):
        make(axes={"train.steps": (-1,)}).runs()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1/0", "raised ZeroDivisionError"),
        ("study = 3", "binds no `study`"),
        ("import oelm\nstudy = oelm.Study()", "valid study"),
        ("import oelm\noelm.named_method('x')", "no method named"),
    ],
)
def test_a_study_file_that_is_wrong_is_told_in_words(tmp_path, text, words):
    path = tmp_path / "study.py"
    path.write_text(text)
    with pytest.raises(UsageError, match=words):
        load_study(path)


def test_a_missing_study_file_says_what_one_is():
    with pytest.raises(UsageError, match=r"studies/demo\.py"):
        load_study(Path("nowhere.py"))
