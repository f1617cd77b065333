from __future__ import annotations

import re
from pathlib import Path
from string import Formatter
from typing import get_args

import pytest

import oelm.report
from oelm.analysis.ablation import StepName
from oelm.analysis.claims import Unit, published_claims
from oelm.analysis.compare import GapState
from oelm.analysis.findings import Reason
from oelm.analysis.ledger import DECIDED, LedgerVerdict
from oelm.analysis.measure import Judged, MeasureName
from oelm.analysis.price import Kind
from oelm.analysis.scaling import Quantity
from oelm.analysis.statistics import Verdict
from oelm.errors import UnknownName
from oelm.report.wording import SENTENCES, wording

SIGNS = {
    "claim_size", "claim_effect", "claim_at", "claim_part", "need_seeds_at", "ledger_join", "ledger_one", "comma",
    "semicolon", "reason_join",
}  # fmt: skip
UNTRANSLATED = {"percent", "none", "join", "of", *SIGNS}  # signs, not words


def gaps(sentence: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(sentence) if name}


@pytest.mark.parametrize("key", SENTENCES)
def test_both_languages_have_every_sentence_with_the_same_gaps(key: str) -> None:
    english, chinese = SENTENCES[key]
    assert gaps(english) == gaps(chinese)
    assert not re.search("[\u4e00-\u9fff]", english)
    assert key in UNTRANSLATED or re.search("[\u4e00-\u9fff]", chinese)


FAMILIES: dict[str, tuple[str, ...]] = {
    "gap_": get_args(GapState),
    "perplexity_": get_args(Judged),
    "accuracy_": get_args(Judged),
    "": (*get_args(Verdict), *get_args(LedgerVerdict), *get_args(MeasureName), "reference"),
    "heading_": ("gaps", "ignored"),
    "step_": get_args(StepName),
    "price_": get_args(Kind),
    "claim_because_": DECIDED,
    "claim_axis_": get_args(Unit),
    "reason_": (*get_args(Reason), "doubling_unknown", "repeats_unknown"),
    "quantity_": tuple(rule.quantity for claim in published_claims() if len(claim.rules) > 1 for rule in claim.rules),
    "table_note_": get_args(MeasureName),
    "forest_axis_": get_args(MeasureName),
    "kind_": ("text", "examples"),
    "split_": get_args(Judged),
    "scaling_": (*get_args(Quantity), "inside", "outside"),
    "distance": ("", "_one_seed", "_no_spread", "_accuracy", "_accuracy_one_seed", "_accuracy_no_spread"),
}
"""Sentences whose keys are put together: how they begin, and the values that they end with."""


def code() -> str:
    room = Path(next(iter(oelm.report.__path__)))
    files = (*room.glob("*.py"), *room.glob("templates/*"))
    return "".join(path.read_text() for path in files if not path.name.endswith(("wording.py", "sentences.py")))


def spoken() -> set[str]:
    """Collect the keys that the report's code and templates say."""
    keys = set(re.findall(r"""say\(\s*["']([\w -]*[^_\W])["']""", code()))
    return keys | {prefix + end for prefix, ends in FAMILIES.items() for end in ends}


def test_whatever_is_said_has_a_sentence_and_no_sentence_is_left_unsaid() -> None:
    assert spoken() - set(SENTENCES) == set()
    text = code()
    assert {key for key in set(SENTENCES) - spoken() if f'"{key}"' not in text} == set()


def test_a_sentence_is_filled_and_never_read_twice() -> None:
    assert wording("en")("samples_of", arm="{seed}", seed=3) == "{seed}, seed 3"
    assert wording("zh")("percent", value="+5.1") == "+5.1%"


def test_an_unknown_language_is_refused_with_those_there_are() -> None:
    with pytest.raises(UnknownName, match=r"language named 'fr'.*en, zh"):
        wording("fr")
