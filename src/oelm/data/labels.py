"""The labels of a corpus: what they are called, which number each has, and which rows have none."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any

HIDDEN = ("-1", "-", "None")
"""What the named corpora write where a label is hidden, or where annotators disagreed."""
_WHOLE_NUMBER = re.compile(r"-?[0-9]+")


def label_names(labels: Sequence[Any], hidden: Collection[str]) -> list[str | None]:
    """Return what the labels of a part are called; None where a row has none.

    An empty cell is no label anywhere. What else is none is said by `hidden`: in a table that nobody here knows, -1
    and - are as good as any class, unless -1 is all there is, as where a benchmark keeps its labels to itself.
    """
    names = [None if label is None else str(label).strip() or None for label in labels]
    if set(names) <= {None, "-1"}:
        hidden = ("-1",)
    return [None if name in hidden else name for name in names]


def found_labels(names: Iterable[str | None]) -> tuple[str, ...]:
    """Put the labels of a corpus that states none into order: by number if all are whole numbers, else by alphabet."""
    found = {name for name in names if name is not None}
    if all(_WHOLE_NUMBER.fullmatch(name) for name in found):
        return tuple(sorted(found, key=lambda name: (int(name), name)))
    return tuple(sorted(found))


def numbers_of(labels: tuple[str, ...], *, by_place: bool) -> dict[str, int]:
    """Return the number of each label by its name and, where a corpus states its labels, by that number itself."""
    numbers = {name: number for number, name in enumerate(labels)}
    return numbers | {str(n): n for n in range(len(labels)) if by_place and str(n) not in numbers}


def suspicious(names: Iterable[str | None]) -> list[str]:
    """Tell of classes that are called like a missing label."""
    counted = Counter(names)
    return [
        f"{counted[name]:,} rows have the label {name!r}, which is taken for a class like any other. If it stands for "
        "no label, leave these rows out of the files."
        for name in HIDDEN
        if counted[name]
    ]
