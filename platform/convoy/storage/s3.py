"""Objects in an S3 bucket. Credentials, region and endpoint (`AWS_ENDPOINT_URL`) come from boto's own chain."""

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from convoy.storage.base import ObjectMissing, StoreUnavailable

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

SEGMENT_SECONDS = 3.0
"""A segment of a log is put at most this long after its first line."""

_CONFLICT_TRIES = 5


class S3Store:
    """A Store under `s3://bucket/prefix`. Creation only if absent uses S3's `If-None-Match: *`."""

    def __init__(self, uri: str) -> None:
        bucket, _, prefix = uri.removeprefix("s3://").partition("/")
        self.uri = uri.rstrip("/")
        self._bucket = bucket
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        retries = Config(retries={"max_attempts": 8, "mode": "standard"}, connect_timeout=10, read_timeout=60)
        self._s3: S3Client = boto3.client("s3", config=retries)

    def create(self, name: str, data: bytes) -> bool:
        for _ in range(_CONFLICT_TRIES):
            try:
                with self._outages(name):
                    self._s3.put_object(Bucket=self._bucket, Key=self._key(name), Body=data, IfNoneMatch="*")
                return True
            except _Refused as refusal:
                if refusal.status == 412:
                    # Also the answer to our own retry after a lost reply: whose bytes are there decides.
                    return self.read(name) == data
        raise StoreUnavailable(f"{self.uri}/{name}: {_CONFLICT_TRIES} conflicts (409) in a row")

    def write(self, name: str, data: bytes) -> None:
        with self._outages(name):
            self._s3.put_object(Bucket=self._bucket, Key=self._key(name), Body=data)

    def read(self, name: str, start: int = 0) -> bytes:
        span = {"Range": f"bytes={start}-"} if start else {}
        with self._outages(name):
            reply = self._s3.get_object(Bucket=self._bucket, Key=self._key(name), **span)  # type: ignore[arg-type]
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

    def _key(self, name: str) -> str:
        return self._prefix + name

    @contextlib.contextmanager
    def _outages(self, name: str) -> Iterator[None]:
        try:
            yield
        except ClientError as error:
            status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
            code = error.response.get("Error", {}).get("Code", "")
            if status in (409, 412):
                raise _Refused(status) from error
            if code in ("NoSuchKey", "404"):
                raise ObjectMissing(name) from None
            raise StoreUnavailable(f"{self.uri}/{name}: {code}: {error}") from error
        except BotoCoreError as error:
            raise StoreUnavailable(f"{self.uri}/{name}: {error}") from error


class _Refused(Exception):
    """A conditional request was refused: 412 the object exists, 409 another request is under way."""

    def __init__(self, status: int) -> None:
        self.status = status


class SegmentAppender:
    """Lines gathered for SEGMENT_SECONDS and put as `<prefix>/<number>.jsonl`, each once and for ever."""

    def __init__(self, store: S3Store, prefix: str) -> None:
        self._store = store
        self._prefix = prefix
        self._lines: list[bytes] = []
        self._number = 0
        self._lock = threading.Lock()
        self._putting = threading.Lock()
        self._closed = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._put_regularly, name=f"segments {prefix}", daemon=True)
        self._thread.start()

    def append(self, line: bytes) -> None:
        with self._lock:
            self._lines.append(line)

    def flush(self) -> None:
        with self._putting:
            with self._lock:
                lines, self._lines = self._lines, []
            if not lines:
                return
            try:
                self._store.create(f"{self._prefix}/{self._number:08d}.jsonl", b"\n".join(lines) + b"\n")
                self._number += 1
            except StoreUnavailable:
                with self._lock:
                    self._lines = lines + self._lines
                raise

    def close(self) -> None:
        self._closed.set()
        self._thread.join()
        self.flush()

    def _put_regularly(self) -> None:
        while not self._closed.wait(SEGMENT_SECONDS):
            with contextlib.suppress(StoreUnavailable):  # kept, and tried again next time
                self.flush()
