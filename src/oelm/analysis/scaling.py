"""How loss, the cost of freezing and the value of content change with size, and predictions for other sizes.

Every quantity y has values for several seeds at each size: N block parameters and t tokens for each of them. Forms:

    power    y = a N^-b                               for quantities that keep their sign
    offset   y = e + a N^-b                           for losses, from three sizes on
    line     y = a - b log N                          for differences and shares, which may be zero

Where sizes also differ in t, `offset` and `line` have a term of the same shape in t, and `power` is fitted in
logarithms: log y = a - b log N - c log t. Given b, every form is linear in the rest, so the least squares RSS_b and the
prediction y_b at a new size, with leverage v_b, are closed forms. The 95 % prediction interval of the mean of m new
seeds is the set of values that, added as observations, do not raise the least squares by more than t^2 s^2 (t of n - p
degrees of freedom, s^2 = RSS / (n - p)):

    min over b of  RSS_b + (y - y_b)^2 / (v_b + 1/m)  <=  RSS + t^2 s^2.

For linear forms this is the textbook interval; for `offset` it is the profile-likelihood one, which stays honest where
b is hardly known. It assumes that the form is right, so the answer is the envelope of two, and that noise is equal at
all sizes and independent between seeds. An error that all seeds of a size share, such as a learning rate taken over
from other sizes, is not in it, and reports say so.

`write_prediction` predicts the held-back sizes of a study once, before any of their runs starts. `extrapolate` carries
the trends on to the published size. `spreads` splits the variance of arms into the draw of the frozen weights and the
seed.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from oelm.analysis.compare import Comparison, compare_folder
from oelm.analysis.evidence import Row
from oelm.analysis.statistics import CONFIDENCE, t_quantile
from oelm.files import add_checksum, write_once
from oelm.record.folder import PREDICTION
from oelm.record.record import Record, commit_of, read_if_present, source_tree
from oelm.spec.method import MethodSpec
from oelm.spec.run import GPTSpec, RunSpec, block_parameters, named_size
from oelm.spec.study import SIZE, Study, frozen_arms, position_scheme

Array = NDArray[np.float64]

ScalingQuantity = Literal["loss", "freezing", "content", "lost"]
Form = Literal["power", "offset", "line"]
SCALING_FORMS: dict[ScalingQuantity, tuple[Form, ...]] = {
    "loss": ("power", "offset"),
    "freezing": ("power", "line"),
    "content": ("power", "line"),
    "lost": ("power", "line"),
}
"""The forms that are fitted to a quantity: `freezing` is d, `content` is C, `lost` is d/C (analysis/content.py)."""
EXPONENTS: dict[Form, tuple[float, float]] = {"power": (-2.0, 2.0), "offset": (0.02, 2.0)}
"""The range of exponents of a form. Towards 0 the offset form becomes a line in log N."""
GRID, ZOOMS = 41, 5
"""How many exponents are tried at a time, and how often the range is narrowed."""
SAME_RATIO = 1.02
"""Tokens per parameter within this factor count as equal, because steps are whole numbers."""
FAR_SIZE, FEWEST_SIZES = "medium-512", 3
"""The published size, and the number of sizes that an extrapolation to it needs."""


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
        """The mean over seeds."""
        return statistics.fmean(self.values)


@dataclass(frozen=True)
class Series:
    """One quantity of one arm over the sizes."""

    quantity: ScalingQuantity
    arm: str
    points: tuple[Observation, ...]

    def without(self, sizes: Sequence[str]) -> Series:
        """Leave some sizes out."""
        return Series(self.quantity, self.arm, tuple(point for point in self.points if point.size not in sizes))


class FormRecord(Record):
    """The prediction of one form for the mean of some seeds at a size."""

    form: Form
    value: float
    low: float
    high: float
    is_open: bool = False
    """Whether accepted exponents reach a limit of EXPONENTS, which then decides an end of the interval."""


def series_of(comparison: Comparison) -> list[Series]:
    """Collect every quantity that has figures at two sizes or more; empty for other measures than perplexity."""
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
    """Differences, paired by seed, from the arm with trained Q/K at the same size."""

    rows: Mapping[tuple[str, str | None], Row]
    trained: str
    position: str | None

    def freezing(self, row: Row) -> dict[int, float]:
        return self._difference(row.arm, _size(row))

    def lost(self, row: Row) -> dict[int, float]:
        """Return values whose mean is mean(d) / mean(C) and whose spread is that of the ratio, to first order."""
        own, content = (self._difference(arm, _size(row)) for arm in (row.arm, self.position or ""))
        seeds = sorted(set(own) & set(content))
        worth = statistics.fmean(content[seed] for seed in seeds) if seeds else 0.0
        if worth <= 0:  # there is no content to lose
            return {}
        ratio = statistics.fmean(own[seed] for seed in seeds) / worth
        return {seed: ratio + (own[seed] - ratio * content[seed]) / worth for seed in seeds}

    def _difference(self, arm: str, size: str | None) -> dict[int, float]:
        own, other = self.rows.get((arm, size)), self.rows.get((self.trained, size))
        if own is None or other is None:
            return {}
        return {seed: cost - other.by_seed[seed] for seed, cost in own.by_seed.items() if seed in other.by_seed}


def _roles(study: Study) -> Iterator[tuple[str, Sequence[str], str | None]]:
    """Yield for each position scheme the arm with trained Q/K, the frozen arms, and the position-only arm if any."""
    for arms in study.content_arms:
        yield arms.trained, arms.frozen, arms.position
    methods = {arm.name: arm.method for arm in study.arms if not arm.model}
    plain = next((name for name, method in methods.items() if method == MethodSpec()), None)
    if plain is not None and (frozen := frozen_arms(methods, position_scheme(MethodSpec()))):
        yield plain, frozen, None


def _size(row: Row) -> str | None:
    return next((json.loads(value) for axis, value in row.cell if axis == SIZE), None)


def size_of(run: RunSpec) -> tuple[int, float] | None:
    """Return the block parameters of a run's GPT, and its training tokens per parameter; None for other models."""
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
        place = size_of(row.evidence[0].spec) if row else None
        if row and place and (found := values(row)):
            points.append(Observation(size, *place, tuple(found[seed] for seed in sorted(found))))
    return tuple(points)


