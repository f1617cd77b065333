"""What reports say about registration."""

import json
import subprocess
import sys

import pytest

from oelm.analysis.compare import compare_folder
from oelm.cli import dispatch
from oelm.files import parse_checked
from oelm.record.folder import REGISTERED, STUDY, read_record, write_record, write_study
from oelm.record.registration import register_study
from oelm.record.stages import stage_of
from oelm.report.write import write_report
from oelm.server.index import Folder, FolderIndex


@pytest.fixture
def reported(study, tmp_path, write_run):
    """Return a function that reports a study with six complete runs, some younger than its registration."""

    def report(declared=study, registered=True, young=0, lang="en"):
        root = tmp_path / "runs"
        folders = [write_run(run, loss=1.5 + 0.01 * run.seed) for run in study.runs()]
        write_study(root, study)
        if registered:
            register_study(root, study, None)
        for folder in folders[:young]:
            record = read_record(folder)
            write_record(folder, record.model_copy(update={"started": "2999-01-01T00:00:00+00:00"}))
        write_report(declared, root, tmp_path / "out", lang)
        return (tmp_path / "out" / "report.md").read_text()

    return report


def test_a_study_as_registered_says_so_with_date_and_commit(reported, tmp_path):
    page = reported(young=6)
    plain = parse_checked((tmp_path / "runs" / REGISTERED).read_bytes())
    assert f"As registered on {plain['registered'][:10]} at commit {plain['commit'][:12]}" in page
    assert "older than the registration" not in page
    assert plain["digest"][:16] in page


def test_a_changed_study_names_what_changed_and_its_declaration_stays(reported, study, tmp_path):
    page = reported(type(study)(**{**study.__dict__, "margin": 2.0}))
    assert "Not as registered on" in page
    assert "margin was null and is 2.0" in page
    assert parse_checked((tmp_path / "runs" / STUDY).read_bytes())["margin"] is None


def test_a_study_from_before_registration_is_called_not_registered(reported):
    assert "Not registered:" in reported(registered=False)
    assert "未登记" in reported(registered=False, lang="zh")


def test_runs_older_than_the_registration_are_counted_and_marked(reported):
    page = reported(young=2)
    assert "4 of the 6 confirming runs started before the registration." in page
    assert page.count("(older than the registration)") == 4
    assert page.count(", before the registration") == 4


def test_compare_prints_the_registration_for_machines(reported, tmp_path, capsys):
    reported(young=5)
    assert dispatch(["compare", str(tmp_path / "runs"), "--json"]) == 0
    (comparison,) = json.loads(capsys.readouterr().out)["comparisons"]
    assert comparison["registration"]["changed"] == {}
    assert len(comparison["registration"]["older_runs"]) == 1


def test_confirming_runs_that_are_still_to_be_scored_are_not_judged_on_validation(study, tmp_path, write_run):
    for run in study.runs():
        folder = write_run(run.model_copy(update={"scores_test": False}))
        record = read_record(folder)
        write_record(folder, record.model_copy(update={"result": record.result.model_copy(update={"test_loss": None})}))
    comparison = compare_folder(study, tmp_path / "runs")
    assert comparison.judged == "test"
    assert {gap.state for gap in comparison.gaps} == {"unmeasured"}
    assert len(comparison.gaps) == 6


def test_a_screen_says_nothing_about_registration(tuned_study, tmp_path, write_run):
    screen = tuned_study(seeds=())
    for run in stage_of(screen, {}).tune:
        write_run(run)
    write_report(screen, tmp_path / "runs", tmp_path / "out")
    assert "egistered" not in (tmp_path / "out" / "report.md").read_text()


def test_the_index_of_the_server_hides_the_test_figures_of_tuning_runs(tuned_study, tmp_path, write_run):
    study = tuned_study()
    for run in stage_of(study, {}).tune:
        write_run(run)  # a record from before tuning runs left the test split alone
    write_run(study.confirming(lambda _cell, _arm: {})[0])
    write_study(tmp_path / "runs", study)
    index = FolderIndex(Folder(tmp_path))
    index.look()
    shown = {row["seed"]: row["test_perplexity"] for row in index.changes("", 0).rows}
    assert shown[100] is None
    assert shown[0] is not None


def test_report_does_not_import_torch(reported, tmp_path):
    reported()
    code = (
        "import sys; from oelm.cli import dispatch; dispatch(['report', sys.argv[1]]); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path / "runs")], check=False).returncode == 0
