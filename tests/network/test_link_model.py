"""The alpha-beta model, on times whose latency and bandwidth are known."""

import random

import pytest

from convoy.network.link_model import fit_link

SIZES = [4**i for i in range(3, 13)]


def noisy_times(seed: int, rounds: int = 12, noise: float = 0.05) -> dict[int, list[float]]:
    """Of a link with 100 µs and 50 MB/s."""
    random_ = random.Random(seed)
    line = {size: 1e-4 + size / 50e6 for size in SIZES}
    return {size: [seconds * random_.lognormvariate(0, noise) for _ in range(rounds)] for size, seconds in line.items()}


def test_a_line_without_noise_is_found_exactly() -> None:
    model = fit_link(noisy_times(seed=0, noise=0.0))
    assert model is not None
    assert model.alpha.estimate == pytest.approx(1e-4)
    assert model.beta.estimate == pytest.approx(50e6)
    assert model.half_size == pytest.approx(5000)
    assert model.seconds(50e6) == pytest.approx(1.0001)


def test_intervals_hold_the_true_values_in_nearly_all_measurements() -> None:
    models = [fit_link(noisy_times(seed)) for seed in range(40)]
    held = [(m.alpha.low <= 1e-4 <= m.alpha.high, m.beta.low <= 50e6 <= m.beta.high) for m in models if m]
    assert len(held) == 40
    assert sum(alpha for alpha, _ in held) >= 34
    assert sum(beta for _, beta in held) >= 34


@pytest.mark.parametrize(
    "times",
    [
        {size: times for size, times in noisy_times(1).items() if size < 1000},  # 2 sizes
        noisy_times(1, rounds=5),
        {size: [1.0 / size] * 6 for size in SIZES},  # larger ones are quicker
    ],
)
def test_nothing_is_fitted_to_too_little_or_to_what_is_no_link(times: dict[int, list[float]]) -> None:
    assert fit_link(times) is None
