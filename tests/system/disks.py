"""What tests do to a file system beyond what drills do."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from convoy.drills.testbed.mounts import Disk, fill_disk, run_command
from tests.gang.tasks import wait_for


@contextlib.contextmanager
def filled(folder: Path) -> Iterator[None]:
    """A file takes all the room that is left, and none of what is given back."""
    path = folder / "filler"
    with path.open("wb", buffering=0) as filler:
        fill_disk(filler)
    try:
        yield
    finally:
        path.unlink()


@contextlib.contextmanager
def read_only(disk: Disk) -> Iterator[None]:
    """What was written stays to be read."""
    wait_for(f"a moment in which no file of {disk.path} is open for writing", lambda: _turned_read_only(disk))
    try:
        yield
    finally:
        run_command("mount", "-o", "remount,rw", str(disk.path))


def _turned_read_only(disk: Disk) -> bool:
    try:
        run_command("mount", "-o", "remount,ro", str(disk.path))
    except RuntimeError as error:
        if "busy" in str(error):
            return False
        raise
    return True
