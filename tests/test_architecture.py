"""README's map has every folder, every module has a test file, nothing heavy is imported by accident."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "oelm"


def test_the_map_in_the_readme_has_every_folder_of_the_package():
    block = re.search(r"```\nsrc/oelm/ (.*?)```", (ROOT / "README.md").read_text(), re.DOTALL).group(1)
    listed = set(re.findall(r"^ +([a-z]+)/ ", block, re.MULTILINE))
    assert listed == {path.parent.name for path in PACKAGE.rglob("__init__.py")} - {"oelm"}


TESTED_IN = {
    "bench/floor": "bench/test_step", "bench/nanogpt_style": "bench/test_step",
    "__main__": "cli/test_dispatch", "files": "record/test_store", "inspection": "test_surgery",
    "cli/bench": "cli/test_dispatch", "cli/evaluate": "cli/test_verbs", "cli/export": "cli/test_verbs",
    "cli/generate": "cli/test_verbs", "cli/import_checkpoint": "cli/test_verbs", "cli/report": "cli/test_verbs",
    "cli/show": "cli/test_archive", "cli/unpack": "cli/test_archive", "report/share": "cli/test_archive",
    "cli/run": "cli/test_verbs", "cli/train": "cli/test_verbs", "cli/train_task": "cli/test_tasks",
    "cli/prepare_task": "cli/test_tasks", "data/labelled_files": "cli/test_tasks",
    "data/questions": "runner/test_writing", "models/writer": "runner/test_writing",
    "data/encoded": "data/test_examples", "data/labels": "data/test_examples", "data/tasks": "data/test_examples",
    "data/text_encoder": "data/test_examples",
    "runner/bind": "runner/test_classification", "runner/tasks": "runner/test_classification",
    "cli/cancel": "cli/test_status", "cli/logs": "cli/test_status", "cli/plan": "cli/test_status",
    "data/encode": "data/test_prepare", "data/hub": "data/test_sources", "data/identity": "data/test_prepare",
    "data/meta": "data/test_tokens", "data/progress": "data/test_prepare", "data/story_world": "data/test_stories",
    "data/vocabulary": "data/test_tokenizer", "data/workspace": "data/test_prepare",
    "method/refuse": "test_surgery", "models/configs": "models/test_build", "models/trace": "models/test_cost",
    "report/content": "report/test_page", "report/server/views": "report/server/test_app",
    "analysis/claims": "analysis/test_ledger", "analysis/findings": "analysis/test_ledger",
    "analysis/evidence": "analysis/test_fairness",
    "analysis/rows": "analysis/test_compare",
    "cli/import_run": "record/test_imported", "report/certificates": "report/test_page",
    "report/document": "report/test_typeset", "report/numbers": "report/test_tables",
    "report/all_studies_sentences": "report/test_wording", "report/price_sentences": "report/test_wording",
    "report/content_sentences": "report/test_wording",
    "report/project": "report/test_all_studies", "report/sections": "report/test_page",
    "report/sentences": "report/test_wording", "spec/published": "interop/test_predecessor",
    "runner/artefacts": "runner/test_run", "runner/cancel": "runner/test_local", "runner/display": "runner/test_queue",
    "runner/language": "runner/test_run",
    "runner/observe": "runner/test_run", "runner/recorder": "runner/test_run", "runner/restore": "runner/test_run",
}  # fmt: skip
"""Modules that are tested through the ones that use them, and where."""


@pytest.mark.parametrize(
    "folder",
    [
        "",
        "spec",
        "method",
        "models",
        "data",
        "train",
        "interop",
        "record",
        "analysis",
        "report",
        "report/server",
        "runner",
        "cli",
        "bench",
    ],
)
def test_every_module_has_its_tests_in_the_same_place(folder):
    for name in {path.stem for path in (PACKAGE / folder).glob("*.py")} - {"__init__"}:
        module = f"{folder}/{name}".strip("/")
        twin = TESTED_IN.get(module, f"{folder}/test_{name}".strip("/"))
        assert (ROOT / "tests" / f"{twin}.py").exists(), f"{module} has no tests/{twin}.py"


@pytest.mark.parametrize(
    "module",
    [
        "oelm",
        "oelm.study",
        "oelm.record.store",
        "oelm.analysis.compare",
        "oelm.report.page",
        "oelm.report.server.app",
        "oelm.cli.serve",
        "oelm.cli",
    ],
)
def test_the_paper_side_imports_without_torch_or_transformers(module):
    code = f"import sys, {module}; print([name for name in ('torch', 'transformers') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_our_own_gpt_needs_no_transformers():
    code = "import sys, oelm.runner.run; print('transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_every_public_name_can_be_loaded():
    import oelm

    for name in oelm.__all__:
        assert getattr(oelm, name) is not None
