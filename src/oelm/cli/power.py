"""`oelm plan --power`: how many seeds each margin needs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from oelm.analysis.measure import measure_of
from oelm.analysis.power import Need, Spread, needs, spreads_on_record
from oelm.analysis.statistics import MOST_SEEDS
from oelm.errors import UsageError
from oelm.study import AnyStudy, Study


def show_power(study: AnyStudy, roots: Sequence[Path], *, as_json: bool) -> int:
    """Print the seeds that each margin needs, and the studies whose spread this rests on."""
    if not isinstance(study, Study) or study.is_screen:
        raise UsageError(
            f"--power was given, and {study.name!r} does not compare arms over seeds. Give a study with seeds."
        )
    spreads, complaints = spreads_on_record(study, [root for root in roots if root.is_dir()])
    found = needs(study, spreads)
    if as_json:
        print(json.dumps({
            "study": study.name,
            "unit": _unit(study),
            "power": 0.8,
            "spreads": [asdict(spread) for spread in spreads],
            "needs": [asdict(need) for need in found],
            "unreadable": complaints,
        }, indent=1))  # fmt: skip
        return 0
    for line in _lines(study, spreads, found, roots):
        print(line)
    for complaint in complaints:
        print(f"not read: {complaint}")
    return 0


def _lines(study: Study, spreads: Sequence[Spread], found: Sequence[Need], roots: Sequence[Path]) -> Iterator[str]:
    unit = _unit(study)
    yield f"{study.name} has {len(study.seeds)} seeds. Seeds for 80 % power (one-sided 5 %, plain t, each arm alone):"
    absent = {arm.method.arm_class for arm in study.arms if arm.name != study.reference} - {
        s.arm_class for s in spreads
    }
    for spread in spreads:
        yield from _of_class(study, spread, [need for need in found if need.arm_class == spread.arm_class], unit)
    for kind in sorted(absent):
        yield f"{kind} arms: none on record below {', '.join(map(str, roots))}, so their spread is not known"


def _of_class(study: Study, spread: Spread, found: Sequence[Need], unit: str) -> Iterator[str]:
    scaled = measure_of(study.base.data, []).scaled
    where = (
        "of the same model, data and steps" if spread.alike else "of other models, data or steps: take it as a guess"
    )
    yield (
        f"{spread.arm_class} arms: typical deviation {scaled(spread.typical):.2g} {unit}, largest "
        f"{scaled(spread.largest):.2g}; {spread.arms} arms, {spread.freedom} degrees of freedom, {where}"
    )
    yield f"  from {', '.join(spread.studies)}"
    for need in found:
        seeds, most = (str(count) if count else f"more than {MOST_SEEDS}" for count in (need.seeds, need.seeds_largest))
        yield f"  margin {need.margin:g} {unit}, true difference {need.truth:g}: {seeds}; the largest deviation: {most}"
    if spread.prior:
        freedom, deviation = spread.prior
        yield f"  as a declared prior: prior={{{spread.arm_class!r}: ({freedom:.3g}, {deviation:.3g})}}"


def _unit(study: Study) -> str:
    return "% of perplexity" if measure_of(study.base.data, []).name == "perplexity" else "points"
