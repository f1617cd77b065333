"""What a report says about content: its first lines, the table of content kept, and where the arms differ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from oelm.analysis.content import RatioSet
from oelm.cli.report import compare_command as compare_main
from oelm.cli.report import report_command as report_main
from oelm.record.folder import LogitVarianceRecord, RunFolder
from oelm.report.sections import format_set
from oelm.report.wording import wording
from oelm.report.write import report_folder, write_report
from oelm.spec.run import ExamplesSpec
from oelm.spec.study import Study

ARMS = ("baseline", "baseline+features", "oelm-fast", "position-only")
REPEATS = {"baseline": 1.0, "baseline+features": 0.9, "oelm-fast": 1.0, "position-only": 1.2}
STEADY = {"baseline": 2.5, "baseline+features": 2.5, "oelm-fast": 2.5, "position-only": 2.7}


def with_arms(study: Study, *arms: str, **fields: Any) -> Study:
    return Study.model_validate({**dict(study), "arms": arms, "reference": arms[0], **fields})


def written(study: Study, root: Path, lang: str) -> tuple[str, str]:
    """Write a report; return the page and the Markdown."""
    out = report_folder(root, lang)  # type: ignore[arg-type]
    write_report(study, root, out, lang)  # type: ignore[arg-type]
    return (out / "report.html").read_text(), (out / "report.md").read_text()


def assert_first(study: Study, root: Path, lang: str, expected: str) -> None:
    """Check that a sentence is between the question and the answer, on the page and in the Markdown."""
    page, text = written(study, root, lang)
    heading = wording(lang)("heading_verdict")
    for medium in (page, text.replace("\\", "")):
        assert medium.index(study.question) < medium.index(expected) < medium.index(heading)


@pytest.mark.parametrize(
    ("lang", "expected"),
    [
        ("en", "This regime is not representative: attending by content is worth 8."),
        ("zh", "该实验条件不具代表性：按内容注意的价值为困惑度的 8."),
    ],
)
def test_the_first_lines_say_why_a_regime_is_not_representative(
    study: Study, write_study_runs: Any, lang: str, expected: str
) -> None:
    losses = {"baseline": 2.02, "baseline+features": 2.0, "oelm-fast": 2.05, "position-only": 2.08}
    whole = with_arms(study, *ARMS)
    assert_first(whole, write_study_runs(whole, losses=losses, at_half=STEADY, repeats=REPEATS), lang, expected)


@pytest.mark.parametrize(
    ("lang", "expected"),
    [
        ("en", "This regime is representative: attending by content is worth 22."),
        ("zh", "该实验条件具有代表性：按内容注意的价值为困惑度的 22."),
    ],
)
def test_the_first_lines_say_that_a_regime_is_representative(
    study: Study, write_study_runs: Any, lang: str, expected: str
) -> None:
    whole = with_arms(study, *ARMS)
    assert_first(whole, write_study_runs(whole, at_half=STEADY, repeats=REPEATS), lang, expected)


@pytest.mark.parametrize(
    ("lang", "expected"),
    [
        ("en", "The value of content was not measured: add the arms position-only and baseline+features."),
        ("zh", "未测量内容的价值：请加入 position-only以及baseline+features 组。"),
    ],
)
def test_the_report_of_a_study_without_the_control_names_the_arms_to_add(
    study: Study, write_study_runs: Any, lang: str, expected: str
) -> None:
    plain = with_arms(study, "baseline", "oelm-freeze")
    root = write_study_runs(plain, losses={"baseline": 2.0, "oelm-freeze": 2.1})
    assert_first(plain, root, lang, expected)


def test_a_borrowed_regime_names_the_study_it_comes_from(study: Study, write_study_runs: Any) -> None:
    write_study_runs(with_arms(study, *ARMS, name="measured"))
    asking = with_arms(study, "baseline", "oelm-features", name="asking")
    root = write_study_runs(asking, losses={"baseline": 2.0, "oelm-features": 2.1})
    page, _ = written(asking, root, "en")
    assert "Measured by study measured: same model, data and training, apart from the learning rate." in page
    assert "T and P are from study measured" in page
    text = with_arms(study, "baseline", "oelm-features", name="text", base=study.base.model_copy(
        update={"data": study.base.data.model_copy(update={"corpus": "sotu"})}))  # fmt: skip
    page, _ = written(text, write_study_runs(text, losses={"baseline": 2.0, "oelm-features": 2.1}), "en")
    assert "The value of content was not measured on this text: add the arm position-only." not in page
    assert (
        "The value of content was not measured on this text: add the arms position-only and baseline+features." in page
    )
    assert "Study measured measured it with the same model and training on another text" in page
    assert 'id="content"' not in page


def test_studies_of_labels_and_probes_say_nothing_about_content(study: Study, write_study_runs: Any) -> None:
    probe = study.base.model_copy(update={"data": study.base.data.model_copy(update={"corpus": "recall:4"})})
    labels = study.base.model_copy(update={"data": ExamplesSpec()})
    for name, base in {"probe": probe, "labels": labels}.items():
        asking = with_arms(study, "baseline", "oelm-freeze", name=name, base=base)
        root = write_study_runs(asking, losses={"baseline": 2.0, "oelm-freeze": 2.1})
        page, _ = written(asking, root, "en")
        assert "regime" not in page
        assert "content is worth" not in page.lower()


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_report_shows_content_kept_and_where_the_arms_differ(
    study: Study, write_study_runs: Any, lang: str
) -> None:
    whole = with_arms(study, *ARMS)
    root = write_study_runs(whole, at_half=STEADY, repeats=REPEATS)
    for directory in root.glob("position-only-*"):
        RunFolder(directory).write_logit_variance(LogitVarianceRecord(tokens=8, content=((0.0,),), position=((2.0,),)))
    for directory in root.glob("oelm-fast-*"):
        RunFolder(directory).write_logit_variance(LogitVarianceRecord(tokens=8, content=((1.0,),), position=((3.0,),)))
    page, text = written(whole, root, lang)
    say = wording(lang)
    tables = {path.name: path.read_text() for path in report_folder(root, lang).glob("*.csv")}  # type: ignore[arg-type]
    lines = {line.split(",")[0]: line for line in tables["content.csv"].splitlines()}
    assert say("role_position") in lines["position-only"]
    assert say("percent", value="75") in lines["oelm-fast"]
    why = {line.split(",")[0]: line.split(",")[1:] for line in tables["why.csv"].splitlines()}
    assert why["baseline+features"][0] == "0.900"
    assert why["position-only"][2] == "+0.200"
    assert why["oelm-fast"][-1] == say("percent", value="25.0")
    assert why["position-only"][-1] == say("percent", value="0.0")
    assert why["baseline"][-1] == say("none")
    assert (report_folder(root, lang) / "positions.svg").exists()  # type: ignore[arg-type]
    for medium in (page, text):
        assert say("heading_content") in medium
        assert say("heading_why") in medium


def test_old_records_without_losses_by_position_have_no_such_section(study: Study, write_study_runs: Any) -> None:
    whole = with_arms(study, *ARMS)
    page, _ = written(whole, write_study_runs(whole), "en")
    assert 'id="content"' in page
    assert 'id="why"' not in page
    assert "were not measured" in page


def test_sets_of_content_kept_are_written_also_where_they_are_unbounded() -> None:
    say = wording("en")
    assert format_set(RatioSet("between", 0.102, 0.406), say) == "10 to 41 %"
    assert format_set(RatioSet("outside", -0.2, 1.5), say) == "below -20 % or above 150 %"
    assert format_set(RatioSet("everything"), say) == "unbounded"
    assert format_set(None, say) == "–"


def test_the_terminal_and_json_say_it_too(study: Study, write_study_runs: Any, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    whole = with_arms(study, *ARMS)
    root = write_study_runs(whole, at_half=STEADY)
    report_main([str(root)])
    shown = capsys.readouterr().out
    assert shown.index("It is not known whether this regime is representative") < shown.index(study.question)
    assert "The value of content" in shown
    compare_main([str(root)])
    assert capsys.readouterr().out.startswith("It is not known whether this regime is representative")
    compare_main([str(root), "--json"])
    (found,) = json.loads(capsys.readouterr().out)["comparisons"][0]["content"]
    assert (found["trained"], found["position_only"], found["representative"]) == (
        "baseline+features", "position-only", None,
    )  # fmt: skip
    assert [item["is_met"] for item in found["criteria"]] == [True, True, None]
    assert found["frozen"][0]["interval"]["kind"] == "between"


def test_a_margin_that_tuning_has_yet_to_fix_is_not_given_as_a_number(
    tuned_study: Any, make_record: Any, tmp_path: Path
) -> None:
    from oelm.record.folder import run_directory, write_record

    study = tuned_study(arms=ARMS, margin="content", tuning_seeds=(100, 101))
    root = tmp_path / "runs"
    run = study.tuning({}, study.tuned)[0]
    write_record(run_directory(root, run), make_record(run))
    page, text = written(study, root, "en")
    assert "fixed when tuning ends" in page
    assert "nan" not in text
