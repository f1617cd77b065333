"""How loss, the cost of freezing and what content is worth change with size, and what that predicts for another size.

Every quantity y has values for several seeds at each size: N block parameters and t tokens for each of them. Forms:

    power    y = a N^-b                               for positive quantities
    offset   y = e + a N^-b                           for losses, from three sizes on
    line     y = a - b log N                          for differences and shares, which may be zero

Where sizes also differ in t, `offset` and `line` have a term of the same shape in t, and `power` is fitted in
logarithms: log y = a - b log N - c log t. Given b, every form is linear in the rest, so the least squares RSS_b and the
prediction y_b at a new size, with leverage v_b, are closed forms. The 95 % prediction interval of the mean of m new
seeds is the set of values that, added as observations, do not raise the least squares by more than t^2 s^2 (t of n - p
degrees of freedom, s^2 = RSS / (n - p)):

    min over b of  RSS_b + (y - y_b)^2 / (v_b + 1/m)  <=  RSS + t^2 s^2.

For linear forms this is the textbook interval; for `offset` it is the profile-likelihood one, which stays honest where
b is hardly known. It assumes equal noise at all sizes and that the form is right, so the answer is the envelope of two.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from oelm.analysis.compare import Comparison
from oelm.analysis.rows import Row
from oelm.analysis.statistics import CONFIDENCE
from oelm.spec.content import frozen_arms, position_scheme
from oelm.spec.method import MethodSpec
from oelm.spec.model import GPTSpec
from oelm.spec.run import RunSpec
from oelm.spec.sizes import block_parameters
from oelm.study import SIZE, Study

Array = NDArray[np.float64]

Quantity = Literal["loss", "freezing", "content", "lost"]
Form = Literal["power", "offset", "line"]
FORMS: dict[Quantity, tuple[Form, ...]] = {
    "loss": ("power", "offset"),
    "freezing": ("power", "line"),
    "content": ("power", "line"),
    "lost": ("power", "line"),
}
"""The forms that a quantity is fitted by: `freezing` is d, `content` is C, `lost` is d/C, the rest of content kept."""
EXPONENTS: dict[Form, tuple[float, float]] = {"power": (-2.0, 2.0), "offset": (0.02, 2.0)}
"""The exponents that a form may have. Towards 0 the offset form becomes a line in log N."""
GRID, ZOOMS = 41, 5
"""So many exponents are tried at a time, so often in ever smaller ranges."""
SAME_RATIO = 1.02
"""Tokens per parameter within this factor are the same: steps are whole numbers."""


@dataclass(frozen=True)
class Observation:
    """The values of one quantity at one size, one for each seed."""

    size: str
    parameters: int
    ratio: float
    """Tokens seen for each parameter."""
    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Their mean."""
        return statistics.fmean(self.values)


@dataclass(frozen=True)
class Series:
    """One quantity of one arm over the sizes."""

    quantity: Quantity
    arm: str
    points: tuple[Observation, ...]

    def without(self, sizes: Sequence[str]) -> Series:
        """Leave some sizes out."""
        return Series(self.quantity, self.arm, tuple(point for point in self.points if point.size not in sizes))


@dataclass(frozen=True)
class Prediction:
    """What a form says about the mean of some seeds at a size."""

    form: Form
    value: float
    low: float
    high: float


def series_of(comparison: Comparison) -> list[Series]:
    """Gather every quantity that has figures at two sizes or more; none for other measures than perplexity."""
    if not comparison.study.sizes or comparison.study.axes or comparison.measure.name != "perplexity":
        return []
    rows = {(row.arm, _size(row)): row for row in comparison.rows if row.costs}
    sizes = [size for size in comparison.study.sizes if any(key[1] == size for key in rows)]
    methods = {arm.name: arm.method for arm in comparison.study.arms}
    found = [Series("loss", arm, _points(rows, arm, sizes, lambda row: row.by_seed)) for arm in methods]
    for trained, frozen, position in _roles(comparison.study):
        costs = _Costs(rows, trained, position)
        if position:
            found.append(Series("content", position, _points(rows, position, sizes, costs.freezing)))
        for arm in frozen:
            found.append(Series("freezing", arm, _points(rows, arm, sizes, costs.freezing)))
            if position:
                found.append(Series("lost", arm, _points(rows, arm, sizes, costs.lost)))
    return [item for item in found if len(item.points) > 1]


@dataclass(frozen=True)
class _Costs:
    """The differences of paired seeds from the arm with trained Q/K at the same size."""

    rows: Mapping[tuple[str, str | None], Row]
    trained: str
    position: str | None

    def freezing(self, row: Row) -> dict[int, float]:
        return self._apart(row.arm, _size(row))

    def lost(self, row: Row) -> dict[int, float]:
        """Return values whose mean is mean(d) / mean(C) and whose spread is that of the ratio, to first order."""
        own, content = self._apart(row.arm, _size(row)), self._apart(self.position or "", _size(row))
        seeds = sorted(set(own) & set(content))
        worth = statistics.fmean(content[seed] for seed in seeds) if seeds else 0.0
        if worth <= 0:  # a share of nothing
            return {}
        ratio = statistics.fmean(own[seed] for seed in seeds) / worth
        return {seed: ratio + (own[seed] - ratio * content[seed]) / worth for seed in seeds}

    def _apart(self, arm: str, size: str | None) -> dict[int, float]:
        own, other = self.rows.get((arm, size)), self.rows.get((self.trained, size))
        if own is None or other is None:
            return {}
        return {seed: cost - other.by_seed[seed] for seed, cost in own.by_seed.items() if seed in other.by_seed}


