"""Runs that no study declares, gathered into comparisons: one per corpus, its arms told by method."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from oelm.analysis.compare import Comparison, Found, compare
from oelm.errors import IncomparableRuns, UsageError
from oelm.record.schema import RunRecord
from oelm.record.store import RECORD, find_records, read_record
from oelm.spec.method import MethodSpec
from oelm.spec.run import declared
from oelm.study import Arm, Study


@dataclass(frozen=True)
class Gathering:
    """The comparisons that some runs allow, and what is left over, in words."""

    comparisons: tuple[Comparison, ...]
    alone: tuple[str, ...]
    unreadable: tuple[str, ...] = ()
    root: Path | None = None
    """The folder of the study's runs, where a study declares them."""


def find_runs(paths: Sequence[Path]) -> tuple[list[Found], list[str]]:
    """Read the records of run folders, and of all runs below other folders."""
    found: list[Found] = []
    unreadable: list[str] = []
    for path in paths:
        if (path / RECORD).exists():
            found.append((path, read_record(path)))
            continue
        if not path.is_dir():
            raise UsageError(f"{path} was to be compared, and there is no such folder. Give folders of runs.")
        below, bad = find_records(path)
        if not below and not bad:
            raise UsageError(f"{path} was to be compared, and no {RECORD} lies in it or below. Give folders of runs.")
        found += below
        unreadable += map(str, bad)
    unique = {directory.resolve(): (directory, record) for directory, record in found}
    return list(unique.values()), unreadable


def gather(found: Iterable[Found], *, force: bool = False, unreadable: Sequence[str] = ()) -> Gathering:
    """Compare runs corpus by corpus.

    Raise IncomparableRuns if runs on one corpus differ in more than method and seed, unless forced; and if there are
    no two arms on any corpus, in which case nothing could be compared at all.
    """
    comparisons: list[Comparison] = []
    alone: list[str] = []
    for corpus, members in by_data(found).items():
        methods = methods_of(members)
        if len(methods) > 1:
            comparisons.append(_compared(corpus, members, methods, force=force))
            continue
        arms = ", ".join(sorted({record.spec.arm for _, record in members}))
        alone.append(f"{arms} is the only arm on data.corpus {corpus}: there is nothing to compare it with.")
    if not comparisons:
        raise IncomparableRuns(
            f"no two of these runs can be compared. {' '.join(alone) or 'There are none.'} Give runs of at least two "
            "methods on the same corpus."
        )
    return Gathering(tuple(comparisons), tuple(alone), tuple(unreadable))


def by_data(found: Iterable[Found]) -> dict[str, list[Found]]:
    """Group runs by what they were trained on: its corpus, and where that is not enough, what else differs."""
    groups: dict[str, list[Found]] = {}
    for directory, record in found:
        data = declared(record.spec).data
        key = json.dumps(data.meaning() | {"corpus": data.corpus, "kind": data.kind}, sort_keys=True)
        groups.setdefault(key, []).append((directory, record))
    corpora = Counter(json.loads(key)["corpus"] for key in groups)
    kinds = Counter(corpus for corpus, _ in {(plain["corpus"], plain["kind"]) for plain in map(json.loads, groups)})
    named = {}
    for key, members in groups.items():
        plain = json.loads(key)
        corpus = plain.pop("corpus")
        apart = plain if kinds[corpus] > 1 else {field: value for field, value in plain.items() if field != "kind"}
        rest = ", ".join(f"{field} {value}" for field, value in apart.items())
        named[corpus if corpora[corpus] == 1 else f"{corpus} ({rest or 'as it is'})"] = members
    return named


def methods_of(members: Sequence[Found]) -> dict[str, MethodSpec]:
    """Name the methods: by the runs' arms, and where two share one, by arm and number."""
    names: dict[str, MethodSpec] = {}
    for _, record in members:
        if record.spec.method in names.values():
            continue
        name, number = record.spec.arm, 2
        while name in names:
            name, number = f"{record.spec.arm} ({number})", number + 1
        names[name] = record.spec.method
    return names


def _compared(corpus: str, members: Sequence[Found], methods: dict[str, MethodSpec], *, force: bool) -> Comparison:
    reference = min(methods, key=lambda name: (bool(methods[name].freeze.roles), methods[name].touches))
    base = next(record.spec for _, record in members if record.spec.method == methods[reference])
    study = Study(
        name="gathered",
        question=f"How do these runs on {corpus} compare?",
        base=declared(base),
        arms=tuple(Arm(name=name, method=method) for name, method in methods.items()),
        reference=reference,
        seeds=tuple(sorted({record.spec.seed for _, record in members})),
    )
    # Titled by its corpus, which (owner/name) may be no folder's name: nothing is ever written for it.
    study = study.model_copy(update={"name": corpus})
    own = [(path, _as_arm(record, methods)) for path, record in members]
    return compare(study, own, force=force, gathered=True)


def _as_arm(record: RunRecord, methods: dict[str, MethodSpec]) -> RunRecord:
    name = next(name for name, method in methods.items() if method == record.spec.method)
    return record.model_copy(update={"spec": record.spec.model_copy(update={"arm": name})})
