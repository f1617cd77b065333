"""The benchmark of growth: its fit, and one factor measured for real."""

import json

import pytest

from oelm.bench.growth import FACTORS, GrowthBench, bench_growth, fit_exponent, resize
from oelm.cli import dispatch
from oelm.errors import InvalidSpec

pytestmark = pytest.mark.programs


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_the_exponent_of_a_power_is_found_exactly(power):
    sizes = [2, 4, 8, 16, 32]
    found = fit_exponent(sizes, [3 * size**power for size in sizes])
    assert found["exponent"] == pytest.approx(power)
    assert found["exponent_interval"] == pytest.approx([power, power])


def test_the_interval_is_wide_where_the_cost_is_a_sum_of_powers():
    sizes = [1, 4, 16, 64, 256]
    found = fit_exponent(sizes, [20 * size + size**2 for size in sizes])
    low, high = found["exponent_interval"]
    assert 1 < found["exponent"] < 2
    assert high - low > 0.3


def test_the_interval_is_that_of_least_squares():
    from scipy.stats import linregress, t

    xs, ys = [1.0, 2.0, 3.0, 4.0], [1.1, 1.9, 3.2, 3.9]
    import math

    found = fit_exponent([math.exp(x) for x in xs], [math.exp(y) for y in ys])
    line = linregress(xs, ys)
    half = line.stderr * t.ppf(0.975, 2)
    assert found["exponent_interval"] == pytest.approx([line.slope - half, line.slope + half])


@pytest.mark.parametrize("factor", FACTORS)
def test_only_one_factor_changes_at_a_time(factor):
    field, sizes = FACTORS[factor]
    specs = [resize(factor, size) for size in sizes]
    free = {field, "num_heads"} if factor == "width" else {field}
    assert [getattr(spec, field) for spec in specs] == list(sizes)
    assert len({spec.model_dump_json(exclude=free) for spec in specs}) == 1
    assert len({spec.head_size for spec in specs}) == 1


def test_a_factor_is_measured(capsys):
    words = ["--factors", "depth", "--smallest", "3", "--steps", "1", "--json"]
    assert dispatch(["bench", "growth", *words]) == 0
    found = json.loads(capsys.readouterr().out)["factors"]["depth"]
    assert found["sizes"] == [2, 4, 8]
    assert 0.3 < found["seconds_exponent"] < 1.5
    assert all(seconds > 0 for seconds in found["seconds"])
    assert found["bytes"][-1] > found["bytes"][0]


@pytest.mark.parametrize("fields", [{"factors": "colour"}, {"factors": ""}, {"smallest": 2}, {"steps": 0}])
def test_a_request_that_measures_nothing_is_refused(fields):
    with pytest.raises(InvalidSpec):
        bench_growth(GrowthBench(**fields))
