"""What networks and S3 do to requests: survived where it passes, an outage where it lasts, never half an object."""

import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from mypy_boto3_s3 import S3Client

from convoy.storage import Store, StoreUnavailable, StoreUnfit, open_store
from convoy.storage.checksum import crc32c
from convoy.storage.s3 import S3Store
from tests.campaign import times
from tests.s3_faults import Fault, FlipBit, LoseReply, Refuse, Reset, Stall, Truncate
from tests.s3_proxy import S3Proxy

pytestmark = pytest.mark.campaign

MIB = 2**20
CHUNK = 5 * MIB
DATA = random.Random(3).randbytes(CHUNK + 200_000)


@pytest.fixture
def proxy(s3_uri: str, s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Proxy]:
    """Between the stores of this test and their server; requests are tried twice, without much of a pause."""
    with S3Proxy(s3_endpoint, checks=True) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
        monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0.01)
        yield proxy


@pytest.fixture
def store(s3_uri: str, proxy: S3Proxy) -> Store:
    return S3Store(s3_uri, read_timeout_seconds=1.0)


def uploads(s3_client: S3Client, uri: str) -> int:
    """Multipart uploads under way."""
    return len(s3_client.list_multipart_uploads(Bucket=uri.split("/")[2]).get("Uploads", []))


def filled(store: Store, name: str, count: int, start: int = 0) -> bytes:
    buffer = bytearray(count)
    return bytes(buffer[: store.read_into(name, start, memoryview(buffer))])


def put(store: Store) -> None:
    assert store.put("shards/a.bin", memoryview(DATA), CHUNK) == [
        crc32c(DATA[at : at + CHUNK]) for at in range(0, len(DATA), CHUNK)
    ]


WRITES: dict[str, Callable[[Store], object]] = {
    "CreateMultipartUpload": put,
    "UploadPart": put,
    "CompleteMultipartUpload": put,
    "PutObject": lambda store: store.put("shards/a.bin", memoryview(DATA)[:1000], CHUNK),
}
READS: dict[str, Callable[[Store], object]] = {
    "GetObject": lambda store: filled(store, "there", 6),
    "ListObjects": lambda store: store.listing(""),
    "DeleteObject": lambda store: store.delete("there"),
}
PASSING: list[Fault] = [Refuse(503), Refuse(500, "InternalError"), Reset(0), LoseReply()]


@pytest.mark.parametrize("fault", PASSING, ids=repr)
@pytest.mark.parametrize("operation", WRITES)
def test_a_write_survives_what_passes(
    proxy: S3Proxy, s3_uri: str, s3_client: S3Client, operation: str, fault: Fault
) -> None:
    store = S3Store(s3_uri)  # whose patience outlasts a busy server: a request that is given up leaves an upload, too
    proxy.inject(fault, operation)
    WRITES[operation](store)
    assert proxy.count(operation) >= 2
    written = len(DATA) if WRITES[operation] is put else 1000
    assert store.read("shards/a.bin") == DATA[:written]
    # An upload that was created, and the reply lost, is an orphan: nobody knows its id.
    assert uploads(s3_client, s3_uri) == (operation == "CreateMultipartUpload" and fault == LoseReply())


@pytest.mark.parametrize("fault", PASSING, ids=repr)
@pytest.mark.parametrize("operation", READS)
def test_a_read_survives_what_passes(store: Store, proxy: S3Proxy, operation: str, fault: Fault) -> None:
    store.write("there", b"object")
    proxy.inject(fault, operation)
    answer = READS[operation](store)
    assert proxy.count(operation) == 2
    if operation == "GetObject":
        assert answer == b"object"


@pytest.mark.parametrize("fault", [Refuse(503), Refuse(403, "AccessDenied"), Reset(0), Reset(500_000)], ids=repr)
@pytest.mark.parametrize("operation", ["CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload"])
def test_a_put_into_an_outage_fails_leaves_nothing_and_succeeds_afterwards(
    store: Store, proxy: S3Proxy, s3_uri: str, s3_client: S3Client, operation: str, fault: Fault
) -> None:
    if operation != "UploadPart" and fault == Reset(500_000):
        fault = Reset(10, "reply")
    proxy.inject(fault, operation, times=100)
    with pytest.raises(StoreUnavailable, match=s3_uri):
        put(store)
    proxy.heal()
    if operation != "CompleteMultipartUpload" or fault != Reset(10, "reply"):
        assert store.sizes("") == {}
    if operation != "CreateMultipartUpload" or fault != Reset(10, "reply"):
        assert uploads(s3_client, s3_uri) == 0
    store.put("shards/b.bin", memoryview(DATA), CHUNK)
    assert store.read("shards/b.bin") == DATA


