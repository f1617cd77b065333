from __future__ import annotations

import math
from pathlib import Path

import pytest

from oelm.errors import BadRecord
from oelm.record.folder import ATTENTION, AttentionRecord, RunFolder, read_attention


def seen(step: int, value: float = 1.5) -> AttentionRecord:
    return AttentionRecord(step=step, entropy=((value, 2.0), (0.5, 3.0)), distance=((4.0, 5.0), (6.0, 7.0)))


def test_lines_come_back_as_they_were_written_and_what_is_no_number_too(tmp_path: Path) -> None:
    assert read_attention(tmp_path) == []
    RunFolder(tmp_path).append_attention(seen(10))
    RunFolder(tmp_path).append_attention(seen(20, math.nan))
    first, second = read_attention(tmp_path)
    assert first == seen(10)
    assert math.isnan(second.entropy[0][0])


def test_what_a_resumed_run_does_again_is_forgotten_and_a_line_cut_short_with_it(tmp_path: Path) -> None:
    RunFolder(tmp_path).drop_steps_after(0)
    assert not (tmp_path / ATTENTION).exists()
    for step in (10, 20, 30):
        RunFolder(tmp_path).append_attention(seen(step))
    with (tmp_path / ATTENTION).open("a") as file:
        file.write('{"step": 40, "entr')
    RunFolder(tmp_path).drop_steps_after(20)
    assert read_attention(tmp_path) == [seen(10), seen(20)]
    RunFolder(tmp_path).append_attention(seen(30))
    assert [record.step for record in read_attention(tmp_path)] == [10, 20, 30]


@pytest.mark.parametrize("line", ["{", '{"step": 1, "entropy": 3, "distance": []}', "[]"])
def test_a_line_that_is_none_is_told_with_its_number(line: str, tmp_path: Path) -> None:
    RunFolder(tmp_path).append_attention(seen(10))
    with (tmp_path / ATTENTION).open("a") as file:
        file.write(line + "\n")
    with pytest.raises(BadRecord, match="line 2, is damaged"):
        read_attention(tmp_path)
