"""The arithmetic of transfers in flight."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.network.one_sided.times import blocking_over_window, transfer_seconds, transfers_of_operation

RATE = 50e6


def test_a_blocking_transfer_costs_its_bytes_and_a_round_trip_each_time() -> None:
    assert transfer_seconds(50_000, 4e-3, RATE, 1, 10) == pytest.approx(10 * (1e-3 + 4e-3))


def test_a_window_that_holds_a_round_trip_s_bytes_costs_one_round_trip() -> None:
    assert transfer_seconds(50_000, 4e-3, RATE, 5, 10) == pytest.approx(10 * 1e-3 + 4e-3)
    assert blocking_over_window(50_000, 4e-3, RATE, 5, 10) == pytest.approx(50 / 14)


def test_a_smaller_window_leaves_the_link_idle_between_its_bursts() -> None:
    # two leave at 0 and 1 ms, and are acknowledged at 5 and 6 ms
    assert transfer_seconds(50_000, 4e-3, RATE, 2, 4) == pytest.approx(11e-3)


@given(st.integers(1, 2**24), st.floats(0, 0.1), st.floats(1e6, 1e11), st.integers(1, 64), st.integers(1, 64))
def test_a_window_is_never_slower_than_blocking_nor_quicker_than_the_link(
    size: int, round_trip: float, rate: float, window: int, transfers: int
) -> None:
    seconds = transfer_seconds(size, round_trip, rate, window, transfers)
    assert seconds <= transfer_seconds(size, round_trip, rate, 1, transfers) * (1 + 1e-9)
    assert seconds >= (transfers * size / rate + round_trip) * (1 - 1e-9)


@pytest.mark.parametrize(("size", "transfers"), [(8, 32), (2**18, 32), (2**20, 8), (2**23, 2), (2**30, 2)])
def test_an_operation_is_two_windows_of_small_transfers_and_at_least_two_of_any(size: int, transfers: int) -> None:
    assert transfers_of_operation(size, 16) == transfers
