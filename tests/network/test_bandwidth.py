"""Bus bandwidth and what hosts' networks allow, by hand and against what every host has to send."""

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.config.network import OPERATIONS, Operation
from convoy.network.bandwidth import algbw_bound, bus_factor, busbw_bound

ALL: tuple[Operation | Literal["sendrecv"], ...] = (*OPERATIONS, "sendrecv")


@pytest.mark.parametrize(
    ("operation", "factor"),
    [("all_reduce", 1.75), ("all_gather", 0.875), ("reduce_scatter", 0.875), ("broadcast", 1), ("reduce", 1),
     ("all_to_all", 0.875), ("gather", 0.875), ("scatter", 0.875), ("sendrecv", 1)],
)  # fmt: skip
def test_bus_factor_of_eight_ranks_is_that_of_nccl_tests(
    operation: Operation | Literal["sendrecv"], factor: float
) -> None:
    assert bus_factor(operation, 8) == factor


@given(st.sampled_from(ALL), st.integers(2, 64))
def test_with_one_rank_on_each_host_bus_bandwidth_is_bounded_by_the_link(
    operation: Operation | Literal["sendrecv"], hosts: int
) -> None:
    assert busbw_bound(operation, hosts, 1, 50e6) == pytest.approx(50e6)


@pytest.mark.parametrize(
    ("operation", "algbw"),
    # 2 hosts of 8 ranks with 50 GB/s each way: half of the sum goes over and half comes back, and of an all-to-all each
    # of 8 ranks sends half of its buffer.
    [("all_reduce", 50e9), ("all_gather", 100e9), ("broadcast", 50e9), ("all_to_all", 12.5e9), ("gather", 100e9)],
)
def test_bounds_of_two_hosts_of_eight_ranks(operation: Operation, algbw: float) -> None:
    assert algbw_bound(operation, 2, 8, 50e9) == pytest.approx(algbw)
    assert busbw_bound(operation, 2, 8, 50e9) == pytest.approx(algbw * bus_factor(operation, 16))


@given(st.integers(2, 8), st.integers(1, 8))
def test_an_all_to_all_is_bounded_by_the_bytes_that_leave_a_host(hosts: int, per_host: int) -> None:
    ranks = hosts * per_host
    pairs = [(a, b) for a in range(per_host) for b in range(ranks) if b >= per_host]  # from ranks of host 0 to others
    bytes_out = len(pairs) * 1 / ranks  # of a buffer of one byte of each rank
    assert algbw_bound("all_to_all", hosts, per_host, 1.0) == pytest.approx(1 / bytes_out)
