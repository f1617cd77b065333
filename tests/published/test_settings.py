"""Every setting of the published runs, and where its value comes from."""

import json
from pathlib import Path

import pytest

from oelm.cli import dispatch
from oelm.errors import UnknownName
from oelm.published import claims as module
from oelm.published.claims import BASES, published, published_run, published_settings, setting_values, settings_page
from oelm.spec.run import RunSpec, TrainSpec, named_size
from oelm.spec.study import load_study
from oelm.train.loop import learning_rate

ROOT = Path(__file__).parents[2]
RUNS = load_study(ROOT / "studies/published.py").listed


def value(label, field):
    run = next(run for run in RUNS if run.label.startswith(label))
    return dict(setting_values(run))[field]


def test_no_setting_of_the_published_runs_is_without_a_source():
    assert {published_run(run).id for run in RUNS} == {run.id for run in published().runs}
    for run in RUNS:
        found = published_settings(run)
        assert {setting.field for setting in found} == {field for field, _ in setting_values(run)}
        assert all(setting.where for setting in found)
        train = {f"train.{name}" for name in TrainSpec.model_fields}
        assert train <= {setting.field for setting in found}


def test_a_setting_without_a_source_is_refused_by_name(monkeypatch):
    kept = tuple(source for source in published().settings if "train.betas" not in source.fields)
    monkeypatch.setattr(module, "published", lambda: published().model_copy(update={"settings": kept}))
    with pytest.raises(UnknownName, match=r"train\.betas"):
        published_settings(RUNS[0])


def test_every_source_is_used():
    fields = {field for run in RUNS for field, _ in setting_values(run)}
    for source in published().settings:
        assert set(source.fields) <= fields, source.fields


def test_a_run_that_is_not_published_has_no_sources():
    assert published_settings(RunSpec(model=named_size("nano"))) == ()


def test_the_page_is_current():
    assert (ROOT / "docs/published-settings.md").read_text() == settings_page(RUNS)


def test_the_settings_are_printed_as_text_and_as_json_with_their_sources(capsys):
    argv = ["plan", str(ROOT / "studies/published.py"), "--only", "XNLI-02", "--settings"]
    assert dispatch(argv) == 0
    assert "train.accumulation       2                         the launch command sets it: " in capsys.readouterr().out
    assert dispatch([*argv, "--json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert {setting["field"]: setting["value"] for setting in run["settings"]} == dict(
        setting_values(next(each for each in RUNS if each.label == run["run"]))
    )
    assert all(setting["where"] and setting["basis"] in BASES for setting in run["settings"])


@pytest.mark.parametrize("field", ["train.steps", "train.warmup_steps"])
def test_a_value_that_another_setting_replaces_is_not_given_a_published_source(field):
    (source,) = {s for run in RUNS if run.data.kind != "text" for s in published_settings(run) if s.field == field}
    assert source.basis == "ours"
    assert source.where.startswith("without effect: ")


def test_the_baselines_are_what_the_public_code_trained():
    methods = [(published_run(run).id, run.arm) for run in RUNS]
    assert ("XNLI-01", "random-trained") in methods
    for name in ("SST-2-01", "MNLI-01"):
        assert {arm for found, arm in methods if found == name} == {"orthogonal-from-current-trained", "random-trained"}
    for run in published().runs:
        assert {arm for name, arm in methods if name == run.id} == {run.method, run.or_method or run.method}


def test_the_bert_rows_have_the_published_settings():
    for label, batch in (("XNLI", "16"), ("SST-2", "32"), ("MNLI", "32")):
        assert value(label, "train.batch_size") == batch
        assert value(label, "train.warmup_fraction") == "0.1"
        assert value(label, "train.eval_every") == "500"
        assert value(label, "data.token_types") == "no"
    assert value("XNLI-02", "train.accumulation") == "2"


def test_the_schedule_of_xnli_02_is_counted_in_micro_batches():
    """The published program: int(0.1 * 147264) steps of warm-up, and 73632 steps of a schedule of 147264."""
    train = next(run for run in RUNS if run.label.startswith("XNLI-02")).train.model_copy(update={"steps": 73_632})
    assert (train.warmup, train.schedule_steps) == (14_726, 147_264)
    for step in (0, 1, 7_000, 14_725, 14_726, 40_000, 73_631):
        theirs = step / 14_726 if step < 14_726 else (147_264 - step) / (147_264 - 14_726)
        assert learning_rate(train, step) == pytest.approx(1e-4 * theirs, rel=1e-12)


def test_the_schedules_of_the_other_rows_are_those_of_transformers():
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    train = TrainSpec(steps=105, warmup_fraction=0.1, warmup_from_zero=True, decay="linear", learning_rate=2e-5)
    adam = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=2e-5)
    schedule = transformers.get_linear_schedule_with_warmup(adam, 10, 105)
    for step in range(105):
        assert learning_rate(train, step) == pytest.approx(schedule.get_last_lr()[0], abs=1e-15)
        adam.step()
        schedule.step()
