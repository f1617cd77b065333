from __future__ import annotations

import json
import math
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from oelm.errors import IncomparableRuns, UnknownName, UsageError
from oelm.record.folder import ATTENTION, METRICS, RECORD, AttentionRecord, RunFolder, find_records, write_study
from oelm.record.record import commit_of
from oelm.record.stages import index_by_declaration, stage_of
from oelm.report.write import write_report
from oelm.spec.run import DataSpec, ExamplesSpec
from oelm.spec.study import Arm, Study, replace_fields

COMMIT = commit_of(Path(__file__).parents[2]) or "0123456789abcdef"

VOID = {"meta", "br", "img", "link"}


class Reader(HTMLParser):
    """Read a page as a browser would: its tags, addresses, anchors and text; unbalanced tags are an error."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.hrefs: list[str] = []
        self.ids: list[str] = []
        self.attributes: set[str] = set()
        self.text = ""
        self._open: list[str] = []
        self.feed(html)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        found = dict(attrs)
        self.tags.append(tag)
        self.attributes |= set(found)
        self.hrefs += [found["href"]] if tag == "a" else []
        self.ids += [found["id"]] if "id" in found else []
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1:] != ["style"]:
            self.text += data


def report(study: Study, root: Path, lang: str = "en") -> tuple[Any, Reader, str]:
    """Write a report; return the comparison, the page as read and the Markdown."""
    out = root / "out" / "report"
    (comparison,) = write_report(study, root / "runs", out, lang).comparisons
    return comparison, Reader((out / "report.html").read_text()), (out / "report.md").read_text()


def filled(study: Study, write_run: Any, **fields: Any) -> None:
    for run in study.runs():
        write_run(run, 1.4 + (run.arm != "baseline") * (0.1 + 0.001 * run.seed), **fields)


@pytest.mark.parametrize(
    ("lang", "verdict"),
    [
        ("en", "With 95 % confidence it loses more than 5 % (one-sided bound +10.4 %): the target is not met."),
        ("zh", "在 95% 置信度下劣化高于 5%（单侧置信限 +10.4%）：未达到目标。"),
    ],
)
def test_the_verdict_stands_above_the_numbers_in_plain_words(
    study: Study, write_run: Any, tmp_path: Path, lang: str, verdict: str
) -> None:
    filled(study, write_run)
    comparison, page, text = report(study, tmp_path, lang)
    assert comparison.rows[1].verdict == "not met"
    for medium in (page.text, text):
        assert medium.index(study.question) < medium.index(verdict) < medium.index("4.06")


def test_the_page_needs_nothing_but_itself(study: Study, write_run: Any, tmp_path: Path) -> None:
    filled(study, write_run)
    _, page, _ = report(study, tmp_path)
    assert {"script", "link", "img", "iframe", "object"} & set(page.tags) == set()
    assert "src" not in page.attributes
    html = (tmp_path / "out" / "report" / "report.html").read_text()
    assert "@import" not in html
    assert "url(http" not in html


def test_every_figure_leads_to_its_evidence_and_on_to_its_record(study: Study, write_run: Any, tmp_path: Path) -> None:
    filled(study, write_run)
    _, page, text = report(study, tmp_path)
    inner = [href for href in page.hrefs if href.startswith("#evidence-")]
    outer = {unquote(href) for href in page.hrefs if not href.startswith("#")}
    assert {href[1:] for href in inner} <= set(page.ids)
    assert len(set(inner)) == 2
    # The table: seeds and perplexity of both, the arm's difference and interval. Then how sure, and what it costs.
    assert len(inner) == (2 + 4) + 5 + 2 * 4
    assert len(page.ids) == len(set(page.ids))
    records = {path.resolve() for path in (tmp_path / "runs").glob(f"*/{RECORD}")}
    assert {(tmp_path / "out" / "report" / href).resolve() for href in outer} == records
    assert COMMIT[:12] in page.text
    assert "oelm run study.py" in page.text
    assert '"learning_rate": 0.0003' in page.text
    assert all(href in text for href in page.hrefs if not href.startswith("#"))


def test_samples_and_floor_are_on_the_page(study: Study, write_run: Any, tmp_path: Path) -> None:
    filled(study, write_run, samples="Mia took the lamp.")
    _, page, _ = report(study, tmp_path)
    assert page.text.count("Mia took the lamp.") == 6
    assert "known exactly: 3.00" in page.text
    assert "a window shows only a part of the story, so a model cannot reach the floor itself" in page.text


def test_long_or_broken_samples_are_cut_not_refused(study: Study, write_run: Any, tmp_path: Path) -> None:
    filled(study, write_run)
    for directory in (tmp_path / "runs").iterdir():
        (directory / "samples.txt").write_bytes(b"\xff" + b"x" * 10**6)
    _, page, _ = report(study, tmp_path)
    assert len(page.text) < 10**5


def test_hostile_names_and_texts_stay_text(study: Study, write_run: Any, tmp_path: Path) -> None:
    bad = '"><script>alert(1)</script><img src=x onerror=alert(1)>'
    arm = Arm(name=bad, method=study.arms[1].method)
    hostile = study.model_copy(update={"name": bad, "question": bad, "arms": (study.arms[0], arm)})
    filled(hostile, write_run, samples=bad)
    _, page, text = report(hostile, tmp_path)
    assert "script" not in page.tags
    assert "img" not in page.tags
    assert bad in page.text
    assert "<script" not in text


def test_a_single_seed_is_said_and_marked(study: Study, write_run: Any, tmp_path: Path) -> None:
    single = study.model_copy(update={"seeds": (0,)})
    filled(single, write_run)
    _, page, text = report(single, tmp_path)
    for medium in (page.text, text):
        assert "One pair of seeds has no interval and decides nothing. Add seeds." in medium
        assert "† one seed" in medium


def test_a_dirty_tree_is_marked_at_the_number_and_at_its_source(
    study: Study, write_run: Any, make_record: Any, tmp_path: Path
) -> None:
    dirty = make_record(study.runs()[0]).environment.model_copy(update={"dirty": True})
    filled(study, write_run, environment=dirty)
    _, page, _ = report(study, tmp_path)
    assert "4.06‡" in page.text
    assert f"{COMMIT[:12]} ‡ with uncommitted changes" in page.text


def test_an_unknown_commit_is_said(study: Study, write_run: Any, make_record: Any, tmp_path: Path) -> None:
    unknown = make_record(study.runs()[0]).environment.model_copy(update={"commit": None, "dirty": None})
    filled(study, write_run, environment=unknown)
    _, page, _ = report(study, tmp_path)
    assert page.text.count("no commit known") == 6


def test_nothing_disappears(study: Study, write_run: Any, tmp_path: Path) -> None:
    first, second, third, *rest = study.runs()
    write_run(first, status="failed", error="out of memory", step=42, result=None)
    write_run(second, math.nan)
    write_run(rest.pop(0), status="failed", failure="diverged", error="the loss rose by a nat", result=None)
    write_run(third, status="running", step=7, result=None)
    for run in rest[:-1]:
        write_run(run)
    write_run(replace_fields(first, {"train.steps": 50}))
    (tmp_path / "runs" / "torn").mkdir()
    (tmp_path / "runs" / "torn" / RECORD).write_text('{"schema')
    _, page, text = report(study, tmp_path)
    for medium in (page.text, text):
        assert "1 of 6 runs are complete" in medium
        assert "failed at step 42: out of memory" in medium
        assert "diverged: its loss is not a finite number" in medium
        assert "diverged: the loss rose by a nat" in medium
        assert "has not ended: it is running, or it was killed" in medium
        assert "has not been run" in medium
        assert "train.steps is 50; the study has 100" in medium
        assert "is not whole JSON" in medium


def test_a_torn_curve_is_told_and_the_rest_is_drawn(study: Study, write_run: Any, tmp_path: Path) -> None:
    filled(study, write_run)
    spoilt = next(iter((tmp_path / "runs").glob("oelm-freeze-seed1*")))
    (spoilt / METRICS).write_text("garbage\n")
    comparison, page, _ = report(study, tmp_path)
    assert "line 1, is damaged and left out" in comparison.unreadable[0]
    assert "svg" in page.tags
    assert "line 1, is damaged and left out" in page.text


def test_lost_seeds_are_given_as_the_reason_for_no_verdict(study: Study, write_run: Any, tmp_path: Path) -> None:
    for run in study.runs():
        lost = run.arm != "baseline" and run.seed == 2
        write_run(run, math.inf if lost else 1.4 + 0.001 * run.seed * (run.arm != "baseline"))
    comparison, page, _ = report(study, tmp_path)
    assert comparison.rows[1].verdict == "undecided"
    assert "the remaining seeds are not a fair sample" in page.text


def test_before_the_first_run_the_page_says_so(study: Study, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    _, page, text = report(study, tmp_path)
    for medium in (page.text, text):
        assert "0 of 6 runs are complete" in medium
        assert "no seed is complete both here and in baseline" in medium
    assert "There is no curve yet." in page.text
    assert "![" not in text
    assert not (tmp_path / "out" / "report" / "convergence.png").exists()


def test_validation_figures_are_called_so(study: Study, write_run: Any, make_record: Any, tmp_path: Path) -> None:
    for run in study.runs():
        result = make_record(run).result.model_copy(update={"test_loss": None})
        write_run(run, result=result)
    _, page, _ = report(study, tmp_path)
    assert "validation perplexity" in page.text
    assert "These data have no test split" in page.text


def test_axes_have_their_own_lines_verdicts_and_panels(study: Study, write_run: Any, tmp_path: Path) -> None:
    swept = study.model_copy(update={"axes": {"train.learning_rate": (3e-4, 1e-3)}, "seeds": (0, 1)})
    filled(swept, write_run)
    comparison, page, _ = report(swept, tmp_path)
    assert len(comparison.rows) == 4
    assert page.text.count("oelm-freeze, train.learning_rate = 0.001") >= 2
    assert len([anchor for anchor in page.ids if anchor.startswith("evidence-")]) == 4


def test_unfair_runs_leave_no_report(study: Study, write_run: Any, tmp_path: Path) -> None:
    for run in study.runs():
        write_run(run, checksum="one" if run.arm == "baseline" else "two")
    with pytest.raises(IncomparableRuns, match=r"data\.checksum"):
        report(study, tmp_path)
    assert not (tmp_path / "out").exists()


def test_bad_requests_are_refused_before_anything_is_written(study: Study, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a folder"):
        report(study, tmp_path)
    (tmp_path / "runs").mkdir()
    with pytest.raises(UnknownName, match="language"):
        report(study, tmp_path, "fr")
    assert not (tmp_path / "out").exists()


def test_the_same_records_give_the_same_page(study: Study, write_run: Any, tmp_path: Path) -> None:
    filled(study, write_run)
    report(study, tmp_path)
    first = {path.name: path.read_bytes() for path in (tmp_path / "out" / "report").iterdir()}
    drawn = {f"{name}.{kind}" for name in ("convergence", "forest") for kind in ("svg", "png")}
    tables = {f"{name}.csv" for name in ("results", "statistics", "convergence", "cost")}
    assert set(first) == {"report.html", "report.md", "tables.tex"} | drawn | tables
    report(study, tmp_path)
    assert {path.name: path.read_bytes() for path in (tmp_path / "out" / "report").iterdir()} == first


def test_writing_a_report_imports_neither_torch_nor_transformers(study: Study, write_run: Any, tmp_path: Path) -> None:
    filled(study, write_run)
    code = f"""
