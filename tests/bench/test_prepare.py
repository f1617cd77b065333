"""The benchmark of `oelm prepare`."""

from __future__ import annotations

import json

import pytest

from oelm.cli import dispatch

pytestmark = pytest.mark.programs


def test_preparation_is_measured_against_bare_tiktoken(capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["bench", "prepare", "--megabytes", "1", "--rounds", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ratio_to_bare"] == pytest.approx(
        found["ours_megabytes_per_second"] / found["bare_megabytes_per_second"], rel=0.02
    )
    assert 20 < found["peak_memory_megabytes"] < 600
