"""What each rank tells reaches all, however long it is, and in one collective if it is short."""

import pickle
from typing import Any

import pytest
import torch.distributed as dist

from convoy.checkpoint.group import SHORT_BYTES, all_gather_objects
from tests.checkpoint.test_api import gang

FITS = SHORT_BYTES - 8
"""Bytes of a pickled value that go at once."""


def told(rank: int, uri: str, lengths: list[int]) -> tuple[list[Any], int]:
    group, calls, gather = dist.new_group(backend="gloo"), [], dist.all_gather

    def counted(*args: Any, **options: Any) -> Any:
        calls.append(1)
        return gather(*args, **options)

    dist.all_gather = counted  # in a process of the test's own
    values = all_gather_objects({"rank": rank, "data": bytes([rank]) * lengths[rank]}, group)
    return values, len(calls)


@pytest.mark.parametrize(
    ("lengths", "collectives"),
    [([0, 100, 3000], 1), ([100_000, 1, 7], 2), ([4097, 4096, 4095], 2)],
)
def test_all_ranks_know_what_all_told(lengths: list[int], collectives: int, tmp_path: Any) -> None:
    wanted = [{"rank": rank, "data": bytes([rank]) * length} for rank, length in enumerate(lengths)]
    for values, calls in gang(3, tmp_path, told, lengths):
        assert values == wanted
        assert calls == collectives


@pytest.mark.parametrize(("pickled", "collectives"), [(FITS, 1), (FITS + 1, 2)])
def test_at_the_edge_nothing_is_cut_off(pickled: int, collectives: int, tmp_path: Any) -> None:
    around = len(pickle.dumps({"rank": 0, "data": bytes(1000)})) - 1000
    for values, calls in gang(2, tmp_path, told, [pickled - around, 0]):
        assert values == [{"rank": 0, "data": bytes(pickled - around)}, {"rank": 1, "data": b""}]
        assert calls == collectives
