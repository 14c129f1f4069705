"""Google's client as Convoy's store uses it: what its errors mean, reads that continue where a reply broke off, and new
objects, large ones by one resumable upload that becomes visible when its last byte has come.

This module needs the extra `gcs`.
"""

import contextlib
import http
import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import requests
from google.api_core import exceptions
from google.auth.exceptions import GoogleAuthError
from google.cloud import storage
from google.cloud.storage.exceptions import DataCorruption, InvalidResponse
from google.cloud.storage.retry import DEFAULT_RETRY
from requests.adapters import HTTPAdapter

from convoy.config.errors import ConfigError, one_line
from convoy.storage.base import ObjectMissing, StoreUnavailable
from convoy.storage.checksum import as_s3_header, crc32c
from convoy.storage.resuming import BROKEN_OFF, TRIES, fill, pause_before_retry, receive_body
from convoy.storage.usage import count_gcs_reply, count_gcs_request

RETRY = DEFAULT_RETRY
"""For two minutes, with pauses that double from 1 s: connections that fail, 408, 429 and 5xx."""

CREATOR = "convoy-creator"
"""Metadata that names the call which made an object: by it a call whose reply was lost knows its own."""

_CONNECTIONS = 64
"""More than anything here has threads; only those that are used are opened."""

_UPLOAD_BYTES = 32 * 2**20
"""Of a resumable upload's requests: so much of the object is copied at a time. A multiple of 256 KiB."""

_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/")

_NO_BUCKET = re.compile(r"bucket (\S+ )?does not exist", re.IGNORECASE)
"""A missing object and a missing bucket are both 404, and differ in their text only."""

_CONFLICTS = (308, 404, 409, 410, 412)
"""412: the object exists. 409: another request for it is under way. 404 and 410: the resumable upload is no longer
there. 308: nothing of it is there yet, after a request that the library took for its first."""

_UPLOAD_ID = re.compile(r"(upload_id=)[\w%.-]+")
"""Whoever knows it can write the object, without credentials."""

_ERRORS = (exceptions.GoogleAPIError, GoogleAuthError, InvalidResponse, DataCorruption, *BROKEN_OFF)


@dataclass(frozen=True)
class GcsBucket:
    """A bucket, and how it is asked."""

    client: Any
    """Google's, for one bucket: threads may share it."""
    name: str
    timeout: float
    """Seconds that a connection may be silent. As long may it take to connect: urllib3 gives the same time to send the
    whole body of a connection's first request."""

    @property
    def path(self) -> str:
        return f"/b/{self.name}"

    def blob(self, key: str) -> Any:
        """The handle of an object; nothing is asked."""
        return self.client.bucket(self.name).blob(key)

    def list(self, prefix: str, fields: str, delimiter: str | None = None) -> Any:
        """Iterates over the objects, page by page."""
        return self.client.list_blobs(
            self.name, prefix=prefix, fields=fields, delimiter=delimiter, timeout=self.timeout, retry=RETRY
        )


class _Adapter(HTTPAdapter):
    """Counts every request as it is sent, repeated ones too."""

    def __init__(self, bucket: str) -> None:
        super().__init__(pool_maxsize=_CONNECTIONS)
        self._bucket = bucket

    def send(self, request: Any, *args: Any, **kwargs: Any) -> requests.Response:
        count_gcs_request(self._bucket, request.method, request.url, request.headers.get("Content-Length"))
        reply = super().send(request, *args, **kwargs)
        count_gcs_reply(self._bucket, request.url, reply.headers.get("Content-Length"))
        return reply


def open_bucket(uri: str, name: str, read_timeout_seconds: float) -> GcsBucket:
    """Raises ConfigError for what is no bucket's name, and Google's errors where there are no credentials."""
    client = storage.Client(project=None)  # objects need no project
    try:
        client.bucket(name)
    except (ValueError, IndexError):
        raise ConfigError(f"{uri}: {name!r} is no bucket's name") from None
    # Or the library asks for the bucket's own metadata from threads of its own, for traces that nobody collects.
    client._bucket_metadata_cache = None
    for scheme in ("https://", "http://"):
        client._http.mount(scheme, _Adapter(name))
    return GcsBucket(client, name, read_timeout_seconds)


