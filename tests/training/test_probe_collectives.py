"""What ranks measure of their collectives."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest
import torch
import torch.distributed as dist

from convoy.training.probe_collectives import CALLS, _largest, _together
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


@pytest.mark.parametrize("wait", [0.0, 1e-5, 1e-2])
def test_the_wait_for_a_gpu_is_no_part_of_its_collectives(monkeypatch: pytest.MonkeyPatch, wait: float) -> None:
    """Each row ends with one, however many collectives are in it."""
    made: list[float] = []

    def took(call: Callable[[], object], _: object) -> float:
        made.clear()
        call()
        return wait + sum(made)

    for module in ("probe_collectives", "probe_timing"):
        monkeypatch.setattr(f"convoy.training.{module}.seconds_here", took)
    monkeypatch.setattr("convoy.training.probe_timing._most", lambda value, ranks: value)
    monkeypatch.setattr(dist, "all_reduce", lambda *_, **__: None)
    gpu = cast("Ranks", SimpleNamespace(device=torch.device("cuda"), control=None))
    assert _together(lambda: made.append(2e-3), gpu, SECONDS) == pytest.approx(2e-3)


def test_a_gpu_whose_wait_was_disturbed_sends_at_no_rate_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    took = iter([1.0, 1.0, 1.0] + [3.0, 1.0] * TIMES)
    for module in ("probe_collectives", "probe_timing"):
        monkeypatch.setattr(f"convoy.training.{module}.seconds_here", lambda call, ranks: next(took))
    monkeypatch.setattr("convoy.training.probe_timing._most", lambda value, ranks: value)
    monkeypatch.setattr(dist, "all_reduce", lambda *_, **__: None)
    gpu = cast("Ranks", SimpleNamespace(device=torch.device("cuda"), control=None))
    assert _together(lambda: None, gpu, SECONDS) == pytest.approx(0.5 / CALLS["cuda"])


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