@pytest.mark.parametrize("operation", ["UploadPart", "PutObject"])
def test_a_request_that_stalls_is_tried_again(store: Store, proxy: S3Proxy, operation: str) -> None:
    proxy.inject(Stall(100_000, "request"), operation)
    data = memoryview(DATA) if operation == "UploadPart" else memoryview(DATA)[:CHUNK]
    store.put("shards/a.bin", data, CHUNK)
    assert store.read("shards/a.bin") == data


BROKEN_OFF: list[Fault] = [
    Truncate(0),
    Truncate(1_000_000),
    Reset(0, "reply"),
    Reset(1_000_000, "reply"),
    Stall(0),
    Stall(1_000_000),
]


@pytest.mark.parametrize("fault", BROKEN_OFF, ids=repr)
def test_a_reply_that_breaks_off_is_gone_on_with(store: Store, proxy: S3Proxy, fault: Fault) -> None:
    store.write("object", DATA)
    proxy.inject(fault, "GetObject")
    assert filled(store, "object", 3 * MIB, start=MIB) == DATA[MIB : 4 * MIB]
    assert proxy.count("GetObject") == 2


@pytest.mark.parametrize("fault", [Truncate(100), Reset(100, "reply"), Stall(100)], ids=repr)
def test_a_small_object_whose_reply_breaks_off_is_read_again(store: Store, proxy: S3Proxy, fault: Fault) -> None:
    store.write("object", DATA[:1000])
    proxy.inject(fault, "GetObject")
    assert store.read("object") == DATA[:1000]


