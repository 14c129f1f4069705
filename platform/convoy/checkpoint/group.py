"""What each rank tells all others, in one collective where it is short: on a busy machine each is a wait to be woken.

`torch.distributed.all_gather_object` takes two, and the second one is only needed where lengths are not known before.
"""

import pickle
from typing import Any, TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")

SHORT_BYTES = 4096
"""Of a pickled value with its length: what goes in the first collective."""

_LENGTH_BYTES = 8


def everyones(value: T, group: dist.ProcessGroup) -> list[T]:
    """The values of all ranks of a group on the CPU, by rank. All of them call it at once."""
    data = pickle.dumps(value)
    head = len(data).to_bytes(_LENGTH_BYTES, "little") + data[: SHORT_BYTES - _LENGTH_BYTES]
    told = _gathered(head, SHORT_BYTES, group)
    lengths = [int.from_bytes(message[:_LENGTH_BYTES], "little") for message in told]
    longest = max(lengths)
    if longest <= SHORT_BYTES - _LENGTH_BYTES:
        whole = [message[_LENGTH_BYTES:] for message in told]
    else:
        whole = _gathered(data, longest, group)
    return [pickle.loads(message[:length]) for message, length in zip(whole, lengths, strict=True)]


def _gathered(data: bytes, width: int, group: dist.ProcessGroup) -> list[bytes]:
    """The data of all ranks, each filled up to `width` bytes."""
    mine = torch.frombuffer(bytearray(data.ljust(width, b"\0")), dtype=torch.uint8)
    theirs: list[Any] = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(theirs, mine, group=group)
    return [tensor.numpy().tobytes() for tensor in theirs]
