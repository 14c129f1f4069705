"""What ranks measure of their collectives, and the line through two of its times."""

from collections.abc import Callable
from itertools import cycle
from types import SimpleNamespace
from typing import cast

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from convoy.training.measure.collectives import CALLS, RESOLVED, _added_seconds, _affordable_bytes, fit_time_line
from convoy.training.measure.machine import TIMES
from convoy.training.process_groups import Ranks

SECONDS = 0.02

CPU, GPU = (cast("Ranks", SimpleNamespace(device=torch.device(kind), control=None)) for kind in ("cpu", "cuda"))


@pytest.fixture(autouse=True)
def _one_rank_without_computation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("convoy.training.measure.machine.max_over_ranks", lambda seconds, _: seconds)
    monkeypatch.setattr("convoy.training.measure.collectives.max_over_ranks", lambda seconds, _: seconds)
    monkeypatch.setattr("convoy.training.measure.collectives._make_computation", lambda _: lambda: None)
    monkeypatch.setattr(dist, "all_reduce", lambda *_, **__: None)


def _takes(monkeypatch: pytest.MonkeyPatch, seconds: Callable[[Callable[[], object]], float]) -> None:
    for module in ("collectives", "machine"):
        monkeypatch.setattr(f"convoy.training.measure.{module}.seconds_here", lambda call, _: seconds(call))


def test_a_collective_that_disturbances_hide_takes_what_it_does_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Computation that was faster with it than without: it is not infinitely fast for that."""
    took = cycle([2.0, 1.0, 0.5])  # computation, that beside the collective, the collective by itself
    _takes(monkeypatch, lambda _: next(took))
    assert _added_seconds([lambda: None], CPU, SECONDS) == pytest.approx([0.5 / CALLS["cpu"]])


def test_what_disturbs_the_machine_for_some_rounds_is_in_the_time_of_no_collective(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All take turns in each round: what lasts for two of five rounds is in two of the five times of each."""
    factors = [10.0 if 3 <= number < 5 else 1.0 for number in range(1 + TIMES)]  # the first one counts for none
    took = iter([factor * seconds for factor in factors for seconds in (2.0, 2.4, 3.0, 0.2, 0.5)])
    _takes(monkeypatch, lambda _: next(took))
    assert _added_seconds([lambda: None, lambda: None], CPU, 0) == pytest.approx([0.4 / CALLS["cpu"], 1 / CALLS["cpu"]])
    assert next(took, None) is None


@pytest.mark.parametrize("wait", [0.0, 1e-5, 1e-2])
def test_the_wait_for_a_gpu_is_no_part_of_its_collectives(monkeypatch: pytest.MonkeyPatch, wait: float) -> None:
    """Each row ends with one, however many collectives are in it."""
    made: list[float] = []

    def took(call: Callable[[], object]) -> float:
        made.clear()
        call()
        return wait + sum(made)

    _takes(monkeypatch, took)
    found = _added_seconds([lambda: made.append(2e-3), lambda: made.append(3e-3)], GPU, SECONDS)
    assert found == pytest.approx([2e-3, 3e-3])


def test_a_gpu_whose_wait_was_disturbed_sends_at_no_rate_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    took = cycle([3.0, 1.0])
    _takes(monkeypatch, lambda _: next(took))
    assert _added_seconds([lambda: None], GPU, SECONDS) == pytest.approx([0.5 / CALLS["cuda"]])


@pytest.mark.parametrize(("rate", "largest"), [(1e12, 1e6), (1e5, 1e3)])
def test_messages_are_as_large_as_a_block_where_there_is_time(
    monkeypatch: pytest.MonkeyPatch, rate: float, largest: float
) -> None:
    """A link of 100 kB/s has time for 10 ms of it."""
    asked: list[float] = []

    def made(size: float) -> Callable[[], object]:
        asked.append(size)
        return lambda: None

    monkeypatch.setattr("convoy.training.measure.collectives.slowest_seconds", lambda call, ranks: asked[-1] / rate)
    found = _affordable_bytes(100.0, 1e6, made, cast("Ranks", None), 0.01)
    assert largest / 5 < found <= largest


def test_one_message_that_was_disturbed_leaves_no_larger_one_untried(monkeypatch: pytest.MonkeyPatch) -> None:
    """From 128 kB to a block's 2 MB the line would have what disturbs it sixteen times."""
    took = cycle([1.0, *[1e-4] * (TIMES - 1)])
    monkeypatch.setattr("convoy.training.measure.collectives.slowest_seconds", lambda call, ranks: next(took))
    assert _affordable_bytes(100.0, 1e6, lambda _: lambda: None, cast("Ranks", None), 0.01) == 1e6


ANY_SECONDS = st.floats(1e-6, 10.0)
LARGER = st.floats(1.5, 1e6)
"""Times the smaller size."""


@given(share=st.floats(0, 15), slope=st.floats(1e-12, 1e-6), size=st.floats(1, 1e6), larger=LARGER)
def test_points_on_a_line_give_that_line(share: float, slope: float, size: float, larger: float) -> None:
    """share: of the start, of what the larger size takes by the slope."""
    start = share * slope * size * larger
    found, each = fit_time_line((size, start + slope * size), (size * larger, start + slope * size * larger))
    assert found == pytest.approx(start, rel=1e-6, abs=1e-6 * slope * size * larger)
    assert each == pytest.approx(slope, rel=1e-6)


@given(small=ANY_SECONDS, large=ANY_SECONDS, size=st.floats(1, 1e6), larger=LARGER)
def test_the_larger_size_takes_what_it_took_and_nothing_is_below_nothing_or_for_nothing(
    small: float, large: float, size: float, larger: float
) -> None:
    """A collective of a block must never be infinitely fast, however a small one was disturbed."""
    start, slope = fit_time_line((size, small), (size * larger, large))
    assert start + slope * size * larger == pytest.approx(large)
    assert 0 <= start <= min(small, large) * (1 + 1e-9)
    assert slope * size * larger >= RESOLVED * large * (1 - 1e-9)


@given(small=ANY_SECONDS, large=ANY_SECONDS, larger=LARGER, change=st.floats(-0.01, 0.01))
def test_what_is_a_little_longer_moves_the_line_a_little(
    small: float, large: float, larger: float, change: float
) -> None:
    """Also where its slope can no longer be told, and where its start comes to nothing."""
    start, slope = fit_time_line((1.0, small), (larger, large))
    for other, most in ((small * (1 + change), large), (small, large * (1 + change))):
        moved, each = fit_time_line((1.0, other), (larger, most))
        most_moved = abs(change) * max(small, large) * larger / (larger - 1) * 1.01 + 1e-12
        assert abs(moved - start) <= 2 * most_moved
        assert abs(each - slope) * larger <= 2 * most_moved


@pytest.mark.parametrize(
    "points", [((1.0, 1.0), (1.0, 2.0)), ((2.0, 1.0), (1.0, 2.0)), ((1.0, 0.0), (2.0, 1.0)), ((1.0, 1.0), (2.0, 0.0))]
)
def test_no_line_is_made_of_one_size_or_of_no_time(points: tuple[tuple[float, float], tuple[float, float]]) -> None:
    with pytest.raises(ValueError, match="must be times above 0 of two sizes, the smaller one first"):
        fit_time_line(*points)
