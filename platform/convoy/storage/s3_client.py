"""boto's client as Convoy's stores use it: what its errors mean, reads that continue where a reply broke off, and new
objects, large ones by a multipart upload with its parts in parallel."""

import contextlib
import functools
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from convoy.config.checkpoint import StoreConfig
from convoy.storage.base import ObjectMissing, StoreUnavailable
from convoy.storage.checksum import as_s3_header, crc32c
from convoy.storage.resuming import BROKEN_OFF, TRIES, broken_off, fill, pause_before_retry, receive_body
from convoy.storage.thread_map import in_parallel

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import CompletedPartTypeDef


_ATTEMPTS = 8
_CONNECTIONS = 64
"""More than anything here has threads; only those that are used are opened."""

_BROKEN_OFF = (*BROKEN_OFF, BotoCoreError)


def make_client(config: StoreConfig, read_timeout_seconds: float) -> "S3Client":
    """A request is tried `AWS_MAX_ATTEMPTS` times, or 8."""
    retries: dict[str, Any] = {"mode": "standard"}
    if "AWS_MAX_ATTEMPTS" not in os.environ:
        retries["total_max_attempts"] = _ATTEMPTS
    settings = Config(
        retries=retries,  # type: ignore[arg-type]
        # urllib3 also gives up by it on a request's body that the other side does not take.
        connect_timeout=min(10.0, read_timeout_seconds),
        read_timeout=read_timeout_seconds,
        max_pool_connections=_CONNECTIONS,
        # What is put in bulk has its CRC32C in a header. boto would not see that and sign each body with SHA-256 too,
        # even over TLS, for more CPU time than all the rest takes.
        s3={"payload_signing_enabled": False},
        # Ranges come without a checksum, and small objects ask for theirs where they are read.
        response_checksum_validation="when_required",
    )
    # A session of its own, as they must not be used from two threads at once. botocore's, which is what boto3 wraps.
    session = botocore.session.Session()
    session.register_component("data_loader", _data_loader())
    return cast("S3Client", session.create_client("s3", config=settings, endpoint_url=config.endpoint_url))


@functools.cache
def _data_loader() -> Any:
    """One for all sessions: it keeps the descriptions of S3 and its endpoints, which take 0.1 s to read."""
    return botocore.session.Session().get_component("data_loader")


