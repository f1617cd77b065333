"""The whole tagline from Python: freeze, run the ablation, believe the answer."""

from __future__ import annotations

import subprocess
import sys

import pytest

import oelm
from oelm.errors import IncomparableRuns, UsageError


@pytest.fixture(scope="module")
def finished(tiny_run, tmp_path_factory):
    """Return a study that `oelm.run` has run, the folder of runs, and the comparison."""
    root = tmp_path_factory.mktemp("api") / "runs"
    study = oelm.Study(
        name="tiny",
        question="What does freezing cost?",
        base=tiny_run(steps=4, eval_every=4),
        arms=("baseline", "oelm-freeze"),
        seeds=(0,),
    )
    return study, root, oelm.run(study, root, slots=2, quiet=True)


@pytest.fixture
def shown(study, write_study_runs):
    """Return a comparison with intervals: of records that were written, not trained."""
    root = write_study_runs(study, {"baseline": 2.0, "oelm-freeze": 2.1})
    return oelm.compare(root)


def test_a_study_runs_from_python(finished):
    study, root, comparison = finished
    assert isinstance(comparison, oelm.Comparison)
    assert [row.arm for row in comparison.rows] == ["baseline", "oelm-freeze"]
    assert all(row.figure for row in comparison.rows)
    assert oelm.compare(study, root).rows == comparison.rows
    with pytest.raises(UsageError, match="nothing to draw"):
        comparison.plot()


def test_a_comparison_is_shown_in_notebooks(shown):
    html = shown._repr_html_()
    assert "<table>" in html
    assert "oelm-freeze: not met" in html
    assert "What does freezing cost?" in str(shown)
    assert shown.plot().axes


def test_tables_are_frames_with_pandas_and_lists_without(finished, shown, monkeypatch):
    pd = pytest.importorskip("pandas")
    root = finished[1]
    frame = shown.table()
    assert isinstance(frame, pd.DataFrame)
    assert frame.loc[1, "difference"] == pytest.approx(100 * (frame.perplexity[1] / frame.perplexity[0] - 1), rel=1e-6)
    assert frame.low[1] < frame.difference[1] < frame.bound[1] < frame.high[1]
    assert set(oelm.records(root).arm) == {"baseline", "oelm-freeze"}
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    rows = oelm.records(root)
    assert isinstance(rows, list)
    assert len(rows) == 2
    assert all(row["status"] == "complete" and row["record"].result for row in rows)
    assert shown.table()[0]["arm"] == "baseline"


def test_one_run_trains_and_loads_and_a_second_call_does_nothing(tiny_run, tmp_path):
    run = tiny_run("oelm-freeze", steps=3)
    record = oelm.train(run, tmp_path / "run", quiet=True)
    assert isinstance(record, oelm.RunRecord)
    assert record.status == "complete"
    assert oelm.train(run, tmp_path / "run", quiet=True) == record
    model = oelm.load(tmp_path / "run")
    assert oelm.verify_frozen(model) == record.frozen_hashes


def test_runs_that_are_not_comparable_are_refused(finished, tiny_run, tmp_path):
    _, root, _ = finished
    folders = sorted((root / "tiny").glob("baseline*"))
    oelm.train(tiny_run("oelm-freeze", steps=2), tmp_path / "short", quiet=True)
    with pytest.raises(IncomparableRuns, match="differ in train.steps"):
        oelm.compare([*folders, tmp_path / "short"])
    with pytest.raises(UsageError, match="no run of"):
        oelm.compare(finished[0], tmp_path)


def test_every_error_and_every_spec_has_a_public_name():
    import oelm.errors
    import oelm.spec.method

    for module in (oelm.errors, oelm.spec.method, oelm.spec.run, oelm.spec.run):
        for name, value in vars(module).items():
            is_own = isinstance(value, type) and value.__module__ == module.__name__ and not name.startswith("_")
            assert not is_own or getattr(oelm, name) is value, name


def test_train_can_be_called_before_and_after_its_package_is_imported():
    code = (
        "import oelm, sys; assert callable(oelm.train); import oelm.spec.study; "
        "import oelm.train; assert callable(oelm.train); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "False"
