"""What only Google Cloud Storage can do or suffer: a missing library or bucket, another program's objects, paging."""

import builtins
from collections.abc import Callable
from typing import Any

import pytest
import requests
from requests.adapters import HTTPAdapter

from convoy.config.errors import ConfigError
from convoy.storage import Store, StoreUnavailable, StoreUnfit, open_store
from convoy.storage.gcs_client import Source
from convoy.storage.usage import request_counter
from tests.storage.gcs_emulator import Buckets, GcsEmulator, Refused

OPERATIONS: dict[str, Callable[[Store], object]] = {
    "create": lambda store: store.create("object", b"x"),
    "write": lambda store: store.write("object", b"x"),
    "read": lambda store: store.read("object"),
    "delete": lambda store: store.delete("object"),
    "sizes": lambda store: store.sizes(""),
    "top folders": lambda store: store.top_folders(),
    "put": lambda store: store.put("shards", memoryview(b"x"), 1024),
    "large put": lambda store: store.put("shards", memoryview(bytes(9 * 2**20)), 2**20),
    "read into": lambda store: store.read_into("object", 0, memoryview(bytearray(1))),
    "now": lambda store: store.now(),
}


@pytest.fixture
def emulator(gcs_uri: str, monkeypatch: pytest.MonkeyPatch) -> GcsEmulator:
    """One of this test's own, with the bucket of `gcs_uri`; requests are tried once."""
    emulator = GcsEmulator()
    emulator.buckets.blobs[gcs_uri.split("/")[2]] = {}
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", emulator.url)
    monkeypatch.setattr("convoy.storage.gcs_client.RETRY", lambda call: call)
    return emulator


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_server_that_went_away_is_unavailable_and_nothing_is_missing(
    gcs_uri: str, emulator: GcsEmulator, operation: str
) -> None:
    store = open_store(gcs_uri)
    store.write("object", b"x")
    emulator.stop()
    with pytest.raises(StoreUnavailable, match=gcs_uri):
        OPERATIONS[operation](store)
    emulator.start()
    assert store.read("object") == b"x"
    emulator.stop()


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_missing_bucket_is_unavailable_and_no_object_is_missing(gcs_uri: str, operation: str) -> None:
    with pytest.raises(StoreUnavailable, match=r"(?i)bucket .*does not exist"):
        OPERATIONS[operation](open_store("gs://no-such-bucket-here/prefix"))


