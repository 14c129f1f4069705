"""A cache of compiled code below the job's root: no later attempt, nor another machine of the same kind, recompiles it.

Workers write to a folder of their agent, whose contents are copied to the root as one object. They do not write to the
root itself: torch builds a library in its final place (2.13: `torch/_inductor/codecache.py`, `_worker_compile_cpp`), so
that a worker killed meanwhile leaves half of one, which every later attempt would use as complete.
"""

import contextlib
import hashlib
import io
import json
import os
import platform
import tarfile
import threading
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from convoy.gang.async_call import say
from convoy.storage import ObjectMissing, Store, StoreUnavailable
from convoy.storage.base import is_object_name

FOLDERS = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}

SETTINGS = {"TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0"}
"""Compiled headers (156 MB for a CPU) would go to the machine's temporary folder wherever the rest goes (2.13:
`_HEADER_DIR` in `torch/_inductor/codecache.py`), be left there, and be half written after a kill. Without them a CPU's
first compilation takes a third longer."""

LOOK_SECONDS = 2.0
"""Between two looks at what was compiled; what is the same in both is complete. The pause doubles while nothing
changes, up to the longest."""

MAX_LOOK_SECONDS = 30.0

MAX_BYTES = 2**30
"""Limit of all files together, in both directions."""

MAX_HEADER_BYTES = 2**28
"""Limit of the archive's overhead."""

LEAVE_SECONDS = 5.0
"""For a copy that is being written when the agent leaves."""

_BUILDING = "CxxBuild"
"""Suffix of the folders that torch has while it builds a library."""

_LOCKS = "locks"
_COMING = ".fetched-"

FileStamps = dict[str, tuple[int, int]]
"""Bytes and time of the last change of each file, by its name in the folder."""


def cache_key(facts: Mapping[str, str]) -> str:
    """Names the machines that may share compiled code. facts: versions and hardware, from `machine_facts`."""
    digest = hashlib.sha256(json.dumps(dict(facts), sort_keys=True).encode()).hexdigest()[:12]
    return f"torch{facts['torch']}-python{facts['python']}-{facts['machine']}-{digest}"


def machine_facts() -> dict[str, str]:
    """What compiled code depends on that torch itself does not distinguish: above all, the CPU's features."""
    return {
        "torch": _version("torch"),
        "triton": _version("triton"),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpu": _cpu_model(Path("/proc/cpuinfo")),
    }


class CompileCache:
    """One node's. Use as a context; call `delete_incomplete` before each start of workers, in one thread."""

    def __init__(self, store: Store, folder: Path, *, uploads: bool) -> None:
        """folder: the agent's own, not created yet. uploads: what is compiled here goes to the job's root."""
        self._store = store
        self._folder = folder
        self._uploads = uploads
        self._name = f"compiled/{cache_key(machine_facts())}.tar"
        self._own = {name: folder / below for name, below in FOLDERS.items() if name not in os.environ}
        self._lock = threading.Lock()
        """Held while the folder is read, never while the store is used."""
        self._complete: FileStamps = {}
        self._uploaded: FileStamps = {}
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._fetch_then_upload, name="compiled code", daemon=True)

    @property
    def environment(self) -> dict[str, str]:
        """For the workers; the user's own settings remain."""
        settings = {name: value for name, value in SETTINGS.items() if name not in os.environ}
        return {name: str(path) for name, path in self._own.items()} | settings

    def __enter__(self) -> "CompileCache":
        self._folder.mkdir(parents=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()
        self._thread.join(LEAVE_SECONDS)

    def delete_incomplete(self) -> None:
        """No worker runs: delete what earlier ones may have left half done."""
        with self._lock:
            for name in _file_stamps(self._folder).keys() - self._complete.keys():
                (self._folder / name).unlink(missing_ok=True)

    def _fetch_then_upload(self) -> None:
        self._fetch()
        self._uploaded = dict(self._complete)
        before, pause = dict[str, tuple[int, int]](), LOOK_SECONDS
        while not self._left.wait(pause):
            current = self._upload_if_complete(before)
            quiet = current == before and current == self._complete
            pause = min(2 * pause, MAX_LOOK_SECONDS) if quiet else LOOK_SECONDS
            before = current

    def _upload_if_complete(self, before: FileStamps) -> FileStamps:
        """The present files; uploads them if they are complete, and new."""
        with self._lock:
            files = _file_stamps(self._folder)
            if files != before or _is_building(self._folder):
                return files
            self._complete = files
        if (
            self._uploads
            and files.keys() != self._uploaded.keys()
            and sum(size for size, _ in files.values()) <= MAX_BYTES
        ):
            with contextlib.suppress(StoreUnavailable, OSError):  # the next look tries again
                self._store.write(self._name, _tar_bytes(self._folder, files))
                self._uploaded = files
        return files

    def _fetch(self) -> None:
        """Unpack the copy in the root. One that is damaged, or too large, is reported and not used."""
        try:
            archive = self._store.sizes(self._name).get(self._name, 0)
            if archive > MAX_BYTES + MAX_HEADER_BYTES:
                raise ValueError(f"has {archive} bytes, more than {MAX_BYTES + MAX_HEADER_BYTES}")
            self._unpack(self._store.read(self._name))
        except (StoreUnavailable, ObjectMissing):
            pass
        except Exception as error:  # whatever is in the archive: this thread has more to do
            why = " ".join(str(error).split()) or type(error).__name__
            where = f"{self._store.uri}/{self._name}"
            say(f"convoy: {where}: {why}; the rest of it is not used, but compiled anew")

    def _unpack(self, data: bytes) -> None:
        """Put every file of a copy in its place, atomically: workers may be looking for it."""
        left = MAX_BYTES
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:  # it is never compressed
            for member in tar:
                left -= abs(member.size)
                if left < 0:
                    raise ValueError(f"its files have more than {MAX_BYTES} bytes")
                source = tar.extractfile(member) if member.isreg() and is_object_name(member.name) else None
                if source is None or self._left.is_set():
                    continue
                path = self._folder / member.name
                path.parent.mkdir(parents=True, exist_ok=True)
                coming = path.with_name(_COMING + path.name)
                coming.write_bytes(source.read())
                coming.chmod(member.mode & 0o755)
                with self._lock:
                    coming.rename(path)
                    self._complete[member.name] = _size_and_mtime(path)


def _tar_bytes(folder: Path, names: FileStamps) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name in sorted(names):
            tar.add(folder / name, arcname=name, recursive=False)
    return packed.getvalue()


def _file_stamps(folder: Path) -> FileStamps:
    """The files that belong in a copy."""
    files: FileStamps = {}
    for path in folder.rglob("*"):
        name = path.relative_to(folder)
        if _LOCKS in name.parts or path.name.startswith(_COMING):
            continue
        with contextlib.suppress(FileNotFoundError):  # it existed only for a moment
            if path.is_file() and not path.is_symlink():
                files[name.as_posix()] = _size_and_mtime(path)
    return files


def _is_building(folder: Path) -> bool:
    return any(path.is_dir() for path in folder.rglob(f"*{_BUILDING}"))


def _size_and_mtime(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def _cpu_model(info: Path) -> str:
    """Model and features of the first core; empty where the kernel does not report them."""
    try:
        text = info.read_text()
    except OSError:
        return ""
    pairs = dict(line.split(":", 1) for line in text.partition("\n\n")[0].splitlines() if ":" in line)
    facts = {key.strip(): value.strip() for key, value in pairs.items()}
    return " ".join(facts.get(key, "") for key in ("model name", "flags", "Features")).strip()