import json, sys
from pathlib import Path
from oelm.spec.study import Study
from oelm.report.write import write_report
from oelm.report.render import render_terminal
early = [name for name in ("matplotlib", "scipy", "jinja2", "rich") if name in sys.modules]
study = Study.model_validate_json({study.model_dump_json()!r})
written = write_report(study, Path({str(tmp_path / "runs")!r}), Path({str(tmp_path / "out")!r}))
render_terminal(written.document.tables[0], "t", 80)
heavy = [name for name in ("torch", "transformers", "matplotlib.pyplot") if name in sys.modules]
print(json.dumps([early, heavy]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [[], []]


@pytest.mark.programs
def test_thirty_runs_are_reported_in_seconds_without_torch(study: Study, write_run: Any, tmp_path: Path) -> None:
    methods = ("baseline", "oelm-freeze", "oelm-random", "oelm-random-matched", "uniform", "oelm-slice")
    wide = Study(**{**study.model_dump(exclude={"arms", "seeds"}), "arms": methods, "seeds": (0, 1, 2, 3, 4)})
    filled(wide, write_run)
    write_study(tmp_path / "runs", wide)
    code = f"""
import sys, time
from oelm.cli import dispatch
began = time.process_time()
dispatch(["report", {str(tmp_path / "runs")!r}])
print("took", time.process_time() - began, "torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    _, seconds, heavy = done.stdout.splitlines()[-1].split()
    assert heavy == "False"
    assert float(seconds) < 15  # of the processor: other work on the machine does not count


def test_runs_from_different_corpora_and_later_versions_are_told_apart_and_told(
    study: Study, write_run: Any, tmp_path: Path
) -> None:
    filled(study, write_run)
    write_run(replace_fields(study.runs()[0], {"data.corpus": "speeches"}))
    later = tmp_path / "runs" / "later"
    later.mkdir()
    (later / RECORD).write_text('{"schema_version": 99}')
    _, page, _ = report(study, tmp_path)
    assert 'data.corpus is "speeches"; the study has "stories"' in page.text
    assert "schema version 99" in page.text


def test_a_tuned_study_shows_its_grid_and_says_when_tuning_goes_on(
    study: Study, write_run: Any, tmp_path: Path
) -> None:
    tuned = study.model_copy(
        update={"tuned": {"train.learning_rate": (1e-4, 3e-4, 1e-3)}, "tuning_seeds": (100,), "seeds": (0, 1)}
    )
    for run in stage_of(tuned, {}).tune[:4]:
        write_run(run, 1.4 + abs(math.log(run.train.learning_rate / 3e-4)))
    _, page, text = report(tuned, tmp_path)
    for medium in (page.text, text):
        assert "Tuning is not finished: 4 of 6 tuning runs have ended" in medium
        assert "has not been run" in medium
    for run in stage_of(tuned, {}).tune:
        write_run(run, 1.4 + abs(math.log(run.train.learning_rate / 3e-4)))
    records = index_by_declaration(record for _, record in find_records(tmp_path / "runs")[0])
    for run in stage_of(tuned, records).confirm:
        write_run(run, 1.4 + (run.arm != "baseline") * (0.1 + 0.001 * run.seed))
    comparison, page, _ = report(tuned, tmp_path)
    assert "Every arm was tuned on the same grid (train.learning_rate)" in page.text
    assert comparison.ignored == ()
    assert (tmp_path / "out" / "report" / "tuning.csv").exists()


def test_accuracies_are_reported_in_points_against_two_margins(
    study: Study, write_run: Any, make_record: Any, tmp_path: Path
) -> None:
    base = study.base.model_copy(update={"data": ExamplesSpec()})
    labelled = study.model_copy(update={"base": base})
    for run in labelled.runs():
        share = 0.9 - (run.arm != "baseline") * (0.02 + 0.001 * run.seed)
        write_run(run, result=make_record(run).result.model_copy(update={"test_accuracy": share}))
    comparison, page, _ = report(labelled, tmp_path)
    assert comparison.rows[1].verdict == "not met"
    assert "test accuracy" in page.text
    assert "-2.10 points" in page.text


def test_the_report_of_a_probe_has_the_accuracy_of_guessing_instead_of_the_lowest_loss(
    study: Study, write_run: Any, make_record: Any, tmp_path: Path
) -> None:
    probe = study.model_copy(update={"base": study.base.model_copy(update={"data": DataSpec(corpus="recall:4")})})
    for run in probe.runs():
        record = make_record(run)
        result = record.result.model_copy(update={"test_accuracy": 0.9})
        write_run(run, result=result, data=record.data.model_copy(update={"guess": 0.513}))
    _, page, _ = report(probe, tmp_path)
    assert "as well as possible: recall:4 51.3 %. An arm" in page.text
    assert "How low can it go?" not in page.text


HEADS = ((1.0, 2.0), (0.5, 3.0))


def test_what_heads_look_at_is_drawn_and_a_torn_file_is_told(study: Study, write_run: Any, tmp_path: Path) -> None:
    for run in study.runs():
        directory = write_run(run)
        for step in (10, 20):
            RunFolder(directory).append_attention(AttentionRecord(step=step, entropy=HEADS, distance=HEADS))
    report(study, tmp_path)
    assert (tmp_path / "out" / "report" / "heads.svg").exists()
    drawn = (tmp_path / "out" / "report" / "heads-training.svg").read_text()
    assert "layer 0" in drawn  # numbered as methods number them
    assert "layer 2" not in drawn
    for run in study.runs():
        (write_run(run) / ATTENTION).write_text('{"entropy": 3}\n')
    _, page, _ = report(study, tmp_path)
    assert "is damaged and left out" in page.text
