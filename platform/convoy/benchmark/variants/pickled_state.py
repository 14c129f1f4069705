"""gzip + pickle: the checkpoint that people write by hand, as a baseline of Convoy's.

Each rank pickles its own shards into a file, through gzip at its default level, and rank 0 what all ranks hold alike.
That is the fastest way to write it by hand: gathering the whole state on rank 0 first leaves all of it to one core.
Training waits for all of a save. Nothing is synced to the storage, checksummed or committed, and the files fit only as
many ranks as wrote them.
"""

import gzip
import pickle
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from convoy.checkpoint.state.flat_shard import FlatShard
from convoy.checkpoint.state.layout import local_tensor
from convoy.checkpoint.state.tree import flatten
from convoy.storage.posix_files import drop_page_cache

PIECE_BYTES = 8 * 2**20

SHARED = "shared.pkl.gz"
"""The file of what all ranks hold alike."""


class TooSlowError(OSError):
    """A save that takes longer than it may; the text is one line."""


class PickledState:
    """The files of one rank. Each method is the work of this rank alone."""

    def __init__(self, folder: Path, state: Mapping[str, Any], rank: int, *, stages: bool = False) -> None:
        """folder: of all ranks. stages: ranks hold different layers, so that nothing is held alike."""
        tensors = flatten(state).tensors
        own = {name: each for name, each in tensors.items() if stages or isinstance(each, (DTensor, FlatShard))}
        self._shards = {folder / f"rank{rank:05d}.pkl.gz": own} if own else {}
        shared = {name: each for name, each in tensors.items() if name not in own}
        self._shared = {folder / SHARED: shared} if shared else {}
        self._first = rank == 0

    @property
    def written(self) -> list[Path]:
        """The files that this rank writes."""
        return [*self._shards, *(self._shared if self._first else ())]

    def save(self, most_seconds: float, progress: Callable[[], None]) -> None:
        """Write the files. progress: called often. Raises TooSlowError after so many seconds, else OSError."""
        until = time.monotonic() + most_seconds
        for path in self.written:
            path.parent.mkdir(parents=True, exist_ok=True)
            with gzip.open(path, "wb") as file:
                tensors = {name: _detached(tensor) for name, tensor in (self._shards | self._shared)[path].items()}
                pickle.dump(tensors, _Pieces(file, until, most_seconds, progress))

    def written_bytes(self) -> int:
        """Bytes of the files that this rank has written."""
        return sum(path.stat().st_size for path in self.written)

    def drop_caches(self) -> None:
        """Have the storage take the files that this rank wrote, and this host forget them, so that a restore reads the
        storage."""
        for path in self.written:
            drop_page_cache(path)

    @torch.no_grad()
    def restore(self) -> None:
        """Fill the state from the files. Raises OSError."""
        for path, tensors in (self._shards | self._shared).items():
            with gzip.open(path, "rb") as file:
                saved = pickle.load(file)
            for name, tensor in tensors.items():
                local_tensor(tensor).copy_(saved[name])


class _Pieces:
    """A file that is written in pieces, so that a long write is seen to proceed, and can be given up."""

    def __init__(self, file: gzip.GzipFile, until: float, seconds: float, progress: Callable[[], None]) -> None:
        self._file = file
        self._until = until
        self._seconds = seconds
        self._progress = progress

    def write(self, data: Any) -> int:
        view = memoryview(data)
        for start in range(0, len(view), PIECE_BYTES):
            if time.monotonic() > self._until:
                raise TooSlowError(f"was not written after {self._seconds:g} s")
            self._file.write(view[start : start + PIECE_BYTES])
            self._progress()
        return len(view)


def _detached(tensor: Tensor) -> Tensor:
    """This rank's part, on the host. A view is copied: pickle would write all of the memory that it is a part of."""
    own = local_tensor(tensor).detach().cpu()
    return own if own.untyped_storage().nbytes() == own.nbytes else own.clone()
