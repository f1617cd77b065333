"""The documents name modules, methods, files and links that exist."""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from oelm.cli import VERBS
from oelm.errors import OelmError
from oelm.spec.method import named_method

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "oelm"
OURS = [
    *(ROOT / name for name in ("README.md", "README.zh-CN.md", "CHANGELOG.md", "CONTRIBUTING.md", "LOG.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "decisions").glob("*.md")),
]
"""Documents that people write; those of docs/results are rendered."""

INDEX = ROOT / "docs" / "decisions" / "README.md"
LINK = re.compile(r"!?\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")
METHOD = re.compile(r"`((?:oelm|baseline|frozen|position|orthogonal|uniform)[-+\w=.:]*)`")


def read(path: str | Path) -> str:
    """Return a text below the root of the repository."""
    return (ROOT / path).read_text(encoding="utf-8")


@pytest.mark.parametrize("path", OURS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_relative_link_leads_to_a_file(path):
    links = [link for link in LINK.findall(read(path)) if "://" not in link]
    assert [link for link in links if not (path.parent / link).exists()] == []


def test_the_code_map_lists_every_module_once():
    listed = re.findall(r"^\| `([\w/]+\.py)` \|", read("docs/code-map.md"), re.MULTILINE)
    modules = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py")}
    empty = {name for name in modules if name.endswith("__init__.py") and len(read(PACKAGE / name).splitlines()) <= 5}
    assert sorted(listed) == sorted(modules - empty)


def test_the_code_map_names_functions_that_are_in_their_module():
    table = read("docs/code-map.md").split("## The way of a run")[0]
    wrong = []
    for module, names in re.findall(r"`([\w/]+\.py)` \(([^)]*)\)", table):
        source = read(PACKAGE / module)
        for name in re.findall(r"`([\w.]+)`", names):
            if not re.search(rf"(def|class) {name.split('.')[-1]}", source):
                wrong.append(f"{module}: {name}")  # noqa: PERF401  (a line for each reason)
    assert wrong == []


@pytest.mark.parametrize("name", ["README.md", "README.zh-CN.md"])
def test_the_map_of_each_readme_names_modules_that_exist(name):
    block = re.search(r"```\nsrc/oelm/ (.*?)```", read(name), re.DOTALL).group(1)
    files = {path.name for path in PACKAGE.rglob("*.py")}
    assert set(re.findall(r"\w+\.py", block)) <= files


@pytest.mark.parametrize("name", ["README.md", "README.zh-CN.md", "docs/answer.md", "docs/choosing-a-method.md"])
def test_every_method_that_a_document_recommends_has_that_name(name):
    unknown = []
    for method in sorted(set(METHOD.findall(read(name))) - {"oelm"}):
        try:
            named_method(method)
        except OelmError:
            unknown.append(method)
    assert unknown == []


def test_both_readmes_show_the_same_numbers():
    number = re.compile(r"[-+]\d+\.\d+|\d+(?:\.\d+)?(?= ?%)")
    english, chinese = (number.findall(read(name)) for name in ("README.md", "README.zh-CN.md"))
    assert Counter(english) == Counter(chinese)


def test_the_index_of_decisions_lists_every_decision():
    listed = re.findall(r"^\| \[(\d{3})\]\((\d{3}-[^)]*)\)", read(INDEX), re.MULTILINE)
    assert [file for _, file in listed] == sorted(path.name for path in INDEX.parent.glob("[0-9]*.md"))
    assert all(file.startswith(number) for number, file in listed)


def test_the_index_of_decisions_has_no_gap():
    numbers = [int(number) for number in re.findall(r"^\| \[?(\d{3})\b", read(INDEX), re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))


BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
PAGES_WITH_CODE = [path for path in OURS if BLOCK.search(read(path)) and path.name != "architectures.md"]
"""Pages with Python; tests/test_architectures_doc.py runs that of architectures.md."""
HUB_MODEL = re.compile(r'from_pretrained\("bert-base-uncased", num_labels=(\d)\)')
SMALL_MODEL = r"from_config(__import__('transformers').BertConfig(hidden_size=48, num_labels=\1))"
"""What replaces a model of the hub, which tests must not download: the same class, smaller."""


@pytest.mark.programs
@pytest.mark.parametrize("path", PAGES_WITH_CODE, ids=lambda path: path.name)
def test_every_python_block_of_a_page_runs_after_the_blocks_before_it(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    for number, block in enumerate(BLOCK.findall(HUB_MODEL.sub(SMALL_MODEL, read(path)))):
        exec(compile(block, f"{path.name}, block {number}", "exec"), names)  # noqa: S102  (our own page)


def test_the_site_lists_every_page():
    listed = set(re.findall(r'= "([\w/.-]+\.md)"', read("zensical.toml")))
    pages = {path.name for path in (ROOT / "docs").glob("*.md")}
    assert pages - listed == set()


@pytest.mark.slow
def test_the_commands_of_the_tutorial_end_in_a_verdict(tmp_path):
    text = read("docs/tutorial.md")
    (declaration,) = BLOCK.findall(text)
    (tmp_path / "mine.py").write_text(declaration)
    for block in re.findall(r"```\n(oelm .*?)```", text, re.DOTALL):
        for line in block.splitlines():
            command = [sys.executable, "-m", *line.split()]
            done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    assert re.search(r"oelm-fast.*\bmet\b", done.stdout)


@pytest.mark.slow
def test_the_site_builds_without_warnings_and_its_links_lead_somewhere():
    for package in ("zensical", "mkdocstrings"):
        pytest.importorskip(package, reason="needs the extra docs")
    build = [sys.executable, "scripts/build_docs.py"]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


COMMAND = re.compile(r"\boelm ([a-z-]+)((?: +(?!oelm\s)[^\s`#|;,)]+)*)")
"""A verb and its arguments, in a block of code or between backticks."""


def code_of(text: str) -> str:
    """Return the blocks of code that are not Python, and the commands between backticks."""
    pieces = text.split("```")  # prose and blocks by turns
    blocks = [block for block in pieces[1::2] if not block.startswith("python")]
    return "\n".join([*blocks, *re.findall(r"`(oelm [^`]*)`", " ".join(pieces[::2]))])


def commands() -> dict[str, set[tuple[str, str]]]:
    """Return verb -> (document, flag) for every command in the code of our documents."""
    found: dict[str, set[tuple[str, str]]] = {}
    for path in OURS:
        for verb, arguments in COMMAND.findall(code_of(read(path))):
            flags = found.setdefault(verb, set())
            flags |= {(path.name, flag) for flag in re.findall(r"(?<!\S)--[a-z][\w.-]*", arguments)}
    return found


def test_every_command_of_the_documents_exists():
    assert set(commands()) - {"report-zh"} <= set(VERBS)


@pytest.mark.parametrize("verb", sorted(set(VERBS) - {"bench"}))  # the benches have commands of their own
def test_every_flag_of_the_documents_exists(verb):
    flags = commands().get(verb, set())
    helps = [(verb, "--help"), *([(verb, "--task", "sst2", "--help")] if verb in ("train", "prepare") else [])]
    helps += [(verb, "--continue-from", "RUN", "--help")] if verb == "train" else []
    known = "".join(
        subprocess.run([sys.executable, "-m", "oelm", *command], capture_output=True, text=True, check=False).stdout
        for command in helps
        if flags
    )
    known += "--task --help"  # these choose the help that is printed
    assert sorted(f"{name}: {flag}" for name, flag in flags if not re.search(rf"{re.escape(flag)}\b", known)) == []
