"""Labelled text: rows of one or two texts and a label, checked and split so that nothing leaks."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from oelm.data.hub import hub_tables
from oelm.data.labels import found_labels, label_names, numbers_of, suspicious
from oelm.data.questions import QUESTIONS, question_tables
from oelm.data.tables import FORMATS, Row, read_table
from oelm.data.tasks import LabelledCorpus, Part, belongs, column, corpus_of, part_of, roles_of
from oelm.errors import BadData
from oelm.spec.data import ExamplesSpec, Split
from oelm.spec.seeds import derived_seed

DRAWN_ROWS, MOST_DRAWN = 500, 10_000
"""A split that a corpus lacks is a tenth of it, but at least and at most so many rows, and never over a fifth."""
LANGUAGE = "language"
"""The column in which XNLI's files, with all languages in one, say which a row is of."""


@dataclass(frozen=True)
class LabelledText:
    """The rows of one split."""

    texts: Sequence[tuple[str, ...]]
    labels: Sequence[int]

    def __len__(self) -> int:
        return len(self.labels)

    def taken(self, rows: Sequence[int]) -> LabelledText:
        """Return some of the rows."""
        return LabelledText([self.texts[row] for row in rows], [self.labels[row] for row in rows])


@dataclass(frozen=True)
class Examples:
    """A labelled corpus by split, with what a person should know of it."""

    corpus: str
    labels: tuple[str, ...]
    splits: Mapping[Split, LabelledText]
    notes: tuple[str, ...] = field(default=())


def open_examples(spec: ExamplesSpec) -> Examples:
    """Read what a spec names, from `source`, from `data/<corpus>` or from the hub.

    Raises:
        UsageError: the corpus is unknown or cannot be reached.
        BadData: files, columns, labels or texts that are not what they should be; nothing has been written.

    """
    corpus, notes = corpus_of(spec), list[str]()
    parts = _labelled_parts(spec, corpus, _tables(spec, corpus, notes), notes)
    names = [name for rows in parts.values() for _, name in rows]
    labels = corpus.labels or found_labels(names)
    notes += suspicious(names)
    numbers = numbers_of(labels, by_place=bool(corpus.labels))
    texts = {part: _read_rows(part, rows, numbers, notes) for part, rows in parts.items()}
    roles = roles_of(texts)
    splits = {split: texts[part] for split, part in roles.items()}
    _draw_missing(splits, spec, notes)
    _limit(splits, spec)
    _count_duplicates(splits, notes)
    return Examples(spec.corpus, labels, splits, tuple(notes))


def open_split(spec: ExamplesSpec, split: Split, labels: tuple[str, ...]) -> Examples:
    """Read one split alone, for a model that knows `labels`; a table that has no others beside it is all of it.

    Raises:
        BadData: as for `open_examples`; a label that is none of `labels`; no part that would serve as this split.

    """
    corpus, notes = corpus_of(spec), list[str]()
    tables = _tables(spec, corpus, notes)
    parts = _labelled_parts(spec, corpus, tables, notes, alone=split)
    part = split if len(tables) == 1 else roles_of({"train", *parts}).get(split)
    if part not in parts:
        raise BadData(
            f"the {split} split was asked for, but none of {', '.join(tables)} serves as that. Ask for another split, "
            "or give the one file to be read as this."
        )
    numbers = numbers_of(labels, by_place=bool(corpus.labels))
    cure = "The model was trained on these labels alone: correct the row, or leave it out."
    rows = _read_rows(part, parts[part], numbers, notes, cure)
    return Examples(spec.corpus, labels, {split: rows}, tuple(notes))


def _tables(spec: ExamplesSpec, corpus: LabelledCorpus, notes: list[str]) -> dict[str, Sequence[Row]]:
    """Read all tables of a corpus in the language asked for, by the names of their files or splits."""
    folder = local_folder(spec)
    tables: Mapping[str, Sequence[Row]]
    if folder is not None:
        tables = _local_tables(corpus, folder)
    elif spec.corpus == QUESTIONS:
        tables = question_tables(spec.seed)
    else:
        splits = hub_tables(corpus.hub, spec.corpus)
        tables = {name: rows for name, rows in splits.items() if belongs(corpus, name)}
    return {name: _spoken(name, rows, corpus.language, notes) for name, rows in tables.items()}


def _spoken(name: str, rows: Sequence[Row], language: str | None, notes: list[str]) -> Sequence[Row]:
    """Return the rows of one language, where the corpus has several and the table tells them apart."""
    if language is None or LANGUAGE not in rows[0]:
        return rows
    own = [row for row in rows if str(row.get(LANGUAGE)).strip() == language]
    if not own:
        found = sorted({str(row.get(LANGUAGE)).strip() for row in rows})
        raise BadData(
            f"none of the {len(rows):,} rows of {name} is of the language {language!r}, only of {', '.join(found)}. "
            "Ask for one of these with data.language, or give other files."
        )
    if len(own) < len(rows):
        notes.append(
            f"{len(rows) - len(own):,} of {len(rows):,} rows of {name} are of another language than {language!r} "
            "and are left out."
        )
    return own


def default_folder(spec: ExamplesSpec) -> Path:
    """Return where a corpus' files lie unless told otherwise: `data/<corpus>`, or `data/xnli-de` for German."""
    language = "" if spec.language == "en" else f"-{spec.language}"
    return Path("data") / (spec.corpus.replace("/", "-") + language)


