from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

import oelm.report.server
from oelm.record.schema import Status
from oelm.report.server.words import WORDS

ROOM = Path(next(iter(oelm.report.server.__path__)))
UNTRANSLATED = {"none", "progress", "percent", "language"}  # signs; the name of the other language


def gaps(sentence: str) -> set[str]:
    return set(re.findall(r"\{(\w+)\}", sentence))


@pytest.mark.parametrize("key", WORDS)
def test_both_languages_have_every_sentence_with_the_same_gaps(key: str) -> None:
    english, chinese = WORDS[key]
    assert gaps(english) == gaps(chinese)
    if key not in UNTRANSLATED:
        assert not re.search("[一-鿿]", english)
        assert re.search("[一-鿿]", chinese)


def test_whatever_the_page_says_has_a_sentence_and_no_sentence_is_left_unsaid() -> None:
    scripts = "".join(path.read_text() for path in ROOM.glob("static/*.js"))
    templates = "".join(path.read_text() for path in ROOM.glob("templates/*"))
    said = set(re.findall(r"say\('(\w+)'\)", templates)) | set(re.findall(r"""say\("(\w+)\"""", scripts))
    states = {*get_args(Status), "silent", "unreadable", "not_begun"}
    quoted = set(re.findall(r"""["'](\w+)["']""", scripts)) | set(re.findall(r"(\w+):", scripts))
    assert said | states <= WORDS.keys()
    assert WORDS.keys() - said - states <= quoted | {
        "axis_step",
        "axis_seconds",
        "entropy",
        "distance",
        "tune",
        "confirm",
    }  # said by joined names


def test_no_script_reads_text_as_markup_and_no_template_turns_escaping_off() -> None:
    for path in ROOM.glob("static/*.js"):
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", path.read_text()
        )
    for path in ROOM.glob("templates/*"):
        assert not re.search(r"\|\s*safe|autoescape|<script>|\sstyle=|\son\w+=", path.read_text())


def test_nothing_comes_from_elsewhere() -> None:
    for path in [*ROOM.glob("static/*"), *ROOM.glob("templates/*")]:
        addresses = set(re.findall(r"https?://[\w./]+", path.read_text()))
        assert addresses <= {"http://www.w3.org/2000/svg"}, path
