"""What files on a POSIX path need around them: folders that outlive a crash, and errors that say what they are."""

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from convoy.storage.base import StoreUnavailable

# A name below a file, or the name of a folder, is no object's name either.
ABSENT = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


def check_below(folder: Path, name: str) -> None:
    """Raise OSError where a symbolic link on the way from the folder to `name` leads out of it.

    The folder itself may be a link: to a file system that is mounted elsewhere, for instance. What swaps a folder for a
    link at this very moment is not seen.
    """
    path = str(folder)
    for component in name.split("/"):
        path = f"{path}/{component}"
        try:
            os.readlink(path)  # noqa: PTH115 - quick; unlike lstat, it asks a file server for no attributes
        except OSError as error:
            if error.errno == errno.EINVAL:  # it is not a link
                continue
            return  # it is not there, or cannot be reached: whoever opens it gets the error
        if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
            raise OSError(errno.EXDEV, f"The link leads out of {folder}", path)


def make_folder(folder: Path, *, private: bool = False) -> None:
    """Make the folder and its parents so that they outlive a crash. private: for its owner only."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(0o700 if private else 0o777, exist_ok=True)
        sync_folder(folder.parent)
    elif private and stat.S_IMODE(folder.stat().st_mode) != 0o700:
        with contextlib.suppress(OSError):  # another user's; what is in it is private itself
            folder.chmod(0o700)


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


def open_file(path: Path, flags: int = 0) -> int:
    """A descriptor to read a regular file by. Raises OSError for anything else: to open a pipe could take for ever."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)
    try:
        mode = os.fstat(fd).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "This is not a regular file", str(path))
        os.set_blocking(fd, True)  # only the opening was not to wait
    except BaseException:
        os.close(fd)
        raise
    return fd


@contextlib.contextmanager
def room_for(n_bytes: int, path: Path) -> Iterator[None]:
    """Have the error of a full file system, or quota, say which file had no room, and how much it needed."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        needed = f"{os.strerror(error.errno)}: {n_bytes} bytes are needed"
        if error.errno == errno.ENOSPC:
            with contextlib.suppress(OSError):
                needed += f", {shutil.disk_usage(path.parent).free} are free"
        raise OSError(error.errno, needed, str(path)) from error


@contextlib.contextmanager
def outages() -> Iterator[None]:
    """Any error of the file system is StoreUnavailable."""
    try:
        yield
    except StoreUnavailable:
        raise
    except OSError as error:
        raise StoreUnavailable(error.errno, error.strerror or str(error), error.filename) from error