@contextlib.contextmanager
def as_outages(uri: str, name: str, reads: bool = False) -> Iterator[None]:
    """Every error is StoreUnavailable, but ObjectMissing where a missing object is read."""
    try:
        yield
    except StoreUnavailable:
        raise
    except _ERRORS as error:
        if reads and isinstance(error, exceptions.NotFound) and not _is_no_bucket(error):
            raise ObjectMissing(name) from None
        raise StoreUnavailable(f"{uri}/{name}: {_describe(error)}") from error


def _describe(error: Exception) -> str:
    """The error in one line, without what would let others write."""
    return _UPLOAD_ID.sub(r"\1...", one_line(error))


def _is_no_bucket(error: exceptions.GoogleAPICallError) -> bool:
    return error.code == 404 and _NO_BUCKET.search(str(error)) is not None


def get(bucket: GcsBucket, target: str, headers: dict[str, str] | None = None, stream: bool = False) -> Any:
    """The reply to a GET, repeated as the library does. target: path and query. Raises Google's errors."""

    def ask() -> Any:
        url = f"{bucket.client.api_endpoint}{target}"
        reply = bucket.client._http.get(url, headers=headers, stream=stream, timeout=bucket.timeout)
        if not reply.ok:
            raise exceptions.from_http_response(reply)  # type: ignore[no-untyped-call]
        return reply

    return RETRY(ask)()


def read_rest(bucket: GcsBucket, key: str, start: int) -> bytes:
    """All bytes from `start` on, of one reply: the library's own download continues one that broke off, and then
    compares no checksum. Raises Google's errors, StoreUnavailable where the checksum stays wrong.
    """
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
    for tried in range(TRIES):
        try:
            reply = get(bucket, _media(bucket, key), headers)
        except exceptions.RequestRangeNotSatisfiable:  # nothing there from `start` on
            return b""
        data: bytes = reply.content
        # The checksum that Google keeps is that of the whole object.
        if start and reply.status_code == http.HTTPStatus.PARTIAL_CONTENT:
            return data
        if f"crc32c={as_s3_header(crc32c(data))}" in re.split(", *", reply.headers.get("x-goog-hash", "")):
            return data[start:]
        pause_before_retry(tried)
    raise StoreUnavailable(f"gs://{bucket.name}/{key}: {TRIES} replies in a row did not have the object's checksum")


def read_range(bucket: GcsBucket, key: str, start: int, buffer: memoryview) -> int:
    """Fill the buffer from byte `start` on; how many bytes there were. A reply that breaks off is continued.

    Raises Google's errors, StoreUnavailable where replies keep breaking off.
    """
    return fill(lambda at, rest: _receive(bucket, key, at, rest), f"gs://{bucket.name}/{key}", start, buffer)


def _receive(bucket: GcsBucket, key: str, start: int, buffer: memoryview) -> tuple[int, int, str]:
    """As `Receive`."""
    headers = {"Range": f"bytes={start}-{start + len(buffer) - 1}", "Accept-Encoding": "identity"}
    try:
        reply = get(bucket, _media(bucket, key), headers, stream=True)
    except exceptions.RequestRangeNotSatisfiable:  # nothing there from `start` on
        return 0, 0, ""
    with reply:
        sent = reply.headers.get("Content-Range", "nothing that it says")
        found = _CONTENT_RANGE.match(sent)
        promised = int(found[2]) - start + 1 if found and int(found[1]) == start else 0
        if not 0 < promised <= len(buffer):
            raise StoreUnavailable(f"gs://{bucket.name}/{key}: sent {sent} where {headers['Range']} was requested")
        # urllib3's own `readinto` copies each byte once more, http.client's does not.
        received, reason = receive_body(reply.raw, getattr(reply.raw, "_fp", reply.raw), promised, buffer)
    return received, promised, reason


def _media(bucket: GcsBucket, key: str) -> str:
    """Path and query of the object's content."""
    return f"/download/storage/v1{bucket.blob(key).path}?alt=media"


def upload(bucket: GcsBucket, key: str, source: "Source", creator: str | None = None) -> None:
    """Write an object with its checksum, replacing what was there; with a creator, only if nothing was there.

    Up to 8 MiB are one request, more a resumable upload. Raises Google's errors.
    """
    blob = bucket.blob(key)
    blob.chunk_size = _UPLOAD_BYTES  # of a handle that reads, the library would then check no sum
    if creator is not None:
        blob.metadata = {CREATOR: creator}
    blob.upload_from_file(
        source,
        size=source.bytes,
        checksum="crc32c",
        if_generation_match=None if creator is None else 0,
        timeout=bucket.timeout,
        retry=RETRY,
    )


