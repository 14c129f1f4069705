"""Real file systems that fill up, turn read-only, freeze and go away. They need root, and Debian's util-linux and
e2fsprogs."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from tests.system.processes import wait_until

MIB = 2**20


def run(*command: str) -> None:
    """Run it. Raises RuntimeError with what it wrote."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")


class Disk:
    """An ext4 file system in a file, on a loop device, mounted at `path` while in use."""

    def __init__(self, folder: Path, megabytes: int = 64) -> None:
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
        wait_until(self._turned_read_only, "a file is always open for writing")
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

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Whoever writes waits, in a state in which no signal ends it."""
        run("fsfreeze", "--freeze", str(self.path))
        try:
            yield
        finally:
            run("fsfreeze", "--unfreeze", str(self.path))

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
    with (folder / "filler").open("wb", buffering=0) as filler:
        with contextlib.suppress(OSError):
            while True:
                filler.write(bytes(MIB))
        with contextlib.suppress(OSError):
            while True:
                filler.write(bytes(512))
    try:
        yield
    finally:
        (folder / "filler").unlink()
