"""docs/architectures.md runs as it stands."""

import re
from pathlib import Path

import pytest
import torch

from oelm.models import families

DOC = Path(__file__).parents[1] / "docs" / "architectures.md"


@pytest.mark.filterwarnings("ignore")
def test_every_block_of_the_page_runs(tmp_path, monkeypatch, capsys):
    pytest.importorskip("peft", reason="the page shows PEFT, which is an extra")
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    names = {}
    blocks = re.findall(r"```python\n(.*?)```", DOC.read_text(), re.DOTALL)
    assert len(blocks) >= 11
    try:
        for number, block in enumerate(blocks):
            code = compile(block, f"{DOC.name}, block {number}", "exec")
            exec(code, names)  # noqa: S102  (our own page)
    finally:
        families._REGISTERED.clear()
        torch.set_num_threads(threads)
    assert "trainable params: " in capsys.readouterr().out


def test_the_table_names_every_family():
    table = DOC.read_text()
    assert all(f"| `{each.name}` |" in table for each in families.ARCHITECTURES if each.name != "gpt")
