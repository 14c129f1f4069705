"""The files of a folder as an object of a state: the checkpoint that another library wrote, whatever is in it.

Each file is a tensor of bytes, mapped into memory, so that it passes between the disk and the store without a copy of
it in the process. Ranks of one host share what is to be read and sent; the first of them writes what is restored.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path, PurePosixPath
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.constants import default_pg_timeout

from convoy.checkpoint.errors import CheckpointError
from convoy.checkpoint.group import StoreRanks
from convoy.checkpoint.state.flat_shard import FlatShard
from convoy.config.errors import one_line

FILES = "files"
"""Key of the files' tensors in the state."""

Listing = Mapping[str, int]
"""Bytes of each file of a folder, by its path in it."""


class Folder:
    """Part of a state for `Checkpoints`, as `{"library": Folder()}`. All ranks make each call at once.

    Before a save, `show` says which folder it is. `restore_below` says where the next restore puts it.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        """group: of the ranks that save together; None: all of them, or this one where there is no process group."""
        self.ranks = StoreRanks(group, default_pg_timeout / timedelta(seconds=1))
        self._first = self.ranks.hosts.index(self.ranks.host)
        self._tensors: dict[str, Tensor] = {}
        self._empty: list[str] = []
        self._parent: Path | None = None

    def own_folder(self, parent: Path) -> Path:
        """A folder below `parent` that the ranks of this host share, and that no other host uses."""
        return parent / f"convoy-{self._first}"

    def wait_for_all(self) -> None:
        """Return when all ranks have called it."""
        self.ranks.all_gather(None)

    def show(self, folder: Path | None) -> None:
        """The next save takes the files in `folder`, which no rank changes any more. None: it takes none.

        A file that several hosts have is taken from the host of the lowest of their ranks.
        """
        self.wait_for_all()  # until then, others may still write
        listings = self.ranks.all_gather({} if folder is None else _list_files(folder))
        files = dict(sorted({name: size for listing in reversed(listings) for name, size in listing.items()}.items()))
        self._empty = [name for name, size in files.items() if not size]
        self._tensors = {
            name: _shard_of_file(folder, name, size, *part_of_file(listings, self.ranks.hosts, name, self.ranks.rank))
            for name, size in files.items()
            if size
        }

    def hide(self) -> None:
        """Let go of the files: what is saved has been copied."""
        self._tensors, self._empty = {}, []

    def restore_below(self, parent: Path) -> Path:
        """The next restore puts the files there, into the folder that it returns, instead of what that holds."""
        self._parent = parent
        return self.own_folder(parent)

    def state_dict(self) -> dict[str, Any]:
        return {FILES: dict(self._tensors), "empty": list(self._empty)}

    def prepare(self, sizes: Listing) -> None:
        """Take files of these sizes, with nothing in them yet. Called by a restore, before it fills them."""
        assert self._parent is not None, "restore_below comes first"
        folder = self.own_folder(self._parent)
        writes = self._first == self.ranks.rank
        try:
            if writes:
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(parents=True)
            self._tensors = {
                name: _make_file(folder, name, size) if writes else _shard_of_file(folder, name, size, 0, 0)
                for name, size in sizes.items()
            }
        except OSError as error:
            raise CheckpointError(f"{folder}: cannot write the restored files there: {one_line(error)}") from error

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        assert self._parent is not None
        if self._first == self.ranks.rank:
            folder = self.own_folder(self._parent)
            for name in state["empty"]:
                file = _inside(folder, name)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.touch()
        self.hide()


def part_of_file(listings: Sequence[Listing], hosts: Sequence[str], name: str, rank: int) -> tuple[int, int]:
    """Begin and end of the bytes of a file that a rank reads: those who have it on one host read equal parts.

    listings, hosts: of each rank.
    """
    holders = [holder for holder, listing in enumerate(listings) if name in listing]
    holders = [holder for holder in holders if hosts[holder] == hosts[holders[0]]]
    if rank not in holders:
        return 0, 0
    size, place = listings[holders[0]][name], holders.index(rank)
    return size * place // len(holders), size * (place + 1) // len(holders)


def _list_files(folder: Path) -> dict[str, int]:
    """Raises no error: a folder that is not there has no files, as on a host on which no rank writes."""
    return {
        file.relative_to(folder).as_posix(): file.stat().st_size for file in sorted(folder.rglob("*")) if file.is_file()
    }


def _shard_of_file(folder: Path | None, name: str, size: int, begin: int, end: int) -> FlatShard:
    if begin == end:
        return FlatShard(torch.empty(0, dtype=torch.uint8), (size,), 0)
    assert folder is not None
    whole = torch.from_file(str(folder / name), shared=False, size=size, dtype=torch.uint8)
    return FlatShard(whole[begin:end], (size,), begin)


def _make_file(folder: Path, name: str, size: int) -> FlatShard:
    file = _inside(folder, name)
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(file, "wb") as created:
        os.posix_fallocate(created.fileno(), 0, size)  # a full disk is an error here, and a signal once it is mapped
    return FlatShard(torch.from_file(str(file), shared=True, size=size, dtype=torch.uint8), (size,), 0)


def _inside(folder: Path, name: str) -> Path:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise CheckpointError(f"{name}: not a path inside of a folder")
    return folder / path
