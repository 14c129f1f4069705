"""Two buffers in shared memory, which `staging.py` fills: kept from save to save, and touched before they are needed.

They are files under /dev/shm in a folder of this process, so that the writer process can map them. Where that has no
room (containers give it 64 MiB) they are anonymous files of the kernel's own, which are only limited by the memory.
"""

import contextlib
import fcntl
import mmap
import os
import re
import shutil
import tempfile
import weakref
from pathlib import Path

import torch

SHARED_MEMORY = Path("/dev/shm")

_FOLDER = re.compile(r"convoy-\d+-\d+-\w+")


class Buffer:
    """A piece of shared memory, every page of it present."""

    def __init__(self, folder: Path | None, name: str, length: int, pin: bool) -> None:
        """folder: None: an anonymous file. Raises OSError if there is not so much memory."""
        self._file, self.path = _make_file(folder, name, length)
        # Populated now: a page that is first touched while training waits for it costs ten times its copy.
        self.memory = mmap.mmap(self._file, length, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        self.bytes = torch.frombuffer(self.memory, dtype=torch.uint8)
        self._pinned = pin and _pin_memory(self.bytes)

    def __len__(self) -> int:
        return len(self.memory)

    @property
    def exists(self) -> bool:
        """Whether another process can still open it: files under /dev/shm can be removed by anyone who may."""
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self._file))  # noqa: PTH116 - as next to it
        except OSError:
            return False

    def release(self) -> None:
        """Give the memory back, once nothing refers to `bytes` any more and no other process has it mapped."""
        if self._pinned:
            torch.cuda.cudart().cudaHostUnregister(self.bytes.data_ptr())
        if not self.path.startswith("/proc/"):
            Path(self.path).unlink(missing_ok=True)
        os.close(self._file)
        del self.bytes
        with contextlib.suppress(BufferError):  # whoever still has a view of it keeps it
            self.memory.close()


class Buffers:
    """The buffers of this process, by slot."""

    def __init__(self, *, pin: bool) -> None:
        """pin: registered with CUDA, so that copies from the device do not wait for the host."""
        self._pin = pin
        self._folder = _try_make_folder()
        self._slots: dict[int, Buffer] = {}
        self._made = 0

    def get_or_make(self, slot: int, length: int) -> Buffer:
        """The slot's buffer, of at least `length` bytes: the one before if it is there and suffices. Raises OSError."""
        buffer = self._slots.get(slot)
        if buffer is not None and len(buffer) >= length and buffer.exists:
            return buffer
        self.drop(slot)
        if self._folder is None or not self._folder.path.is_dir():
            self._folder = _try_make_folder()
        self._made += 1
        name, length = f"{slot}-{self._made}", max(1, length)
        try:
            self._slots[slot] = Buffer(self._folder.path if self._folder else None, name, length, self._pin)
        except OSError:
            self._slots[slot] = Buffer(None, name, length, self._pin)
        return self._slots[slot]

    def drop(self, slot: int) -> None:
        """Never use the slot's buffer again: a process that was given up may still read it."""
        buffer = self._slots.pop(slot, None)
        if buffer is not None:
            buffer.release()

    def close(self) -> None:
        for slot in list(self._slots):
            self.drop(slot)
        if self._folder is not None:
            self._folder.remove()


class ProcessFolder:
    """`/dev/shm/convoy-<pid>-<start>-…`, locked for as long as this process lives; removed at its end."""

    def __init__(self) -> None:
        remove_leftovers()
        self.path, self._lock = _make_locked_folder()
        self.remove = weakref.finalize(self, _remove_folder, self.path, self._lock, os.getpid())


def _try_make_folder() -> ProcessFolder | None:
    """None: /dev/shm takes none, such as one that is read-only, missing, or out of inodes."""
    try:
        return ProcessFolder()
    except OSError:
        return None


def remove_leftovers() -> None:
    """Remove what processes left behind that were killed. A lock shows it; process ids do not, across containers."""
    for path in SHARED_MEMORY.glob("convoy-*"):
        with contextlib.suppress(OSError):  # another user's, or in use, or just gone
            if not _FOLDER.fullmatch(path.name):
                continue
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(descriptor)


def _make_locked_folder() -> tuple[Path, int]:
    started = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    while True:
        path = Path(tempfile.mkdtemp(prefix=f"convoy-{os.getpid()}-{started}-", dir=SHARED_MEMORY))
        with contextlib.suppress(FileNotFoundError):
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if path.exists():  # else another process swept it before it was locked
                return path, lock
            os.close(lock)


def _remove_folder(path: Path, lock: int, pid: int) -> None:
    if os.getpid() == pid:  # not in a fork
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def _make_file(folder: Path | None, name: str, length: int) -> tuple[int, str]:
    if folder is None:
        descriptor = os.memfd_create(f"convoy-{name}", os.MFD_CLOEXEC)
        path = f"/proc/{os.getpid()}/fd/{descriptor}"
    else:
        path = str(folder / name)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        # Not ftruncate alone: a page for which there is no room would then kill this process when it is touched.
        os.posix_fallocate(descriptor, 0, length)
    except OSError:
        os.close(descriptor)
        if folder is not None:
            Path(path).unlink()
        raise
    return descriptor, path


def _pin_memory(data: torch.Tensor) -> bool:
    """Whether CUDA took the memory as pinned; without, copies are right but wait for the host."""
    return int(torch.cuda.cudart().cudaHostRegister(data.data_ptr(), data.numel(), 0)) == 0
