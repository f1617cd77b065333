"""A study is registered once, before its first confirming run, and says when it has changed since."""

import json
import multiprocessing

import pytest

from oelm.errors import BadRecord, StudyChanged, UsageError
from oelm.files import digest, parse_checked, strip_checksum
from oelm.record.folder import REGISTERED, STUDY, find_records, write_study
from oelm.record.keep import keep
from oelm.record.registration import (
    format_differences,
    is_older,
    is_registrable,
    read_registration,
    refuse_changed,
    register_study,
    registration_of,
    study_differences,
)
from oelm.record.stages import index_by_declaration, stage_of
from oelm.spec.study import Arm, Listing


def changed(study, **fields):
    return type(study)(**{**study.__dict__, **fields})


def test_a_registration_holds_the_whole_study_its_digest_the_commit_and_the_time(study, tmp_path):
    record = register_study(tmp_path, study, None)
    assert record == read_registration(tmp_path)
    assert record.study == json.loads(study.model_dump_json())
    assert record.digest == digest(record.study)
    assert record.registered.endswith("+00:00")
    assert record.commit
    assert len(record.commit) == 40
    assert record.oelm
    assert record.margin_resolved is None


def test_a_registration_is_never_written_again(study, tmp_path):
    register_study(tmp_path, study, None)
    before = (tmp_path / REGISTERED).read_bytes()
    register_study(tmp_path, study, None)
    assert (tmp_path / REGISTERED).read_bytes() == before


def test_the_choice_of_tuning_is_registered_and_another_one_is_refused(tuned_study, tmp_path, write_run):
    study = tuned_study()
    for run in stage_of(study, {}).tune:
        write_run(run, loss=2 + abs(run.train.learning_rate - 2e-3))
    records = index_by_declaration(record for _, record in find_records(tmp_path / "runs")[0])
    choice = stage_of(study, records).choice
    record = register_study(tmp_path, study, choice)
    assert record.choice == choice
    (cell,) = choice.cells
    first = cell.arms[0].model_copy(update={"values": {"train.learning_rate": 4e-3}})
    other = choice.model_copy(update={"cells": (cell.model_copy(update={"arms": (first, *cell.arms[1:])}),)})
    with pytest.raises(StudyChanged, match=r"choice\[baseline\].train.learning_rate: registered 0.002, now 0.004"):
        register_study(tmp_path, study, other)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"seeds": (0, 1, 2, 3)}, "seeds: registered [0, 1, 2], now [0, 1, 2, 3]"),
        ({"margin": 2.0}, "margin: registered nothing, now 2.0"),
        ({"family": ("oelm-freeze",)}, 'family: registered nothing, now ["oelm-freeze"]'),
        ({"arms": ("baseline", "oelm-freeze", "uniform")}, 'arms[uniform].name: registered nothing, now "uniform"'),
        ({"arms": ("baseline",)}, 'arms[oelm-freeze].name: registered "oelm-freeze", now nothing'),
        ({"axes": {"train.steps": (100, 200)}}, "axes[train.steps]: registered nothing, now [100, 200]"),
        ({"question": "Another one?"}, 'question: registered "What does freezing cost?", now "Another one?"'),
    ],
)
def test_an_edited_study_is_refused_with_its_exact_differences(study, tmp_path, fields, words):
    register_study(tmp_path, study, None)
    write_study(tmp_path, study)
    before = {name: (tmp_path / name).read_bytes() for name in (REGISTERED, STUDY)}
    edited = changed(study, **fields)
    with pytest.raises(StudyChanged) as refused:
        refuse_changed(tmp_path, edited)
    assert words in str(refused.value)
    assert "new name" in str(refused.value)
    write_study(tmp_path, edited)
    assert before == {name: (tmp_path / name).read_bytes() for name in (REGISTERED, STUDY)}


def test_an_arm_of_the_same_name_and_another_method_is_a_difference(study, tmp_path):
    record = register_study(tmp_path, study, None)
    twin = Arm(name="oelm-freeze", method=changed(study, arms=("uniform", "baseline")).arms[0].method)
    found = study_differences(record, changed(study, arms=(study.arms[0], twin)))
    assert found
    assert all(field.startswith("arms[oelm-freeze].method.") for field, _, _ in found)


