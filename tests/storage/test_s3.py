"""What only S3 can do or suffer: endpoints that go away, lost replies, segments."""

import socket
import time
from collections.abc import Callable
from typing import NamedTuple

import pytest
from moto.backends import get_backend
from moto.core.models import DEFAULT_ACCOUNT_ID
from mypy_boto3_s3 import S3Client

from convoy.config.checkpoint import StoreConfig
from convoy.storage import Store, StoreUnavailable, open_store
from convoy.storage.log import SEGMENT_SECONDS
from tests.conftest import S3Server

OPERATIONS: dict[str, Callable[[Store], object]] = {
    "create": lambda store: store.create("object", b"x"),
    "write": lambda store: store.write("object", b"x"),
    "read": lambda store: store.read("object"),
    "delete": lambda store: store.delete("object"),
    "sizes": lambda store: store.sizes(""),
    "put": lambda store: store.put("shards", memoryview(b"x"), 1024),
    "read into": lambda store: store.read_into("object", 0, memoryview(bytearray(1))),
    "now": lambda store: store.now(),
    "abort uploads": lambda store: store.abort_multipart_uploads("", 0.0),
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_server_that_went_away_is_unavailable_and_nothing_is_missing(
    s3_uri: str, s3_server: S3Server, operation: str
) -> None:
    store = open_store(s3_uri)
    store.write("object", b"x")
    s3_server.stop()
    with pytest.raises(StoreUnavailable, match=s3_uri):
        OPERATIONS[operation](store)
    s3_server.start_again()
    assert store.read("object") == b"x"


def test_an_endpoint_nobody_listens_on_is_unavailable(s3_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{unused.getsockname()[1]}")
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
        with pytest.raises(StoreUnavailable, match="Could not connect"):
            open_store(s3_uri).read("object")


def test_a_missing_bucket_is_unavailable_and_no_object_is_missing(s3_environment: str) -> None:
    with pytest.raises(StoreUnavailable, match="bucket does not exist"):
        open_store("s3://no-such-bucket-here/prefix").read("object")


def test_without_credentials_the_store_is_unavailable(s3_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    with pytest.raises(StoreUnavailable, match="credentials"):
        open_store(s3_uri).read("object")


def test_an_unknown_profile_is_unavailable(s3_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody-made-this")
    with pytest.raises(StoreUnavailable, match="nobody-made-this"):
        open_store(s3_uri)


def test_a_bucket_without_a_prefix_is_a_store(s3_uri: str) -> None:
    bucket = "/".join(s3_uri.split("/")[:3])
    open_store(bucket).write("top", b"1")
    open_store(s3_uri).write("below", b"22")
    assert open_store(f"{bucket}/").sizes("") == {"some/prefix/below": 2, "top": 1}


def test_more_objects_than_one_page_holds_are_all_listed(s3_uri: str) -> None:
    bucket, _, prefix = s3_uri.removeprefix("s3://").partition("/")
    behind_the_protocol = get_backend("s3")[DEFAULT_ACCOUNT_ID]["aws"]
    for i in range(1005):
        behind_the_protocol.put_object(bucket, f"{prefix}/events/{i:06d}", b"x")
    assert list(open_store(s3_uri).sizes("events/")) == [f"events/{i:06d}" for i in range(1005)]


def test_an_object_of_another_program_counts_as_there(s3_uri: str, s3_client: S3Client) -> None:
    bucket, _, prefix = s3_uri.removeprefix("s3://").partition("/")
    s3_client.put_object(Bucket=bucket, Key=f"{prefix}/JOB.json", Body=b"theirs")
    assert not open_store(s3_uri).create("JOB.json", b"theirs")


class HowKept(NamedTuple):
    storage_class: str
    encryption: str | None
    key: str | None


def how_kept(s3_client: S3Client, s3_uri: str, name: str) -> HowKept:
    bucket, _, prefix = s3_uri.removeprefix("s3://").partition("/")
    head = s3_client.head_object(Bucket=bucket, Key=f"{prefix}/{name}")
    return HowKept(head.get("StorageClass", "STANDARD"), head.get("ServerSideEncryption"), head.get("SSEKMSKeyId"))


def test_shards_are_kept_in_the_configured_class_and_everything_is_encrypted_by_the_key(
    s3_uri: str, s3_client: S3Client
) -> None:
    key = "arn:aws:kms:us-east-1:123456789012:key/some-key"
    store = open_store(s3_uri, StoreConfig(sse_kms_key_id=key, storage_class="STANDARD_IA"))
    store.put("shards/small", memoryview(b"x"), 5 * 2**20)
    store.put("shards/large", memoryview(bytes(6 * 2**20)), 5 * 2**20)
    store.create("commits/1.json", b"x")
    store.write("report.json", b"x")
    assert {name: how_kept(s3_client, s3_uri, name) for name in store.sizes("")} == {
        "commits/1.json": ("STANDARD", "aws:kms", key),
        "report.json": ("STANDARD", "aws:kms", key),
        "shards/large": ("STANDARD_IA", "aws:kms", key),
        "shards/small": ("STANDARD_IA", "aws:kms", key),
    }


def test_without_a_configuration_objects_are_kept_as_the_bucket_says(s3_uri: str, s3_client: S3Client) -> None:
    store = open_store(s3_uri)
    store.put("shards/large", memoryview(bytes(6 * 2**20)), 5 * 2**20)
    assert how_kept(s3_client, s3_uri, "shards/large") == ("STANDARD", None, None)


def test_the_configured_endpoint_goes_before_that_of_the_environment(
    s3_uri: str, s3_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    store = open_store(s3_uri, StoreConfig(endpoint_url=s3_endpoint))
    store.write("object", b"x")
    assert store.read("object") == b"x"


def test_orphan_uploads_below_a_prefix_are_aborted_once_they_are_old(s3_uri: str, s3_client: S3Client) -> None:
    bucket, _, prefix = s3_uri.removeprefix("s3://").partition("/")
    for name in ("shards/1/a", "shards/1/b", "shards/2/a", "other"):
        s3_client.create_multipart_upload(Bucket=bucket, Key=f"{prefix}/{name}")
    store = open_store(s3_uri)
    assert store.abort_multipart_uploads("shards/1/", begun_before=0.0) == 0
    assert store.abort_multipart_uploads("shards/", store.now(), spared=("shards/1/", "shards/2/")) == 0
    assert store.abort_multipart_uploads("shards/1/", begun_before=store.now()) == 2
    left = s3_client.list_multipart_uploads(Bucket=bucket)["Uploads"]
    assert sorted(upload["Key"] for upload in left) == [f"{prefix}/other", f"{prefix}/shards/2/a"]


def lines(store: Store) -> list[bytes]:
    return b"".join(store.read(name) for name in store.sizes("log/")).splitlines()


def test_a_log_keeps_its_lines_across_an_outage_once_and_in_order(s3_uri: str, s3_server: S3Server) -> None:
    store = open_store(s3_uri)
    log = store.open_log("log")
    log.append(b"before")
    log.flush()
    s3_server.stop()
    for line in (b"during 1", b"during 2"):
        log.append(line)
        with pytest.raises(StoreUnavailable):
            log.flush()
    s3_server.start_again()
    log.append(b"after")
    log.close()
    assert lines(store) == [b"before", b"during 1", b"during 2", b"after"]
    assert list(store.sizes("log/")) == [f"log/{i:08d}.jsonl" for i in range(len(store.sizes("log/")))]


def test_a_segment_whose_put_only_seemed_to_fail_is_not_written_twice(s3_uri: str) -> None:
    store = open_store(s3_uri)
    store.write("log/00000000.jsonl", b"one\ntwo\n")  # the put that succeeded, its reply lost
    log = store.open_log("log")
    log.append(b"one")
    log.append(b"two")
    log.flush()
    log.append(b"three")
    log.close()
    assert lines(store) == [b"one", b"two", b"three"]


def test_a_line_is_put_without_a_flush_within_the_promised_time(s3_uri: str) -> None:
    store = open_store(s3_uri)
    log = store.open_log("log")
    log.append(b"nobody flushes me")
    deadline = time.monotonic() + SEGMENT_SECONDS + 10
    while not store.sizes("log/") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert lines(store) == [b"nobody flushes me"]
    log.close()