def predictions(series: Series, parameters: int, ratio: float, seeds: int) -> list[FormRecord]:
    """Predict the mean of some seeds at another size with each form that the series allows."""
    found = (_predict(form, series.points, parameters, ratio, seeds) for form in SCALING_FORMS[series.quantity])
    return [item for item in found if item]


def hull_of_predictions(found: Sequence[FormRecord]) -> FormRecord | None:
    """Return the envelope of several predictions, with the mean of their values; None without any."""
    if not found:
        return None
    low, high = min(item.low for item in found), max(item.high for item in found)
    return FormRecord(form=found[0].form, value=statistics.fmean(item.value for item in found), low=low, high=high)


def _predict(form: Form, points: Sequence[Observation], parameters: int, ratio: float, seeds: int) -> FormRecord | None:
    values = np.array([value for point in points for value in point.values])
    ratios = [point.ratio for point in points]
    terms = 1 if max(*ratios, ratio) / min(*ratios, ratio) < SAME_RATIO else 2  # one in N, and one in t if it varies
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
    bounds, is_open = problem.bounds("line" if in_logs else form)
    value, low, high = (np.exp(bounds) if in_logs else bounds).tolist()
    return FormRecord(form=form, value=value, low=low, high=high, is_open=is_open)


@dataclass(frozen=True)
class _Problem:
    """Observations and the place to predict, for least squares with a given exponent."""

    values: Array
    sizes: Array
    new: Array
    terms: int
    noise: float
    """The variance of the predicted mean, in units of one seed's variance."""
    freedom: int

    def bounds(self, form: Form) -> tuple[Array, bool]:
        """Return the prediction with both ends of its interval, and whether accepted exponents reach their limits.

        The exponents that matter are searched on ever finer grids.
        """
        quantile = t_quantile(self.freedom, 0.5 + CONFIDENCE / 2) ** 2
        limits = low, high = EXPONENTS.get(form, (0.0, 0.0))
        for _ in range(ZOOMS if form in EXPONENTS else 1):
            grid = np.linspace(low, high, GRID if form in EXPONENTS else 1)
            fits = [self._fit(form, float(exponent)) for exponent in grid]
            least = min(fits)[0]
            limit = least * (1 + quantile / self.freedom)
            near = [number for number, (squares, _, _) in enumerate(fits) if squares <= limit]
            low, high = grid[max(near[0] - 1, 0)], grid[min(near[-1] + 1, len(grid) - 1)]
        reach = [(value, math.sqrt(spread * (limit - squares))) for squares, value, spread in fits if squares <= limit]
        ends = min(value - half for value, half in reach), max(value + half for value, half in reach)
        is_open = form in EXPONENTS and (low == limits[0] or high == limits[1])
        return np.array([min(fits)[1], *ends]), is_open

    def _fit(self, form: Form, exponent: float) -> tuple[float, float, float]:
        """Return the sum of squares, the prediction and its variance in units of one seed's, for one exponent."""
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


