"""What S3 is asked is counted as its bill counts it."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from convoy.job.events.log import EventWriter, read_events
from convoy.job.events.registry import MemoryPeak, StoreRequests, encode
from convoy.storage import open_store
from convoy.storage.usage import BucketRequests, RequestCounter, _region, request_counter


@pytest.fixture(autouse=True)
def nothing_before() -> None:
    request_counter().take()


def bucket_of(uri: str) -> str:
    return uri.removeprefix("s3://").partition("/")[0]


def test_writes_and_lists_are_puts_reads_are_gets_and_deletes_are_free(s3_uri: str, tmp_path: Path) -> None:
    open_store(str(tmp_path)).write("object", b"x")  # which asks S3 for nothing
    store = open_store(s3_uri)
    store.write("object", b"12345")
    assert store.read("object") == b"12345"
    store.sizes("")
    store.delete("object")
    [found] = request_counter().take()
    assert found.bucket == bucket_of(s3_uri)
    assert (found.puts, found.gets) == (2, 1)
    assert (found.sent_bytes, found.received_bytes) == (5, 5)
    assert request_counter().take() == []


def test_each_part_of_a_large_object_is_a_request(s3_uri: str) -> None:
    store, size = open_store(s3_uri), 12 * 2**20
    store.put("shards/a", memoryview(bytes(size)), 2**20)
    [found] = request_counter().take()
    assert found.puts == 1 + 3 + 1  # it begins, three parts of at most 5 MiB, and it is completed
    assert found.sent_bytes == size


def test_no_count_is_lost_between_threads() -> None:
    counts = RequestCounter()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: counts.add(BucketRequests(bucket="b", puts=1, sent_bytes=3)), range(4000)))
    assert counts.take() == [BucketRequests(bucket="b", puts=4000, sent_bytes=12_000)]


def test_a_region_once_known_stays_known() -> None:
    counts = RequestCounter()
    counts.add(BucketRequests(bucket="b", region="us-west-2", gets=1))
    assert counts.take()[0].region == "us-west-2"
    counts.add(BucketRequests(bucket="b", gets=1))
    assert counts.take()[0].region == "us-west-2"


def test_bytes_that_come_after_their_request_was_taken_are_not_lost() -> None:
    counts = RequestCounter()
    counts.add(BucketRequests(bucket="b", gets=1))
    assert [each.gets for each in counts.take()] == [1]
    counts.add(BucketRequests(bucket="b", received_bytes=7))
    assert counts.take() == []
    counts.add(BucketRequests(bucket="b", gets=1, received_bytes=5))
    assert counts.take() == [BucketRequests(bucket="b", gets=1, received_bytes=12)]


@pytest.mark.parametrize(
    ("status", "url", "headers", "region"),
    [
        (200, "https://b.s3.us-west-2.amazonaws.com/k", {}, "us-west-2"),
        (200, "https://s3.eu-central-1.amazonaws.com/b/k", {}, "eu-central-1"),
        (301, "https://b.s3.us-west-2.amazonaws.com/k", {"x-amz-bucket-region": "us-east-2"}, "us-east-2"),
        (301, "https://b.s3.us-west-2.amazonaws.com/k", {}, None),
        (200, "https://b.s3.amazonaws.com/k", {}, None),
        (200, "http://127.0.0.1:9000/b/us-west-2", {}, None),
    ],
)
def test_the_region_is_that_of_the_endpoint_which_served(
    status: int, url: str, headers: dict[str, str], region: str | None
) -> None:
    assert _region(SimpleNamespace(status_code=status, url=url, headers=headers)) == region


def test_a_log_tells_what_its_process_asked(s3_uri: str) -> None:
    store = open_store(s3_uri)
    store.write("object", b"12345")
    log = EventWriter(store, 0, 0, rank=0, requests=True)
    log.append(MemoryPeak(step=1, bytes=1, device="host"))
    log.close()
    # A store that another test left for its threads to close may add to this process's counts.
    [counted] = [e for e in read_events(store) if isinstance(e, StoreRequests) and e.bucket == bucket_of(s3_uri)]
    assert counted.rank == 0
    assert counted.puts >= 2  # the object, and the log's first segment
    assert counted.sent_bytes > 5


def test_a_forked_process_begins_anew() -> None:
    request_counter().add(BucketRequests(bucket="b", puts=1))
    child = os.fork()
    if child == 0:
        os._exit(len(request_counter().take()))
    assert os.waitpid(child, 0)[1] == 0
    counted = request_counter().take()
    assert [each.puts for each in counted if each.bucket == "b"] == [1]  # threads of other tests may count too


def test_the_log_tells_each_count_by_its_name() -> None:
    counted = BucketRequests(bucket="b", region="us-west-2", puts=1, gets=2, sent_bytes=3, received_bytes=4)
    told = json.loads(encode(StoreRequests(t=1.5, generation=2, node=3, rank=4, **counted.model_dump())))
    assert told == {
        "kind": "store_requests", "t": 1.5, "generation": 2, "node": 3, "rank": 4, "bucket": "b", "region": "us-west-2",
        "puts": 1, "gets": 2, "sent_bytes": 3, "received_bytes": 4,
    }  # fmt: skip
