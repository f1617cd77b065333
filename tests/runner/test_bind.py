"""Runs bound to what they read: data, and the weights of models that lie in a directory."""

import pytest
from safetensors.torch import load_file, save_file

from oelm.errors import BadData
from oelm.models.build import build
from oelm.runner.bind import bound
from oelm.spec.model import ForeignSpec
from oelm.spec.run import declared, fingerprint, in_precision_of
from oelm.study import replaced


@pytest.fixture
def model(tmp_path):
    build(ForeignSpec(name="bert-tiny", pretrained=False)).save_pretrained(tmp_path)
    return ForeignSpec(name=str(tmp_path))


def changed(directory):
    weights = load_file(directory / "model.safetensors")
    save_file({name: tensor + 1 for name, tensor in weights.items()}, directory / "model.safetensors")


def test_other_weights_in_the_same_directory_are_another_run(reviewing, model, tmp_path):
    run = reviewing("oelm-from-current", model)
    before = bound(run)[0]
    assert fingerprint(bound(run)[0]) == fingerprint(before)
    changed(tmp_path)
    after = bound(run)[0]
    assert fingerprint(after) != fingerprint(before)
    assert declared(after) == declared(before) == run
    with pytest.raises(BadData, match="Put the same files back"):
        bound(before)


def test_from_scratch_only_the_architecture_counts(reviewing, model, tmp_path):
    run = reviewing("oelm-freeze", model.model_copy(update={"pretrained": False}))
    before = fingerprint(bound(run)[0])
    changed(tmp_path)
    assert fingerprint(bound(run)[0]) == before


def test_a_model_known_by_its_name_has_no_checksum(reviewing):
    run = reviewing("oelm-freeze", ForeignSpec(name="bert-tiny", pretrained=False))
    assert bound(run)[0].model == run.model


@pytest.mark.parametrize(("native", "expected"), [(True, "bf16"), (False, "fp32")])
def test_a_precision_of_auto_is_resolved_when_a_run_is_bound(reviewing, monkeypatch, native, expected):
    monkeypatch.setattr("oelm.train.precision.has_native_bf16", lambda _: native)
    plain = reviewing("oelm-freeze", ForeignSpec(name="bert-tiny", pretrained=False))
    run = replaced(plain, {"train.precision": "auto"})
    resolved = bound(run)[0]
    assert (resolved.train.precision, resolved.train.chose_precision) == (expected, True)
    assert declared(resolved) == run
    assert fingerprint(resolved) == fingerprint(bound(replaced(plain, {"train.precision": expected}))[0])


def test_a_run_of_auto_precision_is_continued_in_the_one_it_began_in(reviewing, monkeypatch):
    plain = reviewing("oelm-freeze", ForeignSpec(name="bert-tiny", pretrained=False))
    run = replaced(plain, {"train.precision": "auto"})
    monkeypatch.setattr("oelm.train.precision.has_native_bf16", lambda _: True)
    begun = bound(run)[0]
    monkeypatch.setattr("oelm.train.precision.has_native_bf16", lambda _: False)
    assert fingerprint(bound(in_precision_of(run, begun))[0]) == fingerprint(begun)
    assert bound(in_precision_of(run, None))[0].train.precision == "fp32"
    assert in_precision_of(plain, begun) == plain
    # One that was declared in a precision says nothing about others.
    assert in_precision_of(run, replaced(plain, {"train.precision": "bf16"})) == run