@pytest.mark.parametrize("fault", [Truncate(0), Refuse(503), Reset(0, "reply")], ids=repr)
def test_replies_that_keep_breaking_off_are_an_outage_and_nothing_is_missing_or_short(
    store: Store, proxy: S3Proxy, fault: Fault, s3_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("convoy.storage.resuming.random.uniform", lambda *_: 0.0)
    store.write("object", DATA[:1000])
    proxy.inject(fault, "GetObject", times=1000)
    with pytest.raises(StoreUnavailable, match=s3_uri):
        filled(store, "object", 1000)
    with pytest.raises(StoreUnavailable, match=s3_uri):
        store.read("object")
    proxy.heal()
    assert filled(store, "object", 1000) == store.read("object") == DATA[:1000]


@pytest.mark.parametrize("operation", ["UploadPart", "PutObject"])
def test_a_bit_flipped_on_the_way_to_s3_fails_the_put_and_nothing_is_visible(
    store: Store, proxy: S3Proxy, s3_uri: str, s3_client: S3Client, operation: str
) -> None:
    proxy.inject(FlipBit(8 * 12_345 + 3), operation)
    with pytest.raises(StoreUnavailable, match="BadDigest"):
        store.put("shards/a.bin", memoryview(DATA) if operation == "UploadPart" else memoryview(DATA)[:CHUNK], CHUNK)
    assert store.sizes("") == {}
    assert uploads(s3_client, s3_uri) == 0


@pytest.mark.parametrize("chunk", [0, 1])
def test_where_a_server_checks_nothing_our_own_checksums_tell_of_a_flipped_bit(
    store: Store, proxy: S3Proxy, chunk: int
) -> None:
    proxy.checks = False
    proxy.inject(FlipBit(8 * 1000), "UploadPart", skip=chunk)
    checksums = store.put("shards/a.bin", memoryview(DATA), CHUNK, threads=1)
    found = [crc32c(filled(store, "shards/a.bin", CHUNK, at)) for at in range(0, len(DATA), CHUNK)]
    assert [there == written for there, written in zip(found, checksums, strict=True)] == [
        number != chunk for number in range(2)
    ]


def test_a_bit_flipped_on_the_way_from_s3_is_right_when_read_again(store: Store, proxy: S3Proxy) -> None:
    store.write("object", DATA[:MIB])
    proxy.inject(FlipBit(8 * 1000, "reply"), "GetObject")
    assert filled(store, "object", MIB) != DATA[:MIB]
    assert filled(store, "object", MIB) == DATA[:MIB]


def test_of_a_small_object_s3s_own_checksum_tells_of_a_flipped_bit(store: Store, proxy: S3Proxy) -> None:
    store.create("commit", DATA[:1000])
    proxy.inject(FlipBit(8 * 900, "reply"), "GetObject")
    assert store.read("commit") == DATA[:1000]
    assert proxy.count("GetObject") == 2


@pytest.mark.parametrize("data", [DATA[:10], DATA], ids=["one put", "multipart"])
@pytest.mark.parametrize(
    "fault", [Refuse(409, "ConditionalRequestConflict"), Refuse(412, "PreconditionFailed"), LoseReply()], ids=repr
)
def test_a_conflict_with_nobody_is_tried_again(store: Store, proxy: S3Proxy, data: bytes, fault: Fault) -> None:
    proxy.inject(fault, "PutObject")
    proxy.inject(fault, "CompleteMultipartUpload")
    store.put("shards/a.bin", memoryview(data), CHUNK)
    assert store.read("shards/a.bin") == data


def test_a_creation_whose_reply_is_lost_is_known_to_be_ours(store: Store, proxy: S3Proxy) -> None:
    proxy.inject(LoseReply(), "PutObject")
    assert store.create("commit", b"ours")
    assert proxy.count("PutObject") == 2
    assert not store.create("commit", b"ours")


def test_conflicts_without_end_are_an_outage(store: Store, proxy: S3Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("convoy.storage.resuming.random.uniform", lambda *_: 0.0)
    proxy.inject(Refuse(409, "ConditionalRequestConflict"), "PutObject", times=100)
    with pytest.raises(StoreUnavailable, match="409"):
        store.create("commit", b"x")
    assert store.sizes("") == {}


CONTENTION: list[Fault] = [
    Refuse(409, "ConditionalRequestConflict"),
    Refuse(412, "PreconditionFailed"),
    Refuse(503),
    LoseReply(),
]


def test_of_eight_creators_exactly_one_wins_whatever_befalls_their_requests(
    s3_uri: str, proxy: S3Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "8")  # one of them may meet several faults
    stores = [open_store(s3_uri) for _ in range(8)]
    drawn, rounds = random.Random(8), times(6)
    with ThreadPoolExecutor(8) as pool:
        for number in range(rounds):
            name, together = f"commits/{number:03d}.json", Barrier(8)
            for fault in CONTENTION:
                proxy.inject(fault, "PutObject", key=name, skip=drawn.randrange(8))

            def create(i: int, name: str = name, together: Barrier = together) -> bool:
                together.wait(timeout=30)
                return stores[i].create(name, b"creator %d" % i)

            won = list(pool.map(create, range(8)))
            assert won.count(True) == 1, (number, won)
            assert stores[0].read(name) == b"creator %d" % won.index(True)
    print(f"{rounds} rounds of 8 creators: one winner in each")


def test_of_several_puts_of_one_name_exactly_one_wins(s3_uri: str, proxy: S3Proxy, s3_client: S3Client) -> None:
    stores, together = [open_store(s3_uri) for _ in range(3)], Barrier(3)
    contents = [bytes([i]) * (6 * MIB) for i in range(3)]

    def attempt(i: int) -> bool:
        together.wait(timeout=30)
        try:
            stores[i].put("shards/a.bin", memoryview(contents[i]), CHUNK, threads=1)
        except StoreUnavailable:
            return False
        return True

    with ThreadPoolExecutor(3) as pool:
        won = list(pool.map(attempt, range(3)))
    assert won.count(True) == 1
    assert stores[0].read("shards/a.bin") == contents[won.index(True)]
    assert uploads(s3_client, s3_uri) == 0


def test_a_server_that_replaces_what_is_to_be_created_only_if_absent_is_unfit(store: Store, proxy: S3Proxy) -> None:
    store.prove()
    proxy.forgets.add("if-none-match")
    with pytest.raises(StoreUnfit, match="replaces"):
        store.prove()
    assert store.sizes("") == {}


def test_a_store_that_cannot_be_asked_is_not_unfit_but_away(store: Store, proxy: S3Proxy) -> None:
    proxy.inject(Refuse(503), times=100)
    with pytest.raises(StoreUnavailable):
        store.prove()


def test_a_bandwidth_is_kept_to_and_used(s3_uri: str, s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with S3Proxy(s3_endpoint, bytes_per_second=20 * MIB) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        began = time.monotonic()
        open_store(s3_uri).put("a", memoryview(DATA), CHUNK)
        assert len(DATA) / (20 * MIB) * 0.9 < time.monotonic() - began < 10
