"""What networks and Google do to requests: survived where it passes, an outage where it lasts, never half an object."""

import contextlib
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from google.cloud.storage.retry import DEFAULT_RETRY

from convoy.storage import Store, StoreUnavailable, gcs_client, open_store
from convoy.storage.checksum import crc32c
from convoy.storage.gcs import GcsStore
from tests.campaign import in_full
from tests.s3_faults import Fault, FlipBit, LoseReply, Refuse, Request, Reset, Stall, Truncate
from tests.s3_proxy import S3Proxy
from tests.storage.gcs_emulator import Upload, _Handler

pytestmark = pytest.mark.campaign

CHUNK = 2**20
REQUEST = 2**20
"""Bytes of a resumable upload's requests here."""
DATA = random.Random(3).randbytes(9 * 2**20 + 200_000)
"""More than the library sends at once."""


def describe(method: str, target: str, length: int) -> Request:
    """The operations of the JSON API as these tests call them."""
    parts = urlsplit(target)
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    key = unquote(parts.path.partition("/o/")[2])
    posted = {"multipart": "insert", "resumable": "begin"}.get(query.get("uploadType", ""), "")
    read = "list" if not key else "media" if query.get("alt") == "media" else "get"
    operation = {"POST": posted, "PUT": "chunk", "DELETE": "delete", "GET": read}[method]
    return Request(operation, key, query, length)


@pytest.fixture
def proxy(gcs_uri: str, gcs_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Proxy]:
    """Between the stores of this test and their server; requests are repeated for a second, without much of a pause."""
    with S3Proxy(gcs_endpoint, describe=describe) as proxy:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", proxy.url)
        retry = DEFAULT_RETRY.with_delay(initial=0.01, maximum=0.05).with_timeout(3.0)
        monkeypatch.setattr("convoy.storage.gcs_client.RETRY", retry)
        monkeypatch.setattr("convoy.storage.gcs_client._UPLOAD_BYTES", REQUEST)
        yield proxy


@pytest.fixture
def store(gcs_uri: str, proxy: S3Proxy) -> Store:
    return GcsStore(gcs_uri, read_timeout_seconds=0.5)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch, proxy: S3Proxy) -> None:
    """Requests are repeated for a tenth of a second, and tries of our own follow at once."""
    retry = DEFAULT_RETRY.with_delay(initial=0.01, maximum=0.02).with_timeout(0.1)
    monkeypatch.setattr("convoy.storage.gcs_client.RETRY", retry)
    monkeypatch.setattr("convoy.storage.resuming.random.uniform", lambda *_: 0.0)


def filled(store: Store, name: str, count: int, start: int = 0) -> bytes:
    buffer = bytearray(count)
    return bytes(buffer[: store.read_into(name, start, memoryview(buffer))])


def put(store: Store) -> None:
    checksums = store.put("shards/a.bin", memoryview(DATA), CHUNK)
    assert checksums == [crc32c(DATA[at : at + CHUNK]) for at in range(0, len(DATA), CHUNK)]


WRITES: dict[str, Callable[[Store], object]] = {
    "begin": put,
    "chunk": put,
    "insert": lambda store: store.put("shards/a.bin", memoryview(DATA)[:1000], CHUNK),
}
READS: dict[str, Callable[[Store], object]] = {
    "media": lambda store: filled(store, "there", 6),
    "list": lambda store: list(store.listing("")),
    "delete": lambda store: store.delete("there"),
}
ANSWERS = {"media": b"object", "list": ["there"], "delete": None}
PASSING: list[Fault] = [Refuse(503), Refuse(429), Refuse(500), Reset(0), LoseReply()]


@pytest.mark.parametrize("fault", PASSING, ids=repr)
@pytest.mark.parametrize("operation", WRITES)
def test_a_write_survives_what_passes(store: Store, proxy: S3Proxy, operation: str, fault: Fault) -> None:
    proxy.inject(fault, operation)
    WRITES[operation](store)
    assert proxy.count(operation) >= 2
    assert store.read("shards/a.bin") == DATA[: len(DATA) if WRITES[operation] is put else 1000]
    assert list(store.sizes("")) == ["shards/a.bin"]