@pytest.mark.parametrize("operation", ["sizes", "top folders", "now", "write", "put"])
def test_only_what_reads_an_object_can_miss_one(
    gcs_uri: str, emulator: GcsEmulator, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    def refuse(*_: object) -> None:
        raise Refused(404, "Not Found")

    monkeypatch.setattr("tests.storage.gcs_emulator._Handler._route", refuse)
    monkeypatch.setattr("convoy.storage.resuming.random.uniform", lambda *_: 0.0)
    with pytest.raises(StoreUnavailable, match=gcs_uri):
        OPERATIONS[operation](open_store(gcs_uri))
    emulator.stop()


def test_an_account_that_may_list_below_the_prefix_only_can_do_all_that_a_store_does(
    gcs_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, prefix = Buckets.list, gcs_uri.split("/", 3)[3] + "/"

    def list_below(buckets: Buckets, bucket: str, query: dict[str, str]) -> dict[str, Any]:
        if not query.get("prefix", "").startswith(prefix):
            raise Refused(403, "storage.objects.list is denied")
        return real(buckets, bucket, query)

    monkeypatch.setattr(Buckets, "list", list_below)
    store = open_store(gcs_uri)
    store.write("object", b"x")
    for operation in ("sizes", "top folders", "now"):
        OPERATIONS[operation](store)


def test_a_request_may_take_as_long_to_be_sent_as_a_connection_may_be_silent(
    gcs_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """urllib3 gives the whole body of a first request the time that it gives the connection: too little for 32 MiB."""
    real, timeouts = HTTPAdapter.send, list[Any]()

    def send(adapter: HTTPAdapter, *args: Any, timeout: Any = None, **kwargs: Any) -> requests.Response:
        timeouts.append(timeout)
        return real(adapter, *args, timeout=timeout, **kwargs)

    monkeypatch.setattr(HTTPAdapter, "send", send)
    open_store(gcs_uri).put("shards", memoryview(bytes(9 * 2**20)), 2**20)
    assert timeouts == [60.0, 60.0]


@pytest.mark.parametrize("uri", ["gs://", "gs:///prefix", "gs://-b/prefix"])
def test_what_is_no_bucket_s_name_is_refused_in_one_line(gcs_uri: str, uri: str) -> None:
    with pytest.raises(ConfigError, match=f"^{uri}: '-?b?' is no bucket's name$"):
        open_store(uri)


def test_without_the_library_one_line_says_what_to_install(gcs_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("google"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError) as caught:
        open_store(gcs_uri)
    assert str(caught.value) == f"{gcs_uri}: needs the extra: pip install 'metaflow-convoy[gcs]'"


def test_without_credentials_the_store_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nonexistent.json")
    with pytest.raises(StoreUnavailable, match=r"nonexistent\.json"):
        open_store("gs://bucket/prefix")


def test_a_bucket_without_a_prefix_is_a_store_and_its_folders_are_listed(gcs_uri: str) -> None:
    bucket = "/".join(gcs_uri.split("/")[:3])
    open_store(bucket).write("top", b"1")
    open_store(bucket).write("another/deep/er", b"1")
    open_store(gcs_uri).write("below", b"22")
    assert open_store(f"{bucket}/").sizes("") == {"another/deep/er": 1, "some/prefix/below": 2, "top": 1}
    assert open_store(bucket).top_folders() == ["another", "some"]


def test_more_objects_than_one_page_holds_are_all_listed(gcs_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.storage.gcs_emulator.PAGE", 3)
    store = open_store(gcs_uri)
    names = [f"events{i}/{i}" for i in range(8)]
    for name in names:
        store.write(name, b"x")
    assert list(store.sizes("")) == names
    assert store.top_folders() == [name.partition("/")[0] for name in names]


def insert(uri: str, endpoint: str, name: str) -> None:
    """As another program does, which leaves no mark."""
    bucket, _, prefix = uri.removeprefix("gs://").partition("/")
    where = f"{endpoint}/upload/storage/v1/b/{bucket}/o?uploadType=multipart&name={prefix}/{name}"
    resource = b'--b\r\ncontent-type: application/json\r\n\r\n{"name": "%s"}\r\n' % f"{prefix}/{name}".encode()
    body = resource + b"--b\r\ncontent-type: text/plain\r\n\r\nx\r\n--b--"
    headers = {"Content-Type": 'multipart/related; boundary="b"'}
    requests.post(where, data=body, headers=headers, timeout=60).raise_for_status()


def test_an_object_of_another_program_counts_as_there(gcs_uri: str, gcs_endpoint: str) -> None:
    insert(gcs_uri, gcs_endpoint, "JOB.json")
    assert open_store(gcs_uri).read("JOB.json") == b"x"
    assert not open_store(gcs_uri).create("JOB.json", b"x")


def test_a_name_that_is_not_one_is_not_listed(gcs_uri: str, gcs_endpoint: str) -> None:
    store = open_store(gcs_uri)
    store.write("commits/1.json", b"x")
    for name in ("commits/", "commits/../../victim", "commits//2.json"):
        insert(gcs_uri, gcs_endpoint, name)
    assert store.sizes("") == {"commits/1.json": 1}


def test_a_server_that_replaces_what_is_to_be_created_only_if_absent_is_unfit(
    gcs_uri: str, emulator: GcsEmulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, real = open_store(gcs_uri), Buckets.insert
    store.prove()

    def forgetful(buckets: Buckets, bucket: str, resource: Any, query: Any, *rest: Any) -> Any:
        return real(buckets, bucket, resource, query | {"ifGenerationMatch": None}, *rest)

    monkeypatch.setattr(Buckets, "insert", forgetful)
    with pytest.raises(StoreUnfit, match="replaces"):
        store.prove()
    assert store.sizes("") == {}
    emulator.stop()


def test_operations_are_counted_by_google_s_classes(gcs_uri: str) -> None:
    store = open_store(gcs_uri)
    request_counter().take()
    store.write("object", bytes(5000))
    assert store.read("object") == bytes(5000)
    store.sizes("")
    store.delete("object")
    [found] = request_counter().take()
    assert (found.bucket, found.region) == ("/".join(gcs_uri.split("/")[:3]), None)
    assert (found.puts, found.gets, found.received_bytes) == (2, 1, 5000)
    assert 5000 < found.sent_bytes < 6000  # with the names and sums around it


def test_a_resumable_upload_is_one_operation_however_many_requests_it_takes(
    gcs_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("convoy.storage.gcs_client._UPLOAD_BYTES", 2**20)
    store = open_store(gcs_uri)
    request_counter().take()
    store.put("shards/a", memoryview(bytes(9 * 2**20)), 2**20)
    [found] = request_counter().take()
    assert (found.puts, found.gets, found.sent_bytes) == (1, 0, 9 * 2**20)


class Recorded:
    """A buffer that records the slices that are taken of it."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)
        self.taken: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, span: slice) -> memoryview:
        self.taken.append((span.start, span.stop))
        return self._data[span]


def test_each_chunk_of_a_source_is_taken_whole_and_once_whatever_is_read_at_a_time() -> None:
    data = bytes(range(10))
    buffer: Any = Recorded(data)
    source = Source(buffer, chunk_bytes=4)
    assert [source.read(5), source.read(5), source.read(5)] == [data[:5], data[5:], b""]
    assert source.tell() == 10
    assert buffer.taken == [(0, 4), (4, 8), (8, 10)]
    whole = Source(memoryview(data), chunk_bytes=4)
    whole.read(10)
    assert whole.checksums == source.checksums
    assert len(whole.checksums) == 3
