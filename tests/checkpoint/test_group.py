"""What each rank tells reaches all, however long it is, and in one collective if it is short."""

import pickle
from typing import Any

import torch.distributed as dist

from convoy.checkpoint.group import SHORT_BYTES, all_gather_objects
from tests.ranks import in_a_group

PICKLED_BYTES = len(pickle.dumps({"rank": 0, "data": bytes(1000)})) - 1000
"""Of a value without its data."""

FITS = SHORT_BYTES - 8 - PICKLED_BYTES
"""Bytes of data that go at once."""

CASES = [([0, 100, 3000], 1), ([100_000, 1, 7], 2), ([4097, 4096, 4095], 2), ([FITS, 0, 0], 1), ([FITS + 1, 0, 0], 2)]
"""How long each rank's data are, and how many collectives it takes until all have them."""


def gathered(rank: int) -> list[tuple[list[Any], int]]:
    group, calls, gather = dist.new_group(backend="gloo"), list[int](), dist.all_gather

    def counted(*args: Any, **options: Any) -> Any:
        calls.append(1)
        return gather(*args, **options)

    dist.all_gather = counted  # in a process of the test's own
    values, counts = list[list[Any]](), list[int]()
    for lengths, _ in CASES:
        values.append(all_gather_objects({"rank": rank, "data": bytes([rank]) * lengths[rank]}, group))
        counts.append(len(calls) - sum(counts))
    return list(zip(values, counts, strict=True))


def test_all_ranks_know_what_all_told_and_nothing_is_cut_off() -> None:
    wanted = [
        ([{"rank": rank, "data": bytes([rank]) * length} for rank, length in enumerate(lengths)], collectives)
        for lengths, collectives in CASES
    ]
    assert in_a_group(3, gathered) == [wanted] * 3
