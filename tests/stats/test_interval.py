"""Intervals hold the true value as often as they say, over simulated measurements whose truth is known."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from convoy.stats import interval as room
from convoy.stats.interval import FEWEST, Statistic, interval, median, paired_ratio, student_quantile, unpaired_ratio

pytestmark = pytest.mark.processes

SIMULATIONS = 2000

RHO = 0.7
"""Correlation of a step's time with the next one's."""

Draw = Callable[[np.random.Generator, int], np.ndarray]


@pytest.fixture
def fewer_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "RESAMPLES", 1000)


def normal(generator: np.random.Generator, n: int) -> np.ndarray:
    return np.asarray(1 + 0.05 * generator.standard_normal(n))


def skewed(generator: np.random.Generator, n: int) -> np.ndarray:
    """Mostly near 1, now and then much later, as times are."""
    return np.asarray(0.95 + 0.05 * generator.exponential(size=n))


def autocorrelated(n: int) -> np.ndarray:
    """Steps of a run (AR(1)), stationary from the first one on, of each simulation (SIMULATIONS, n)."""
    noise_ns = np.stack([np.random.default_rng(seed).standard_normal(n) for seed in range(SIMULATIONS)], axis=-1)
    found_ns = noise_ns.copy()
    for i in range(1, n):
        found_ns[i] = RHO * found_ns[i - 1] + math.sqrt(1 - RHO**2) * noise_ns[i]
    return np.ascontiguousarray(1 + 0.05 * found_ns.T)


def coverage(one: Callable[[int], room.Interval], truth: float) -> float:
    """Share of the simulations whose interval holds the truth."""
    found = [one(seed) for seed in range(SIMULATIONS)]
    return sum(each.low <= truth <= each.high for each in found) / SIMULATIONS


@pytest.mark.usefixtures("fewer_resamples")
@pytest.mark.parametrize("of", ["median", "mean"])
@pytest.mark.parametrize("n", [10, 20, 40])
def test_of_independent_blocks(n: int, of: Statistic) -> None:
    held = coverage(lambda seed: interval(normal(np.random.default_rng(seed), n), of, seed), truth=1.0)
    assert 0.93 <= held <= 0.97, held


@pytest.mark.usefixtures("fewer_resamples")
@pytest.mark.parametrize("n", [15, 30])
def test_of_the_median_where_some_are_late(n: int) -> None:
    truth = 0.95 + 0.05 * math.log(2)
    held = coverage(lambda seed: interval(skewed(np.random.default_rng(seed), n), "median", seed), truth)
    assert 0.93 <= held <= 0.97, held


@pytest.mark.usefixtures("fewer_resamples")
@pytest.mark.parametrize("blocks", [12, 30])
def test_over_blocks_of_autocorrelated_steps(blocks: int) -> None:
    blocks_sn = autocorrelated(blocks * 25).reshape(SIMULATIONS, blocks, 25).mean(axis=-1)
    held = coverage(lambda seed: interval(blocks_sn[seed], "median", seed), truth=1.0)
    assert 0.93 <= held <= 0.97, held


@pytest.mark.usefixtures("fewer_resamples")
@pytest.mark.parametrize("of", ["median", "mean"])
def test_of_the_ratio_of_two_variants_that_take_turns(of: Statistic) -> None:
    """ABBA: what drifts slowly falls on both alike."""
    turns_srt = autocorrelated(10 * 4 * 20).reshape(SIMULATIONS, 10, 4, 20).mean(axis=-1)

    def one(seed: int) -> room.Interval:
        turns = turns_srt[seed]
        first, second = turns[:, [0, 3]].ravel(), 1.1 * turns[:, [1, 2]].ravel()
        return paired_ratio(list(zip(first, second, strict=True)), of, seed)

    held = coverage(one, truth=1 / 1.1)
    assert 0.93 <= held <= 0.97, held


@pytest.mark.parametrize("draw", [normal, skewed])
@pytest.mark.parametrize(("n", "m"), [(20, 15), (10, 10), (8, 40)])
def test_of_the_ratio_of_two_runs(n: int, m: int, draw: Draw) -> None:
    def one(seed: int) -> room.Interval:
        generator = np.random.default_rng(seed)
        return unpaired_ratio(list(draw(generator, n)), list(1.2 * draw(generator, m)))

    held = coverage(one, truth=1 / 1.2)
    assert 0.93 <= held <= 0.97, held


@pytest.mark.usefixtures("fewer_resamples")
def test_an_interval_over_steps_that_are_autocorrelated_is_far_too_narrow() -> None:
    """Why blocks are resampled: the same steps, each taken for independent."""
    steps_sn = autocorrelated(100)
    held = coverage(lambda seed: interval(steps_sn[seed], "mean", seed), truth=1.0)
    assert held < 0.75, held


def test_the_same_values_give_the_same_interval() -> None:
    values = list(normal(np.random.default_rng(1), 20))
    assert interval(values) == interval(values)
    assert interval(values).n == 20
    assert interval(values).low < interval(values).estimate < interval(values).high


@pytest.mark.parametrize("n", [1, 2, 7, 40])
def test_the_median_is_that_of_numpy(n: int) -> None:
    values_bn = np.random.default_rng(n).standard_normal((500, n))
    assert (median(values_bn) == np.median(values_bn, axis=-1)).all()


def test_too_few_or_unusable_values_have_no_interval() -> None:
    with pytest.raises(ValueError, match="at least 6"):
        interval([1.0] * (FEWEST - 1))
    with pytest.raises(ValueError, match="finite"):
        interval([1.0] * FEWEST + [math.nan])
    for pairs in ([(1.0, 0.0)] * FEWEST, [(1.0, 1.0)] * FEWEST + [(1.0, -0.1)]):
        with pytest.raises(ValueError, match="more than zero"):
            paired_ratio(pairs)


@pytest.mark.parametrize(
    ("p", "freedom", "known"),
    [(0.975, 5, 2.5706), (0.975, 9, 2.2622), (0.975, 30, 2.0423), (0.95, 11, 1.7959), (0.975, 1000, 1.9623)],
)
def test_quantiles_of_students_t_are_those_of_the_tables(p: float, freedom: int, known: float) -> None:
    assert student_quantile(p, freedom) == pytest.approx(known, rel=0.002)
