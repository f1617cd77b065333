"""How often a test split was looked at, by which studies and arms."""

import json
import shutil

import pytest

from oelm.cli import dispatch
from oelm.errors import BadRecord, UsageError
from oelm.files import parse_checked
from oelm.record.folder import LOOKS, RECORD, RunFolder, find_records, write_study
from oelm.record.keep import keep_archived
from oelm.record.test_split import looks_at, note_look
from oelm.report.write import write_report


def numbers(split):
    return {item.study: (len(item.looks), item.arms, item.seeds, item.evaluations) for item in split.by}


def test_looks_are_counted_by_study_and_arm(study, tmp_path, write_run):
    for run in study.runs():
        directory = write_run(run)
    write_run(study.runs()[0], checksum="decaf")
    root = tmp_path / "runs"
    write_study(root, study)
    note_look(directory, "c0ffee", "latest")
    note_look(directory / "checkpoints" / "best", "c0ffee", "best")
    (split,) = looks_at(root, "tiny", ["c0ffee"], [])
    assert split.total == 8
    assert numbers(split) == {"tiny": (8, 2, 3, 2)}


def test_a_run_that_two_studies_share_is_one_look_and_the_own_studys(study, tmp_path, write_run):
    for run in study.runs():
        write_run(run)
    root, other = tmp_path / "runs", tmp_path / "other"
    write_study(root, study)
    shutil.copytree(root, other)
    write_study(other, type(study)(**{**study.__dict__, "name": "other"}))
    extra = next(path for path in other.iterdir() if path.is_dir())
    plain = parse_checked((extra / RECORD).read_bytes())
    plain["finished"] = "2026-02-01T00:00:00+00:00"  # done once more by the other study
    (extra / RECORD).write_text(json.dumps(plain))
    (split,) = looks_at(root, "tiny", ["c0ffee"], [])
    assert {name: count for name, (count, *_) in numbers(split).items()} == {"tiny": 6, "other": 1}
    assert next(iter(numbers(split))) == "tiny"


def test_runs_without_a_figure_on_test_do_not_count(study, tmp_path, write_run):
    write_run(study.runs()[0], status="interrupted", result=None)
    assert looks_at(tmp_path / "runs", "tiny", ["c0ffee"], []) == []


def test_a_look_that_cannot_be_written_down_is_refused(tmp_path):
    with pytest.raises(UsageError, match="--split val"):
        note_look(tmp_path / "nowhere", "c0ffee", "latest")


def test_torn_lines_are_told(tmp_path):
    (tmp_path / LOOKS).write_text('{"time"')
    with pytest.raises(BadRecord, match="not a list of looks"):
        RunFolder(tmp_path).read_looks()


def test_what_cannot_be_read_next_door_is_told_in_the_report(study, tmp_path, write_run):
    for run in study.runs():
        directory = write_run(run, loss=1.5 + 0.01 * run.seed)
    write_study(tmp_path / "other", study)
    shutil.copytree(directory, tmp_path / "other" / directory.name)
    (tmp_path / "other" / directory.name / LOOKS).write_text("{")
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone" / RECORD).write_text("{")
    write_report(study, tmp_path / "runs", tmp_path / "en")
    page = (tmp_path / "en" / "report.md").read_text()
    assert "6 by this study" in page
    assert "is not a list of looks at a test split" in page
    assert "alone/record.json is not whole JSON" in page


def test_the_report_prints_the_looks_in_both_languages(study, tmp_path, write_run):
    for run in study.runs():
        write_run(run, loss=1.5 + 0.01 * run.seed)
    root = tmp_path / "runs"
    write_report(study, root, tmp_path / "en")
    page = (tmp_path / "en" / "report.md").read_text()
    assert "was looked at 6 times: 6 by this study (2 arms x 3 seeds)." in page
    write_report(study, root, tmp_path / "zh", "zh")
    assert "被查看了 6 次：本研究 6 次（2 组 × 3 个种子）" in (tmp_path / "zh" / "report.md").read_text()


def test_evaluate_writes_down_each_look_at_test_and_none_at_validation(tiny_run, tmp_path, capsys):
    from oelm.runs.execute import execute
    from oelm.runs.resolve import resolve

    run, data = resolve(tiny_run(steps=4, checkpoint_every=4))
    execute(run, data, tmp_path / "run", quiet=True)
    assert dispatch(["evaluate", str(tmp_path / "run"), "--split", "val"]) == 0
    assert RunFolder(tmp_path / "run").read_looks() == []
    assert dispatch(["evaluate", str(tmp_path / "run")]) == 0
    assert dispatch(["evaluate", str(tmp_path / "run" / "checkpoints" / "latest")]) == 0
    assert [(look.checksum, look.checkpoint) for look in RunFolder(tmp_path / "run").read_looks()] == [
        (data.checksum, "latest")
    ] * 2


def test_archived_neighbours_are_counted_and_a_new_look_next_door_is_seen_at_once(study, tmp_path, write_run):
    for run in study.runs():
        directory = write_run(run)
    root, other = tmp_path / "runs", tmp_path / "other"
    write_study(root, study)
    named = type(study)(**{**study.__dict__, "name": "other"})
    keep_archived(named, root, find_records(root)[0], other, alone=True)
    (split,) = looks_at(root, "tiny", ["c0ffee"], [])
    before = split.total
    note_look(directory, "c0ffee", "latest")
    (split,) = looks_at(root, "tiny", ["c0ffee"], [])
    assert (before, split.total) == (6, 7)
