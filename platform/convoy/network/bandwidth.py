"""Bandwidths of collectives: from algorithm to bus bandwidth, and the most that links allow. Pure.

Source of the factors: nccl-tests, doc/PERFORMANCE.md.
"""

from convoy.config.network import Operation

ALL_SEND_ALL = frozenset({"all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"})
"""Operations in which each byte passes all ranks but one."""


def bus_factor(operation: Operation, ranks: int) -> float:
    """Bus bandwidth over algorithm bandwidth: what a rank's link carries at least in each direction, over the size of
    the buffer."""
    once = (ranks - 1) / ranks
    if operation == "all_reduce":
        return 2 * once
    return once if operation in ALL_SEND_ALL else 1.0


def busbw_bound(operation: Operation, hosts: int, ranks_per_host: int, link_bytes_per_second: float) -> float:
    """Most bus bandwidth of a collective over hosts whose network carries so many bytes per second in each direction.

    What a host must send or receive at least, over the rate of its link, is the shortest time. For an all-reduce, a
    host's ranks need the sum of all others: algbw is at most B · N / (2 (N - 1)). An all-to-all must carry from each
    host what each of its ranks has for the others; a broadcast must carry the buffer once.
    """
    ranks, apart = hosts * ranks_per_host, (hosts - 1) / hosts
    carried = {
        "all_reduce": 2 * apart,
        "all_gather": apart,
        "reduce_scatter": apart,
        "all_to_all": ranks_per_host * apart,
        "gather": apart,
        "scatter": apart,
    }.get(operation, 1.0)
    return link_bytes_per_second / carried * bus_factor(operation, ranks)
