"""Collectives on objects, and the ranks that open a store together."""

import pickle
import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout

T = TypeVar("T")

SHORT_BYTES = 4096
"""Most bytes of a pickled value with its length that the first collective takes."""

_LENGTH_BYTES = 8


def all_gather_objects(value: T, group: dist.ProcessGroup) -> list[T]:
    """The values of all ranks of a group on the CPU, by rank. All of them call it at once.

    Short values take one collective: on a busy machine each is a wait to be woken. `all_gather_object` of torch takes
    two, and the second one is only needed where lengths are not known before.
    """
    data = pickle.dumps(value)
    head = len(data).to_bytes(_LENGTH_BYTES, "little") + data[: SHORT_BYTES - _LENGTH_BYTES]
    messages = _all_gather(head, SHORT_BYTES, group)
    lengths = [int.from_bytes(message[:_LENGTH_BYTES], "little") for message in messages]
    longest = max(lengths)
    if longest <= SHORT_BYTES - _LENGTH_BYTES:
        whole = [message[_LENGTH_BYTES:] for message in messages]
    else:
        whole = _all_gather(data, longest, group)
    return [pickle.loads(message[:length]) for message, length in zip(whole, lengths, strict=True)]


class GroupMember:
    """A rank of a group on the CPU; None: this process alone. All ranks make each call at once."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self.group = group
        self.rank = 0 if group is None else dist.get_rank(group)
        self.size = 1 if group is None else dist.get_world_size(group)

    def all_gather(self, value: T) -> list[T]:
        """The values of all, by rank."""
        return [value] if self.group is None else all_gather_objects(value, self.group)

    def broadcast(self, value: Any) -> Any:
        """Rank 0's value, on all ranks."""
        if self.group is None:
            return value
        box = [value]
        dist.broadcast_object_list(box, group=self.group, group_src=0)
        return box[0]


class StoreRanks(GroupMember):
    """The ranks that open a store together. Without a process group there is one."""

    def __init__(self, group: dist.ProcessGroup | None, timeout_seconds: float) -> None:
        """group: None: all ranks. timeout: how long a rank may wait for another one in a collective."""
        super().__init__(_new_gloo_group(group, timeout_seconds))
        self.hosts = self.all_gather(socket.gethostname())
        """The host of each, by rank."""

    @property
    def host(self) -> str:
        """The host of this rank."""
        return self.hosts[self.rank]

    def run_on_rank_0(self, work: Callable[[], T]) -> T:
        """Return or raise on all ranks what rank 0's `work` does."""
        result, error = None, None
        if self.rank == 0:
            try:
                result = work()
            except Exception as failure:
                error = failure
        result, error = self.broadcast((result, error))
        if error is not None:
            raise error
        return result


def _all_gather(data: bytes, width: int, group: dist.ProcessGroup) -> list[bytes]:
    """The data of all ranks, each filled up to `width` bytes."""
    mine = torch.frombuffer(bytearray(data.ljust(width, b"\0")), dtype=torch.uint8)
    theirs: list[Any] = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(theirs, mine, group=group)
    return [bytes(message.numpy()) for message in theirs]


def _new_gloo_group(group: dist.ProcessGroup | None, timeout_seconds: float) -> dist.ProcessGroup | None:
    """A group on the CPU, and a new one: a collective of ours must not meet one of the training's."""
    if not (dist.is_available() and dist.is_initialized()):
        return None
    ranks = None if group is None else dist.get_process_group_ranks(group)
    timeout = max(default_pg_timeout, timedelta(seconds=timeout_seconds))
    return dist.new_group(ranks, backend="gloo", timeout=timeout)
