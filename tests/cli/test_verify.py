"""`oelm verify`: what is damaged, what was never protected, and a repaired copy."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from oelm.cli import dispatch
from oelm.files import strip_checksum
from oelm.record.folder import RunFolder, read_study, write_study
from oelm.record.registration import register_study


@pytest.fixture
def root(study: Any, write_run: Any) -> Path:
    """A registered study with one run, whose record and declaration have checksums and whose curve has none."""
    folder = write_run(study.runs()[0]).parent
    write_study(folder, study)
    register_study(folder, study, None)
    return folder


def verified(*words: object, capsys: Any) -> tuple[int, dict[str, Any]]:
    code = dispatch(["verify", *map(str, words), "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_an_intact_study_says_which_files_have_no_checksum(root: Path, capsys: Any) -> None:
    code, found = verified(root, capsys=capsys)
    assert code == 0
    assert {Path(each["path"]).name: each["state"] for each in found["files"]} == {
        "record.json": "intact", "study.json": "intact", "registered.json": "intact",
        "metrics.jsonl": "unprotected", "samples.txt": "unprotected",
    }  # fmt: skip
    assert dispatch(["verify", str(root)]) == 0
    assert "3 files intact, 2 without a checksum" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["record.json", "study.json", "registered.json"])
def test_a_changed_digit_is_found_and_one_without_a_checksum_is_accepted(root: Path, name: str, capsys: Any) -> None:
    path = next(root.rglob(name))
    text = path.read_text()
    path.write_text(text.replace("100", "101", 1))
    code, found = verified(root, capsys=capsys)
    assert (code, found["damaged"]) == (1, 1)
    assert dispatch(["verify", str(root)]) == 1
    assert f"damaged: {path}" in capsys.readouterr().out
    path.write_text(strip_checksum(text))
    code, found = verified(root, capsys=capsys)
    assert (code, found["damaged"], found["unprotected"]) == (0, 0, 3)


def test_a_repaired_copy_has_the_study_of_the_registration_and_the_rest_of_the_curve(
    root: Path, study: Any, tmp_path: Path, capsys: Any
) -> None:
    (root / "study.json").write_text("{")
    curve = next(root.rglob("metrics.jsonl"))
    curve.write_text(curve.read_text().replace('"step"', '"stop"', 1))
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    code, found = verified(root, "--repair", tmp_path / "copy", capsys=capsys)
    assert (code, found["left"]) == (0, [])
    assert before == {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    assert read_study(tmp_path / "copy").name == study.name
    run = RunFolder(tmp_path / "copy" / curve.parent.name)
    assert len(run.read_metrics()) == 10
    assert "left out" in run.read_record().damage[0]


def test_a_target_that_exists_and_an_empty_folder_are_refused(root: Path, tmp_path: Path, capsys: Any) -> None:
    assert dispatch(["verify", str(root), "--repair", str(tmp_path)]) == 2
    assert "Give a new folder" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert dispatch(["verify", str(tmp_path / "empty")]) == 2
    assert "holds no run" in capsys.readouterr().err
    assert dispatch(["verify", str(tmp_path / "none")]) == 2


def test_the_archives_of_earlier_versions_are_intact() -> None:
    archives = sorted((Path(__file__).parents[2] / "docs" / "results").glob("*/runs.tar.xz"))
    assert archives
    assert dispatch(["verify", str(min(archives, key=lambda path: path.stat().st_size).parent)]) == 0


def test_a_damaged_archive_is_found(tmp_path: Path, capsys: Any) -> None:
    source = min((Path(__file__).parents[2] / "docs" / "results").glob("*/runs.tar.xz"), key=lambda p: p.stat().st_size)
    shutil.copy(source, tmp_path)
    content = bytearray(source.read_bytes())
    content[len(content) // 2] ^= 4
    (tmp_path / source.name).write_bytes(content)
    assert dispatch(["verify", str(tmp_path / source.name)]) == 1
    assert "damaged" in capsys.readouterr().out
