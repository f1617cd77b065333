from __future__ import annotations

import re
from pathlib import Path
from string import Formatter

import pytest

import oelm.report
from oelm.analysis.compare import GapState, Judged
from oelm.analysis.statistics import Verdict
from oelm.errors import UnknownName
from oelm.report.wording import SENTENCES, wording

UNTRANSLATED = {"percent", "none", "join"}  # signs, not words


def gaps(sentence: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(sentence) if name}


@pytest.mark.parametrize("key", SENTENCES)
def test_both_languages_have_every_sentence_with_the_same_gaps(key: str) -> None:
    english, chinese = SENTENCES[key]
    assert gaps(english) == gaps(chinese)
    assert not re.search("[\u4e00-\u9fff]", english)
    assert key in UNTRANSLATED or re.search("[\u4e00-\u9fff]", chinese)


def spoken() -> set[str]:
    """Collect the keys that the report's code and templates say."""
    room = Path(next(iter(oelm.report.__path__)))
    files = [
        path
        for path in (*room.glob("*.py"), *room.glob("templates/*"))
        if path.name not in ("wording.py", "sentences.py")
    ]
    text = "".join(path.read_text() for path in files)
    keys = set(re.findall(r"""say\(\s*["']([\w ]*[^_\W])["']""", text)) | set(
        re.findall(r'"((?:verdict|heading)_\w+)"', text)
    )
    for prefix, ends in {
        "gap_": GapState.__args__,
        "perplexity_": Judged.__args__,
        "": (*Verdict.__args__, "reference"),
        "heading_": ("gaps", "ignored"),
    }.items():
        keys |= {prefix + end for end in ends}
    return keys


def test_whatever_is_said_has_a_sentence_and_no_sentence_is_left_unsaid() -> None:
    assert spoken() - set(SENTENCES) == set()
    assert set(SENTENCES) - spoken() == set()


def test_a_sentence_is_filled_and_never_read_twice() -> None:
    assert wording("en")("samples_of", arm="{seed}", seed=3) == "{seed}, seed 3"
    assert wording("zh")("percent", value="+5.1") == "+5.1%"


def test_an_unknown_language_is_refused_with_those_there_are() -> None:
    with pytest.raises(UnknownName, match=r"language named 'fr'.*en, zh"):
        wording("fr")
