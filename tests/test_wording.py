"""Documents, source and messages are written in plain modern English.

The list has the words that made the first version hard to read, each with what to write instead. A test prints every
line that has one of them. To quote such a line, add the quotation to `QUOTATIONS`.
"""

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

WORDS = {
    r"nought": "zero",
    r"anew": "again",
    r"be it": "whether, also",
    r"who(so)?ever": "a user, another process, or the passive",
    r"(no|some)body": "no one knows -> it is not known; a user, another process",
    r"besides?": "next to, in addition to",
    r"told(?! apart)": "reported, given",
    r"stands?(?!-| for\b| in for\b| out\b)": "is",
    r"(?<!that )lies?": "is",
    r"at work|(is|are|was|be) at it": "running",
    r"surely": "with 95 % confidence, certainly",
    r"wish(es|ed)?": "request",
    r"foreign": "third-party, Hugging Face",
    r"(?<!there )(is|are|was) no (?!longer|more|better|worse|less|fewer|larger|smaller|difference|one\b)": "is not a",
}

QUOTATIONS: dict[str, tuple[str, ...]] = {
    "src/oelm/spec/run.py": ('Literal["foreign"] = "foreign"',),  # a value that is stored in records and fingerprints
    "studies/sst2.py": ("an encoder that nobody has trained before",),  # the question of a study whose records exist
    "src/oelm/data/stories.py": ("nobody", "NOBODY"),  # a word of the stories
}
"""Path from the root -> texts that are quoted there and left out of the check."""

INLINE_CODE = re.compile(r"`[^`\n]*`")


def documents() -> list[Path]:
    """Return the documents that people write; those of docs/results are rendered, and their words are in src."""
    return [
        *(path for path in ROOT.glob("*.md") if path.name != "README.zh-CN.md"),
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "docs" / "decisions").glob("*.md"),
    ]


def source() -> list[Path]:
    """Return the files whose comments, docstrings and messages people read."""
    code = [path for folder in ("src", "studies", "scripts", "examples") for path in (ROOT / folder).rglob("*")]
    return [path for path in code if path.suffix in (".py", ".js", ".html", ".sh", ".json", ".toml")]


def offences(paths: Iterable[Path]) -> list[str]:
    """Return `path:line: "word" (better): the line` for every line with a word of the list."""
    found = []
    for path in sorted(paths):
        name = str(path.relative_to(ROOT))
        text = without_quotations(path.read_text(encoding="utf-8"), QUOTATIONS.get(name, ()))
        found += [f"{name}:{number}: {complaint}" for number, complaint in complaints(text, code=path.suffix != ".md")]
    return found


def without_quotations(text: str, quotations: Iterable[str]) -> str:
    """Return a text in which quotations are empty lines, so that line numbers stay."""
    for quotation in quotations:
        text = text.replace(quotation, "\n" * quotation.count("\n"))
    return text


def complaints(text: str, *, code: bool) -> list[tuple[int, str]]:
    """Return the lines of a text with a word of the list, by number. In Markdown inline code is left out."""
    lines = text.splitlines()
    prose = text if code else INLINE_CODE.sub(lambda match: "_" * len(match.group()), text)
    found = []
    for word, better in WORDS.items():
        for match in re.finditer(rf"\b(?:{word})\b".replace(" ", r"\s"), prose, re.IGNORECASE):
            number = text.count("\n", 0, match.start()) + 1
            found.append((number, f'"{" ".join(match.group().split())}" ({better}): {lines[number - 1].strip()}'))
    return sorted(found)


def test_the_documents_have_no_word_of_the_list():
    found = offences(documents())
    assert not found, "\n" + "\n".join(found)


def test_the_source_has_no_word_of_the_list():
    found = offences(source())
    assert not found, f"{len(found)} lines\n" + "\n".join(found)


@pytest.mark.parametrize(
    "line",
    ["a weight of nought", "it is no movement", "the file lies beside it", "as told", "Nobody reads it", "is at work"],
)
def test_a_word_of_the_list_is_found(line):
    assert complaints(line, code=True)


@pytest.mark.parametrize(
    "line", ["there is no mask", "it is no longer so", "a stand-in", "K stands for heads", "`beside` is code"]
)
def test_plain_english_is_left_alone(line):
    assert not complaints(line, code=False)


def test_a_quotation_is_left_alone_and_keeps_the_line_numbers():
    text = without_quotations('They wrote:\n"nought\nanew"\nand it lies there.', ['"nought\nanew"'])
    assert [number for number, _ in complaints(text, code=False)] == [4]


def test_every_quotation_is_in_its_file():
    gone = [
        text for name, texts in QUOTATIONS.items() for text in texts if text not in (ROOT / name).read_text("utf-8")
    ]
    assert gone == []
