"""The meeting of the ranks of a test, over torch's default group."""

from collections.abc import Sequence

import torch
import torch.distributed as dist

from convoy.network.timing import Meeting


def meet(rank: int, hosts: Sequence[str]) -> Meeting:
    """This rank's meeting with all others, on CPUs. hosts: name of each rank's host, by rank."""
    group = dist.group.WORLD
    assert group is not None
    return Meeting(rank, len(hosts), group, torch.device("cpu"), tuple(hosts))
