"""Real file systems that fill up, freeze and go away. They need root, and Debian's util-linux and
e2fsprogs."""

import contextlib
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Self

MIB = 2**20

COMMAND_SECONDS = 60.0
"""For one command."""

HOARD_SECONDS = 0.05
"""Between two looks whether there is room again."""


def run_command(*command: str) -> None:
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
        run_command("mkfs.ext4", "-q", "-F", str(self._image))

    def mount(self) -> None:
        run_command("mount", "-o", "loop", str(self._image), str(self.path))

    def unmount(self) -> None:
        """Also where something still uses it."""
        run_command("umount", "-l", str(self.path))

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Whoever writes meanwhile waits, in a state in which no signal ends it. Earlier writes are on disk."""
        run_command("fsfreeze", "--freeze", str(self.path))
        try:
            yield
        finally:
            run_command("fsfreeze", "--unfreeze", str(self.path))

    def __enter__(self) -> Self:
        self.mount()
        return self

    def __exit__(self, *_: object) -> None:
        if self.path.is_mount():
            self.unmount()


@contextlib.contextmanager
def mounted_tmpfs(path: Path, megabytes: int) -> Iterator[Path]:
    """A tmpfs of that size."""
    path.mkdir()
    run_command("mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(path))
    try:
        yield path
    finally:
        run_command("umount", "-l", str(path))


@contextlib.contextmanager
def always_full_disk(folder: Path) -> Iterator[None]:
    """A file takes all the room there is, and what others give back too."""
    path, over = folder / "filler", threading.Event()
    with path.open("wb", buffering=0) as filler:
        fill_disk(filler)

        def take_more() -> None:
            while not over.wait(HOARD_SECONDS):
                fill_disk(filler)

        thread = threading.Thread(target=take_more, name="hoarder", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            path.unlink()


def fill_disk(file: BinaryIO) -> None:
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