@pytest.mark.parametrize("fault", PASSING, ids=repr)
@pytest.mark.parametrize("operation", READS)
def test_a_read_survives_what_passes(store: Store, proxy: S3Proxy, operation: str, fault: Fault) -> None:
    store.write("there", b"object")
    proxy.inject(fault, operation)
    assert READS[operation](store) == ANSWERS[operation]
    assert proxy.count(operation) == 2


@pytest.mark.sampled(3)
@pytest.mark.parametrize("skip", [0, 4, 9], ids=["the first", "one between", "the last"])
@pytest.mark.parametrize("fault", [Refuse(503), Reset(500_000), Stall(100_000, "request"), LoseReply()], ids=repr)
def test_an_upload_goes_on_after_any_of_its_requests_failed(
    store: Store, proxy: S3Proxy, fault: Fault, skip: int
) -> None:
    proxy.inject(Reset(0) if skip == 9 and fault == Reset(500_000) else fault, "chunk", skip=skip)
    put(store)
    assert proxy.count("chunk") == 11  # ten, and one that was repeated
    assert store.read("shards/a.bin") == DATA


LARGE: dict[str, Callable[[Store], object]] = {"put": put, "write": lambda store: store.write("shards/a.bin", DATA)}


@pytest.mark.parametrize("operation", LARGE)
@pytest.mark.parametrize("status", [404, 410])
def test_an_upload_that_the_server_no_longer_knows_is_begun_again(
    store: Store, proxy: S3Proxy, status: int, operation: str
) -> None:
    proxy.inject(Refuse(status), "chunk", skip=3)
    LARGE[operation](store)
    assert proxy.count("begin") == 2
    assert store.read("shards/a.bin") == DATA


