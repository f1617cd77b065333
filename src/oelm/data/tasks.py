"""Labelled corpora by name: their columns, their labels, and which of their splits serves as which."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from oelm.data.hub import SPLIT_NAMES, HubCorpus
from oelm.data.labels import HIDDEN
from oelm.errors import BadData, UnknownName, UsageError
from oelm.spec.data import ExamplesSpec, Split

Part = str
"""How a corpus calls one of its splits: train, heldout, val or test."""

_PARTS: dict[str, Part] = {**SPLIT_NAMES, **dict.fromkeys(("heldout", "held"), "heldout")}


@dataclass(frozen=True)
class LabelledCorpus:
    """One named corpus. A column may go by several names: the first that a table has is taken."""

    hub: HubCorpus | None
    texts: tuple[tuple[str, ...], ...]
    label: tuple[str, ...] = ("label",)
    labels: tuple[str, ...] = ()
    """Names of the labels by number; empty: as they are found."""
    leaves_out: tuple[str, ...] = ()
    """Words in the name of a split or file that belongs to another corpus of the same folder."""
    hidden: tuple[str, ...] = HIDDEN
    """What stands in the label column of a row without a label, beside nothing."""
    language: str | None = None
    """Which language is read, of a corpus that has several."""


_PAIR = (("premise", "sentence1"), ("hypothesis", "sentence2"))
_ENTAILMENT = ("entailment", "neutral", "contradiction")
_MNLI = HubCorpus("nyu-mll/glue", "mnli")

CORPORA: dict[str, LabelledCorpus] = {
    "sst2": LabelledCorpus(HubCorpus("stanfordnlp/sst2"), (("sentence",),), labels=("negative", "positive")),
    "mnli": LabelledCorpus(_MNLI, _PAIR, ("label", "gold_label"), _ENTAILMENT, ("mismatched",)),
    "mnli-mismatched": LabelledCorpus(_MNLI, _PAIR, ("label", "gold_label"), _ENTAILMENT, ("matched",)),
    # Its training split is MNLI's, in each of its languages.
    "xnli": LabelledCorpus(HubCorpus("facebook/xnli"), _PAIR, ("label", "gold_label"), _ENTAILMENT),
    "ag_news": LabelledCorpus(
        HubCorpus("fancyzhx/ag_news"), (("text",),), labels=("World", "Sports", "Business", "Sci/Tech")
    ),
    "story-questions": LabelledCorpus(None, (("ending",), ("question",)), ("answer",)),
    "imdb": LabelledCorpus(HubCorpus("stanfordnlp/imdb"), (("text",),), labels=("negative", "positive")),
}


def corpus_of(spec: ExamplesSpec) -> LabelledCorpus:
    """Return the corpus that a spec names, with the columns that it names instead of the corpus' own.

    Raises:
        UnknownName: no corpus of that name, and no columns or no local files that would make one.
        UsageError: neither one nor two text columns, or a language for a corpus that has one only.

    """
    if len(spec.texts) > 2:
        raise UsageError(f"data.texts names {len(spec.texts)} columns ({', '.join(spec.texts)}); one or two will do.")
    known = CORPORA.get(spec.corpus)
    if known is None and not spec.texts:
        raise UnknownName(
            "labelled corpus",
            spec.corpus,
            CORPORA,
            "Any other takes the names of its columns: data.texts (one or two) and data.label.",
        )
    if spec.corpus != "xnli" and spec.language != "en":
        raise UsageError(
            f"data.language={spec.language!r} was asked for, but {spec.corpus} has no languages; XNLI has."
        )
    hub = known.hub if known else (HubCorpus.named(spec.corpus) if "/" in spec.corpus else None)
    if spec.corpus == "xnli" and hub is not None:
        hub = HubCorpus(hub.repository, spec.language)
    return LabelledCorpus(
        hub,
        tuple((name,) for name in spec.texts) or (known.texts if known else ()),
        (spec.label,) if spec.label else (known.label if known else ("label",)),
        known.labels if known else (),
        known.leaves_out if known else (),
        known.hidden if known else (),
        spec.language if spec.corpus == "xnli" else None,
    )


def part_of(name: str | Path) -> Part | None:
    """Tell from the name of a file or split which part of a corpus it is; the word nearest to the end decides."""
    return next((_PARTS[word] for word in reversed(_words(name)) if word in _PARTS), None)


def belongs(corpus: LabelledCorpus, name: str | Path) -> bool:
    """Tell whether a file or split is this corpus', and not a sibling's in the same folder."""
    return not set(_words(name)) & set(corpus.leaves_out)


def _words(name: str | Path) -> list[str]:
    return [word for word in re.split(r"[^a-z0-9]+", str(name).lower()) if word]


def roles_of(parts: Iterable[Part]) -> dict[Split, Part]:
    """Return which part trains, which one is tuned on, and which one is reported; what is missing is drawn.

    Tuning never sees what is reported. A benchmark that hides its test labels leaves one labelled part beside
    training: that is reported, and validation is held out of training, whether by its makers (`heldout`) or here.
    """
    found = set(parts)
    if "train" not in found:
        if len(found) > 1:
            raise BadData(
                f"there are the parts {', '.join(sorted(found))}, and none to train on. Call one `train`, or give one "
                "file alone, which is then split."
            )
        return {"train": next(iter(found))}
    if {"heldout", "val", "test"} <= found:
        raise BadData(
            "there are heldout, validation and test parts beside the training one, and only one can be tuned on. "
            "Move one of them away."
        )
    roles: dict[Split, Part] = {"train": "train"}
    if "heldout" in found:
        roles["val"] = "heldout"
        reported = found & {"val", "test"}
        return roles | ({"test": reported.pop()} if reported else {})
    if {"val", "test"} <= found:
        return roles | {"val": "val", "test": "test"}
    return roles | ({"test": (found - {"train"}).pop()} if found - {"train"} else {})


def column(table: Mapping[str, object], names: tuple[str, ...], where: str) -> str:
    """Return the first of some names that a row has as a column."""
    for name in names:
        if name in table:
            return name
    raise BadData(
        f"{where} has no column {' or '.join(map(repr, names))}, only {', '.join(map(repr, table))}. Name the columns "
        "with data.texts (one or two) and data.label."
    )
