"""What workers print comes to a root that takes no files that grow, while they run and at the end."""

from pathlib import Path
from typing import Any

import pytest

from convoy.gang.workers import worker
from convoy.gang.workers.worker import LogUpload, log_tail
from convoy.job.rank_logs import log_name
from convoy.storage import ObjectMissing, Store, StoreUnavailable, open_store
from tests.gang.tasks import wait_for

NAME = log_name(1, 0, 0)


@pytest.fixture
def store(s3_uri: str) -> Store:
    return open_store(s3_uri)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / NAME
    path.parent.mkdir(parents=True)
    return path


def kept(store: Store, name: str = NAME) -> bytes | None:
    try:
        return store.read(name)
    except ObjectMissing:
        return None


def await_uploaded(store: Store, data: bytes) -> None:
    wait_for(f"{data!r}", lambda: kept(store) == data)


def test_a_log_that_grows_is_put_again_and_what_comes_last_too(store: Store, log: Path, tmp_path: Path) -> None:
    with LogUpload(store, tmp_path, upload_seconds=0.02):
        log.write_bytes(b"one\n")
        await_uploaded(store, b"one\n")
        log.write_bytes(b"one\ntwo\n")
        await_uploaded(store, b"one\ntwo\n")
    with LogUpload(store, tmp_path, upload_seconds=600):
        log.write_bytes(b"one\ntwo\nthree\n")
    assert kept(store) == b"one\ntwo\nthree\n"


def test_a_worker_that_printed_nothing_has_an_empty_log(store: Store, log: Path, tmp_path: Path) -> None:
    log.touch()
    with LogUpload(store, tmp_path, upload_seconds=600):
        pass
    assert kept(store) == b""


class Counting:
    """Notes how much each write brought, and refuses some."""

    def __init__(self, refuses: int = 0) -> None:
        self.written: list[int] = []
        self.refuses = refuses

    def write(self, name: str, data: bytes) -> None:
        self.refuses -= 1
        if self.refuses >= 0:
            raise StoreUnavailable("away")
        self.written.append(len(data))


def test_a_large_log_is_put_again_only_when_it_has_grown_by_a_quarter(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "SMALL_BYTES", 100)
    store: Any = Counting()
    logs = LogUpload(store, tmp_path, upload_seconds=600)
    for size in (50, 60, 110, 120, 137, 138, 139):
        log.write_bytes(b"x" * size)
        logs._upload(least_growth_share=0.25)
    assert store.written == [50, 60, 110, 138]
    with logs:
        pass
    assert store.written[-1] == 139


def test_the_tail_of_a_log_is_its_end_or_where_a_crash_begins(log: Path) -> None:
    log.write_text("\n".join(f"line {i}" for i in range(50)))
    assert log_tail(log).splitlines() == [f"line {i}" for i in range(30, 50)]
    crash = ["terminate called after throwing an instance of 'int'", "  what(): no", "Fatal Python error: Aborted"]
    log.write_text("\n".join([*(f"line {i}" for i in range(50)), *crash, *(f"  File {i}" for i in range(60))]))
    begin = ["line 48", "line 49", *crash, *(f"  File {i}" for i in range(15))]
    assert log_tail(log, crashed=True).splitlines() == begin
    assert log_tail(log).splitlines() == [f"  File {i}" for i in range(40, 60)], "a child's crash is not the worker's"


def test_an_outage_loses_nothing_and_hides_nothing(log: Path, tmp_path: Path) -> None:
    log.write_bytes(b"one\n")
    store: Any = Counting(refuses=3)
    with LogUpload(store, tmp_path, upload_seconds=0.02):
        wait_for("an upload", lambda: store.written)
    assert store.written == [4]
    store = Counting(refuses=10**6)
    with LogUpload(store, tmp_path, upload_seconds=600):
        pass
    assert store.written == []
