from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from oelm.errors import BadRecord
from oelm.record.folder import TEST_LOSSES, RunFolder, TestLossesRecord, read_test_losses


def test_losses_by_document_come_back_as_they_were_written(tmp_path: Path) -> None:
    losses = TestLossesRecord(kind="documents", nats=(12.34567, 3.0), tokens=(5, 2))
    RunFolder(tmp_path).write_test_losses(losses)
    found = read_test_losses(tmp_path)
    assert found is not None
    assert found.nats == (12.3457, 3.0)
    assert (found.tokens, found.size) == ((5, 2), 2)


def test_examples_are_right_or_wrong(tmp_path: Path) -> None:
    RunFolder(tmp_path).write_test_losses(TestLossesRecord(kind="examples", correct=(1, 0, 1)))
    found = read_test_losses(tmp_path)
    assert found is not None
    assert (found.correct, found.size) == ((1, 0, 1), 3)


def test_answers_are_counted_by_document(tmp_path: Path) -> None:
    RunFolder(tmp_path).write_test_losses(TestLossesRecord(kind="answers", correct=(59, 1), tokens=(59, 41)))
    found = read_test_losses(tmp_path)
    assert found is not None
    assert (found.size, found.share) == (2, 0.6)


def test_a_run_without_them_has_none_and_a_torn_file_is_told(tmp_path: Path) -> None:
    assert read_test_losses(tmp_path) is None
    (tmp_path / TEST_LOSSES).write_text('{"kind": "documents", "nats": [1.0')
    with pytest.raises(BadRecord, match="does not hold losses"):
        read_test_losses(tmp_path)


@pytest.mark.parametrize(
    "fields",
    [{"kind": "documents"}, {"kind": "documents", "nats": (1.0,), "tokens": (1, 2)}, {"kind": "examples"},
     {"kind": "answers", "correct": (1,)}, {"kind": "answers", "correct": (1,), "tokens": (1, 2)},
     {"kind": "examples", "correct": (1,), "nats": (1.0,), "tokens": (1,)}],
)  # fmt: skip
def test_a_kind_without_its_fields_is_refused(fields: dict) -> None:
    with pytest.raises(ValidationError, match="documents have as many"):
        TestLossesRecord(**fields)
