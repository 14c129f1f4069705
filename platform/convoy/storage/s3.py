"""Objects in an S3 bucket. Credentials, region and endpoint (`AWS_ENDPOINT_URL`) come from boto's own chain."""

from contextlib import AbstractContextManager
from email.utils import parsedate_to_datetime
from typing import Any

from botocore.exceptions import ClientError

from convoy.config.checkpoint import StoreConfig
from convoy.storage.base import ObjectInfo, check_name, check_prefix, is_object_name, prove
from convoy.storage.log import SEGMENT_SECONDS, BackgroundLog, SegmentSink
from convoy.storage.s3_client import (
    ObjectTarget,
    as_outages,
    error_code,
    make_client,
    put_if_absent,
    put_new,
    put_object,
    read_range,
    read_rest,
)
from convoy.storage.usage import register_counting


class S3Store:
    """A Store under `s3://bucket/prefix`. Creation only if absent uses S3's `If-None-Match: *`.

    A request is tried `AWS_MAX_ATTEMPTS` times (default 8) with growing pauses before the store counts as out of reach.
    """

    def __init__(self, uri: str, config: StoreConfig | None = None, read_timeout_seconds: float = 60.0) -> None:
        """read_timeout_seconds: how long a connection may be silent before its request counts as failed."""
        bucket, _, prefix = uri.removeprefix("s3://").partition("/")
        self.uri = uri.rstrip("/")
        self._bucket = bucket
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._config = config or StoreConfig()
        with self._as_outages(""):
            self._s3 = make_client(self._config, read_timeout_seconds)
        register_counting(self._s3, bucket)

    def create(self, name: str, data: bytes, *, private: bool = False) -> bool:
        with self._as_outages(name):
            return put_if_absent(self._object_target(name), data)

    def write(self, name: str, data: bytes) -> None:
        with self._as_outages(name):
            put_object(self._object_target(name), data)

    def put(self, name: str, data: memoryview, chunk_bytes: int, threads: int = 4) -> list[int]:
        with self._as_outages(name):
            return put_new(self._object_target(name, bulk=True), data, chunk_bytes, threads)

    def read(self, name: str, start: int = 0) -> bytes:
        with self._as_outages(name):
            return read_rest(self._s3, self._bucket, self._key(name), start)

    def read_into(self, name: str, start: int, buffer: memoryview) -> int:
        with self._as_outages(name):
            return read_range(self._s3, self._bucket, self._key(name), start, buffer)

    def sizes(self, prefix: str) -> dict[str, int]:
        return {name: info.bytes for name, info in self.listing(prefix).items()}

    def top_folders(self) -> list[str]:
        names: list[str] = []
        with self._as_outages(""):
            pages = self._s3.get_paginator("list_objects_v2")
            for page in pages.paginate(Bucket=self._bucket, Prefix=self._prefix, Delimiter="/"):
                names += [each["Prefix"][len(self._prefix) : -1] for each in page.get("CommonPrefixes", [])]
        return sorted(names)

    def listing(self, prefix: str) -> dict[str, ObjectInfo]:
        objects: dict[str, ObjectInfo] = {}
        with self._as_outages(prefix):
            pages = self._s3.get_paginator("list_objects_v2")
            for page in pages.paginate(Bucket=self._bucket, Prefix=self._key_prefix(prefix)):
                for item in page.get("Contents", []):
                    name = item["Key"][len(self._prefix) :]
                    if is_object_name(name):  # a bucket takes any key: those of folders too, which end with a slash
                        objects[name] = ObjectInfo(item["Size"], item["LastModified"].timestamp())
        return objects

    def delete(self, name: str) -> None:
        with self._as_outages(name):
            self._s3.delete_object(Bucket=self._bucket, Key=self._key(name))

    def drop_cache(self, name: str) -> None:
        """Nothing is cached on this host."""

    def now(self) -> float:
        with self._as_outages(""):
            reply = self._s3.list_objects_v2(Bucket=self._bucket, Prefix=self._prefix, MaxKeys=1)
        return parsedate_to_datetime(reply["ResponseMetadata"]["HTTPHeaders"]["date"]).timestamp()

    def prove(self) -> None:
        prove(self)

    def probe_write(self, name: str) -> None:
        self.write(name, b"probe")
        self.read(name)

    def abort_multipart_uploads(self, prefix: str, begun_before: float, spared: tuple[str, ...] = ()) -> int:
        aborted, keys = 0, tuple(self._key_prefix(name) for name in spared)
        with self._as_outages(prefix):
            pages = self._s3.get_paginator("list_multipart_uploads")
            for page in pages.paginate(Bucket=self._bucket, Prefix=self._key_prefix(prefix)):
                for upload in page.get("Uploads", []):
                    if upload["Initiated"].timestamp() < begun_before and not upload["Key"].startswith(keys):
                        aborted += self._abort_upload(upload["Key"], upload["UploadId"])
        return aborted

    def open_log(self, prefix: str) -> BackgroundLog:
        return BackgroundLog(SegmentSink(self, prefix), f"{self.uri}/{prefix}", SEGMENT_SECONDS)

    def _abort_upload(self, key: str, upload: str) -> bool:
        try:
            self._s3.abort_multipart_upload(Bucket=self._bucket, Key=key, UploadId=upload)
            return True
        except ClientError as error:
            if error_code(error) == "NoSuchUpload":  # it has ended meanwhile
                return False
            raise

    def _object_target(self, name: str, bulk: bool = False) -> ObjectTarget:
        """bulk: the object may be kept in the configured storage class, whatever that is."""
        options: dict[str, Any] = {}
        if self._config.sse_kms_key_id is not None:
            options = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": self._config.sse_kms_key_id}
        storage_class = self._config.storage_class
        # Commits and records are read at every start, and in classes for rare reads each read costs.
        if storage_class == "EXPRESS_ONEZONE" or (bulk and storage_class != "STANDARD"):
            options["StorageClass"] = storage_class
        return ObjectTarget(self._s3, self._bucket, self._key(name), options)

    def _key(self, name: str) -> str:
        check_name(self.uri, name)
        return self._prefix + name

    def _key_prefix(self, prefix: str) -> str:
        check_prefix(self.uri, prefix)
        return self._prefix + prefix

    def _as_outages(self, name: str) -> AbstractContextManager[None]:
        return as_outages(self.uri, name)
