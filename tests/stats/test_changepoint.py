"""Changes in simulated histories: found where there is one, seldom where there is none."""

import numpy as np
import pytest

from convoy.stats import changepoint as room
from convoy.stats.changepoint import MIN_AFTER, MIN_BEFORE, change_points, detectable_change

pytestmark = pytest.mark.processes

HISTORIES = 1000
NOISE = 0.02


@pytest.fixture(autouse=True)
def fewer_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "ORDERS", 1000)


def history(seed: int, before: int, after: int, factor: float = 1.0) -> np.ndarray:
    """Throughput of runs, the last `after` of which are `factor` times as fast."""
    noise = 1 + NOISE * np.random.default_rng(seed).standard_normal(before + after)
    return np.asarray(1000 * noise * np.r_[np.ones(before), np.full(after, factor)])


@pytest.mark.parametrize("runs", [MIN_BEFORE + MIN_AFTER, 30])
def test_a_history_without_a_change_seldom_shows_one(runs: int) -> None:
    alarms = sum(bool(change_points(history(seed, runs, 0), seed)) for seed in range(HISTORIES))
    assert alarms / HISTORIES <= 0.05, alarms


@pytest.mark.parametrize(("before", "after"), [(10, 4), (15, 4), (26, 4)])
@pytest.mark.parametrize("factor", [0.95, 1.05])
def test_five_per_cent_in_noise_of_two_are_found(before: int, after: int, factor: float) -> None:
    found = [change_points(history(seed, before, after, factor), seed) for seed in range(300)]
    right = [each for each in found if any(abs(change.at - before) <= 2 for change in each)]
    assert len(right) / len(found) >= 0.9, len(right)
    effects = [each[0].effect for each in right]
    assert np.median(effects) == pytest.approx(factor - 1, abs=0.01)


def test_two_changes_of_one_history_are_both_found() -> None:
    values = np.concatenate([history(1, 20, 0), 0.9 * history(2, 20, 0), history(3, 20, 0)])
    found = change_points(values)
    assert [change.at for change in found] == [20, 40]
    assert [change.effect for change in found] == pytest.approx([-0.1, 1 / 0.9 - 1], abs=0.03)
    assert [(change.before, change.after) for change in found] == [(20, 20), (20, 20)]


def test_the_smallest_change_that_would_have_been_seen_is_seen_that_often() -> None:
    """The figure that is told, against the share of such changes that are found."""
    told = float(np.median([detectable_change(history(seed, 14, 0), seed) or 0.0 for seed in range(50)]))
    found = [bool(change_points(history(1000 + seed, 10, 4, 1 + told), seed)) for seed in range(300)]
    assert 0.84 <= np.mean(found) <= 0.96, np.mean(found)


def test_a_change_that_was_found_is_no_noise() -> None:
    changed = history(5, 15, 15, 0.8)
    (change,) = change_points(changed)
    assert change.at == 15
    assert detectable_change(changed) == detectable_change(changed[15:])


def test_after_a_change_nothing_is_told_until_there_are_enough_runs_since() -> None:
    assert detectable_change(history(5, 15, MIN_BEFORE + MIN_AFTER - 1, 0.8)) is None


def test_few_runs_tell_nothing() -> None:
    short = history(1, 9, 4, 0.5)
    assert change_points(short) == []
    assert detectable_change(short) is None


def test_runs_that_are_all_alike_show_no_change() -> None:
    assert change_points([1000.0] * 20) == []
    assert detectable_change([1000.0] * 20) == 0.0
    stepped = [1000.0] * 10 + [900.0] * 14
    assert [change.at for change in change_points(stepped)] == [10]
    assert detectable_change(stepped) == 0.0


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_what_is_no_measurement_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="finite and more than zero"):
        change_points([1000.0] * 20 + [bad])