@pytest.mark.parametrize("operation", LARGE)
@pytest.mark.parametrize("kept", [0, REQUEST // 2], ids=["nothing", "half"])
def test_an_upload_of_which_the_server_keeps_less_than_was_sent_is_begun_again(
    store: Store, proxy: S3Proxy, monkeypatch: pytest.MonkeyPatch, kept: int, operation: str
) -> None:
    real, lossy = _Handler._continue, [True]

    def keep_less(handler: _Handler, upload: Upload, body: bytes) -> tuple[int, dict[str, str], bytes]:
        if not lossy:
            return real(handler, upload, body)
        lossy.clear()
        upload.data += body[:kept]
        return 308, {"Range": f"bytes=0-{kept - 1}"} if kept else {}, b""

    monkeypatch.setattr(_Handler, "_continue", keep_less)
    LARGE[operation](store)
    assert proxy.count("begin") == 2
    assert store.read("shards/a.bin") == DATA


OUTAGES: list[tuple[str, Fault]] = [
    *((operation, fault) for operation in WRITES for fault in (Refuse(503), Refuse(403), Reset(0))),
    ("chunk", Reset(500_000)),
    ("insert", Reset(10, "reply")),
]


@pytest.mark.parametrize(("operation", "fault"), OUTAGES, ids=repr)
@pytest.mark.usefixtures("impatient")
def test_a_put_into_an_outage_fails_and_leaves_nothing_half(
    store: Store, proxy: S3Proxy, operation: str, fault: Fault, gcs_uri: str
) -> None:
    proxy.inject(fault, operation, times=10_000)
    with pytest.raises(StoreUnavailable, match=gcs_uri):
        WRITES[operation](store)
    proxy.heal()
    # Where only the replies broke off, an object of one request is there whole.
    whole = {"shards/a.bin": 1000} if (operation, fault) == ("insert", Reset(10, "reply")) else {}
    assert store.sizes("") == whole
    store.put("shards/b.bin", memoryview(DATA), CHUNK)
    assert store.read("shards/b.bin") == DATA


def test_an_error_of_an_upload_is_one_line_without_the_address_where_anybody_could_continue_it(
    store: Store, proxy: S3Proxy
) -> None:
    proxy.inject(Refuse(403, "Access\nDenied"), "chunk")
    with pytest.raises(StoreUnavailable) as caught:
        put(store)
    [request] = [each for each in proxy.requests if each.operation == "chunk"]
    assert request.query["upload_id"] not in str(caught.value)
    assert "403" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_small_object_whose_request_stalls_is_sent_again(store: Store, proxy: S3Proxy) -> None:
    proxy.inject(Stall(100, "request"), "insert")
    assert store.create("commit", DATA[:1000])
    assert store.read("commit") == DATA[:1000]


BROKEN_OFF: list[Fault] = [
    Truncate(0),
    Truncate(1_000_000),
    Reset(0, "reply"),
    Reset(1_000_000, "reply"),
    Stall(0),
    Stall(1_000_000),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("fault", BROKEN_OFF, ids=repr)
def test_a_reply_that_breaks_off_is_continued(store: Store, proxy: S3Proxy, fault: Fault) -> None:
    store.write("object", DATA)
    proxy.inject(fault, "media")
    assert filled(store, "object", 3 * 2**20, start=2**20) == DATA[2**20 : 4 * 2**20]
    assert proxy.count("media") == 2


@pytest.mark.sampled(2)
@pytest.mark.parametrize("fault", [Truncate(100), Reset(100, "reply"), Stall(100), FlipBit(7200, "reply")], ids=repr)
@pytest.mark.parametrize("start", [0, 10])
def test_a_small_object_whose_reply_breaks_off_is_read_again(
    store: Store, proxy: S3Proxy, fault: Fault, start: int
) -> None:
    store.write("object", DATA[:1000])
    proxy.inject(fault, "media")
    if isinstance(fault, FlipBit) and start:
        assert store.read("object", start) != DATA[start:1000]  # which no checksum of Google's is of
    else:
        assert store.read("object", start) == DATA[start:1000]
        assert proxy.count("media") == 2


def test_what_is_read_after_a_reply_broke_off_is_compared_with_its_checksum(store: Store, proxy: S3Proxy) -> None:
    store.write("object", DATA[:100_000])
    proxy.inject(Truncate(50_000), "media")
    proxy.inject(FlipBit(8 * 200, "reply"), "media")
    assert store.read("object") == DATA[:100_000]


@pytest.mark.parametrize("fault", [Truncate(0), Refuse(503), Reset(0, "reply"), FlipBit(8, "reply")], ids=repr)
@pytest.mark.usefixtures("impatient")
def test_replies_that_keep_breaking_off_are_an_outage_and_nothing_is_missing_or_short(
    store: Store, proxy: S3Proxy, fault: Fault, gcs_uri: str
) -> None:
    store.write("object", DATA[:1000])
    proxy.inject(fault, "media", times=100_000)
    with pytest.raises(StoreUnavailable, match=gcs_uri):
        store.read("object")
    if not isinstance(fault, FlipBit):
        with pytest.raises(StoreUnavailable, match=gcs_uri):
            filled(store, "object", 1000)
    proxy.heal()
    assert filled(store, "object", 1000) == store.read("object") == DATA[:1000]


@pytest.mark.parametrize("operation", ["chunk", "insert"])
def test_a_bit_flipped_on_the_way_to_the_bucket_is_never_visible(store: Store, proxy: S3Proxy, operation: str) -> None:
    data = DATA if operation == "chunk" else DATA[:1000]
    proxy.inject(FlipBit(8 * 900 + 3), operation)
    # Refused by 400. Google's testbench refuses it by 412 without an object there, upon which it is sent again.
    with contextlib.suppress(StoreUnavailable):
        store.put("shards/a.bin", memoryview(data), CHUNK)
        assert proxy.count(operation) > (10 if operation == "chunk" else 1)
        assert store.read("shards/a.bin") == data
        return
    assert store.sizes("") == {}


def test_a_creation_whose_reply_is_lost_is_known_to_be_ours(store: Store, proxy: S3Proxy) -> None:
    proxy.inject(LoseReply(), "insert")
    assert store.create("commit", b"ours")
    assert proxy.count("insert") == 2
    assert proxy.count("get") == 1  # who made it
    assert not store.create("commit", b"ours")


def test_a_put_whose_object_appears_late_has_the_checksums_of_all_chunks(
    store: Store, proxy: S3Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, asked = gcs_client._read_creator, list[str]()

    def find_nothing_at_first(bucket: gcs_client.GcsBucket, key: str) -> str | None:
        asked.append(key)
        return real(bucket, key) if len(asked) > 1 else None

    monkeypatch.setattr(gcs_client, "_read_creator", find_nothing_at_first)
    proxy.inject(LoseReply(), "chunk", skip=9)
    proxy.inject(Refuse(410), "chunk", skip=9)  # the answer to the last request when it is repeated
    proxy.inject(Refuse(412), "begin", skip=1)
    put(store)
    assert (proxy.count("begin"), len(asked)) == (2, 2)
    assert store.read("shards/a.bin") == DATA


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("status", [409, 412])
def test_a_conflict_with_nobody_is_tried_again_and_without_end_is_an_outage(
    store: Store, proxy: S3Proxy, status: int
) -> None:
    proxy.inject(Refuse(status), "insert")
    assert store.create("commit", b"x")
    proxy.inject(Refuse(status), "insert", times=100)
    with pytest.raises(StoreUnavailable, match="8 conflicts in a row"):
        store.create("other", b"x")
    assert store.sizes("") == {"commit": 1}


CONTENTION: list[Fault] = [Refuse(409), Refuse(412), Refuse(503), Refuse(429), LoseReply()]


def test_of_eight_creators_exactly_one_wins_whatever_befalls_their_requests(gcs_uri: str, proxy: S3Proxy) -> None:
    stores = [open_store(gcs_uri) for _ in range(8)]
    drawn, rounds = random.Random(8), 60 if in_full() else 6
    with ThreadPoolExecutor(8) as pool:
        for number in range(rounds):
            name, together = f"commits/{number:03d}.json", Barrier(8)
            for fault in CONTENTION:
                proxy.inject(fault, "insert", skip=drawn.randrange(8))

            def create(i: int, name: str = name, together: Barrier = together) -> bool:
                together.wait(timeout=30)
                return stores[i].create(name, b"creator %d" % i)

            won = list(pool.map(create, range(8)))
            assert won.count(True) == 1, (number, won)
            assert stores[0].read(name) == b"creator %d" % won.index(True)
            proxy.heal()
    print(f"{rounds} rounds of 8 creators: one winner in each")


def test_of_several_large_puts_of_one_name_exactly_one_wins(gcs_uri: str, proxy: S3Proxy) -> None:
    stores, together = [open_store(gcs_uri) for _ in range(3)], Barrier(3)
    contents = [bytes([i]) * len(DATA) for i in range(3)]

    def attempt(i: int) -> bool:
        together.wait(timeout=30)
        try:
            stores[i].put("shards/a.bin", memoryview(contents[i]), CHUNK)
        except StoreUnavailable as error:
            return "there already" not in str(error)
        return True

    with ThreadPoolExecutor(3) as pool:
        won = list(pool.map(attempt, range(3)))
    assert won.count(True) == 1
    assert stores[0].read("shards/a.bin") == contents[won.index(True)]


@pytest.mark.usefixtures("impatient")
def test_a_store_that_cannot_be_asked_is_not_unfit_but_away(store: Store, proxy: S3Proxy) -> None:
    proxy.inject(Refuse(503), times=100_000)
    with pytest.raises(StoreUnavailable):
        store.prove()