def test_where_the_data_lie_and_the_order_of_the_arms_change_nothing(study, tmp_path):
    record = register_study(tmp_path, study, None)
    data = study.base.data.model_copy(update={"directory": tmp_path})
    moved = changed(study, base=study.base.model_copy(update={"data": data}), arms=study.arms[::-1])
    assert study_differences(record, moved) == []


def test_a_field_of_the_base_run_is_named_with_its_path(study, tmp_path):
    record = register_study(tmp_path, study, None)
    train = study.base.train.model_copy(update={"steps": 7})
    edited = changed(study, base=study.base.model_copy(update={"train": train}))
    assert format_differences(study_differences(record, edited)) == "base.train.steps: registered 100, now 7"


def test_screens_and_listings_are_not_registered(study, tuned_study):
    assert is_registrable(study)
    assert not is_registrable(tuned_study(seeds=()))
    run = study.runs()[0].model_copy(update={"label": "one"})
    assert not is_registrable(Listing(name="list", question="?", listed=(run,)))


def test_an_edited_registration_is_not_believed(study, tmp_path):
    register_study(tmp_path, study, None)
    plain = parse_checked((tmp_path / REGISTERED).read_bytes())
    plain["study"]["margin"] = 50.0
    (tmp_path / REGISTERED).write_text(json.dumps(plain))
    with pytest.raises(BadRecord, match="was edited"):
        read_registration(tmp_path)


def test_a_torn_registration_and_one_of_a_later_version_are_told(study, tmp_path):
    register_study(tmp_path, study, None)
    whole = strip_checksum((tmp_path / REGISTERED).read_text())
    (tmp_path / REGISTERED).write_text(whole[:100])
    with pytest.raises(BadRecord, match="is not a registration"):
        read_registration(tmp_path)
    (tmp_path / REGISTERED).write_text(whole.replace('"schema_version": 1', '"schema_version": 2'))
    with pytest.raises(BadRecord, match="Update oelm"):
        read_registration(tmp_path)


def test_a_run_is_older_if_it_started_before_the_registration(study, tmp_path, make_record):
    record = register_study(tmp_path, study, None)
    old = make_record(study.runs()[0])
    new = make_record(study.runs()[0], started=record.registered)
    unknown = make_record(study.runs()[0], started="unknown")
    assert [is_older(run, record) for run in (old, new, unknown)] == [True, False, True]
    found = registration_of(tmp_path, study, None, [(tmp_path / "old", old), (tmp_path / "new", new)])
    assert [directory.name for directory, _ in found.older] == ["old"]


def _register(root, study, number, barrier, answers):
    barrier.wait()
    answers.put(
        register_study(root, study, None, margin_resolved=number).model_dump_json()
    )  # what only this one would write


def test_runners_that_register_at_once_agree_on_one(study, tmp_path):
    context = multiprocessing.get_context("fork")
    for attempt in range(5):
        barrier, answers = context.Barrier(4), context.Queue()
        root = tmp_path / str(attempt)
        runners = [context.Process(target=_register, args=(root, study, float(n), barrier, answers)) for n in range(4)]
        for runner in runners:
            runner.start()
        said = {answers.get(timeout=60) for _ in runners}
        for runner in runners:
            runner.join()
        assert said == {read_registration(root).model_dump_json()}
        assert {path.name for path in root.iterdir()} == {REGISTERED, STUDY}


def test_a_kept_study_brings_its_registration_and_does_not_replace_another(study, tmp_path):
    root, target = tmp_path / "runs", tmp_path / "kept"
    write_study(root, study)
    register_study(root, study, None)
    edited = changed(study, margin=2.0)
    keep(edited, root, [], target)
    assert (target / REGISTERED).read_bytes() == (root / REGISTERED).read_bytes()
    assert (target / STUDY).read_bytes() == (root / STUDY).read_bytes()
    other = tmp_path / "other"
    register_study(other, edited, None)
    with pytest.raises(UsageError, match="never replaced"):
        keep(edited, other, [], target)
    assert (target / REGISTERED).read_bytes() == (root / REGISTERED).read_bytes()
