"""When two runs are the same."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from oelm.files import digest
from oelm.spec import run as module
from oelm.spec.method import MethodSpec
from oelm.spec.run import GPT_SIZES, DataSpec, ExamplesSpec, GPTSpec, RunSpec, SlurmSpec, TrainSpec, fingerprint
from oelm.spec.study import replace_fields

RUN = RunSpec(model=GPT_SIZES["nano"])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("seed", 1),
        ("train.learning_rate", 0.1),
        ("train.threads", 2),
        ("train.precision", "bf16"),
        ("model.num_layers", 3),
        ("method.freeze.roles", ("q",)),
        ("data.checksum", "abc"),
        ("data.seed", 3),
        ("train.eval_every", 3),
        ("model.dropout", 0.5),
        ("method.repair.temperature", True),
    ],
)
def test_whatever_can_change_the_numbers_changes_the_fingerprint(field, value):
    assert fingerprint(replace_fields(RUN, {field: value})) != fingerprint(RUN)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("arm", "other"),
        ("label", "GPT-01"),
        ("data.directory", Path("elsewhere")),
        ("train.checkpoint_every", 3),
        ("train.track", "wandb"),
    ],
)
def test_names_places_and_how_often_to_save_do_not(field, value):
    assert fingerprint(replace_fields(RUN, {field: value})) == fingerprint(RUN)


def test_text_and_labelled_text_of_one_name_are_two_runs():
    text, labelled = (
        RunSpec(model=GPT_SIZES["nano"], data=data) for data in (DataSpec(corpus="imdb"), ExamplesSpec(corpus="imdb"))
    )
    assert fingerprint(text) != fingerprint(labelled)


def test_a_fix_that_changes_results_changes_every_fingerprint(monkeypatch):
    before = fingerprint(RUN)
    monkeypatch.setattr(module, "NUMERICS", module.NUMERICS + 1)
    assert fingerprint(RUN) != before


def test_the_fingerprint_survives_json():
    run = RUN.model_copy(update={"data": DataSpec(directory=Path("x"))})
    assert fingerprint(RunSpec.model_validate_json(run.model_dump_json())) == fingerprint(run)


def test_a_field_at_its_default_leaves_the_fingerprint_alone():
    assert fingerprint(replace_fields(RUN, {"train.weight_decay": RUN.train.weight_decay})) == fingerprint(RUN)
    assert "train" not in RUN.meaning()


def test_the_defaults_are_pinned():
    # Fingerprints leave defaults out. If a default has to change, raise NUMERICS and then this digest with it;
    # a new field belongs into this digest, too, and needs no new NUMERICS.
    defaults = [spec.model_dump(mode="json") for spec in (GPTSpec(), MethodSpec(), DataSpec(), TrainSpec())]
    assert (module.NUMERICS, digest(defaults)[:16]) == (1, "7f4fa09175dc723a")


def test_the_fingerprint_of_a_known_run_is_pinned():
    # If this fails, every record ever written has lost its identity.
    assert fingerprint(RunSpec(model=GPT_SIZES["medium-512"])) == "1f24465a574a6ada"


def test_seeds_that_are_not_set_apart_leave_a_run_what_it_was():
    run = RunSpec(model=GPTSpec(), seed=3)
    assert run.meaning() == {"model": {}, "seed": 3}
    assert {run.seed_of(purpose) for purpose in ("data", "init", "draw")} == {3}
    apart = run.model_copy(update={"draw_seed": 5})
    assert apart.seed_of("draw") == 5
    assert fingerprint(apart) != fingerprint(run)


@pytest.mark.parametrize("bad", [{"time": 4}, {"memory": 0}, {"memory": -1}, {"partitions": "gpu"}])
def test_what_no_cluster_could_grant_is_refused(bad):
    with pytest.raises(ValidationError):
        SlurmSpec(**bad)
