"""Numbers are written for people."""

import pytest

from convoy.display import formatting
from convoy.stats.interval import Interval
from convoy.stats.spread import Spread, spread


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0.00"), (2.0123, "2.01"), (0.0123456, "0.0123"), (123.4, "123"), (4.5e-7, "4.50e-07"), (1e9, "1.00e+09")],
)
def test_three_digits_are_significant(value: float, text: str) -> None:
    assert formatting.significant(value) == text


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_is_said(value: float) -> None:
    assert formatting.significant(value) == "not finite"


@pytest.mark.parametrize(
    ("value", "text"), [(170, "170"), (9_999, "9,999"), (1_234_567, "1.23 M"), (999_900, "1.00 M"), (6.7e9, "6.70 B")]
)
def test_counts_have_units(value: float, text: str) -> None:
    assert formatting.count(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(950, "950 tok/s"), (12_345, "12.3k tok/s"), (999_800, "1.00M tok/s"), (2.5e6, "2.50M tok/s")]
)
def test_rates_have_units(value: float, text: str) -> None:
    assert formatting.rate(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.0123, "12.3 ms"),
        (0.9999, "1.0 s"),
        (59.96, "1 m 00 s"),
        (252, "4 m 12 s"),
        (3599.7, "1 h 00 m"),
        (2 * 3600 + 299, "2 h 05 m"),
        (86_399, "1 d 00 h"),
        (3 * 86_400 + 4 * 3600, "3 d 04 h"),
        (-252, "-4 m 12 s"),
    ],
)
def test_durations_have_two_units_at_most(seconds: float, text: str) -> None:
    assert formatting.duration(seconds) == text


@pytest.mark.parametrize(
    ("n_bytes", "text"), [(12, "12 B"), (43_213_824, "43.2 MB"), (999_999_999, "1.00 GB"), (2.5e12, "2.50 TB")]
)
def test_sizes_are_decimal(n_bytes: float, text: str) -> None:
    assert formatting.size(n_bytes) == text


def test_a_spread_names_its_unit_once_and_how_often_was_measured() -> None:
    figure = Spread(median=0.4, q1=0.398, q3=0.402, n=1234)
    assert formatting.quartiles(figure, formatting.duration) == "IQR 398 to 402 ms, n = 1,234"
    assert (
        formatting.quartiles(Spread(median=1, q1=0.9, q3=1.2, n=3), formatting.duration) == "IQR 900 ms to 1.2 s, n = 3"
    )


def test_quartiles_leave_out_what_is_not_finite() -> None:
    assert spread([1, 2, float("nan"), 3, 4, 5, float("inf")]) == Spread(median=3, q1=2, q3=4, n=5)
    assert spread([7]) == Spread(median=7, q1=7, q3=7, n=1)
    assert spread([float("nan")]) is None


def test_percentages_and_plurals() -> None:
    assert formatting.percent(0.4567) == "45.7 %"
    assert [formatting.percent(share) for share in (0, 9.9e-6, -1e-6, 1e-5)] == [
        "0.00 %", "< 0.001 %", "< 0.001 %", "0.00100 %"
    ]  # fmt: skip
    assert [formatting.signed_percent(p) for p in (1.26, -1.26, -0.01)] == ["+1.3 %", "-1.3 %", "+0.0 %"]
    assert (formatting.plural(1, "rank"), formatting.plural(2000, "rank")) == ("1 rank", "2,000 ranks")


def test_money_and_units() -> None:
    assert (formatting.usd(1234.5), formatting.whole_usd(1234.5)) == ("1,234.50 USD", "1,234 USD")
    assert formatting.in_unit("TFLOP/s")(312.4) == "312 TFLOP/s"
    assert formatting.bandwidth(1.5e9) == "1.50 GB/s"


def test_long_durations_are_days_and_years() -> None:
    day = 86400
    assert formatting.long_duration(90) == "1 m 30 s"
    assert formatting.long_duration(1.9 * day) == "1 d 22 h"
    assert formatting.long_duration(12.34 * day) == "12.3 days"
    assert formatting.long_duration(4.56 * 365.25 * day) == "4.56 years"
    assert formatting.long_duration(2e6 * 365.25 * day) == "2.00 M years"


def test_a_ratio_has_as_many_decimals_as_its_interval_tells_of() -> None:
    assert formatting.ratio(_interval(1.5216, 1.4901, 1.5532)) == "1.52× (1.49 to 1.55)"
    assert formatting.ratio(_interval(1.0016, 0.9979, 1.0061)) == "1.002× (0.998 to 1.006)"
    assert formatting.ratio(_interval(12.34, 11.9, 12.8)) == "12.3× (11.9 to 12.8)"
    assert formatting.ratio(_interval(0.0123, 0.0121, 0.0125)) == "0.0123× (0.0121 to 0.0125)"


def test_an_estimate_tells_its_unit_once_and_its_bounds_without() -> None:
    assert formatting.estimate(_interval(4096, 4071, 4120), formatting.rate) == "4.10k tok/s (4.07k to 4.12k)"
    assert formatting.estimate(_interval(0.9, 0.88, 0.92), formatting.percent) == "90.0 % (88.0 to 92.0)"
    assert formatting.bounds(_interval(1e9, 999e6, 1.1e9), formatting.size) == "999 MB to 1.10 GB"


def _interval(estimate: float, low: float, high: float) -> Interval:
    return Interval(estimate=estimate, low=low, high=high, n=20)


@pytest.mark.parametrize(
    ("done", "text"),
    [
        (0, "0 of 9 done"),
        (3, "3 of 9 done in 2 m 00 s, about 4 m 00 s left"),
        (9, "9 of 9 done in 2 m 00 s"),
    ],
)
def test_a_row_of_work_tells_how_far_it_is_and_what_is_left(done: int, text: str) -> None:
    assert formatting.work_progress(done, 9, 120.0) == text


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [
        (8, "8 B"),
        (1000, "1000 B"),
        (1024, "1 KiB"),
        (2**26, "64 MiB"),
        (1536, "1.5 KiB"),
        (6740, "6.58 KiB"),
        (2**20 - 1, "1024 KiB"),
        (2**30, "1 GiB"),
    ],
)
def test_buffers_are_in_powers_of_1024(n_bytes: int, text: str) -> None:
    assert formatting.buffer_size(n_bytes) == text