# Predictions of held-back sizes: `prediction.json`.


class PredictedRecord(Record):
    """One quantity of one arm at one other size: the envelope of the 95 % prediction intervals of its forms."""

    size: str
    arm: str
    quantity: ScalingQuantity
    """`loss` in nats; `freezing` (d) and `content` (C) are differences of log perplexity; `lost` is d/C."""
    seeds: int
    """The number of seeds whose mean is predicted."""
    value: float
    low: float
    high: float
    forms: tuple[FormRecord, ...]


class PredictionRecord(Record):
    """The predictions for the held-back sizes, when they were made, and from which records."""

    study: str
    written: str
    commit: str | None
    held_back: tuple[str, ...]
    rests_on: tuple[str, ...]
    """Fingerprints of the confirming runs that the fits use."""
    predicted: tuple[PredictedRecord, ...]


def predict_sizes(comparison: Comparison) -> tuple[PredictedRecord, ...]:
    """Predict every quantity at every held-back size from the other sizes alone."""
    study = comparison.study
    known = [series.without(study.held_back) for series in series_of(comparison)]
    found = (_predict_size(study, series, size) for series in known for size in study.held_back)
    return tuple(item for item in found if item)


def _predict_size(study: Study, known: Series, size: str) -> PredictedRecord | None:
    cell = study.sizes[size]
    place = size_of(study.run_at(cell))
    if len(known.points) < 2 or place is None:
        return None
    seeds = len(study.seeds_in(cell))
    return _join_forms(known, size, seeds, predictions(known, *place, seeds))


def extrapolate(found: Sequence[Series]) -> list[PredictedRecord]:
    """Carry C and d on to one seed of the published size, at the tokens per parameter of the measured sizes.

    Losses are left out, because that size has another vocabulary and context, and so is the ratio d/C. Forms whose
    exponent the sizes do not bound are left out, too, and ladders that reach the published size themselves.
    """
    parameters = block_parameters(named_size(FAR_SIZE))
    far = []
    for series in found:
        ratios = [point.ratio for point in series.points]
        sizes = {point.parameters for point in series.points}
        is_ladder = len(sizes) >= FEWEST_SIZES and max(sizes) < parameters
        if series.quantity in ("content", "freezing") and is_ladder and max(ratios) / min(ratios) < SAME_RATIO:
            forms = predictions(series, parameters, statistics.fmean(ratios), 1)
            far.append(_join_forms(series, FAR_SIZE, 1, [form for form in forms if not form.is_open]))
    return [item for item in far if item]


def _join_forms(known: Series, size: str, seeds: int, forms: Sequence[FormRecord]) -> PredictedRecord | None:
    whole = hull_of_predictions(forms)
    if whole is None:
        return None
    return PredictedRecord(
        size=size, arm=known.arm, quantity=known.quantity, seeds=seeds,
        value=whole.value, low=whole.low, high=whole.high, forms=tuple(forms),
    )  # fmt: skip


