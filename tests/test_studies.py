"""The committed studies are valid declarations, and say what their files promise."""

import json
from pathlib import Path

import pytest

from oelm.analysis.ablation import find_rung
from oelm.record.stages import stage_of
from oelm.spec.run import block_parameters, fingerprint
from oelm.spec.study import Study, load_study

ROOT = Path(__file__).parents[1]
STUDIES = sorted((ROOT / "studies").glob("*.py"))
REFERENCE = ROOT.parent / "shared" / "reference" / "published_results.json"


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_every_study_file_declares_runs_at_each_of_its_scales(path):
    import runpy

    for scale in (None, *runpy.run_path(str(path)).get("scales", {})):
        study = load_study(path, scale)
        runs = stage_of(study, {}).runs
        assert len({fingerprint(run) for run in runs}) == len(runs) > 0
        assert len({study, *runs}) == 1 + len(runs)


@pytest.mark.parametrize(
    ("name", "scale", "expected"),
    [
        ("demo", None, "733d4a92c13569a5"),
        ("published", "mini", "0a22537b9eebbe00"),
        ("scaling", "ladder", "b94e16d75aace9eb"),
        ("sites", "bart", "e4910388fc097594"),
        ("gap", "speeches", "99714d4afbf60bf5"),
    ],
)
def test_the_fingerprints_of_declared_runs_are_pinned_because_records_are_found_by_them(name, scale, expected):
    study = load_study(ROOT / f"studies/{name}.py", scale)
    assert fingerprint(stage_of(study, {}).runs[-1]) == expected


@pytest.mark.shared
@pytest.mark.skipif(not REFERENCE.exists(), reason="needs the published figures next to the project")
def test_the_published_runs_have_the_published_settings():
    runs = load_study(ROOT / "studies/published.py").listed
    listed = {run.label.partition("_")[0]: run for run in runs}
    experiments = json.loads(REFERENCE.read_text())["experiments"]
    assert list(listed) == [one["id"] for one in experiments]
    for one in experiments:
        run = listed[one["id"]]
        if one["id"] != "XNLI-01":  # the reference states how it was launched in its note, but not in `method_here`
            assert one["method_here"] in {each.arm for each in runs if each.label.startswith(one["id"])}
        assert run.data.corpus == one["dataset"]
        assert run.train.learning_rate == one["learning_rate"]
        assert run.train.steps == one.get("steps", run.train.steps)
        assert run.train.epochs == one.get("epochs", run.train.epochs)
        assert run.train.batch_size == one.get("batch_size", run.train.batch_size)


def test_the_fair_study_gives_no_arm_what_another_is_denied():
    for scale in (None, "small"):
        study = load_study(ROOT / "studies/fair.py", scale)
        assert isinstance(study, Study)
        assert len(study.arms) == 13
        tried = {}
        for run in stage_of(study, {}).tune:
            tried.setdefault(run.arm, []).append((run.train.learning_rate, run.seed))
        assert len({tuple(points) for points in tried.values()}) == 1


def test_the_sst2_study_has_the_control_that_parts_scale_from_orthogonality_and_says_how_many_runs_it_takes():
    path = ROOT / "studies/sst2.py"
    study = load_study(path)
    assert isinstance(study, Study)
    fresh = {find_rung(arm.method, pretrained=True) for arm in study.arms if not arm.model}
    assert {"drawn", "matched", "orthogonal"} <= fresh
    runs = len(stage_of(study, {}).tune) + len(study.arms) * len(study.seeds)
    assert f" {runs} runs " in path.read_text()


def test_the_ladder_has_twenty_tokens_for_each_parameter_and_predicts_its_largest_size():
    path = ROOT / "studies/scaling.py"
    for scale in ("ladder", "gpu"):
        study = load_study(path, scale)
        assert isinstance(study, Study)
        for cell in study.cells():
            run = study.run_at(cell)
            tokens = run.train.steps * run.train.batch_size * run.model.context
            assert abs(tokens / block_parameters(run.model) - 20) < 0.1
        assert study.held_back == (list(study.sizes)[-1],)
        assert not set(study.held_back) & {study.size_of(run) for run in stage_of(study, {}).tune}
    ladder = load_study(path, "ladder")
    assert isinstance(ladder, Study)
    seeds = {size: len(ladder.seeds_in(cell)) for size, cell in ladder.sizes.items()}
    assert (seeds["64"], seeds["96"], seeds["128"]) == (6, 3, 2)
