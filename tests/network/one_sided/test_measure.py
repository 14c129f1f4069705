"""One-sided transfers by NIXL between two ranks: over the loopback, and between two hosts with a known rate."""

import dataclasses
import os
import statistics
import sys
from typing import Any
from unittest.mock import patch

import pytest

from convoy.drills.testbed.lab import Lab
from convoy.drills.testbed.lab_spec import parse_lab
from convoy.network.one_sided.measure import OneSidedPlan, measure_one_sided
from convoy.network.one_sided.nixl_agents import Agent
from convoy.network.one_sided.times import MODES, OneSidedResult, blocking_over_window
from convoy.network.timing import Meeting
from tests.network.hosts import on_hosts
from tests.network.meetings import meet
from tests.ranks import in_a_group

SIZES = (8, 100_000)


LARGE = 5_000_000
"""An operation has two of these, each with a slot of its own."""


def measured(rank: int, ranks: int, fault: str = "", sizes: tuple[int, ...] = SIZES) -> OneSidedResult:
    os.environ |= {"UCX_TLS": "tcp", "UCX_NET_DEVICES": "lo"}
    if fault == "a transfer is left out":
        whole = Agent.blocking
        patch.object(Agent, "blocking", lambda self, transfers: whole(self, transfers[:-1])).start()
    if fault == "rank 1 has no NIXL" and rank == 1:
        patch.dict(sys.modules, {"nixl_cu12": None}).start()
    return measure_one_sided(OneSidedPlan(0, 1, sizes, window=4, rounds=2), meet(rank, ["a"] * ranks))


@pytest.mark.processes
def test_every_mode_is_measured_and_its_bytes_are_right_where_they_arrive() -> None:
    first, second, waiting = in_a_group(3, measured, 3)
    assert first == second == waiting
    assert (first.backend, first.transport, first.not_measured) == ("UCX", "tcp", "")
    kinds = [(times.operation, times.size, times.mode) for times in first.times]
    assert kinds == [(operation, size, mode) for operation in ("WRITE", "READ") for size in SIZES for mode in MODES]
    for times in first.times:
        assert times.wrong_bytes == 0
        assert times.checked_bytes == 3 * 4 * times.size  # once before two blocks, of four slots
        assert len(times.blocks) == 2
        assert min(times.operations) > 0
        assert 0 < times.costs.nixl_post <= times.costs.post + 1e-6
        assert times.costs.hand_over > 0


@pytest.mark.processes
def test_bytes_that_did_not_arrive_are_counted_in_the_mode_that_lost_them() -> None:
    """Of three checks two find it: before the first block, other modes have carried the same bytes."""
    lost, _ = in_a_group(2, measured, 2, "a transfer is left out", (LARGE,))
    wrong = {(times.operation, times.mode): times.wrong_bytes for times in lost.times}
    assert wrong == {
        (operation, mode): 2 * LARGE if mode == "blocking" else 0 for operation in ("WRITE", "READ") for mode in MODES
    }


@pytest.mark.processes
def test_without_nixl_on_one_of_the_two_ranks_all_ranks_say_how_to_install_it() -> None:
    reasons = {result.not_measured for result in in_a_group(3, measured, 3, "rank 1 has no NIXL")}
    (reason,) = reasons
    assert reason.startswith("rank 1: NIXL cannot be imported")
    assert reason.endswith("pip install 'metaflow-convoy[rdma]'")


TRIES = 3
"""On a host so busy that its own work delays packets."""


def between_hosts(lab_text: str, sizes: list[int], window: int, rounds: int) -> list[dict[str, Any]]:
    with Lab(parse_lab(lab_text)) as lab:
        over_tcp = ["UCX_TLS=tcp", "UCX_NET_DEVICES=eth0"]
        first, second = on_hosts(lab, f"{__name__}:measure", sizes, window, rounds, environment=over_tcp)
    assert first == second
    assert sum(times["wrong_bytes"] for times in first["times"]) == 0
    return list(first["times"])


@pytest.mark.system
@pytest.mark.alone
def test_between_hosts_large_transfers_have_the_rate_of_the_link() -> None:
    """Of 4 MiB at once, of which what the link sends without waiting is 0.4 %."""
    for _ in range(TRIES):
        shares = {
            (times["operation"], times["mode"]): times["size"] / statistics.median(times["blocks"]) / 50e6
            for times in between_hosts("2 hosts, 400mbit", [2**19], 4, 2)
        }
        print({" ".join(kind): round(share, 3) for kind, share in shares.items()})
        windowed = [share for (_, mode), share in shares.items() if mode != "blocking"]
        if min(windowed) >= 0.85:
            break
    assert all(share >= 0.85 for share in windowed), shares
    assert all(share <= 1.0 for share in shares.values()), shares


@pytest.mark.system
@pytest.mark.alone
def test_with_a_delay_blocking_takes_as_much_longer_as_arithmetic_says() -> None:
    """Of transfers so small that TCP sends a window of them at once; it begins with ten segments."""
    size, window = 1024, 8
    for _ in range(TRIES):
        times = {
            (each["operation"], each["mode"]): each
            for each in between_hosts("2 hosts, 400mbit, delay 2ms", [size], window, 3)
        }
        ratios = [
            min(times[operation, "blocking"]["operations"]) / min(times[operation, "window"]["operations"])
            for operation in ("WRITE", "READ")
        ]
        predicted = blocking_over_window(size, 2 * 2e-3, 50e6, window, times["WRITE", "window"]["transfers"])
        print(f"WRITE and READ: {ratios[0]:.2f} and {ratios[1]:.2f}, by arithmetic {predicted:.2f}")
        if ratios == pytest.approx([predicted] * 2, rel=0.2):
            break
    assert ratios == pytest.approx([predicted] * 2, rel=0.2)


def measure(meeting: Meeting, sizes: list[int], window: int, rounds: int) -> dict[str, Any]:
    return dataclasses.asdict(measure_one_sided(OneSidedPlan(0, 1, tuple(sizes), window, rounds), meeting))
