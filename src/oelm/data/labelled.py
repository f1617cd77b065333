"""Read labelled text: rows of one or two texts and a label, checked, and split so that nothing leaks."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from oelm.data.sources import SPLIT_NAMES, TABLE_FORMATS, HubCorpus, TableRow, hub_tables, read_table
from oelm.data.stories import QUESTIONS, question_tables
from oelm.errors import BadData, UnknownName, UsageError
from oelm.spec.run import ExamplesSpec, Split, derived_seed

# Labels: their names, their numbers, and which rows have none.

HIDDEN = ("-1", "-", "None")
"""What the known corpora write where a label is hidden, or where annotators disagreed."""
_WHOLE_NUMBER = re.compile(r"-?[0-9]+")
_SURROGATE = re.compile("[\ud800-\udfff]")


def label_names(labels: Sequence[Any], hidden: Collection[str]) -> list[str | None]:
    """Return the labels of a part as strings, or None where a row has no label.

    An empty cell or NaN is never a label, and neither are the values in `hidden`. In a table of an unknown corpus,
    -1 and - are classes like others, unless -1 is the only value, as in benchmarks that hide their test labels.
    """
    for place, label in enumerate(labels, 1):
        if not isinstance(label, str | int | float | None) or not _is_unicode(str(label)):
            raise BadData(
                f"row {place} has the label {label!r}, which is not valid text or a number. Correct the row, or name "
                "another label column with --label (data.label in a spec)."
            )
    # pandas writes NaN, which differs from itself, where a row has no label.
    names = [None if label is None or label != label else str(label).strip() or None for label in labels]  # noqa: PLR0124
    if set(names) <= {None, "-1"}:
        hidden = ("-1",)
    return [None if name in hidden else name for name in names]


def _is_unicode(text: str) -> bool:
    """Return whether a string can be encoded: JSON can express half a surrogate pair, which is not a character."""
    return not _SURROGATE.search(text)


def order_labels(names: Iterable[str | None]) -> tuple[str, ...]:
    """Sort the labels of a corpus that does not state them: by number if all are whole numbers, else by alphabet."""
    found = {name for name in names if name is not None}
    if all(_WHOLE_NUMBER.fullmatch(name) for name in found):
        return tuple(sorted(found, key=lambda name: (int(name), name)))
    return tuple(sorted(found))


def number_labels(labels: tuple[str, ...], names: Collection[str | None], *, by_place: bool) -> dict[str, int]:
    """Return the number of each label by its name and, where a corpus states its labels, by its place.

    Places count from 0, or from 1 if the labels found in the table, `names`, include the last place and not 0.
    """
    numbers = {name: number for number, name in enumerate(labels)}
    first = 1 if by_place and str(len(labels)) in names and "0" not in names else 0
    places = {str(first + number): number for number in range(len(labels)) if by_place}
    return numbers | {place: number for place, number in places.items() if place not in numbers}


def find_suspicious_labels(names: Iterable[str | None]) -> list[str]:
    """Return notes on classes that are named like a missing label."""
    counted = Counter(names)
    return [
        f"{counted[name]:,} rows have the label {name!r}, which is read as a class. If it means that there is no "
        "label, remove these rows from the files."
        for name in HIDDEN
        if counted[name]
    ]


def _note_places(names: Collection[str | None], labels: tuple[str, ...]) -> list[str]:
    """Return a note if the labels found are places among the stated ones that could count from 0 or from 1."""
    found = {name for name in names if name is not None}
    if not found or not found <= {str(place) for place in range(1, len(labels) + 1)}:
        return []
    first = 1 if str(len(labels)) in found else 0
    shown = ", ".join(f"{first + number} is {name}" for number, name in enumerate(labels))
    return [f"The labels are numbers without 0 and are read from {first}: {shown}."]


# Known labelled corpora: their columns, their labels, and the roles of their splits.

CorpusPart = str
"""The name of a split in a corpus: train, heldout, val or test."""

_PARTS: dict[str, CorpusPart] = {**SPLIT_NAMES, **dict.fromkeys(("heldout", "held"), "heldout")}


@dataclass(frozen=True)
class LabelledCorpus:
    """A known corpus. A column may have several names, and the first that a table has is used."""

    hub: HubCorpus | None
    texts: tuple[tuple[str, ...], ...]
    label: tuple[str, ...] = ("label",)
    labels: tuple[str, ...] = ()
    """Names of the labels by number; empty: those that are found."""
    leaves_out: tuple[str, ...] = ()
    """Words in the name of a split or file that belongs to another corpus of the same folder."""
    hidden: tuple[str, ...] = HIDDEN
    """Values of the label column, other than an empty one, that mean that a row has no label."""
    language: str | None = None
    """The language to read, for a corpus that has several."""
    unnamed: tuple[str, ...] = ()
    """Columns of the files as they are distributed, if they have no header line. Columns with the same name are joined
    by a space."""


_PAIR = (("premise", "sentence1"), ("hypothesis", "sentence2"))
_ENTAILMENT = ("entailment", "neutral", "contradiction")
_MNLI = HubCorpus("nyu-mll/glue", "mnli")

LABELLED_CORPORA: dict[str, LabelledCorpus] = {
    "sst2": LabelledCorpus(HubCorpus("stanfordnlp/sst2"), (("sentence",),), labels=("negative", "positive")),
    "mnli": LabelledCorpus(_MNLI, _PAIR, ("label", "gold_label"), _ENTAILMENT, ("mismatched",)),
    "mnli-mismatched": LabelledCorpus(_MNLI, _PAIR, ("label", "gold_label"), _ENTAILMENT, ("matched",)),
    # Its training split is MNLI's, in each of its languages.
    "xnli": LabelledCorpus(HubCorpus("facebook/xnli"), _PAIR, ("label", "gold_label"), _ENTAILMENT),
    "ag_news": LabelledCorpus(
        HubCorpus("fancyzhx/ag_news"),
        (("text",),),
        labels=("World", "Sports", "Business", "Sci/Tech"),
        unnamed=("label", "text", "text"),  # class, title, description: the hub joins the last two
    ),
    "story-questions": LabelledCorpus(None, (("ending",), ("question",)), ("answer",)),
    "imdb": LabelledCorpus(HubCorpus("stanfordnlp/imdb"), (("text",),), labels=("negative", "positive")),
}


def corpus_of(spec: ExamplesSpec) -> LabelledCorpus:
    """Return the corpus that a spec names, with the columns that the spec sets.

    Raises:
        UnknownName: the corpus is not known, and the spec does not name its columns.
        UsageError: more than two text columns, or a language for a corpus that has only one.

    """
    if len(spec.texts) > 2:
        raise UsageError(f"data.texts names {len(spec.texts)} columns ({', '.join(spec.texts)}). Name one or two.")
    known = LABELLED_CORPORA.get(spec.corpus)
    if known is None and not spec.texts:
        raise UnknownName(
            "labelled corpus",
            spec.corpus,
            LABELLED_CORPORA,
            "For any other, name its columns with --texts and --label (data.texts and data.label in a spec).",
        )
    if spec.corpus != "xnli" and spec.language != "en":
        raise UsageError(
            f"data.language is {spec.language!r}, but {spec.corpus} has only one language. Only xnli has several."
        )
    if known is None:
        known = LabelledCorpus(HubCorpus.named(spec.corpus) if "/" in spec.corpus else None, (), hidden=())
    if spec.corpus == "xnli" and known.hub is not None:
        known = replace(known, hub=HubCorpus(known.hub.repository, spec.language), language=spec.language)
    texts = tuple((name,) for name in spec.texts) or known.texts
    return replace(known, texts=texts, label=(spec.label,) if spec.label else known.label)


def find_part(name: str | Path) -> CorpusPart | None:
    """Return which part of a corpus a file or split is, from the last word of its name that names a part."""
    return next((_PARTS[word] for word in reversed(_words(name)) if word in _PARTS), None)


def is_of_corpus(corpus: LabelledCorpus, name: str | Path) -> bool:
    """Return whether a file or split belongs to this corpus, and not to another one in the same folder."""
    return not set(_words(name)) & set(corpus.leaves_out)


def _words(name: str | Path) -> list[str]:
    return [word for word in re.split(r"[^a-z0-9]+", str(name).lower()) if word]


def roles_of(parts: Iterable[CorpusPart]) -> dict[Split, CorpusPart]:
    """Return which part is for training, which for tuning and which for reporting. Missing splits are drawn later.

    Tuning never sees the reported part. A benchmark that hides its test labels has one labelled part in addition to
    training: this part is reported, and validation is held out from training, by its authors (`heldout`) or here.
    """
    found = set(parts)
    if "train" not in found:
        if len(found) > 1:
            raise BadData(
                f"there are the parts {', '.join(sorted(found))}, but none to train on. Call one `train`, or give a "
                "single file, which is then split."
            )
        return {"train": next(iter(found))}
    if {"heldout", "val", "test"} <= found:
        raise BadData(
            "there are heldout, validation and test parts, and only two are used in addition to training. Move one of "
            "them away."
        )
    roles: dict[Split, CorpusPart] = {"train": "train"}
    if "heldout" in found:
        roles["val"] = "heldout"
        reported = found & {"val", "test"}
        return roles | ({"test": reported.pop()} if reported else {})
    if {"val", "test"} <= found:
        return roles | {"val": "val", "test": "test"}
    return roles | ({"test": (found - {"train"}).pop()} if found - {"train"} else {})


def find_column(table: Mapping[str, object], names: tuple[str, ...], where: str, corpus: LabelledCorpus) -> str:
    """Return the first of some names that is a column of a row.

    Raise BadData if there is none. If the columns look like data, the message says that a header line is missing.
    """
    for name in names:
        if name in table:
            return name
    shown = ", ".join(repr(column[:40]) for column in table)
    needed = ", ".join([*(columns[0] for columns in corpus.texts), corpus.label[0]])
    flags = "--texts and --label (data.texts and data.label in a spec)"
    is_separated = where.endswith((".csv", ".tsv"))
    if is_separated and any(_looks_like_data(column, corpus.labels) for column in table):
        raise BadData(
            f"{where} seems to have no header line: its first line is {shown}. Add a first line that names its "
            f"columns. The columns {needed} are read; give other names with {flags}."
        )
    hint = " If the file has no header line, add one." if is_separated else ""
    raise BadData(
        f"{where} has no column {' or '.join(map(repr, names))}, only {shown}. The columns {needed} are read; give "
        f"other names with {flags}.{hint}"
    )


def _looks_like_data(column: str, labels: Collection[str]) -> bool:
    """Return whether the name of a column is a label, a number, or a sentence."""
    return column in labels or bool(_WHOLE_NUMBER.fullmatch(column)) or len(column.split()) > 4 or len(column) > 40


DRAWN_ROWS, MOST_DRAWN = 500, 10_000
"""A split that is drawn has a tenth of the rows, but at least and at most this many, and never more than a fifth."""
LANGUAGE = "language"
"""The column with the language of a row, in files of XNLI that hold all languages."""


@dataclass(frozen=True)
class LabelledText:
    """The rows of one split."""

    texts: Sequence[tuple[str, ...]]
    labels: Sequence[int]

    def __len__(self) -> int:
        return len(self.labels)

    def select(self, rows: Sequence[int]) -> LabelledText:
        """Return some of the rows."""
        return LabelledText([self.texts[row] for row in rows], [self.labels[row] for row in rows])


@dataclass(frozen=True)
class Examples:
    """A labelled corpus by split, with notes on how it was read."""

    corpus: str
    labels: tuple[str, ...]
    splits: Mapping[Split, LabelledText]
    notes: tuple[str, ...] = field(default=())


def open_examples(spec: ExamplesSpec) -> Examples:
    """Read labelled text from `source`, from `data/<corpus>` or from the hub.

    Raises:
        UsageError: the corpus is unknown or cannot be reached.
        BadData: files, columns, labels or texts are missing or malformed.

    """
    corpus, notes = corpus_of(spec), list[str]()
    parts = _labelled_parts(spec, corpus, _tables(spec, corpus, notes), notes)
    names = [name for rows in parts.values() for _, name in rows]
    labels = corpus.labels or order_labels(names)
    notes += [*find_suspicious_labels(names), *_note_places(names, corpus.labels)]
    numbers = number_labels(labels, set(names), by_place=bool(corpus.labels))
    texts = {part: _read_rows(part, rows, numbers, notes) for part, rows in parts.items()}
    roles = roles_of(texts)
    splits = {split: texts[part] for split, part in roles.items()}
    if not spec.holds_out and "val" not in splits and "test" in splits:
        splits["val"] = splits["test"]
        notes.append("validation uses the rows that are reported, so the best validation figure is optimistic.")
    _draw_missing(splits, spec, notes)
    _limit(splits, spec)
    _count_duplicates(splits, notes)
    return Examples(spec.corpus, labels, splits, tuple(notes))


def open_split(spec: ExamplesSpec, split: Split, labels: tuple[str, ...]) -> Examples:
    """Read only one split, for a model that knows `labels`. If there is only one table, all of it is this split.

    Raises:
        BadData: as for `open_examples`; a label that is not in `labels`; no part is this split.

    """
    corpus, notes = corpus_of(spec), list[str]()
    tables = _tables(spec, corpus, notes)
    parts = _labelled_parts(spec, corpus, tables, notes, alone=split)
    part = split if len(tables) == 1 else roles_of({"train", *parts}).get(split)
    if part not in parts:
        raise BadData(
            f"none of {', '.join(tables)} is the {split} split. Ask for another split, or give a single file, which is "
            "then read as this split."
        )
    names = [name for rows_of_part in parts.values() for _, name in rows_of_part]
    notes += _note_places(names, corpus.labels)
    numbers = number_labels(labels, set(names), by_place=bool(corpus.labels))
    advice = "The model was trained on these labels only: correct the row, or remove it."
    rows = _read_rows(part, parts[part], numbers, notes, advice)
    return Examples(spec.corpus, labels, {split: rows}, tuple(notes))


def _tables(spec: ExamplesSpec, corpus: LabelledCorpus, notes: list[str]) -> dict[str, Sequence[TableRow]]:
    """Read all tables of a corpus in the requested language, by the names of their files or splits."""
    folder = local_folder(spec)
    tables: Mapping[str, Sequence[TableRow]]
    if folder is not None:
        tables = _local_tables(corpus, folder)
    elif spec.corpus == QUESTIONS:
        tables = question_tables(spec.seed)
    else:
        splits = hub_tables(corpus.hub, spec.corpus)
        tables = {name: rows for name, rows in splits.items() if rows and is_of_corpus(corpus, name)}
    return {name: _select_language(name, rows, corpus.language, notes) for name, rows in tables.items()}


def _select_language(name: str, rows: Sequence[TableRow], language: str | None, notes: list[str]) -> Sequence[TableRow]:
    """Return the rows of one language, if the corpus has several and the table has a column for it."""
    if language is None or LANGUAGE not in rows[0]:
        return rows
    own = [row for row in rows if str(row.get(LANGUAGE)).strip() == language]
    if not own:
        found = sorted({str(row.get(LANGUAGE)).strip() for row in rows})
        raise BadData(
            f"none of the {len(rows):,} rows of {name} has the language {language!r}, only {', '.join(found)}. Choose "
            "one of these with --language (data.language in a spec), or give other files."
        )
    if len(own) < len(rows):
        notes.append(
            f"{len(rows) - len(own):,} of {len(rows):,} rows of {name} have another language than {language!r} and are "
            "left out."
        )
    return own


def default_folder(spec: ExamplesSpec) -> Path:
    """Return the default folder of a corpus: `data/<corpus>`, or for example `data/xnli-de` for German."""
    language = "" if spec.language == "en" else f"-{spec.language}"
    return Path("data") / (spec.corpus.replace("/", "-") + language)


def local_folder(spec: ExamplesSpec) -> Path | None:
    """Return the file or folder that a spec reads, or None for the hub."""
    if spec.source is not None:
        return spec.source
    folder = default_folder(spec)  # which may hold the same corpus as tokens, such as imdb
    return folder if any(file.suffix in TABLE_FORMATS for file in folder.glob("*")) else None


def _local_tables(corpus: LabelledCorpus, path: Path) -> dict[str, Sequence[TableRow]]:
    found = sorted(file for file in path.glob("*") if file.suffix in TABLE_FORMATS and is_of_corpus(corpus, file.name))
    files = [path] if path.is_file() else found  # a file that is given is read, whatever its name
    if not files or any(file.suffix not in TABLE_FORMATS for file in files):
        raise BadData(
            f"there is no labelled text at {path}: no {', '.join(TABLE_FORMATS)}. Give a folder with files named "
            "train, heldout or dev, and test, or one file."
        )
    return {file.name: read_table(file, corpus.unnamed) for file in files}


_Rows = list[tuple[tuple[Any, ...], str | None]]
"""The texts of each row, and its label if it has one."""


def _labelled_parts(
    spec: ExamplesSpec,
    corpus: LabelledCorpus,
    tables: Mapping[str, Sequence[TableRow]],
    notes: list[str],
    alone: CorpusPart = "train",
) -> dict[CorpusPart, _Rows]:
    """Return texts and label of every row by part, without parts whose labels are hidden.

    If there is only one table, it is the part `alone`, whatever its name.
    """
    found: dict[CorpusPart, list[tuple[tuple[Any, ...], Any]]] = {}
    for name, rows in tables.items():
        part = find_part(name) if len(tables) > 1 else alone
        if part is None:
            if local_folder(spec) is None:
                continue  # the hub also has splits of unlabelled text
            raise BadData(
                f"the name of {name} does not say which split it is, and there are several files "
                f"({', '.join(tables)}). Put train, heldout, dev or test into its name, or move it away."
            )
        columns = [find_column(rows[0], names, name, corpus) for names in corpus.texts]
        if part == "test" and not any(each in rows[0] for each in corpus.label):
            notes.append(f"{name} has no labels and is left out.")
            continue
        label = find_column(rows[0], corpus.label, name, corpus)
        found.setdefault(part, []).extend((tuple(row.get(each) for each in columns), row.get(label)) for row in rows)
    parts: dict[CorpusPart, _Rows] = {}
    for part, rows_of_part in found.items():
        # By part, not by file: files sorted by label may hold one label each.
        names = label_names([label for _, label in rows_of_part], corpus.hidden)
        if part == "test" and not any(names):
            notes.append(f"the {len(names):,} rows of the test part have no labels and are left out.")
        else:
            parts[part] = [(texts, name) for (texts, _), name in zip(rows_of_part, names, strict=True)]
    if not parts:
        raise BadData(f"{spec.corpus} has no labelled rows in {', '.join(tables)}. Add labels, or give other files.")
    return parts


def _read_rows(
    part: CorpusPart,
    rows: _Rows,
    numbers: Mapping[str, int],
    notes: list[str],
    advice: str = "Correct the row, or name another label column with --label (data.label in a spec).",
) -> LabelledText:
    texts, known, empty, hidden = [], [], 0, 0
    for place, (columns, name) in enumerate(rows, 1):
        if name is None:
            hidden += 1
            continue
        if name not in numbers:
            raise BadData(
                f"row {place} of the {part} part has the label {name[:60]!r}, which is not one of "
                f"{', '.join(numbers)}. {advice}"
            )
        for text in columns:
            if not isinstance(text, str | None) or (text is not None and not _is_unicode(text)):
                raise BadData(
                    f"row {place} of the {part} part has a text that is not valid: {str(text)[:60]!r}. Correct the "
                    "row, or name other text columns with --texts (data.texts in a spec)."
                )
        if not all(text and text.strip() for text in columns):
            empty += 1
            continue
        texts.append(columns)
        known.append(numbers[name])
    if not known:
        raise BadData(
            f"none of the {len(rows)} rows of the {part} part has both text and label. Check the columns that are read."
        )
    if hidden:
        notes.append(f"{hidden:,} of {len(rows):,} {part} rows have no label and are left out.")
    if empty:
        notes.append(f"{empty:,} of {len(rows):,} {part} rows have an empty text and are left out.")
    return LabelledText(texts, known)


def _draw_missing(splits: dict[Split, LabelledText], spec: ExamplesSpec, notes: list[str]) -> None:
    """Draw the splits that a corpus lacks from its training rows, by group.

    Rows with the same first text (the premise of a pair, or a repeated sentence) are one group and stay together.
    """
    total = len(splits["train"])
    limit = total // 5
    wanted = min(max(total // 10, DRAWN_ROWS), limit, MOST_DRAWN)
    for split in ("test", "val"):
        if split in splits:
            continue
        if not wanted:
            raise BadData(
                f"{total} rows are too few to draw a {split} split from. Give at least 5 rows, or a separate file."
            )
        train = splits["train"]
        groups: dict[str, list[int]] = {}
        for row, texts in enumerate(train.texts):
            groups.setdefault(texts[0], []).append(row)
        drawn: list[int] = []
        for group in sorted(groups, key=lambda group: _rank(spec.seed, split, group)):
            if len(drawn) >= wanted:
                break
            if len(drawn) + len(groups[group]) <= limit:
                drawn += groups[group]
        if not drawn:
            raise BadData(
                f"no {split} split can be drawn from {total} rows: each of the {len(groups)} different first texts has "
                "more than a fifth of them, and rows with the same first text stay together. Give it a separate file."
            )
        left = sorted(set(range(len(train))) - set(drawn))
        splits[split], splits["train"] = train.select(sorted(drawn)), train.select(left)
        notes.append(
            f"{len(drawn):,} rows are drawn from training for {split}; none of their first texts remains in training."
        )


def _rank(seed: int, split: str, group: str) -> bytes:
    return hashlib.sha256(f"{seed}\x1f{split}\x1f{group}".encode()).digest()


def _limit(splits: dict[Split, LabelledText], spec: ExamplesSpec) -> None:
    train = splits["train"]
    if spec.rows is not None and spec.rows < len(train):
        order = np.random.default_rng(derived_seed(spec.seed, "rows")).permutation(len(train))
        splits["train"] = train.select(sorted(order[: spec.rows].tolist()))


def _count_duplicates(splits: Mapping[Split, LabelledText], notes: list[str]) -> None:
    keys = {split: [_key(texts) for texts in rows.texts] for split, rows in splits.items()}
    pairs: tuple[tuple[Split, Split, str], ...] = (
        ("val", "train", "training"), ("test", "train", "training"), ("test", "val", "validation"),
    )  # fmt: skip
    for split, other, called in pairs:
        seen = set(keys[other])
        shared = sum(key in seen for key in keys[split])
        if shared:
            share = shared / len(keys[split])
            notes.append(f"{shared:,} {split} rows ({share:.1%}) are also in the {called} split; they are kept.")


def _key(texts: tuple[str, ...]) -> tuple[str, ...]:
    """Return texts without differences of case and white space, for comparison."""
    return tuple(" ".join(text.lower().split()) for text in texts)


# Labelled text as JSON lines, one file per split, in a folder that is written completely or not at all.


def write_examples(examples: Examples, spec: ExamplesSpec, directory: Path) -> bool:
    """Write each split as a file with the columns of the corpus; return whether anything was written.

    Nothing is written if the folder is the one that was read, whatever its files are called.

    Raises:
        UsageError: the folder holds something else, which is not overwritten.

    """
    read = local_folder(spec)
    if read is not None and read.resolve() == directory.resolve():
        return False
    corpus = corpus_of(spec)
    texts, label = [names[0] for names in corpus.texts], corpus.label[0]
    files = {
        f"{split}.jsonl": "".join(
            json.dumps({**dict(zip(texts, row, strict=True)), label: examples.labels[number]}, ensure_ascii=False)
            + "\n"
            for row, number in zip(rows.texts, rows.labels, strict=True)
        ).encode()
        for split, rows in examples.splits.items()
    }
    if directory.exists():
        found = {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}
        if found == files:
            return False
        raise UsageError(
            f"{directory} does not hold {examples.corpus}: it holds something else ({', '.join(sorted(found))}), and "
            "nothing is overwritten. Choose another folder with --out, or delete this one."
        )
    aside = directory.with_name(f".{directory.name}.part")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    for name, content in files.items():
        (aside / name).write_bytes(content)
    aside.rename(directory)
    return True