def _roles(study: Study) -> Iterator[tuple[str, Sequence[str], str | None]]:
    """Yield trained Q/K, the arms that freeze all of them, and position only if it is there: by position scheme."""
    for arms in study.content_arms:
        yield arms.trained, arms.frozen, arms.position
    methods = {arm.name: arm.method for arm in study.arms if not arm.model}
    plain = next((name for name, method in methods.items() if method == MethodSpec()), None)
    if plain is not None and (frozen := frozen_arms(methods, position_scheme(MethodSpec()))):
        yield plain, frozen, None


def _size(row: Row) -> str | None:
    return next((json.loads(value) for axis, value in row.cell if axis == SIZE), None)


def place_of(run: RunSpec) -> tuple[int, float] | None:
    """Return the block parameters of a run's model, and how many tokens it sees for each; None for other models."""
    if not isinstance(run.model, GPTSpec):
        return None
    parameters = block_parameters(run.model)
    return parameters, run.train.steps * run.train.batch_size * run.model.context / parameters


def _points(
    rows: Mapping[tuple[str, str | None], Row],
    arm: str,
    sizes: Sequence[str],
    values: Callable[[Row], Mapping[int, float]],
) -> tuple[Observation, ...]:
    points = []
    for size in sizes:
        row = rows.get((arm, size))
        place = place_of(row.evidence[0].spec) if row else None
        if row and place and (found := values(row)):
            points.append(Observation(size, *place, tuple(found[seed] for seed in sorted(found))))
    return tuple(points)


def predictions(series: Series, parameters: int, ratio: float, seeds: int) -> list[Prediction]:
    """Predict the mean of some seeds at another size by each form that the series allows."""
    found = (_predict(form, series.points, parameters, ratio, seeds) for form in FORMS[series.quantity])
    return [item for item in found if item]


def envelope(found: Sequence[Prediction]) -> Prediction | None:
    """Return the hull of several predictions, with the mean of their values; None where there is none."""
    if not found:
        return None
    low, high = min(item.low for item in found), max(item.high for item in found)
    return Prediction(found[0].form, statistics.fmean(item.value for item in found), low, high)


def _predict(form: Form, points: Sequence[Observation], parameters: int, ratio: float, seeds: int) -> Prediction | None:
    values = np.array([value for point in points for value in point.values])
    if form == "power" and any(point.mean <= 0 for point in points):
        return None
    ratios = [point.ratio for point in points]
    terms = 1 if max(*ratios, ratio) / min(*ratios, ratio) < SAME_RATIO else 2  # of N, and of t where it varies
    count = terms + (2 if form == "offset" else 1)
    places = {(point.parameters, point.ratio if terms > 1 else 0) for point in points}
    if len({number for number, _ in places}) < count + 1 - terms or len(places) < count or len(values) <= count:
        return None
    sizes = np.array([(point.parameters, point.ratio) for point in points for _ in point.values], dtype=float)
    new = np.array([[parameters, ratio]], dtype=float)
    in_logs = form == "power" and terms > 1
    if in_logs and (values <= 0).any():
        return None
    problem = _Problem(np.log(values) if in_logs else values, sizes, new, terms, 1 / seeds, len(values) - count)
    bounds = problem.bounds("line" if in_logs else form)
    return Prediction(form, *(np.exp(bounds) if in_logs else bounds).tolist())


@dataclass(frozen=True)
class _Problem:
    """Observations, the place to predict, and what follows from them for each exponent."""

    values: Array
    sizes: Array
    new: Array
    terms: int
    noise: float
    """The variance of what is to come, in units of one seed's."""
    freedom: int

    def bounds(self, form: Form) -> Array:
        """Return the prediction and both ends of its interval: the exponents that count are looked at ever closer."""
        from scipy.special import stdtrit  # the quantile alone: scipy.stats takes half a second to import

        quantile = float(stdtrit(self.freedom, 0.5 + CONFIDENCE / 2)) ** 2
        low, high = EXPONENTS.get(form, (0.0, 0.0))
        for _ in range(ZOOMS if form in EXPONENTS else 1):
            grid = np.linspace(low, high, GRID if form in EXPONENTS else 1)
            fits = [self._fit(form, float(exponent)) for exponent in grid]
            least = min(fits)[0]
            limit = least * (1 + quantile / self.freedom)
            near = [number for number, (squares, _, _) in enumerate(fits) if squares <= limit]
            low, high = grid[max(near[0] - 1, 0)], grid[min(near[-1] + 1, len(grid) - 1)]
        reach = [(value, math.sqrt(spread * (limit - squares))) for squares, value, spread in fits if squares <= limit]
        ends = min(value - half for value, half in reach), max(value + half for value, half in reach)
        return np.array([min(fits)[1], *ends])

    def _fit(self, form: Form, exponent: float) -> tuple[float, float, float]:
        """Return the least squares, the prediction and its variance in units of one seed's, given the exponent."""
        scale = np.exp(np.log(self.sizes).mean(axis=0))
        design, row = (self._design(form, place / scale, exponent) for place in (self.sizes, self.new))
        inverse = np.linalg.inv(design.T @ design)
        weights = inverse @ design.T @ self.values
        squares = float(((self.values - design @ weights) ** 2).sum())
        return squares, (row @ weights).item(), (row @ inverse @ row.T).item() + self.noise

    def _design(self, form: Form, places: Array, exponent: float) -> Array:
        shape = -np.log(places) if form == "line" else places**-exponent
        constant = [] if form == "power" else [np.ones(len(places))]
        return np.column_stack([*constant, shape[:, : self.terms]])
