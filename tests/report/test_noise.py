"""What reports and terminals say about waiting, looks, moderated intervals, skewness and power, in both languages."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from oelm.analysis.compare import Comparison, compare_records
from oelm.cli import dispatch
from oelm.record.folder import write_study
from oelm.report.study import answer_of, statistics_remarks
from oelm.report.tables import results, statistics_table
from oelm.report.wording import Language, format_verdict, wording
from oelm.spec.study import Study

FROZEN = ("oelm-freeze", "oelm-random", "oelm-random-matched", "oelm-slice")


@pytest.fixture
def several(study: Study, make_record: Any) -> Any:
    """Return a maker of comparisons of four frozen arms, over some of six seeds, with the noise of one."""

    def make(*there: int, outlier: float = 0.0, **fields: Any) -> Comparison:
        asked = Study.model_validate(
            study.model_dump() | {"arms": ("baseline", *FROZEN), "seeds": tuple(range(6))} | fields
        )
        draw = random.Random(3)
        records = []
        for run in asked.runs():
            loss = 1.5 + draw.gauss(0, 0.002) + outlier * (run.arm != "baseline" and draw.random() < 0.25)
            if run.seed in there:
                records.append((Path(f"{run.arm}{run.seed}"), make_record(run, loss)))
        return compare_records(asked, records)

    return make


def answer(comparison: Comparison, lang: Language = "en") -> str:
    return answer_of(comparison, comparison.row("oelm-slice", ()), wording(lang)).sentence


def details(comparison: Comparison, lang: Language = "en") -> str:
    remarks = {remark.subject: remark.text for remark in statistics_remarks(comparison, wording(lang))}
    return remarks["oelm-slice"]


def test_a_verdict_that_waits_says_for_how_many_seeds(several: Any) -> None:
    comparison = several(0, 1)
    row, say = comparison.row("oelm-slice", ()), wording("en")
    assert format_verdict(row, say) == "undecided (2 of 6 seeds)"
    assert format_verdict(row, wording("zh")) == "未定（2/6 个种子）"
    assert answer_of(comparison, row, say).word == "undecided (2 of 6 seeds)"
    assert {line.cells[-1] for line in results(comparison, say).lines[1:]} == {"undecided (2 of 6 seeds)"}
    assert "2 of 6 declared seeds are complete" in answer(comparison)


def test_an_early_verdict_names_its_look_and_its_level(several: Any) -> None:
    comparison = several(0, 1, 2, looks=(3, 6))
    assert format_verdict(comparison.row("oelm-slice", ()), wording("en")) == "met (look 1 of 2)"
    assert "look 1 of 2, after 3 of 6 seeds. A one-sided level of 0.56 %" in details(comparison)
    assert "0.56%" in details(comparison, "zh")


def test_the_plain_interval_is_shown_next_to_the_moderated_one(several: Any) -> None:
    comparison = several(*range(6))
    assert "moderated by 4 similar arms" in details(comparison)
    table = statistics_table(comparison, wording("en"))
    assert [column.heading for column in table.columns][4:6] == ["degrees of freedom", "plain t interval"]
    assert all(line.cells[5] != "–" for line in table.lines)


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_skewed_noise_is_named_and_has_a_robust_interval_from_six_pairs_on(several: Any, lang: Language) -> None:
    word = {"en": "skewed", "zh": "偏斜"}[lang]
    six, three = several(*range(6), outlier=0.1), several(0, 1, 2, outlier=0.1, seeds=(0, 1, 2))
    assert word in details(six, lang)
    columns = [column.name for column in statistics_table(six, wording(lang)).columns]
    assert "robust" in columns
    assert any(line.cells[columns.index("robust")] != "–" for line in statistics_table(six, wording(lang)).lines)
    assert word not in details(several(*range(6), outlier=0.0), lang)
    few = {"en": "no robust interval with fewer than six", "zh": "少于六对"}[lang]
    assert few in details(three, lang)


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_an_answer_is_short_and_names_its_interval_and_its_pairs(several: Any, lang: Language) -> None:
    text = answer(several(*range(6), outlier=0.1), lang)
    assert {"en": "95 % interval", "zh": "95% 区间"}[lang] in text
    assert {"en": "6 pairs of seeds", "zh": "6 对种子"}[lang] in text
    assert not any(word in text for word in ("moderated", "skewed", "power", "校准", "偏斜", "功效"))


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_statistics_say_which_differences_the_study_could_detect(several: Any, lang: Language) -> None:
    assert {"en": "80 % power", "zh": "80% 功效"}[lang] in details(several(*range(6)), lang)


def test_the_comparison_for_machines_has_all_of_it(study: Study, write_run: Any, tmp_path: Path, capsys: Any) -> None:
    declared = study.model_copy(update={"seeds": (0, 1, 2, 3), "looks": (3, 4)})
    for run in declared.runs():
        if run.seed < 3:
            write_run(run, 1.5 + 0.001 * run.seed * len(run.arm))
    write_study(tmp_path / "runs", declared)
    assert dispatch(["compare", str(tmp_path / "runs"), "--json"]) == 0
    (comparison,) = json.loads(capsys.readouterr().out)["comparisons"]
    arm = comparison["arms"][1]
    assert arm["awaits"] == {"pairs": 3, "seeds": 4}
    difference = arm["difference"]
    assert (difference["look"]["number"], difference["look"]["seeds"]) == (1, 3)
    assert difference["detectable"]["met"] < 5 < difference["detectable"]["not_met"]
    assert difference["plain_interval"] == difference["interval"]
    assert difference["degrees_of_freedom"] == 2


STUDY = """
from oelm.spec.run import GPT_SIZES
from oelm.spec.run import RunSpec
from oelm.spec.run import TrainSpec
from oelm.spec.study import Study

base = RunSpec(model=GPT_SIZES["nano"], train=TrainSpec(steps=100, warmup_steps=10))
study = Study(name="tiny", question="?", base=base, arms=("baseline", "oelm-freeze", "oelm-bias"), seeds=(0, 1, 2))
"""


def test_the_plan_says_how_many_seeds_each_margin_needs_and_on_what_that_rests(
    study: Study, write_run: Any, tmp_path: Path, capsys: Any
) -> None:
    file = tmp_path / "study.py"
    file.write_text(STUDY)
    asked = ["plan", str(file), "--power", "--runs", str(tmp_path / "runs"), "--record", str(tmp_path / "none")]
    assert dispatch(asked) == 0
    assert "frozen arms: none on record" in capsys.readouterr().out
    for run in study.runs():
        write_run(run, 1.5 + 0.001 * run.seed * len(run.arm))
    write_study(tmp_path / "runs", study)
    assert dispatch(asked) == 0
    out = capsys.readouterr().out
    assert "1 arms, 2 degrees of freedom, of the same model, data and steps" in out
    assert "from tiny" in out
    for margin in ("margin 1 %", "margin 5 %"):
        assert margin in out
    assert "repaired arms: none on record" in out
    assert dispatch([*asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["spreads"][0]["freedom"], found["spreads"][0]["studies"]) == (2, ["tiny"])
    assert {(need["margin"], need["truth"]) for need in found["needs"]} == {(1, 0), (1, 0.5), (5, 0), (5, 2.5)}


def test_power_needs_no_torch(tmp_path: Path) -> None:
    file = tmp_path / "study.py"
    file.write_text(STUDY)
    code = (
        "import sys; from oelm.cli import dispatch; "
        f"dispatch(['plan', {str(file)!r}, '--power', '--runs', {str(tmp_path)!r}]); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0
