"""Runs bound to what they read: data, and the weights of models that lie in a directory."""

import os

import pytest
from safetensors.torch import load_file, save_file

from oelm.errors import BadData
from oelm.models.build import build
from oelm.runs.resolve import refuse_changed_model, resolve
from oelm.spec.run import HuggingFaceSpec, fingerprint, in_precision_of, undo_resolve
from oelm.spec.study import replace_fields


@pytest.fixture
def model(tmp_path):
    build(HuggingFaceSpec(name="bert-tiny", pretrained=False)).save_pretrained(tmp_path)
    return HuggingFaceSpec(name=str(tmp_path))


def changed(directory):
    weights = load_file(directory / "model.safetensors")
    save_file({name: tensor + 1 for name, tensor in weights.items()}, directory / "model.safetensors")


def test_other_weights_in_the_same_directory_are_another_run(reviewing, model, tmp_path):
    run = reviewing("oelm-from-current", model)
    before = resolve(run).spec
    assert fingerprint(resolve(run).spec) == fingerprint(before)
    changed(tmp_path)
    after = resolve(run).spec
    assert fingerprint(after) != fingerprint(before)
    assert undo_resolve(after) == undo_resolve(before) == run
    with pytest.raises(BadData, match="Restore the files"):
        resolve(before)


def test_from_scratch_only_the_architecture_counts(reviewing, model, tmp_path):
    run = reviewing("oelm-freeze", model.model_copy(update={"pretrained": False}))
    before = fingerprint(resolve(run).spec)
    changed(tmp_path)
    assert fingerprint(resolve(run).spec) == before


def test_a_model_known_by_its_name_has_no_checksum(reviewing):
    run = reviewing("oelm-freeze", HuggingFaceSpec(name="bert-tiny", pretrained=False))
    assert resolve(run).spec.model == run.model


@pytest.mark.parametrize(("native", "expected"), [(True, "bf16"), (False, "fp32")])
def test_a_precision_of_auto_is_resolved_when_a_run_is_bound(reviewing, monkeypatch, native, expected):
    monkeypatch.setattr("oelm.train.device.has_native_bf16", lambda _: native)
    plain = reviewing("oelm-freeze", HuggingFaceSpec(name="bert-tiny", pretrained=False))
    run = replace_fields(plain, {"train.precision": "auto"})
    resolved = resolve(run).spec
    assert (resolved.train.precision, resolved.train.chose_precision) == (expected, True)
    assert undo_resolve(resolved) == run
    assert fingerprint(resolved) == fingerprint(resolve(replace_fields(plain, {"train.precision": expected})).spec)


def test_a_run_of_auto_precision_is_continued_in_the_one_it_began_in(reviewing, monkeypatch):
    plain = reviewing("oelm-freeze", HuggingFaceSpec(name="bert-tiny", pretrained=False))
    run = replace_fields(plain, {"train.precision": "auto"})
    monkeypatch.setattr("oelm.train.device.has_native_bf16", lambda _: True)
    begun = resolve(run).spec
    monkeypatch.setattr("oelm.train.device.has_native_bf16", lambda _: False)
    assert fingerprint(resolve(in_precision_of(run, begun)).spec) == fingerprint(begun)
    assert resolve(in_precision_of(run, None)).spec.train.precision == "fp32"
    assert in_precision_of(plain, begun) == plain
    # One that was declared in a precision says nothing about others.
    assert in_precision_of(run, replace_fields(plain, {"train.precision": "bf16"})) == run


def test_the_list_of_shards_is_part_of_the_weights(reviewing, model, tmp_path):
    run = reviewing("oelm-from-current", model)
    before = fingerprint(resolve(run).spec)
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    assert fingerprint(resolve(run).spec) != before


def test_weights_that_change_between_their_check_and_their_use_are_refused(reviewing, model, tmp_path):
    run = resolve(reviewing("oelm-from-current", model)).spec
    refuse_changed_model(run.model)
    state = (tmp_path / "model.safetensors").stat()
    changed(tmp_path)
    os.utime(tmp_path / "model.safetensors", ns=(state.st_atime_ns, state.st_mtime_ns))
    with pytest.raises(BadData, match="Restore the files"):
        refuse_changed_model(run.model)
