"""How often are the intervals and verdicts of a study right? Judge simulated studies with the functions of reports.

    python scripts/coverage.py            prints the tables of docs/statistics.md (about four minutes on one core)
    python scripts/coverage.py --studies 200    faster and less precise

Noise over seeds is drawn in four ways. *normal*: arms and reference of equal variance.
*normal, unequal*: variances drawn around a common one (inverse chi-square, 4 degrees of freedom). *normal, one arm*:
the first arm deviates three times as much as the others; only this arm is counted. *skewed*: drawn with replacement
from the nine paired differences of oelm-freeze on the speeches, two of which are far above the others.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from oelm.analysis.statistics import ERROR, estimate_priors, looks_of, paired_difference
from oelm.record.archive import open_archives
from oelm.record.folder import find_records

RESULTS = Path(__file__).parent.parent / "docs" / "results"
SEEDS = (3, 6, 9)
STUDIES = 2000
"""Number of simulated studies for each line of the table."""

Draw = Callable[[np.random.Generator, int, int], NDArray[np.float64]]
"""Generator, arms, seeds -> noise of the paired differences of one study: (arm, seed)."""


@dataclass(frozen=True)
class Rates:
    """How often the 95 % interval contains the truth, and how often an arm on the margin is called *met*."""

    covered: float
    false_met: float


def nine_frozen_seeds() -> NDArray[np.float64]:
    """Return the paired differences of oelm-freeze to the baseline over the nine seeds on record, centred."""
    losses: dict[str, dict[int, float]] = {"baseline": {}, "oelm-freeze": {}}
    for study in ("fair-speeches", "fair-orthogonality-speeches"):
        with open_archives(RESULTS / study) as runs:
            for _, record in find_records(runs)[0]:
                arm, seed = record.spec.arm, record.spec.seed
                if arm in losses and seed < 9 and record.result and record.result.test_loss:  # 100 is for tuning
                    losses[arm][seed] = record.result.test_loss
    found = np.array([losses["oelm-freeze"][seed] - losses["baseline"][seed] for seed in range(9)])
    return found - found.mean()


def normal(rng: np.random.Generator, arms: int, seeds: int) -> NDArray[np.float64]:
    """Draw arms and a reference of equal variance."""
    return rng.normal(0, 1, (arms, seeds)) - rng.normal(0, 1, seeds)


def unequal(rng: np.random.Generator, arms: int, seeds: int) -> NDArray[np.float64]:
    """Draw arms whose variances follow the prior."""
    return np.sqrt(4 / rng.chisquare(4, (arms, 1))) * rng.normal(0, 1, (arms, seeds)) - rng.normal(0, 0.3, seeds)


def one_apart(rng: np.random.Generator, arms: int, seeds: int) -> NDArray[np.float64]:
    """Draw a first arm with another variance than the arms that are assumed to be similar."""
    return np.array([3.0, *[1.0] * (arms - 1)])[:, None] * rng.normal(0, 1, (arms, seeds)) - rng.normal(0, 0.5, seeds)


def skewed(noise: NDArray[np.float64]) -> Draw:
    """Return a function that draws from noise on record."""
    return lambda rng, arms, seeds: rng.choice(noise, (arms, seeds))


def rates(draw: Draw, arms: int, seeds: int, *, studies: int = STUDIES, counted: int | None = None) -> Rates:
    """Simulate studies of similar arms whose true difference and margin are zero, and count some of the arms."""
    rng = np.random.default_rng([arms, seeds])
    covered = met = total = 0
    for _ in range(studies):
        noise = draw(rng, arms, seeds)
        priors = estimate_priors({str(arm): dict(enumerate(map(float, noise[arm]))) for arm in range(arms)})
        for arm in range(counted or arms):
            found = paired_difference([float(value) for value in noise[arm]], margin=0.0, prior=priors.get(str(arm)))
            if found.interval is None:  # the same seed was drawn every time, so there is no interval and no verdict
                continue
            total += 1
            covered += found.interval.low <= 0 <= found.interval.high
            met += found.verdict == "met"
    return Rates(covered / total, met / total)


def scenarios() -> Iterator[tuple[str, Draw, Sequence[int], int | None]]:
    """Yield each kind of noise, the numbers of similar arms, and how many of them are counted."""
    yield "normal", normal, (1, 3, 6), None
    yield "normal, unequal", unequal, (3, 6), None
    yield "normal, one arm", one_apart, (3, 6), 1
    yield "skewed", skewed(nine_frozen_seeds()), (1, 3, 4, 6), None


def table(studies: int = STUDIES) -> Iterator[str]:
    """Yield the lines of the table in docs/statistics.md."""
    yield "| noise | like arms | " + " | ".join(f"{seeds} seeds" for seeds in SEEDS) + " |"
    yield "| --- | --- |" + " --- |" * len(SEEDS)
    for name, draw, numbers, counted in scenarios():
        for arms in numbers:
            found = [rates(draw, arms, seeds, studies=studies, counted=counted) for seeds in SEEDS]
            cells = (f"{100 * each.covered:.1f} / {100 * each.false_met:.1f} %" for each in found)
            yield f"| {name} | {arms if arms > 1 else '1 (plain t)'} | {' | '.join(cells)} |"


def false_met_over_looks(
    counts: tuple[int, ...], *, studies: int = STUDIES, arms: int = 1, careless: bool = False
) -> float:
    """Return how often an arm on the margin is called *met* at some look. A careless study uses 5 % at every look."""
    rng = np.random.default_rng(counts)
    looks = looks_of(counts[-1], counts)
    levels = [ERROR if careless else look.level for look in looks]
    met = np.zeros((studies, arms), dtype=bool)
    for study in range(studies):
        noise = normal(rng, arms, counts[-1])
        for look, level in zip(looks, levels, strict=True):
            seen = {str(arm): dict(enumerate(map(float, noise[arm, : look.count]))) for arm in range(arms)}
            priors = estimate_priors(seen)
            for arm, values in seen.items():
                found = paired_difference(list(values.values()), margin=0.0, prior=priors.get(arm))
                met[study, int(arm)] |= found.mean < 0 and found.p_margin is not None and found.p_margin < level
    return float(met.mean())


def looks_table(studies: int = STUDIES) -> Iterator[str]:
    """Yield the lines of the table of looks in docs/statistics.md."""
    yield '| looks | one-sided level at each | false "met", plain t | with six like arms | plain t, each look at 5 % |'
    yield "| --- | --- | --- | --- | --- |"
    for counts in ((3, 6), (3, 6, 9), (6, 9)):
        levels = ", ".join(f"{100 * look.level:.2g}" for look in looks_of(counts[-1], counts))
        alone = false_met_over_looks(counts, studies=10 * studies)
        together = false_met_over_looks(counts, studies=studies, arms=6)
        careless = false_met_over_looks(counts, studies=10 * studies, careless=True)
        rates_in_percent = " | ".join(f"{100 * rate:.1f} %" for rate in (alone, together, careless))
        yield f"| {', '.join(map(str, counts))} | {levels} % | {rates_in_percent} |"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=STUDIES)
    number = parser.parse_args().studies
    for lines in (table(number), looks_table(number)):
        for line in lines:
            print(line, flush=True)
        print()
