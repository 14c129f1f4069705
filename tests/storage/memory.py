"""A kind of store that is none of Convoy's own: its objects are in memory."""

import time
from collections import defaultdict
from typing import Any

from convoy.storage import ObjectInfo, ObjectMissing, StoreUnavailable
from convoy.storage.base import check_name, check_prefix, prove
from convoy.storage.checksum import crc32c
from convoy.storage.log import BackgroundLog, SegmentSink

OBJECTS: dict[str, dict[str, tuple[bytes, float]]] = defaultdict(dict)
"""Of every store, by URI."""


class MemoryStore:
    """A Store in the memory of this process; all of one URI hold the same."""

    def __init__(self, uri: str, _: Any = None) -> None:
        self.uri = uri.rstrip("/")
        self.objects = OBJECTS[self.uri]

    def create(self, name: str, data: bytes, *, private: bool = False) -> bool:
        check_name(self.uri, name)
        mine = (bytes(data), self.now())
        return self.objects.setdefault(name, mine) is mine

    def write(self, name: str, data: bytes) -> None:
        check_name(self.uri, name)
        self.objects[name] = (bytes(data), self.now())

    def read(self, name: str, start: int = 0) -> bytes:
        check_name(self.uri, name)
        if name not in self.objects:
            raise ObjectMissing(name)
        return self.objects[name][0][start:]

    def sizes(self, prefix: str) -> dict[str, int]:
        return {name: info.bytes for name, info in self.listing(prefix).items()}

    def top_folders(self) -> list[str]:
        inside = {name.removeprefix(f"{self.uri}/") for name in OBJECTS if name.startswith(f"{self.uri}/")}
        return sorted({name.partition("/")[0] for name in (*self.objects, *inside) if "/" in name} | inside)

    def listing(self, prefix: str) -> dict[str, ObjectInfo]:
        check_prefix(self.uri, prefix)
        objects = sorted((name, each) for name, each in self.objects.items() if name.startswith(prefix))
        return {name: ObjectInfo(len(data), modified) for name, (data, modified) in objects}

    def put(self, name: str, data: memoryview, chunk_bytes: int, threads: int = 4) -> list[int]:
        if not self.create(name, bytes(data)):
            raise StoreUnavailable(f"{name}: is there already")
        return [crc32c(data[at : at + chunk_bytes]) for at in range(0, len(data), chunk_bytes)]

    def read_into(self, name: str, start: int, buffer: memoryview) -> int:
        data = self.read(name, start)[: len(buffer)]
        buffer[: len(data)] = data
        return len(data)

    def drop_cache(self, name: str) -> None:
        self.read(name)

    def now(self) -> float:
        return time.time()

    def prove(self) -> None:
        prove(self)

    def probe_write(self, name: str) -> None:
        self.write(name, b"probe")

    def abort_multipart_uploads(self, prefix: str, begun_before: float, spared: tuple[str, ...] = ()) -> int:
        return 0

    def delete(self, name: str) -> None:
        check_name(self.uri, name)
        self.objects.pop(name, None)

    def open_log(self, prefix: str) -> BackgroundLog:
        return BackgroundLog(SegmentSink(self, prefix), f"{self.uri}/{prefix}")
