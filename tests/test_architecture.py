"""README's map has every folder, and nothing heavy is imported by accident."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from oelm.cli import dispatch

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "oelm"
MOST_MODULES = 60


def test_the_map_in_the_readme_has_every_folder_of_the_package():
    block = re.search(r"```\nsrc/oelm/ (.*?)```", (ROOT / "README.md").read_text(), re.DOTALL).group(1)
    listed = set(re.findall(r"^ +([a-z]+)/ ", block, re.MULTILINE))
    assert listed == {path.parent.name for path in PACKAGE.rglob("__init__.py")} - {"oelm"}


@pytest.mark.parametrize(
    "module",
    [
        "oelm",
        "oelm.spec.study",
        "oelm.record.folder",
        "oelm.analysis.compare",
        "oelm.report.write",
        "oelm.server.app",
        "oelm.cli.status",
        "oelm.cli",
    ],
)
def test_the_paper_side_imports_without_torch_or_transformers(module):
    code = f"import sys, {module}; print([name for name in ('torch', 'transformers') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_our_own_gpt_needs_no_transformers():
    code = "import sys, oelm.runs.execute; print('transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_every_public_name_can_be_loaded():
    import oelm

    for name in oelm.__all__:
        assert getattr(oelm, name) is not None


def test_no_public_name_is_defined_in_two_modules():
    """One word for one thing: a reader who searches for a name finds one definition."""
    places = {}
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(path.relative_to(ROOT).as_posix())
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


def test_the_smallest_run_calls_functions_of_few_modules(tiny_data, tmp_path):
    """A reader can follow one run from the command line to its record (decision 035)."""
    called = set()

    def note(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(str(PACKAGE)):
            called.add(frame.f_code.co_filename)

    run = ["train", "--size", "nano", "--method", "oelm-freeze", "--data.directory", str(tiny_data), "--quiet"]
    sys.setprofile(note)
    try:
        code = dispatch([*run, "--model.vocab-size", "300", "--train.steps", "2", "--out", str(tmp_path / "run")])
    finally:
        sys.setprofile(None)
    assert code == 0
    assert 20 < len(called) <= MOST_MODULES