def http_status(error: ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def error_code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


@contextlib.contextmanager
def as_outages(uri: str, name: str) -> Iterator[None]:
    """A missing object is ObjectMissing, every other error StoreUnavailable."""
    try:
        yield
    except ClientError as error:
        if error_code(error) == "NoSuchKey":
            raise ObjectMissing(name) from None
        raise StoreUnavailable(f"{uri}/{name}: {error}") from error
    except BotoCoreError as error:
        raise StoreUnavailable(f"{uri}/{name}: {error}") from error


def read_rest(s3: "S3Client", bucket: str, key: str, start: int) -> bytes:
    """All bytes from `start` on. Raises botocore's errors, StoreUnavailable where replies keep breaking off."""
    # The checksum that S3 keeps is that of the whole object.
    how: Any = {"Range": f"bytes={start}-"} if start else {"ChecksumMode": "ENABLED"}
    for tried in range(TRIES):
        try:
            reply = s3.get_object(Bucket=bucket, Key=key, **how)
        except ClientError as error:
            if error_code(error) == "InvalidRange":  # nothing there from `start` on
                return b""
            raise
        try:
            return reply["Body"].read()
        except _BROKEN_OFF as error:
            reason = str(error)
        pause_before_retry(tried)
    raise broken_off(f"s3://{bucket}/{key}", reason)


def read_range(s3: "S3Client", bucket: str, key: str, start: int, buffer: memoryview) -> int:
    """Fill the buffer from byte `start` on; how many bytes there were. A reply that breaks off is continued.

    Raises as `read_rest`.
    """
    return fill(lambda at, rest: _receive(s3, bucket, key, at, rest), f"s3://{bucket}/{key}", start, buffer)


def _receive(s3: "S3Client", bucket: str, key: str, start: int, buffer: memoryview) -> tuple[int, int, str]:
    """As `Receive`."""
    try:
        reply = s3.get_object(Bucket=bucket, Key=key, Range=f"bytes={start}-{start + len(buffer) - 1}")
    except ClientError as error:
        if error_code(error) == "InvalidRange":  # nothing there from `start` on
            return 0, 0, ""
        raise
    promised = reply["ContentLength"]
    if promised > len(buffer):
        raise StoreUnavailable(f"s3://{bucket}/{key}: sent {promised} bytes where {len(buffer)} were requested")
    with reply["Body"] as body:
        received, reason = receive_body(body, _raw_body(body), promised, buffer, _BROKEN_OFF)
    return received, promised, reason


def _raw_body(body: Any) -> Any:
    """What receives into a buffer: urllib3's own `readinto` copies each byte once more, http.client's does not."""
    return getattr(getattr(body, "_raw_stream", None), "_fp", None) or body


CREATOR = "convoy-creator"
"""Metadata that names the call which made an object: by it a call whose reply was lost knows its own."""

_MIN_PART = 5 * 2**20
"""S3 takes no smaller one, but for the last."""

_CONFLICT_TRIES = 8


@dataclass(frozen=True)
class ObjectTarget:
    """Where an object goes, and how it is kept."""

    s3: "S3Client"
    bucket: str
    key: str
    options: dict[str, Any]
    """Encryption and storage class."""


def put_object(place: ObjectTarget, body: bytes, **options: Any) -> None:
    """Put an object with its checksum, replacing what was there. Raises botocore's errors."""
    checksum = as_s3_header(crc32c(body))
    options = {"ChecksumAlgorithm": "CRC32C", "ChecksumCRC32C": checksum, **place.options, **options}
    place.s3.put_object(Bucket=place.bucket, Key=place.key, Body=body, **options)


def put_if_absent(place: ObjectTarget, data: bytes) -> bool:
    """True: the object is there, made by this call. False: another was there before. Raises botocore's errors."""
    creator = uuid.uuid4().hex
    return _create_once(place, creator, lambda: _put(place, data, creator))


def put_new(place: ObjectTarget, data: memoryview, chunk_bytes: int, threads: int) -> list[int]:
    """Put an object that must not exist yet: the CRC32C of each chunk. Raises botocore's errors, StoreUnavailable."""
    creator = uuid.uuid4().hex
    if len(data) <= chunk_bytes:
        body = bytes(data)
        if not _create_once(place, creator, lambda: _put(place, body, creator)):
            raise _exists_error(place)
        return [crc32c(body)] if body else []
    upload = place.s3.create_multipart_upload(
        Bucket=place.bucket, Key=place.key, ChecksumAlgorithm="CRC32C", Metadata={CREATOR: creator}, **place.options
    )["UploadId"]
    try:
        parts, checksums = _upload_parts(place, upload, data, chunk_bytes, threads)
        if not _create_once(place, creator, lambda: _complete(place, upload, parts)):
            raise _exists_error(place)
        return checksums
    except BaseException:
        with contextlib.suppress(BotoCoreError, ClientError):
            place.s3.abort_multipart_upload(Bucket=place.bucket, Key=place.key, UploadId=upload)
        raise


def _upload_parts(
    place: ObjectTarget, upload: str, data: memoryview, chunk_bytes: int, threads: int
) -> tuple[list["CompletedPartTypeDef"], list[int]]:
    part_bytes = chunk_bytes * -(-_MIN_PART // chunk_bytes)

    def send_part(index: int) -> tuple["CompletedPartTypeDef", list[int]]:
        with data[index * part_bytes : (index + 1) * part_bytes] as part:
            checksums = [crc32c(part[at : at + chunk_bytes]) for at in range(0, len(part), chunk_bytes)]
            whole = as_s3_header(checksums[0] if len(checksums) == 1 else crc32c(part))
            # boto takes no memoryview; read in blocks from a file-like object, the copying would take longer.
            body = bytes(part)
        number = index + 1
        tag = place.s3.upload_part(
            Bucket=place.bucket, Key=place.key, UploadId=upload, PartNumber=number, Body=body, ChecksumCRC32C=whole
        )["ETag"]
        return {"PartNumber": number, "ETag": tag, "ChecksumCRC32C": whole}, checksums

    sent = in_parallel(send_part, -(-len(data) // part_bytes), threads)
    return [part for part, _ in sent], [checksum for _, checksums in sent for checksum in checksums]


def _put(place: ObjectTarget, body: bytes, creator: str) -> None:
    put_object(place, body, Metadata={CREATOR: creator}, IfNoneMatch="*")


def _complete(place: ObjectTarget, upload: str, parts: list["CompletedPartTypeDef"]) -> None:
    place.s3.complete_multipart_upload(
        Bucket=place.bucket, Key=place.key, UploadId=upload, MultipartUpload={"Parts": parts}, IfNoneMatch="*"
    )


def _create_once(place: ObjectTarget, creator: str, make: Any) -> bool:
    """Call `make` until it is known who made the object: True if it was this call, else False."""
    for tried in range(_CONFLICT_TRIES):
        try:
            make()
            return True
        except ClientError as error:
            # 412: the object exists. 409: another request for it is under way. 404: the upload is no longer there,
            # which is also the answer to completing it again after a lost reply.
            if http_status(error) not in (409, 412) and error_code(error) != "NoSuchUpload":
                raise
            gone = error if error_code(error) == "NoSuchUpload" else None
        made_by = _read_creator(place)
        if made_by is not None:
            return made_by == creator
        if gone is not None:
            raise gone
        pause_before_retry(tried)
    raise StoreUnavailable(f"s3://{place.bucket}/{place.key}: {_CONFLICT_TRIES} conflicts (409) in a row")


def _read_creator(place: ObjectTarget) -> str | None:
    """The mark of the call that made the object, empty for another writer's; None: there is no object."""
    try:
        return place.s3.head_object(Bucket=place.bucket, Key=place.key)["Metadata"].get(CREATOR, "")
    except ClientError as error:
        if http_status(error) == 404:
            return None
        raise


def _exists_error(place: ObjectTarget) -> StoreUnavailable:
    return StoreUnavailable(f"s3://{place.bucket}/{place.key}: an object of that name is there already")
