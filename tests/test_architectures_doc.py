"""Every block of code in docs/architectures.md runs."""

import importlib.util
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
    assert len(blocks) >= 12
    try:
        for number, block in enumerate(blocks):
            code = compile(block, f"{DOC.name}, block {number}", "exec")
            exec(code, names)  # noqa: S102  (our own page)
    finally:
        families._REGISTERED.clear()
        torch.set_num_threads(threads)
    assert "trainable params: " in capsys.readouterr().out


@pytest.fixture(scope="module")
def tables():
    spec = importlib.util.spec_from_file_location("family_table", DOC.parents[1] / "scripts" / "family_table.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_of_families_is_current(tables):
    page = DOC.read_text()
    assert tables.replace(page, "families", tables.family_table()) == page, "run python scripts/family_table.py"
    assert all(f"| `{each.name}` |" in page for each in families.ARCHITECTURES if each.name != "gpt")


@pytest.mark.slow
def test_what_became_of_every_model_type_is_current(tables):
    page = DOC.read_text()
    assert tables.replace(page, "tried", tables.tried_table()) == page, "run python scripts/family_table.py"