def create_if_absent(bucket: GcsBucket, key: str, source: Callable[[], "Source"]) -> bool:
    """True: the object is there, made by this call. False: another was there before. source: opened for each try.

    Raises Google's errors, StoreUnavailable.
    """
    creator = uuid.uuid4().hex
    for tried in range(TRIES):
        try:
            upload(bucket, key, source(), creator)
            return True
        except (exceptions.GoogleAPICallError, ValueError) as error:
            reason = _conflict(error)
        made_by = _read_creator(bucket, key)
        if made_by is not None:
            return made_by == creator
        pause_before_retry(tried)
    raise _conflicts(bucket, key, reason)


def replace(bucket: GcsBucket, key: str, source: Callable[[], "Source"]) -> None:
    """Write the object, whether or not there was one. source: opened for each try.

    Raises Google's errors, StoreUnavailable.
    """
    for tried in range(TRIES):
        try:
            return upload(bucket, key, source())
        except (exceptions.GoogleAPICallError, ValueError) as error:
            reason = _conflict(error)
        pause_before_retry(tried)
    raise _conflicts(bucket, key, reason)


def _conflict(error: exceptions.GoogleAPICallError | ValueError) -> str:
    """Why an upload is to be tried again from its beginning. Raises an error for which it is not."""
    # ValueError: the library does not continue an upload of which the server kept a part of a request.
    if not isinstance(error, ValueError) and (error.code not in _CONFLICTS or _is_no_bucket(error)):
        raise error
    return _describe(error)


def _conflicts(bucket: GcsBucket, key: str, reason: str) -> StoreUnavailable:
    return StoreUnavailable(f"gs://{bucket.name}/{key}: {TRIES} conflicts in a row: {reason}")


def put_new(bucket: GcsBucket, key: str, data: memoryview, chunk_bytes: int) -> list[int]:
    """Put an object that must not exist yet: the CRC32C of each chunk. Raises Google's errors, StoreUnavailable."""
    sources: list[Source] = []

    def opened() -> Source:
        sources.append(Source(data, chunk_bytes))
        return sources[-1]

    if not create_if_absent(bucket, key, opened):
        raise StoreUnavailable(f"gs://{bucket.name}/{key}: an object of that name is there already")
    while sources[-1].read(chunk_bytes):  # the last try ends early where one before it has made the object after all
        pass
    return sources[-1].checksums


def delete_object(bucket: GcsBucket, key: str) -> None:
    """No error if it is absent. Raises Google's errors."""
    try:
        bucket.blob(key).delete(timeout=bucket.timeout, retry=RETRY)
    except exceptions.NotFound as error:
        if _is_no_bucket(error):
            raise


def _read_creator(bucket: GcsBucket, key: str) -> str | None:
    """The mark of the call that made the object, empty for another writer's; None: there is no object."""
    blob = bucket.blob(key)
    try:
        blob.reload(timeout=bucket.timeout, retry=RETRY)
    except exceptions.NotFound:
        return None
    return str((blob.metadata or {}).get(CREATOR, ""))


class Source:
    """A file of a buffer's bytes for the library to read, copied as they are read. Of the buffer whole chunks are
    taken, each once: it may be one that reads and checks them only then."""

    def __init__(self, data: memoryview, chunk_bytes: int) -> None:
        self.bytes = len(data)
        self.checksums: list[int] = []
        """CRC32C of each chunk that was taken."""
        self._data = data
        self._chunk_bytes = chunk_bytes
        self._taken = 0
        self._rest = memoryview(b"")
        """Of the last chunk, what was not read yet."""

    def tell(self) -> int:
        return self._taken - len(self._rest)

    def read(self, count: int) -> bytes:
        pieces = list[memoryview]()
        while count > 0 and (self._rest or self._taken < self.bytes):
            if not self._rest:
                self._take_chunk()
            pieces.append(self._rest[:count])
            self._rest = self._rest[count:]
            count -= len(pieces[-1])
        return b"".join(pieces)

    def _take_chunk(self) -> None:
        stop = min(self._taken + self._chunk_bytes, self.bytes)
        with self._data[self._taken : stop] as chunk:
            self.checksums.append(crc32c(chunk))
            self._rest = memoryview(bytes(chunk))
        self._taken = stop
