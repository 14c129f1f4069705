"""What files on a POSIX path need around them: folders that outlive a crash, and errors that say what they are."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from convoy.storage.base import StoreUnavailable

# A name below a file, or the name of a folder, is no object's name either.
ABSENT = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


def make_folder(folder: Path) -> None:
    """Make the folder and its parents so that they outlive a crash."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def files_below(folder: Path) -> Iterator[Path]:
    for parent, _, names in os.walk(folder, onerror=_raise_unless_absent):
        for name in names:
            yield Path(parent) / name


def _raise_unless_absent(error: OSError) -> None:
    # By default os.walk passes over a folder that it cannot read: an outage would look like an empty store.
    if not isinstance(error, ABSENT):
        raise error


@contextlib.contextmanager
def outages() -> Iterator[None]:
    """Any error of the file system is StoreUnavailable."""
    try:
        yield
    except OSError as error:
        raise StoreUnavailable(error.errno, error.strerror or str(error), error.filename) from error
