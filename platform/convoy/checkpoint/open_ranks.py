"""The ranks that open a store together: how many there are, where they run, and how they tell each other things."""

import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout

from convoy.checkpoint.group import everyones
from convoy.checkpoint.save.writer_client import GRACE_SECONDS

T = TypeVar("T")


class Ranks:
    """All of them make each call at once. Without a process group this is the only one."""

    def __init__(self, given: dist.ProcessGroup | None, saving_seconds: float) -> None:
        """given: None: all ranks. saving_seconds: how long a rank may wait for its saves, before it comes to where the
        others wait for it."""
        self.group = _group(given, saving_seconds)
        self.rank = 0 if self.group is None else dist.get_rank(self.group)
        self.size = 1 if self.group is None else dist.get_world_size(self.group)
        self.hosts = self.everyones(socket.gethostname())
        """Of each, by rank."""

    @property
    def host(self) -> str:
        """Of this one."""
        return self.hosts[self.rank]

    def everyones(self, value: T) -> list[T]:
        """The values of all, by rank."""
        return [value] if self.group is None else everyones(value, self.group)

    def from_first(self, work: Callable[[], T]) -> T:
        """What rank 0's `work` gives or raises, on all ranks."""
        box: list[Any] = [None, None]
        if self.rank == 0:
            try:
                box[0] = work()
            except Exception as error:
                box[1] = error
        if self.group is not None:
            dist.broadcast_object_list(box, group=self.group, group_src=0)
        if box[1] is not None:
            raise box[1]
        return box[0]


def _group(given: dist.ProcessGroup | None, saving_seconds: float) -> dist.ProcessGroup | None:
    """On the CPU, and of its own: a collective of ours must not meet one of the training's."""
    if not (dist.is_available() and dist.is_initialized()):
        return None
    ranks = None if given is None else dist.get_process_group_ranks(given)
    timeout = max(default_pg_timeout, timedelta(seconds=saving_seconds + GRACE_SECONDS))
    return dist.new_group(ranks, backend="gloo", timeout=timeout)
