"""When a benchmark counts as slower than the one before."""

from convoy.benchmark.results.compare import Comparison
from convoy.benchmark.results.regressions import regression_message
from convoy.stats.interval import Interval


def compared(case: str, low: float, estimate: float, high: float) -> Comparison:
    ratio = Interval(estimate=estimate, low=low, high=high, n=8)
    return Comparison(case=case, first=None, second=None, ratio=ratio)


def test_only_a_rate_that_is_lower_beyond_chance_is_a_regression() -> None:
    cases = [compared("same", 0.97, 0.99, 1.01), compared("faster", 1.1, 1.2, 1.3)]
    assert regression_message("Bench-7", cases, "again") is None
    slower = [compared("a", 0.90, 0.93, 0.96), compared("b", 0.7, 0.8, 0.9)]
    message = regression_message("Bench-7", [*cases, *slower], "python f.py run")
    assert message is not None
    assert message.title == "Convoy: Bench-7 is slower than before"
    assert message.body.splitlines()[:2] == [
        "First cause: b: 0.800 (0.700 to 0.900) of the rate before; a: 0.930 (0.900 to 0.960) of the rate before",
        "Step: 2 of 4 compared rates are lower",
    ]
    assert message.body.endswith("Continue: python f.py run")
