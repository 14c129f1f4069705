"""Algorithm and bus bandwidth of collectives, and the upper bounds that the networks of hosts set on them. Pure.

The size S in bytes is that of nccl-tests' column `size`, of the whole buffer: for all-gather the one that is gathered,
for reduce-scatter the one that is reduced, for all-to-all what one rank sends (its own part included), for gather and
scatter what the root has in the end or at the start, for sendrecv what each rank sends to the next one. Algorithm
bandwidth is S over the time; bus bandwidth is that times `bus_factor`.
"""

from typing import Literal

from convoy.config.network import Operation

ALL_SEND_ALL = frozenset({"all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"})
"""Operations of n ranks whose bus bandwidth is (n - 1)/n of the algorithm bandwidth."""


def bus_factor(operation: Operation | Literal["sendrecv"], ranks: float) -> float:
    """Bus bandwidth over algorithm bandwidth: what a rank's link carries at least in one direction, over the size of
    the buffer.

    2 (n - 1)/n for all-reduce; (n - 1)/n for all-gather, reduce-scatter, all-to-all, gather and scatter; 1 for
    broadcast, reduce and sendrecv. Sources: nccl-tests, doc/PERFORMANCE.md, and the functions `*GetBw` of its src/*.cu.
    """
    once = (ranks - 1) / ranks
    if operation == "all_reduce":
        return 2 * once
    return once if operation in ALL_SEND_ALL else 1.0


def algbw_bound(
    operation: Operation | Literal["sendrecv"], hosts: float, ranks_per_host: float, link_bytes_per_second: float
) -> float:
    """Most algorithm bandwidth, bytes per second, of a collective over two hosts or more.

    link_bytes_per_second: B, what the network of one host carries in each direction, all of its NICs together. What a
    host must send or receive at least, over B, is the shortest time. With N hosts of g ranks each:

    - all_reduce: the host's part of the sum from all others, and the sum to them: B N / (2 (N - 1));
    - all_gather, reduce_scatter, and gather and scatter at the root: B N / (N - 1);
    - broadcast, reduce: the buffer once: B;
    - all_to_all: what each of its ranks has for the ranks of other hosts: B N / (g (N - 1));
    - sendrecv: ranks follow each other host by host, and one of each host sends to the next host: B.

    Switches that sum on the way (SHARP) allow an all-reduce twice as much. Sources: Patarasuk and Yuan 2009,
    "Bandwidth optimal all-reduce algorithms for clusters of workstations", with hosts in place of ranks; nccl-tests,
    doc/PERFORMANCE.md.
    """
    carried = bus_factor(operation, hosts) * (ranks_per_host if operation == "all_to_all" else 1)
    return link_bytes_per_second / carried


def busbw_bound(
    operation: Operation | Literal["sendrecv"], hosts: float, ranks_per_host: float, link_bytes_per_second: float
) -> float:
    """Most bus bandwidth, bytes per second, of a collective over two hosts or more: `algbw_bound` times the bus factor
    of all ranks. With several ranks on each host it can exceed the rate of the host's network, because what they sum or
    share within the host crosses the network only once."""
    algbw = algbw_bound(operation, hosts, ranks_per_host, link_bytes_per_second)
    return algbw * bus_factor(operation, hosts * ranks_per_host)
