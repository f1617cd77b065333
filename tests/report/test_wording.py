from __future__ import annotations

import re
import tomllib
from pathlib import Path
from string import Formatter
from typing import get_args

import pytest

import oelm.report
from oelm.analysis.ablation import StepName
from oelm.analysis.budgets import Kind
from oelm.analysis.compare import GapState
from oelm.analysis.evidence import JudgedSplit, MeasureName
from oelm.analysis.scaling import SCALING_FORMS, ScalingQuantity
from oelm.analysis.statistics import Verdict
from oelm.errors import UnknownName
from oelm.published.claims import SettingBasis, Unit, published_claims
from oelm.published.ledger import DECIDED, LedgerVerdict, Reason
from oelm.report.wording import TEXTS, Language, read_messages, wording
from oelm.server.app import PAGE_TEXTS

SIGNS = {
    "claim_size", "claim_effect", "claim_at", "claim_part", "need_seeds_at", "ledger_join", "ledger_one", "comma",
    "semicolon", "reason_join",
}  # fmt: skip
UNTRANSLATED = {"percent", "none", "join", "of", *SIGNS}  # signs, not words


def gaps(text: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(text) if name}


@pytest.mark.parametrize("folder", [TEXTS, PAGE_TEXTS])
def test_both_languages_have_the_same_tables_and_keys_in_the_same_order_and_no_key_twice(folder: Path) -> None:
    english, chinese = (
        [(table, key) for table, texts in tomllib.loads((folder / f"{lang}.toml").read_text()).items() for key in texts]
        for lang in get_args(Language)
    )
    assert english == chinese
    assert len(english) == len(read_messages("en", folder))


@pytest.mark.parametrize("key", read_messages("en"))
def test_both_languages_have_every_text_with_the_same_placeholders(key: str) -> None:
    english, chinese = read_messages("en")[key], read_messages("zh")[key]
    assert gaps(english) == gaps(chinese)
    assert not re.search("[\u4e00-\u9fff]", english)
    assert key in UNTRANSLATED or re.search("[\u4e00-\u9fff]", chinese)


FAMILIES: dict[str, tuple[str, ...]] = {
    "gap_": get_args(GapState),
    "perplexity_": get_args(JudgedSplit),
    "accuracy_": get_args(JudgedSplit),
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
    "basis_": get_args(SettingBasis),
    "kind_": ("text", "examples"),
    "split_": get_args(JudgedSplit),
    "scaling_": (*get_args(ScalingQuantity), "inside", "outside"),
    "scaling_form_": SCALING_FORMS["content"],
    "distance": ("", "_one_seed", "_no_spread", "_accuracy", "_accuracy_one_seed", "_accuracy_no_spread"),
}
"""Texts whose keys are composed: how the keys begin, and the values that they end with."""


def code() -> str:
    room = Path(next(iter(oelm.report.__path__)))
    files = (*room.glob("*.py"), *room.glob("templates/*"))
    return "".join(path.read_text() for path in files)


def spoken() -> set[str]:
    """Collect the keys that the code and the templates of the reports use."""
    keys = set(re.findall(r"""say\(\s*["']([\w -]*[^_\W])["']""", code()))
    return keys | {prefix + end for prefix, ends in FAMILIES.items() for end in ends}


def test_every_key_in_the_code_has_a_text_and_every_text_is_used() -> None:
    texts, source = set(read_messages("en")), code()
    assert spoken() - texts == set()
    assert {key for key in texts - spoken() if f'"{key}"' not in source} == set()


def test_a_text_is_filled_in_once_and_values_are_not_read_as_placeholders() -> None:
    assert wording("en")("samples_of", arm="{seed}", seed=3) == "{seed}, seed 3"
    assert wording("zh")("percent", value="+5.1") == "+5.1%"


def test_an_unknown_language_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnknownName, match=r"language named 'fr'.*en, zh"):
        wording("fr")
