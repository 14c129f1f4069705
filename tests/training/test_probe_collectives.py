"""What ranks measure of their collectives."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest
import torch
import torch.distributed as dist

from convoy.training.probe_collectives import _largest, _together
from convoy.training.probe_timing import TIMES
from convoy.training.ranks import Ranks

SECONDS = 0.02


def test_a_collective_that_disturbances_hide_takes_what_it_does_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Computation that was faster with it than without: it is not infinitely fast for that."""
    alone = SimpleNamespace(device=torch.device("cpu"), control=None)
    took = iter([1.0, 1.0, 1.0] + [2.0, 1.0] * TIMES + [0.5] * 3)
    for module in ("probe_collectives", "probe_timing"):
        monkeypatch.setattr(f"convoy.training.{module}.seconds_here", lambda call, ranks: next(took))
    monkeypatch.setattr("convoy.training.probe_timing._most", lambda value, ranks: value)
    monkeypatch.setattr("convoy.training.probe_collectives._work", lambda ranks: lambda: None)
    monkeypatch.setattr(dist, "all_reduce", lambda *_, **__: None)
    assert _together(lambda: None, cast("Ranks", alone), SECONDS) == pytest.approx(0.5 / TIMES)


@pytest.mark.parametrize(("rate", "largest"), [(1e12, 1e6), (1e5, 1e3)])
def test_messages_are_as_large_as_a_block_where_there_is_time(
    monkeypatch: pytest.MonkeyPatch, rate: float, largest: float
) -> None:
    """A link of 100 kB/s has time for 10 ms of it."""
    asked: list[float] = []

    def made(size: float) -> Callable[[], object]:
        asked.append(size)
        return lambda: None

    monkeypatch.setattr("convoy.training.probe_collectives.slowest_seconds", lambda call, ranks: asked[-1] / rate)
    found = _largest(100.0, 1e6, made, cast("Ranks", None), 0.01)
    assert largest / 5 < found <= largest
