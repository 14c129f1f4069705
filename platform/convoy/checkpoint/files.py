"""Shards as torch.distributed.checkpoint's own files: the seam behind which bytes are written and read.

torch's writer does not detect damage on load; a commit records sizes, which catches missing and cut files only.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter, StorageReader, StorageWriter
from torch.distributed.checkpoint.api import CheckpointException


class ShardsError(RuntimeError):
    """Shards could not be written or read, on this rank or another; the text is one line."""


def write_shards(state: dict[str, Any], uri: str, group: dist.ProcessGroup | None) -> None:
    """Write this rank's part of `state` below `uri`. All ranks of `group` call it. Raises ShardsError."""
    with _failures():
        dcp.save(state, storage_writer=_writer(uri), process_group=group, no_dist=group is None)


def read_shards(state: dict[str, Any], uri: str, group: dist.ProcessGroup | None) -> None:
    """Fill `state`'s tensors in place from below `uri`. All ranks of `group` call it. Raises ShardsError."""
    with _failures(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # without a group that is meant
        dcp.load(state, storage_reader=_reader(uri), process_group=group, no_dist=group is None)


@contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except CheckpointException as error:  # a BaseException: nothing that handles errors would see it
        rank, (failure, _) = min(error.failures.items())
        raise ShardsError(f"rank {rank}: {type(failure).__name__}: {failure}") from error


def _writer(uri: str) -> StorageWriter:
    # thread_count=1: with more, an error in a writer thread is lost and the save is published (pytorch#191391).
    if uri.startswith("s3://"):
        from torch.distributed.checkpoint._fsspec_filesystem import FsspecWriter

        # sync_files would cost a sync of the whole host per file: an S3 object is durable when its upload ends.
        return FsspecWriter(uri, thread_count=1, sync_files=False)
    return FileSystemWriter(uri, thread_count=1, sync_files=True)


def _reader(uri: str) -> StorageReader:
    if uri.startswith("s3://"):
        from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader

        return FsspecReader(uri)
    return FileSystemReader(uri)
