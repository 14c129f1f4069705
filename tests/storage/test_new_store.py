"""A kind of store is added by one class and one element of STORES: it keeps every promise, and all that opens or lists
stores follows."""

import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from convoy.config.errors import ConfigError
from convoy.job.events.log import EventWriter, read_events
from convoy.job.events.registry import StepDone
from convoy.job.record import ensure_record, job_store, read_record, tier_stores
from convoy.launch.checks.compatibility import shared_storage_demands
from convoy.storage import ObjectInfo, ObjectMissing, Store, StoreUnavailable, is_shared, open_store, uri
from convoy.storage.base import check_name, check_prefix, prove
from convoy.storage.checksum import crc32c
from convoy.storage.log import BackgroundLog, SegmentSink
from convoy.storage.uri import StoreKind
from tests.storage.test_contract import *  # noqa: F403 - every promise, asked of the store of this file
from tests.training.job import tiny

_OBJECTS: dict[str, dict[str, tuple[bytes, float]]] = defaultdict(dict)
"""Of every store, by URI."""


class MemoryStore:
    """A Store in the memory of this process."""

    def __init__(self, uri: str, _: Any = None) -> None:
        self.uri = uri.rstrip("/")
        self._objects, self._lock = _OBJECTS[self.uri], threading.Lock()

    def create(self, name: str, data: bytes, *, private: bool = False) -> bool:
        check_name(self.uri, name)
        mine = (bytes(data), self.now())
        return self._objects.setdefault(name, mine) is mine

    def write(self, name: str, data: bytes) -> None:
        check_name(self.uri, name)
        self._objects[name] = (bytes(data), self.now())

    def read(self, name: str, start: int = 0) -> bytes:
        check_name(self.uri, name)
        if name not in self._objects:
            raise ObjectMissing(name)
        return self._objects[name][0][start:]

    def sizes(self, prefix: str) -> dict[str, int]:
        return {name: info.bytes for name, info in self.listing(prefix).items()}

    def folders(self) -> list[str]:
        inside = {name.removeprefix(f"{self.uri}/") for name in _OBJECTS if name.startswith(f"{self.uri}/")}
        return sorted({name.partition("/")[0] for name in (*self._objects, *inside) if "/" in name} | inside)

    def listing(self, prefix: str) -> dict[str, ObjectInfo]:
        check_prefix(self.uri, prefix)
        objects = sorted((name, each) for name, each in self._objects.items() if name.startswith(prefix))
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

    def probe(self, name: str) -> None:
        self.write(name, b"probe")

    def abort_uploads(self, prefix: str, older_than: float, spare: tuple[str, ...] = ()) -> int:
        return 0

    def delete(self, name: str) -> None:
        check_name(self.uri, name)
        self._objects.pop(name, None)

    def appender(self, prefix: str) -> BackgroundLog:
        return BackgroundLog(SegmentSink(self, prefix), f"{self.uri}/{prefix}")


MEMORY = StoreKind("mem://", "a mem:// name", shared=True, open=MemoryStore)


@pytest.fixture(autouse=True)
def _memory_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uri, "STORES", (MEMORY, *uri.STORES))
    _OBJECTS.clear()


@pytest.fixture
def store_uri() -> str:
    return "mem://store"


def test_the_uri_decides_the_kind_of_store(store: Store, store_uri: str) -> None:
    assert isinstance(store, MemoryStore)
    assert store.uri == store_uri


def test_a_job_and_its_tiers_can_be_there(tmp_path: Path) -> None:
    config = tiny(checkpoint={"tiers": [str(tmp_path / "tier"), "mem://tier"]})
    root = job_store("mem://root", "blue", config)
    record = ensure_record(root, "blue", config, "data")

    assert read_record(root) == record
    assert [store.uri for store in tier_stores("mem://root", "blue", config)] == [
        "mem://root/blue", f"{tmp_path}/tier/blue", "mem://tier/blue",
    ]  # fmt: skip
    writer = EventWriter(root, 1, 0)
    writer.append(StepDone(step=3, loss=1.5, grad_norm=1, lr=0.1, tokens=10, seconds=1.0))
    writer.close()
    assert [event.loss for event in read_events(root) if isinstance(event, StepDone)] == [1.5]


def test_machines_share_it_and_the_choices_name_it() -> None:
    assert is_shared("mem://root")
    assert not is_shared("/mem")
    remote = tiny(cluster={"backend": "batch", "instance_type": "p4d.24xlarge", "nodes": 2}).model_copy(
        update={"root": "mem://root"}
    )
    for demand in shared_storage_demands(remote):
        demand()
    with pytest.raises(ConfigError, match=r"root = /runs: must be a mem:// name or an s3:// prefix or a folder"):
        shared_storage_demands(remote.model_copy(update={"root": "/runs"}))[0]()
    with pytest.raises(ConfigError, match=r"^gs://b: must be a mem:// name or an s3:// prefix or a folder$"):
        open_store("gs://b")
