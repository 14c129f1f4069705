"""The part of one writer in an attempt: its data files, then the record that names them."""

import threading
import time
from collections.abc import Callable
from typing import cast

from convoy.checkpoint.format import (
    CHUNK_BYTES,
    DataFile,
    PartRecord,
    failure_note_name,
    file_name,
    part_record_name,
    shards_prefix,
)
from convoy.checkpoint.messages import SetLayout, WritePart
from convoy.storage import Store

PACED_SECONDS = 30.0
"""Longer than this no part is held back: what is lost with a machine is what was not committed."""


class AbandonedError(RuntimeError):
    """The attempt is past its deadline, or the gang continued without it: neither a part nor a commit may be put."""


AbandonCheck = Callable[[], None]
"""Called before each step that others can see; raises AbandonedError where the attempt must end."""


def part_pace(configured: float | None, part_bytes: int) -> float | None:
    """The pace for a part; None: no limit."""
    return None if configured is None else max(configured, part_bytes / PACED_SECONDS)


class Pace:
    """Holds any number of threads together to so many bytes a second, from the first one that is taken."""

    def __init__(
        self,
        bytes_per_second: float | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        """bytes_per_second: None: no limit. sleep: where it returns something true, there is none any more."""
        self._rate = bytes_per_second
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._free_at = clock()

    def wait_for(self, count: int) -> None:
        """Return when `count` bytes may be moved. Time that nobody used is not made up for later."""
        with self._lock:
            if self._rate is None:
                return
            now = self._clock()
            at = max(now, self._free_at)
            self._free_at = at + count / self._rate
        if at > now and self._sleep(at - now):
            self._rate = None


def write_part(
    store: Store,
    request: WritePart,
    layout: SetLayout,
    data: memoryview,
    threads: int,
    *,
    check: AbandonCheck = lambda: None,
    pace: Pace | None = None,
    chunk_bytes: int = CHUNK_BYTES,
) -> PartRecord:
    """Put the part's files, then its record; all is durable on return.

    data: the files' bytes one after the other, as `layout` says; more may follow. pace: None: as fast as it goes.
    Raises StoreUnavailable, AbandonedError, ValueError if `data` is too short, FileExistsError if the attempt's name
    was used before.
    """
    if len(data) < sum(layout.file_bytes):
        raise ValueError(f"a buffer of {len(data)} bytes for a part of {sum(layout.file_bytes)}")
    prefix, files, start = _attempt_prefix(request), list[DataFile](), 0
    for index, length in enumerate(layout.file_bytes):
        check()
        name = file_name(request.writer, index)
        watched = _PacedFile(data[start : start + length], check, pace or Pace(None))
        checks = store.put(prefix + name, cast(memoryview, watched), chunk_bytes, threads)
        files.append(DataFile(name=name, bytes=length, crc32c=checks))
        start += length
    record = _part_record(request, layout, files, chunk_bytes)
    check()
    if not store.create(prefix + part_record_name(request.writer), record.model_dump_json().encode()):
        raise FileExistsError(f"{store.uri}/{prefix}{part_record_name(request.writer)} was written before")
    return record


def write_failure_note(store: Store, request: WritePart, reason: str) -> None:
    """Tell whoever waits for this writer's part that it will not come. Raises StoreUnavailable."""
    store.create(_attempt_prefix(request) + failure_note_name(request.writer), reason.encode())


class _PacedFile:
    """A file's bytes as a put takes them, slice by slice: each when it may, none once the attempt is given up."""

    def __init__(self, data: memoryview, check: AbandonCheck, pace: Pace) -> None:
        self._data = data
        self._check = check
        self._pace = pace

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, span: slice) -> memoryview:
        self._check()
        part = self._data[span]
        self._pace.wait_for(len(part))
        return part

    def __bytes__(self) -> bytes:
        return bytes(self._data)


def _part_record(request: WritePart, layout: SetLayout, files: list[DataFile], chunk_bytes: int) -> PartRecord:
    return PartRecord(
        generation=request.generation,
        step=request.step,
        attempt=request.attempt,
        writer=request.writer,
        writers=request.writers,
        chunk_bytes=chunk_bytes,
        files=files,
        shards=layout.shards,
        values=request.values,
        replicas=request.replicas,
    )


def _attempt_prefix(request: WritePart) -> str:
    return shards_prefix(request.generation, request.step, request.attempt)