def write_prediction(study: Study, root: Path) -> PredictionRecord:
    """Predict the held-back sizes of a study from its records and write the file; an existing prediction is kept."""
    comparison = compare_folder(study, root)
    held = set(study.held_back)
    tree = source_tree()
    record = PredictionRecord(
        study=study.name,
        written=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=commit_of(tree) if tree else None,
        held_back=study.held_back,
        rests_on=tuple(
            item.record.fingerprint
            for row in comparison.rows
            for item in row.evidence
            if study.size_of(item.spec) not in held
        ),
        predicted=predict_sizes(comparison),
    )
    write_once(root / PREDICTION, add_checksum(record.model_dump_json(indent=1) + "\n"))
    return read_prediction(root) or record


def read_prediction(root: Path) -> PredictionRecord | None:
    """Read the prediction in a study's folder; None if there is none."""
    return read_if_present(root / PREDICTION, PredictionRecord, "a prediction", "Restore the file from a copy.")


def find_outcome(found: Sequence[Series], predicted: PredictedRecord) -> float | None:
    """Return the measured mean for a prediction; None before all its seeds are complete."""
    for series in found:
        if (series.quantity, series.arm) == (predicted.quantity, predicted.arm):
            for point in series.points:
                if point.size == predicted.size and len(point.values) >= predicted.seeds:
                    return point.mean
    return None


# How much of an arm's variance comes from the draw of frozen weights, in a study whose axis is `draw_seed`.
#
# Every draw is trained with the same seeds, so a cost is y_ds = mean + draw_d + seed_s + rest_ds with independent
# random effects. The mean squares of a complete table of n_d draws and n_s seeds have the expectations
#
#     draws: n_s var(draw) + var(rest)      seeds: n_d var(seed) + var(rest)      rest: var(rest)
#
# which give the variances; negative estimates become zero. A one-way analysis would hide the draws behind the seeds
# that they share.

DRAW = "draw_seed"


@dataclass(frozen=True)
class SourceSpread:
    """Variances of one arm's cost by source."""

    arm: str
    draws: int
    seeds: int
    draw: float
    seed: float
    rest: float
    p: float
    """The p-value of no effect of the draw."""

    @property
    def share(self) -> float:
        """The share of the variance of a single run that comes from the draw."""
        whole = self.draw + self.seed + self.rest
        return self.draw / whole if whole else 0.0


def spread_by_source(arm: str, costs: Mapping[int, Mapping[int, float]]) -> SourceSpread | None:
    """Split the variance of draw -> seed -> cost; None with fewer than two draws or two seeds that all draws share."""
    from scipy.special import fdtrc  # scipy.stats takes half a second to import

    shared = sorted(set.intersection(*(set(by_seed) for by_seed in costs.values()))) if costs else []
    if min(len(costs), len(shared)) < 2:
        return None
    table = np.array([[by_seed[seed] for seed in shared] for by_seed in costs.values()])
    draws, seeds = table.shape
    of_draw, of_seed = table.mean(axis=1, keepdims=True), table.mean(axis=0, keepdims=True)
    square_draw = seeds * float(of_draw.var(ddof=1))
    square_seed = draws * float(of_seed.var(ddof=1))
    freedom = (draws - 1) * (seeds - 1)
    rest = float(((table - of_draw - of_seed + table.mean()) ** 2).sum()) / freedom
    # Draws that change nothing differ by rounding only, and so does the rest.
    is_nothing = square_draw <= np.finfo(float).eps * float((table**2).mean())
    ratio = 0.0 if is_nothing else square_draw / rest if rest else float("inf")
    return SourceSpread(
        arm, draws, seeds,
        draw=max(0.0, (square_draw - rest) / seeds),
        seed=max(0.0, (square_seed - rest) / draws),
        rest=rest,
        p=float(fdtrc(draws - 1, freedom, ratio)),
    )  # fmt: skip


def spreads(comparison: Comparison) -> list[SourceSpread]:
    """Split the variance of every arm of a study whose one axis is the seed of the draw."""
    if comparison.study.axis_names != (DRAW,):
        return []
    by_arm: dict[str, dict[int, Mapping[int, float]]] = {}
    for row in comparison.rows:
        if row.costs:
            by_arm.setdefault(row.arm, {})[int(row.cell[0][1])] = row.by_seed
    found = (spread_by_source(arm, costs) for arm, costs in by_arm.items())
    return [item for item in found if item]
