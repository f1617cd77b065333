"""A run's curve, read on from where it was read last, and thinned to what a screen can show."""

from __future__ import annotations

import itertools
import math
import secrets
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

from pydantic import ValidationError

from oelm.record.schema import MetricRecord
from oelm.record.store import METRICS
from oelm.report.server.folder import Folder

KINDS = ("train", "val")
SHOWN = 800
"""Points of one line that are sent at most; a screen has hardly more columns."""
CHUNK = 1 << 24
"""Bytes that are read for one answer; a longer file is sent in several."""
KEPT = 200
"""Curves held in memory."""
WITNESS = 64
"""Bytes before the place read last: if they have changed, the file was written anew."""
TOLD = 5
"""Bad lines that are described; of the others only the number is."""


@dataclass
class Line:
    """One kind of loss along training, as columns."""

    step: array[float] = field(default_factory=lambda: array("d"))
    loss: array[float] = field(default_factory=lambda: array("d"))
    seconds: array[float] = field(default_factory=lambda: array("d"))

    def add(self, metric: MetricRecord) -> None:
        """Append a point."""
        self.step.append(metric.step)
        self.loss.append(metric.loss)
        self.seconds.append(metric.seconds)

    def chosen(self, places: Iterable[int]) -> dict[str, list[Any]]:
        """Return the points at these places."""
        places = list(places)
        return {
            "step": [int(self.step[place]) for place in places],
            "loss": [self.loss[place] for place in places],
            "seconds": [round(self.seconds[place], 3) for place in places],
        }


@dataclass
class Curve:
    """What has been read of one metrics.jsonl."""

    generation: int
    offset: int = 0
    witness: bytes = b""
    number: int = 0
    bad: int = 0
    problems: list[str] = field(default_factory=list)
    lines: dict[str, Line] = field(default_factory=lambda: {kind: Line() for kind in KINDS})

    def take(self, data: bytes) -> None:
        """Read whole lines on; what follows the last line break is not finished yet."""
        whole = data[: data.rfind(b"\n") + 1]
        for line in whole.split(b"\n")[:-1]:
            self.number += 1
            try:
                metric = MetricRecord.model_validate_json(line)
            except ValidationError:
                self.bad += 1
                if self.bad <= TOLD:
                    shown = line[:80].decode(errors="replace")
                    self.problems.append(f"{METRICS}, line {self.number}, is not a metric: {shown!r}")
            else:
                self.lines[metric.kind].add(metric)
        self.offset += len(whole)
        self.witness = (self.witness + whole)[-WITNESS:]


class Curves:
    """The curves of a folder's runs, each file read once however often it is asked for."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self._lock = Lock()
        self._known: OrderedDict[Path, Curve] = OrderedDict()
        # Not from 1: a page that outlives the server must not take its old cursor for one of the new server's.
        self._generations = itertools.count(secrets.randbelow(10**9))

    def after(self, directory: Path, cursor: str = "") -> dict[str, Any]:
        """Return what has come since `cursor`, or the whole curve if the file is not the one the cursor is of."""
        with self._lock:
            curve, more = self._read(directory)
            seen = _places(cursor, curve)
            answer: dict[str, Any] = {
                kind: line.chosen(thinned(line.loss, range(start, len(line.loss))))
                for (kind, line), start in zip(curve.lines.items(), seen or (0, 0), strict=True)
            }
            counts = ".".join(str(len(line.loss)) for line in curve.lines.values())
            more_bad = curve.bad - len(curve.problems)
            told = [*curve.problems, *([f"... and {more_bad} more such lines"] if more_bad else [])]
            return answer | {
                "cursor": f"{curve.generation}.{counts}", "whole": seen is None, "more": more, "problems": told,
            }  # fmt: skip

    def between(self, directory: Path, first: float, last: float) -> dict[str, Any]:
        """Return the part of a curve between two steps, with one neighbour on each side, in as fine a grain as fits."""
        with self._lock:
            curve, _ = self._read(directory)
            return {
                kind: line.chosen(thinned(line.loss, _within(line, first, last))) for kind, line in curve.lines.items()
            }

    def _read(self, directory: Path) -> tuple[Curve, bool]:
        curve = self._known.pop(directory, None) or Curve(next(self._generations))
        try:
            file = self.folder.open(directory / METRICS)
        except FileNotFoundError:
            curve, more = Curve(next(self._generations)), False
        else:
            with file:
                file.seek(curve.offset - len(curve.witness))
                if file.read(len(curve.witness)) != curve.witness:
                    curve = Curve(next(self._generations))
                    file.seek(0)
                data = file.read(CHUNK)
                more = len(data) == CHUNK and b"\n" in data
            curve.take(data)
        self._known[directory] = curve
        while len(self._known) > KEPT:
            self._known.popitem(last=False)
        return curve, more


def _places(cursor: str, curve: Curve) -> tuple[int, int] | None:
    """Read a cursor: how many points of each kind its holder has, None if they are not of this curve."""
    words = cursor.split(".")
    if len(words) != 1 + len(KINDS) or not all(word.isascii() and word.isdigit() and len(word) < 16 for word in words):
        return None
    generation, train, val = map(int, words)
    known = train <= len(curve.lines["train"].loss) and val <= len(curve.lines["val"].loss)
    return (train, val) if generation == curve.generation and known else None


def _within(line: Line, first: float, last: float) -> list[int]:
    inside = [place for place, step in enumerate(line.step) if first <= step <= last]
    if not inside:
        return inside
    before, behind = range(max(0, inside[0] - 1), inside[0]), range(inside[-1] + 1, min(inside[-1] + 2, len(line.step)))
    return [*before, *inside, *behind]


def thinned(values: Sequence[float], places: Sequence[int], limit: int = SHOWN) -> Sequence[int]:
    """Choose at most `limit` places so that the line looks the same.

    Of each of `limit / 4` stretches the first, the lowest, the highest and the first value that is no number stay:
    no peak, and no divergence, is lost.
    """
    if len(places) <= limit:
        return places
    chosen: set[int] = {places[0], places[-1]}
    stretches = max(1, limit // 4 - 1)
    for number in range(stretches):
        part = places[len(places) * number // stretches : len(places) * (number + 1) // stretches]
        finite = [place for place in part if math.isfinite(values[place])]
        chosen.add(part[0])
        if finite:
            chosen |= {min(finite, key=values.__getitem__), max(finite, key=values.__getitem__)}
        if len(finite) < len(part):
            chosen.add(next(place for place in part if not math.isfinite(values[place])))
    return sorted(chosen)
