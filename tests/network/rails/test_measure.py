"""Rails on one host's loopback: all bytes arrive in each mode, and a byte that is wrong is counted."""

from typing import Any

import pytest
import torch.distributed as dist

from convoy.network.interfaces import Interface
from convoy.network.pairs.measure import pattern
from convoy.network.rails.measure import RailCall, measure_rails, open_gloo_rail
from convoy.network.rails.plan import RAIL_MODES, RailMode, RailTask
from tests.network.meetings import meet
from tests.ranks import in_a_group


def wrong_bytes(rank: int, mode: RailMode, fault: int | None) -> list[int]:
    """On ranks 2 → 0 of three, over two rails on the loopback."""
    meeting, ends = meet(rank, ["a", "b", "c"]), (2, 0)
    interface = Interface("lo", "127.0.0.1", "127.0.0.0/8")
    rails: list[Any] = []
    if rank in ends:
        rails = [open_gloo_rail(interface, ends.index(rank), f"rail {number}") for number in range(2)]
    buffer = pattern(rank, 4 * 10_001 if rank in ends else 0)
    wrong = []
    for task in (RailTask(mode, 1, 10_001), RailTask(mode, 4, 10_001), RailTask(mode, 1, 1)):
        if rank == 2 and fault is not None and fault < task.size * task.buffers:
            buffer[fault] += 1
        wrong.append(RailCall(task, meeting, ends, rails, buffer).check())
        if rank == 2:
            buffer.copy_(pattern(rank, len(buffer)))
    dist.barrier()  # none leaves, and so closes its connections, while another one waits
    return wrong


@pytest.mark.parametrize("mode", RAIL_MODES)
def test_all_bytes_arrive_in_each_mode(mode: RailMode) -> None:
    assert in_a_group(3, wrong_bytes, mode, None) == [[0, 0, 0]] * 3


@pytest.mark.parametrize("mode", RAIL_MODES)
def test_a_wrong_byte_is_counted_where_it_arrives(mode: RailMode) -> None:
    assert in_a_group(3, wrong_bytes, mode, 7000) == [[1, 1, 0], [0, 0, 0], [0, 0, 0]]


def measured(rank: int, hosts: tuple[str, str]) -> str:
    result = measure_rails(meet(rank, hosts), (0, 1), 2**10, 1)
    assert not result.times
    return result.why_not


def test_one_host_has_no_rails() -> None:
    assert in_a_group(2, measured, ("a", "a")) == ["there is one host, and rails are between two"] * 2


def test_hosts_without_two_common_networks_have_no_rails() -> None:
    # Both ranks are on this host, so that all addresses are equal.
    for why_not in in_a_group(2, measured, ("a", "b")):
        assert "the two hosts share 0 networks, and rails are at least two" in why_not
