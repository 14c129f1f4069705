"""Objects in an S3 bucket. Credentials, region and endpoint (`AWS_ENDPOINT_URL`) come from boto's own chain."""

import contextlib
import os
import random
import threading
import time
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from convoy.storage.base import ObjectMissing, StoreUnavailable

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

SEGMENT_SECONDS = 3.0
"""A segment of a log is put at most this long after its first line."""

_ATTEMPTS = 8
_CONFLICT_TRIES = 8
_CREATOR = "convoy-creator"


class S3Store:
    """A Store under `s3://bucket/prefix`. Creation only if absent uses S3's `If-None-Match: *`.

    A request is tried `AWS_MAX_ATTEMPTS` times (default 8) with growing pauses before the store counts as out of reach.
    """

    def __init__(self, uri: str) -> None:
        bucket, _, prefix = uri.removeprefix("s3://").partition("/")
        self.uri = uri.rstrip("/")
        self._bucket = bucket
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        with self._outages(""):
            self._s3 = _client()

    def create(self, name: str, data: bytes) -> bool:
        creator = uuid.uuid4().hex
        for tried in range(_CONFLICT_TRIES):
            with self._outages(name):
                if self._put_if_absent(name, data, creator):
                    return True
                found = self._creator(name)
            if found is not None:
                return found == creator  # 412 is also the answer to our own retry after a lost reply
            time.sleep(random.uniform(0, 0.05 * 2**tried))
        raise StoreUnavailable(f"{self.uri}/{name}: {_CONFLICT_TRIES} conflicts (409) in a row")

    def write(self, name: str, data: bytes) -> None:
        with self._outages(name):
            self._s3.put_object(Bucket=self._bucket, Key=self._key(name), Body=data)

    def read(self, name: str, start: int = 0) -> bytes:
        span: Any = {"Range": f"bytes={start}-"} if start else {}
        with self._outages(name):
            try:
                reply = self._s3.get_object(Bucket=self._bucket, Key=self._key(name), **span)
            except ClientError as error:
                if _code(error) == "InvalidRange":  # nothing there from `start` on
                    return b""
                raise
            return reply["Body"].read()

    def sizes(self, prefix: str) -> dict[str, int]:
        found: dict[str, int] = {}
        with self._outages(prefix):
            pages = self._s3.get_paginator("list_objects_v2")
            for page in pages.paginate(Bucket=self._bucket, Prefix=self._key(prefix)):
                for item in page.get("Contents", []):
                    found[item["Key"][len(self._prefix) :]] = item["Size"]
        return found

    def delete(self, name: str) -> None:
        with self._outages(name):
            self._s3.delete_object(Bucket=self._bucket, Key=self._key(name))

    def appender(self, prefix: str) -> "SegmentAppender":
        return SegmentAppender(self, prefix)

    def _put_if_absent(self, name: str, data: bytes, creator: str) -> bool:
        """False if S3 refused: the object exists (412), or another request for it is under way (409)."""
        key, mark = self._key(name), {_CREATOR: creator}
        try:
            self._s3.put_object(Bucket=self._bucket, Key=key, Body=data, Metadata=mark, IfNoneMatch="*")
            return True
        except ClientError as error:
            if _status(error) in (409, 412):
                return False
            raise

    def _creator(self, name: str) -> str | None:
        """The mark of the call that created the object, empty for another writer's; None: there is no object."""
        try:
            return self._s3.head_object(Bucket=self._bucket, Key=self._key(name))["Metadata"].get(_CREATOR, "")
        except ClientError as error:
            if _status(error) == 404:
                return None
            raise

    def _key(self, name: str) -> str:
        return self._prefix + name

    @contextlib.contextmanager
    def _outages(self, name: str) -> Iterator[None]:
        try:
            yield
        except ClientError as error:
            if _code(error) == "NoSuchKey":
                raise ObjectMissing(name) from None
            raise StoreUnavailable(f"{self.uri}/{name}: {error}") from error
        except BotoCoreError as error:
            raise StoreUnavailable(f"{self.uri}/{name}: {error}") from error


class SegmentAppender:
    """Lines gathered for SEGMENT_SECONDS and put as `<prefix>/<number>.jsonl`, each once and for ever.

    While the store is out of reach the lines are kept in memory and tried again; `flush` and `close` raise then.
    """

    def __init__(self, store: S3Store, prefix: str) -> None:
        self._store = store
        self._prefix = prefix
        self._lines: list[bytes] = []
        self._segment = b""  # being put; kept as it is until it is known to be there
        self._number = 0
        self._lock = threading.Lock()
        self._putting = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._put_regularly, name=f"segments {prefix}", daemon=True)
        self._thread.start()

    def append(self, line: bytes) -> None:
        with self._lock:
            self._lines.append(line)

    def flush(self) -> None:
        with self._putting:
            while self._segment or self._lines:
                if not self._segment:
                    with self._lock:
                        lines, self._lines = self._lines, []
                    self._segment = b"\n".join(lines) + b"\n"
                self._put(self._segment)
                self._segment = b""

    def close(self) -> None:
        self._closed.set()
        self._thread.join()
        self.flush()

    def _put(self, segment: bytes) -> None:
        # A number is taken where a put that seemed to fail did succeed, or by this writer before it was started again.
        name = self._name()
        while not (self._store.create(name, segment) or self._store.read(name) == segment):
            self._number += 1
            name = self._name()
        self._number += 1

    def _name(self) -> str:
        return f"{self._prefix}/{self._number:08d}.jsonl"

    def _put_regularly(self) -> None:
        while not self._closed.wait(SEGMENT_SECONDS):
            with contextlib.suppress(StoreUnavailable):  # kept, and tried again next time
                self.flush()


def _client() -> "S3Client":
    retries: dict[str, Any] = {"mode": "standard"}
    if "AWS_MAX_ATTEMPTS" not in os.environ:
        retries["total_max_attempts"] = _ATTEMPTS
    config = Config(retries=retries, connect_timeout=10, read_timeout=60)  # type: ignore[arg-type]
    # A session of its own: boto3's shared one must not be used from two threads at once.
    return boto3.session.Session().client("s3", config=config)


def _status(error: ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))
