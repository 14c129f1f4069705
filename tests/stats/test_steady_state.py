"""The end of warm-up."""

import numpy as np
import pytest

from convoy.stats.changepoint import WINDOW, is_steady


def noise(seed: int, n: int, size: float = 0.05) -> np.ndarray:
    return np.asarray(1 + size * np.random.default_rng(seed).standard_normal(n))


def first_steady(seconds: np.ndarray) -> int | None:
    return next((n for n in range(1, len(seconds) + 1) if is_steady(list(seconds[:n]))), None)


def test_too_few_steps_are_never_steady() -> None:
    assert not is_steady([1.0] * (2 * WINDOW - 1))
    assert is_steady([1.0] * 2 * WINDOW)


@pytest.mark.parametrize("seed", range(20))
def test_a_long_first_step_and_a_drift_are_waited_for(seed: int) -> None:
    warm_up = 1 + 2.0 * np.exp(-np.arange(200) / 10)
    seconds = noise(seed, 200, 0.02) * warm_up
    found = first_steady(seconds)
    assert found is not None
    # What is measured from there on is within 2 % of what lasts.
    assert np.median(seconds[found : found + 50]) == pytest.approx(1.0, abs=0.05)
    assert found < 100


def test_noise_alone_is_steady_soon() -> None:
    found = [first_steady(noise(seed, 200, 0.2)) for seed in range(200)]
    assert all(each is not None for each in found)
    assert np.median([each or 0 for each in found]) == 2 * WINDOW


def test_one_late_step_changes_nothing() -> None:
    seconds = noise(1, 3 * WINDOW)
    seconds[-3] = 50.0
    assert is_steady(list(seconds))