def local_folder(spec: ExamplesSpec) -> Path | None:
    """Return the file or folder that a spec reads; None: the hub."""
    if spec.source is not None:
        return spec.source
    folder = default_folder(spec)  # where the same corpus may lie as tokens, such as imdb
    return folder if any(file.suffix in FORMATS for file in folder.glob("*")) else None


def _local_tables(corpus: LabelledCorpus, path: Path) -> dict[str, Sequence[Row]]:
    beside = sorted(file for file in path.glob("*") if file.suffix in FORMATS and belongs(corpus, file.name))
    files = [path] if path.is_file() else beside  # one that is named is meant, a sibling's or not
    if not files or any(file.suffix not in FORMATS for file in files):
        raise BadData(
            f"labelled text was to be read from {path}, but there is no {', '.join(FORMATS)} there. Give a folder with "
            "files named train, heldout or dev, and test, or one file."
        )
    return {file.name: read_table(file) for file in files}


_Named = list[tuple[tuple[Any, ...], str | None]]
"""The texts of each row, and the name of its label if it has one."""


def _labelled_parts(
    spec: ExamplesSpec,
    corpus: LabelledCorpus,
    tables: Mapping[str, Sequence[Row]],
    notes: list[str],
    alone: Part = "train",
) -> dict[Part, _Named]:
    """Return texts and label of every row by part, without the parts whose labels are hidden.

    A table that has no others beside it is the part `alone`, whatever its name.
    """
    found: dict[Part, list[tuple[tuple[Any, ...], Any]]] = {}
    for name, rows in tables.items():
        part = part_of(name) if len(tables) > 1 else alone
        if part is None:
            if local_folder(spec) is None:
                continue  # the hub has splits of unlabelled text beside the others
            raise BadData(
                f"{name} does not say which split it is, and there are others ({', '.join(tables)}). Put train, "
                "heldout, dev or test into its name, or move it away."
            )
        if part == "test" and not any(each in rows[0] for each in corpus.label):
            notes.append(f"{name} has no labels and is left out.")
            continue
        columns = [column(rows[0], names, name) for names in corpus.texts]
        label = column(rows[0], corpus.label, name)
        found.setdefault(part, []).extend((tuple(row.get(each) for each in columns), row.get(label)) for row in rows)
    parts: dict[Part, _Named] = {}
    for part, rows_of_part in found.items():
        # By part, not by file: files sorted by label may hold one label each.
        names = label_names([label for _, label in rows_of_part], corpus.hidden)
        if part == "test" and not any(names):
            notes.append(f"the {len(names):,} rows of the test part have no labels and are left out.")
        else:
            parts[part] = [(texts, name) for (texts, _), name in zip(rows_of_part, names, strict=True)]
    if not parts:
        raise BadData(f"{spec.corpus} has no labelled rows in {', '.join(tables)}.")
    return parts


def _read_rows(
    part: Part,
    rows: _Named,
    numbers: Mapping[str, int],
    notes: list[str],
    cure: str = "Correct the row, or name another label column with data.label.",
) -> LabelledText:
    texts, known, empty, hidden = [], [], 0, 0
    for place, (columns, name) in enumerate(rows, 1):
        if name is None:
            hidden += 1
            continue
        if name not in numbers:
            raise BadData(
                f"row {place} of the {part} part has the label {name!r}, which is none of {', '.join(numbers)}. {cure}"
            )
        if any(not isinstance(text, str) or not text.strip() for text in columns):
            empty += 1
            continue
        texts.append(columns)
        known.append(numbers[name])
    if not known:
        raise BadData(
            f"none of the {len(rows)} rows of the {part} part has both text and label; there is nothing to do."
        )
    if hidden:
        notes.append(f"{hidden:,} of {len(rows):,} {part} rows have no label and are left out.")
    if empty:
        notes.append(f"{empty:,} of {len(rows):,} {part} rows have an empty text and are left out.")
    return LabelledText(texts, known)


def _draw_missing(splits: dict[Split, LabelledText], spec: ExamplesSpec, notes: list[str]) -> None:
    """Hold the splits that a corpus lacks out of its training rows, by group.

    Rows with one first text (the premise of a pair, or a repeated sentence) are one group and stay together.
    """
    total = len(splits["train"])
    limit = total // 5
    wanted = min(max(total // 10, DRAWN_ROWS), limit, MOST_DRAWN)
    for split in ("test", "val"):
        if split in splits:
            continue
        if not wanted:
            raise BadData(
                f"{total} rows are too few to draw a {split} split from. Give at least 5, or a file of its own."
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
                f"more than a fifth of them, and rows with one first text stay together. Give it a file of its own."
            )
        left = sorted(set(range(len(train))) - set(drawn))
        splits[split], splits["train"] = train.taken(sorted(drawn)), train.taken(left)
        notes.append(
            f"{len(drawn):,} rows are drawn from training for {split}, none of whose first texts is left in it."
        )


def _rank(seed: int, split: str, group: str) -> bytes:
    return hashlib.sha256(f"{seed}\x1f{split}\x1f{group}".encode()).digest()


def _limit(splits: dict[Split, LabelledText], spec: ExamplesSpec) -> None:
    train = splits["train"]
    if spec.rows is not None and spec.rows < len(train):
        order = np.random.default_rng(derived_seed(spec.seed, "rows")).permutation(len(train))
        splits["train"] = train.taken(sorted(order[: spec.rows].tolist()))


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
            notes.append(f"{shared:,} {split} rows ({share:.1%}) stand in the {called} split too; they are kept.")


def _key(texts: tuple[str, ...]) -> tuple[str, ...]:
    """Return texts as they are compared: without differences of case and of white space."""
    return tuple(" ".join(text.lower().split()) for text in texts)
