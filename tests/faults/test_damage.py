"""Bit flips, cuts and changed digits over every file of a run, prepared data and an archive.

The rule: readers return what was written, or raise an OelmError, or report the loss; and `verify` finds every fault.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oelm.data.tokenizer import load_tokenizer
from oelm.data.tokens import open_tokens
from oelm.errors import OelmError
from oelm.record.archive import ARCHIVE, read_files
from oelm.record.folder import RunFolder, find_records, read_study, write_study
from oelm.record.keep import keep_archived
from oelm.record.registration import read_registration, register_study
from oelm.runs.execute import execute
from oelm.runs.resolve import resolve
from oelm.runs.verify import repair, verify
from oelm.spec.study import Study
from oelm.train.checkpoint import read_checkpoint

from .campaign import spoil

FAULTS = int(os.environ.get("OELM_FAULTS", "1"))
"""How many times the usual number of faults."""

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1800 * FAULTS)]


def read_run(folder: Path) -> tuple[Any, list[str]]:
    """Return everything that readers see of a run, and what they report."""
    run, reported = RunFolder(folder), []
    weights = [read_checkpoint(run.checkpoints / name) for name in ("latest", "previous", "best")]
    tensors = [(name, each.tolist()) for point in weights for name, each in sorted(point.model.items())]
    seen = (
        run.read_record(), run.read_spec(), run.read_metrics(reported), run.read_attention(reported),
        run.read_test_losses(), run.read_window_losses(), run.read_logit_variance(), run.read_looks(), tensors,
        [point.state for point in weights],
    )  # fmt: skip
    return repr(seen), reported


def read_study_folder(folder: Path) -> tuple[Any, list[str]]:
    return repr((read_study(folder), read_registration(folder), read_files(folder / ARCHIVE))), []


def read_data(folder: Path) -> tuple[Any, list[str]]:
    data = open_tokens(folder)
    text = load_tokenizer(folder).decode([5, 6, 7])
    return repr((data.checksum, data.meta, [data.split(split).tobytes() for split in data.splits], text)), []


@pytest.fixture(scope="module")
def whole(tiny_run, tiny_data, tmp_path_factory):
    """A complete run, a registered and archived study, and prepared data."""
    root = tmp_path_factory.mktemp("whole")
    run, data = resolve(tiny_run("oelm-freeze", steps=12, eval_every=4, checkpoint_every=3))
    execute(run, data, root / "study" / "run", quiet=True)
    RunFolder(root / "study" / "run").write_spec(run)
    study = Study(name="study", question="What does freezing cost?", base=run, arms=("baseline", "oelm-freeze"))
    register_study(root / "study", study, None)
    keep_archived(study, root / "study", find_records(root / "study")[0], root / "archived")
    shutil.copytree(tiny_data, root / "data")
    write_study(root / "archived", study)
    return root


PARTS: dict[str, Callable[[Path], tuple[Any, list[str]]]] = {
    "study/run": read_run,
    "archived": read_study_folder,
    "data": read_data,
}
UNUSED = {"training.log", "samples.txt", "timing_stats.json", "tokenizer.json"}
"""Files that no result depends on: `verify` reads them, and `generate` and `export` hold the run's own tokenizer to its
record (tests/runs/test_restore.py)."""


@pytest.mark.parametrize("kind", ["flip", "cut", "digit"])
@pytest.mark.parametrize("part", PARTS)
def test_no_damage_is_silent_and_verify_finds_it(whole: Path, part: str, kind: str, tmp_path: Path) -> None:
    draw = random.Random(f"{part} {kind}")
    folder = tmp_path / "copy"
    shutil.copytree(whole / part, folder)
    read = PARTS[part]
    reference, reported = read(folder)
    assert not reported
    assert not [each for each in verify(folder) if each.state != "intact"]
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)
    ended: Counter[str] = Counter()
    for number in range(max(FAULTS * 25, len(paths))):
        path = paths[number % len(paths)]
        content = path.read_bytes()
        path.write_bytes(spoil(content, kind, draw))
        try:
            found, reported = read(folder)
        except OelmError:
            outcome = "error"
        else:
            outcome = "reported" if reported else "identical" if found == reference else "SILENT"
            assert outcome != "identical" or path.name in UNUSED, (path, "the damage is not noticed by readers")
        ended[outcome] += 1
        assert outcome != "SILENT", (path, kind)
        assert [each for each in verify(folder) if each.is_bad], (path, kind, number)
        path.write_bytes(content)
    assert read(folder)[0] == reference
    sys.stdout.write(f"{part}, {kind}: {dict(ended)}\n")


def test_a_repaired_copy_is_intact_and_the_original_is_not_touched(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(whole / "study" / "run", folder)
    for name in ("checkpoints/latest/state.json", "metrics.jsonl", "test_losses.json", "training.log", "spec.json"):
        path = folder / name
        path.write_bytes(spoil(path.read_bytes(), "flip", random.Random(3)))
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    findings = [each for each in verify(folder) if each.is_bad]
    assert len(findings) == 5
    assert all(each.repair for each in findings)
    assert repair(folder, findings, tmp_path / "repaired") == []
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    copy = RunFolder(tmp_path / "repaired")
    assert len(copy.read_record().damage) == 3
    assert copy.read_record().result == RunFolder(whole / "study" / "run").read_record().result
    assert len(copy.read_metrics()) == len(RunFolder(whole / "study" / "run").read_metrics()) - 1
    assert read_checkpoint(copy.checkpoints / "latest").state["progress"]["step"] == 9
