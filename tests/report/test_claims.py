from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from oelm.published.claims import LEAST_GAIN, published_claims, scaled
from oelm.record.folder import write_study
from oelm.report.write import write_final
from oelm.spec.study import Study

BENCH = {
    "size": "bert-base", "labels": 3, "batch": [4, 128], "threads": 1, "blocks": 5, "steps_per_block": 4,
    "reference": "baseline",
    "arms": {
        "baseline": {"flop_share": 0.0, "seconds": 3.0, "peak_bytes": 1000},
        "oelm-freeze": {"flop_share": 0.054, "seconds": 2.8, "peak_bytes": 990, "saving": 0.066,
                        "saving_interval": [0.053, 0.079]},
    },
}  # fmt: skip


@pytest.fixture
def archive(study: Study, write_run: Any, tmp_path: Path) -> Path:
    """A folder with a study of three seeds that was not tuned, and a bench."""
    root = tmp_path / "archive"
    for run in study.runs():
        write_run(run, 1.4 + 0.1 * run.seed + (0.12 + 0.001 * run.seed) * (run.arm != "baseline"))
    shutil.move(tmp_path / "runs", root / "tiny")
    write_study(root / "tiny", study)
    (root / "performance").mkdir()
    (root / "performance" / "methods-bert-base.json").write_text(json.dumps(BENCH))
    return root


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_every_claim_has_a_verdict_a_paragraph_and_a_figure_of_its_own(
    archive: Path, tmp_path: Path, lang: Any
) -> None:
    out = tmp_path / "out"
    document = write_final(archive, out, lang)
    (section,) = (item for item in document.sections if item.anchor == "ledger")
    page, text = (out / "report.html").read_text(), (out / "report.md").read_text()
    assert len(section.answers) == len(published_claims()) == 8
    for answer in section.answers:
        assert answer.figure is not None
        assert (out / f"{answer.figure.name}.png").exists()
        assert f"![{answer.subject}]({answer.figure.name}.png)" in text
        assert f'id="{answer.anchor}"' in page
        assert len(answer.sentence) < 800


def test_whatever_is_not_decided_says_what_would_decide_it(archive: Path, tmp_path: Path) -> None:
    document = write_final(archive, tmp_path / "out", "en")
    (section,) = (item for item in document.sections if item.anchor == "ledger")
    tones = {answer.subject: answer.tone for answer in section.answers}
    assert tones["57 % faster on BERT"] == "contradicted"
    for answer in section.answers:
        assert bool(answer.needs) == (answer.tone in ("undecided", "not yet tested"))
        assert all("runs" in need or "bench" in need for need in answer.needs)


def test_every_link_of_the_evidence_leads_to_a_record_or_a_bench(archive: Path, tmp_path: Path) -> None:
    document = write_final(archive, tmp_path / "out", "en")
    (section,) = (item for item in document.sections if item.anchor == "ledger")
    links = [
        href for answer in section.answers for note in answer.footnotes for _, group in note.links for _, href in group
    ]
    assert any("performance" in href for href in links)
    assert any("tiny" in href for href in links)
    for href in links:
        json.loads((tmp_path / "out" / unquote(href)).read_text())


def test_no_line_has_many_links_and_the_evidence_is_folded(archive: Path, tmp_path: Path) -> None:
    write_final(archive, tmp_path / "out", "en")
    text, page = ((tmp_path / "out" / name).read_text() for name in ("report.md", "report.html"))
    assert max(line.count("](") for line in text.splitlines()) <= 3  # one per seed
    footnotes = set(re.findall(r"\[\^([\w-]+)\]:", text))
    assert footnotes
    assert footnotes == set(re.findall(r"\[\^([\w-]+)\](?!:)", text))
    assert page.count("<details><summary>The evidence") >= 1


def test_the_report_prints_the_rules_that_the_verdicts_were_found_by(archive: Path, tmp_path: Path) -> None:
    document = write_final(archive, tmp_path / "out", "en")
    (section,) = (item for item in document.sections if item.anchor == "rules")
    assert section.table is not None
    rows = [line.cells for line in section.table.lines]
    rules = [rule for claim in published_claims() for rule in claim.rules]
    assert len(rows) == len(rules)
    for row, rule in zip(rows, rules, strict=True):
        shown = [float(number) for number in re.findall(r"[-+]?\d+\.\d+", row[1].split("(")[0])]
        first = -rule.sizes[0].value if rule.unit == "points" else scaled(rule.sizes[0].value, rule.unit)
        assert shown[0] == pytest.approx(first, abs=0.051)
        assert rule.counts.en == row[4]
    gain = next(row for row in rows if row[0] == "No gain of time on GPT")
    assert gain[2] == f"{-100 * LEAST_GAIN:+.1f} to {100 * LEAST_GAIN:+.1f} %"


def test_a_finding_that_does_not_count_says_why(archive: Path, tmp_path: Path) -> None:
    write_final(archive, tmp_path / "out", "en")
    assert "tiny, oelm-freeze: +12.9 % (+12.6 to +13.1 %). Not counted: the arms are not tuned." in (
        (tmp_path / "out" / "report.md").read_text()
    )
