"""The server that S3 is measured with does what a store needs, and what S3 does."""

import threading
from collections.abc import Iterator

import pytest
from s3_server import Server

from convoy.config.checkpoint import StoreConfig
from convoy.storage import ObjectMissing, Store, StoreUnavailable, open_store
from convoy.storage.checksum import crc32c

CHUNK = 5 * 2**20


@pytest.fixture
def server(s3_environment: str) -> Iterator[Server]:
    with Server() as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def store(server: Server) -> Store:
    return open_store("s3://bucket/job", StoreConfig(endpoint_url=f"http://127.0.0.1:{server.server_port}"))


def test_of_two_creations_the_second_fails(store: Store) -> None:
    store.prove()
    assert store.create("a/b", b"first")
    assert not store.create("a/b", b"second")
    assert store.read("a/b") == b"first"


def test_a_multipart_upload_is_read_back_in_ranges_that_cross_its_parts(store: Store) -> None:
    data = bytes(range(256)) * (2 * CHUNK // 256) + b"end"
    checks = store.put("file", memoryview(data), CHUNK)
    assert checks == [crc32c(data[at : at + CHUNK]) for at in range(0, len(data), CHUNK)]
    assert store.sizes("") == {"file": len(data)}
    buffer = bytearray(1000)
    assert store.read_into("file", CHUNK - 500, memoryview(buffer)) == 1000
    assert buffer == data[CHUNK - 500 : CHUNK + 500]
    assert store.read_into("file", len(data) - 3, memoryview(buffer)) == 3
    assert store.read_into("file", len(data) + 3, memoryview(buffer)) == 0


def test_what_is_absent_or_removed_is_missing(store: Store) -> None:
    store.write("a", b"1")
    store.delete("a")
    with pytest.raises(ObjectMissing):
        store.read("a")
    assert store.sizes("") == {}


def test_a_body_that_is_not_what_its_checksum_says_is_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("convoy.storage.s3_upload.as_s3_header", lambda _: "AAAAAA==")
    with pytest.raises(StoreUnavailable, match="BadDigest"):
        store.create("a", b"1")


def test_requests_are_counted(store: Store, server: Server) -> None:
    before = server.requests
    store.write("a", b"1")
    store.read("a")
    assert server.requests == before + 2
