"""k of n, with its interval."""

import pytest

from convoy.stats.interval import proportion


@pytest.mark.parametrize(
    ("k", "n", "low", "high"),
    [(30, 30, 0.886, 1.0), (0, 10, 0.0, 0.278), (5, 10, 0.237, 0.763), (1, 29, 0.0061, 0.1718)],
)
def test_wilsons_interval_is_that_of_the_tables(k: int, n: int, low: float, high: float) -> None:
    found = proportion(k, n)
    assert (found.estimate, found.n) == (k / n, n)
    assert found.low == pytest.approx(low, abs=6e-4)
    assert found.high == pytest.approx(high, abs=6e-4)


@pytest.mark.parametrize(("k", "n"), [(0, 0), (-1, 3), (4, 3)])
def test_what_is_no_part_is_refused(k: int, n: int) -> None:
    with pytest.raises(ValueError, match="at least one trial"):
        proportion(k, n)
