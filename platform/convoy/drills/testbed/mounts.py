"""Real file systems that fill up, turn read-only, freeze and go away. They need root, and Debian's util-linux and
e2fsprogs."""

import contextlib
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Self

MIB = 2**20

COMMAND_SECONDS = 60.0
"""For one command."""

BUSY_SECONDS = 20.0
"""For a file system of which a file is being written to turn read-only."""

HOARD_SECONDS = 0.05
"""Between two looks whether there is room again."""


def run(*command: str) -> None:
    """Run it. Raises RuntimeError with what it wrote, or that there is no such command."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_SECONDS)
    except FileNotFoundError:
        raise RuntimeError(f"{command[0]}: not installed") from None
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")


class Disk:
    """An ext4 file system in a file, on a loop device, mounted at `path` while in use."""

    def __init__(self, folder: Path, megabytes: int = 64) -> None:
        """folder: where its file lies, which takes no more room than what is written to it."""
        self.path = folder / "disk"
        self._image = folder / "disk.img"
        self.path.mkdir()
        with self._image.open("wb") as image:
            image.truncate(megabytes * MIB)
        run("mkfs.ext4", "-q", "-F", str(self._image))

    def mount(self) -> None:
        run("mount", "-o", "loop", str(self._image), str(self.path))

    def unmount(self) -> None:
        """Also where something still uses it."""
        run("umount", "-l", str(self.path))

    @contextlib.contextmanager
    def read_only(self) -> Iterator[None]:
        """What was written stays to be read. Raises TimeoutError if a file is always open for writing."""
        deadline = time.monotonic() + BUSY_SECONDS
        while not self._turned_read_only():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.path}: a file is always open for writing")
            time.sleep(0.01)
        try:
            yield
        finally:
            run("mount", "-o", "remount,rw", str(self.path))

    def _turned_read_only(self) -> bool:
        try:
            run("mount", "-o", "remount,ro", str(self.path))
        except RuntimeError as error:
            if "busy" in str(error):
                return False
            raise
        return True

    def freeze(self) -> None:
        """Whoever writes waits, in a state in which no signal ends it. What was written before is on the disk."""
        run("fsfreeze", "--freeze", str(self.path))

    def thaw(self) -> None:
        """Whoever waits goes on."""
        run("fsfreeze", "--unfreeze", str(self.path))

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """While the block runs."""
        self.freeze()
        try:
            yield
        finally:
            self.thaw()

    @contextlib.contextmanager
    def full(self) -> Iterator[None]:
        """Less than a block is left."""
        with filled(self.path):
            yield

    def __enter__(self) -> Self:
        self.mount()
        return self

    def __exit__(self, *_: object) -> None:
        if self.path.is_mount():
            self.unmount()


@contextlib.contextmanager
def small_memory(path: Path, megabytes: int) -> Iterator[Path]:
    """A tmpfs of that size."""
    path.mkdir()
    run("mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(path))
    try:
        yield path
    finally:
        run("umount", "-l", str(path))


@contextlib.contextmanager
def filled(folder: Path) -> Iterator[None]:
    """A file takes all the room that is left."""
    path = folder / "filler"
    with path.open("wb", buffering=0) as filler:
        take_all(filler)
    try:
        yield
    finally:
        path.unlink()


class Hoarder:
    """A file that takes all the room there is, and what others give back too, until it is told to leave."""

    def __init__(self, folder: Path) -> None:
        """Nothing is left when this returns."""
        self._path = folder / "filler"
        self._over = threading.Event()
        self._file = self._path.open("wb", buffering=0)
        take_all(self._file)
        self._thread = threading.Thread(target=self._take_more, name="hoarder", daemon=True)
        self._thread.start()

    def leave(self) -> None:
        """Give it all back."""
        self._over.set()
        self._thread.join()
        self._file.close()
        self._path.unlink(missing_ok=True)

    def _take_more(self) -> None:
        while not self._over.wait(HOARD_SECONDS):
            take_all(self._file)


def take_all(file: BinaryIO) -> None:
    """Have an unbuffered file grow until its file system holds no more."""
    status = os.fstatvfs(file.fileno())
    most = status.f_bfree * status.f_frsize * 99 // 100  # the rest may be needed to note it down
    if most > MIB:
        with contextlib.suppress(OSError):  # others take some meanwhile
            os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), most)
    file.seek(0, os.SEEK_END)
    for piece in (MIB, 512):
        with contextlib.suppress(OSError):
            while True:
                file.write(bytes(piece))


def why_no_disk() -> str | None:
    """Why no Disk can be made and frozen here, in one line; None: it can."""

    def attempt(folder: Path) -> None:
        with Disk(folder, megabytes=16) as disk, disk.frozen():
            pass

    return _why_not("a disk that can be frozen", attempt)


def why_no_memory() -> str | None:
    """Why no tmpfs can be mounted here, in one line; None: it can."""

    def attempt(folder: Path) -> None:
        with small_memory(folder / "memory", megabytes=1):
            pass

    return _why_not("a file system of a given size", attempt)


def _why_not(what: str, attempt: Callable[[Path], None]) -> str | None:
    with tempfile.TemporaryDirectory(prefix="convoy-mount-") as folder:
        try:
            attempt(Path(folder))
        except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
            return f"{what} cannot be made here: {error}".splitlines()[0]
    return None
