from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

import oelm.server
from oelm.record.record import ResultRecord, Status
from oelm.report.wording import read_messages
from oelm.server.app import PAGE_TEXTS

ROOM = Path(next(iter(oelm.server.__path__)))
WORDS = read_messages("en", PAGE_TEXTS)
UNTRANSLATED = {"none", "progress", "percent", "language"}  # signs; the name of the other language


def gaps(sentence: str) -> set[str]:
    return set(re.findall(r"\{(\w+)\}", sentence))


@pytest.mark.parametrize("key", WORDS)
def test_both_languages_have_every_text_with_the_same_placeholders(key: str) -> None:
    english, chinese = WORDS[key], read_messages("zh", PAGE_TEXTS)[key]
    assert gaps(english) == gaps(chinese)
    if key not in UNTRANSLATED:
        assert not re.search("[一-鿿]", english)
        assert re.search("[一-鿿]", chinese)


def test_every_key_on_the_page_has_a_text_and_every_text_is_used() -> None:
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
        "test_quality",
        *ResultRecord.model_fields,
        *(f"plot_{measure}" for measure in ("accuracy", "learning_rate", "tokens_per_second", "cores")),
    }  # said by joined names, and by those of the fields of a result


def test_no_script_reads_text_as_markup_and_no_template_turns_escaping_off() -> None:
    for path in ROOM.glob("static/*.js"):
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", path.read_text()
        )
    for path in ROOM.glob("templates/*"):
        assert not re.search(r"\|\s*safe|autoescape|<script>|\sstyle=|\son\w+=", path.read_text())


def test_nothing_is_loaded_from_another_site() -> None:
    for path in [*ROOM.glob("static/*"), *ROOM.glob("templates/*")]:
        addresses = set(re.findall(r"https?://[\w./]+", path.read_text()))
        assert addresses <= {"http://www.w3.org/2000/svg"}, path
