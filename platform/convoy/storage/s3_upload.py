"""Large new objects on S3: one PUT, or a multipart upload with its parts in parallel."""

import contextlib
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

from convoy.storage.base import StoreUnavailable
from convoy.storage.checksum import as_s3_header, crc32c
from convoy.storage.s3_client import code, pause, status
from convoy.storage.thread_map import in_parallel

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import CompletedPartTypeDef

CREATOR = "convoy-creator"
"""Metadata that names the call which made an object: by it a call whose reply was lost knows its own."""

_SMALLEST_PART = 5 * 2**20
"""S3 takes no smaller one, but for the last."""

_CONFLICT_TRIES = 8


@dataclass(frozen=True)
class Place:
    """Where an object goes, and how it is kept."""

    s3: "S3Client"
    bucket: str
    key: str
    options: dict[str, Any]
    """Encryption and storage class."""


def put_if_absent(place: Place, data: bytes) -> bool:
    """True: the object is there, made by this call. False: another was there before. Raises botocore's errors."""
    creator = uuid.uuid4().hex
    return _only_once(place, creator, lambda: _put(place, data, creator))


def put_new(place: Place, data: memoryview, chunk_bytes: int, threads: int) -> list[int]:
    """Put an object that must not exist yet: the CRC32C of each chunk. Raises botocore's errors, StoreUnavailable."""
    creator = uuid.uuid4().hex
    if len(data) <= chunk_bytes:
        body = bytes(data)
        if not _only_once(place, creator, lambda: _put(place, body, creator)):
            raise _taken(place)
        return [crc32c(body)] if body else []
    upload = place.s3.create_multipart_upload(
        Bucket=place.bucket, Key=place.key, ChecksumAlgorithm="CRC32C", Metadata={CREATOR: creator}, **place.options
    )["UploadId"]
    try:
        parts, checksums = _upload_parts(place, upload, data, chunk_bytes, threads)
        if not _only_once(place, creator, lambda: _complete(place, upload, parts)):
            raise _taken(place)
        return checksums
    except BaseException:
        with contextlib.suppress(BotoCoreError, ClientError):
            place.s3.abort_multipart_upload(Bucket=place.bucket, Key=place.key, UploadId=upload)
        raise


def _upload_parts(
    place: Place, upload: str, data: memoryview, chunk_bytes: int, threads: int
) -> tuple[list["CompletedPartTypeDef"], list[int]]:
    part_bytes = chunk_bytes * -(-_SMALLEST_PART // chunk_bytes)

    def send(index: int) -> tuple["CompletedPartTypeDef", list[int]]:
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

    sent = in_parallel(send, -(-len(data) // part_bytes), threads)
    return [part for part, _ in sent], [checksum for _, checksums in sent for checksum in checksums]


def _put(place: Place, body: bytes, creator: str) -> None:
    place.s3.put_object(
        Bucket=place.bucket,
        Key=place.key,
        Body=body,
        ChecksumAlgorithm="CRC32C",
        ChecksumCRC32C=as_s3_header(crc32c(body)),
        Metadata={CREATOR: creator},
        IfNoneMatch="*",
        **place.options,
    )


def _complete(place: Place, upload: str, parts: list["CompletedPartTypeDef"]) -> None:
    place.s3.complete_multipart_upload(
        Bucket=place.bucket, Key=place.key, UploadId=upload, MultipartUpload={"Parts": parts}, IfNoneMatch="*"
    )


def _only_once(place: Place, creator: str, make: Any) -> bool:
    """Call `make` until it is known who made the object: True if it was this call, else False."""
    for tried in range(_CONFLICT_TRIES):
        try:
            make()
            return True
        except ClientError as error:
            # 412: the object exists. 409: another request for it is under way. 404: the upload is no longer there,
            # which is also the answer to completing it again after a lost reply.
            if status(error) not in (409, 412) and code(error) != "NoSuchUpload":
                raise
            gone = error if code(error) == "NoSuchUpload" else None
        made_by = _creator(place)
        if made_by is not None:
            return made_by == creator
        if gone is not None:
            raise gone
        pause(tried)
    raise StoreUnavailable(f"s3://{place.bucket}/{place.key}: {_CONFLICT_TRIES} conflicts (409) in a row")


def _creator(place: Place) -> str | None:
    """The mark of the call that made the object, empty for another writer's; None: there is no object."""
    try:
        return place.s3.head_object(Bucket=place.bucket, Key=place.key)["Metadata"].get(CREATOR, "")
    except ClientError as error:
        if status(error) == 404:
            return None
        raise


def _taken(place: Place) -> StoreUnavailable:
    return StoreUnavailable(f"s3://{place.bucket}/{place.key}: an object of that name is there already")
