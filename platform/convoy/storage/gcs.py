"""Objects in a bucket of Google Cloud Storage.

Credentials come from the library's own chain (application default credentials). With `STORAGE_EMULATOR_HOST`, the
library's own variable too, an emulator is asked, without any.
"""

from contextlib import AbstractContextManager
from email.utils import parsedate_to_datetime
from urllib.parse import urlencode

from convoy.storage.base import ObjectInfo, check_name, check_prefix, is_object_name, prove
from convoy.storage.gcs_client import (
    GcsBucket,
    Source,
    as_outages,
    create_if_absent,
    delete_object,
    get,
    open_bucket,
    put_new,
    read_range,
    read_rest,
    replace,
)
from convoy.storage.log import SEGMENT_SECONDS, BackgroundLog, SegmentSink

_COPIED_BYTES = 8 * 2**20
"""Of an object that is written whole, at a time."""


class GcsStore:
    """A Store under `gs://bucket/prefix`. Creation only if absent uses the precondition `ifGenerationMatch=0`.

    A request is repeated as the library does, with growing pauses for two minutes, before the store counts as out of
    reach. Google takes about one write per second of the same name, and has more of them wait in this way.
    """

    def __init__(self, uri: str, read_timeout_seconds: float = 60.0) -> None:
        """read_timeout_seconds: how long a connection may be silent before its request counts as failed.

        Raises ConfigError where the library is not installed, or the bucket's name cannot be one.
        """
        bucket, _, prefix = uri.removeprefix("gs://").partition("/")
        self.uri = uri.rstrip("/")
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        with self._as_outages(""):
            self._bucket: GcsBucket = open_bucket(uri, bucket, read_timeout_seconds)

    def create(self, name: str, data: bytes, *, private: bool = False) -> bool:
        with self._as_outages(name):
            return create_if_absent(self._bucket, self._key(name), lambda: _whole(data))

    def write(self, name: str, data: bytes) -> None:
        with self._as_outages(name):
            replace(self._bucket, self._key(name), lambda: _whole(data))

    def put(self, name: str, data: memoryview, chunk_bytes: int, threads: int = 4) -> list[int]:
        """One upload, whatever `threads`: parts that are composed later would be objects of their own until then, and
        stay behind a process that dies. The writers of a gang upload at the same time."""
        with self._as_outages(name):
            return put_new(self._bucket, self._key(name), data, chunk_bytes)

    def read(self, name: str, start: int = 0) -> bytes:
        with self._as_outages(name, reads=True):
            return read_rest(self._bucket, self._key(name), start)

    def read_into(self, name: str, start: int, buffer: memoryview) -> int:
        with self._as_outages(name, reads=True):
            return read_range(self._bucket, self._key(name), start, buffer)

    def sizes(self, prefix: str) -> dict[str, int]:
        return {name: info.bytes for name, info in self.listing(prefix).items()}

    def top_folders(self) -> list[str]:
        with self._as_outages(""):
            pages = self._bucket.list(self._prefix, delimiter="/", fields="prefixes,nextPageToken")
            for _ in pages:  # the folders are known once all pages were read
                pass
        return sorted(folder[len(self._prefix) : -1] for folder in pages.prefixes)

    def listing(self, prefix: str) -> dict[str, ObjectInfo]:
        objects: dict[str, ObjectInfo] = {}
        with self._as_outages(prefix):
            fields = "items(name,size,timeCreated),nextPageToken"
            for blob in self._bucket.list(self._key_prefix(prefix), fields=fields):
                name = blob.name[len(self._prefix) :]
                if is_object_name(name):  # a bucket takes other names too: those of folders, which end with a slash
                    objects[name] = ObjectInfo(blob.size or 0, blob.time_created.timestamp())
        return objects

    def delete(self, name: str) -> None:
        with self._as_outages(name):
            delete_object(self._bucket, self._key(name))

    def drop_cache(self, name: str) -> None:
        """Nothing is cached on this host."""

    def now(self) -> float:
        with self._as_outages(""):
            # The account may be allowed to list what is below the prefix only.
            query = urlencode({"prefix": self._prefix, "maxResults": 1, "fields": "kind"})
            reply = get(self._bucket, f"/storage/v1{self._bucket.path}/o?{query}")
        return parsedate_to_datetime(reply.headers["Date"]).timestamp()

    def prove(self) -> None:
        prove(self)

    def probe_write(self, name: str) -> None:
        self.write(name, b"probe")
        self.read(name)

    def abort_multipart_uploads(self, prefix: str, begun_before: float, spared: tuple[str, ...] = ()) -> int:
        """0: a resumable upload that was not finished is in no listing, and expires by itself after a week."""
        return 0

    def open_log(self, prefix: str) -> BackgroundLog:
        return BackgroundLog(SegmentSink(self, prefix), f"{self.uri}/{prefix}", SEGMENT_SECONDS)

    def _key(self, name: str) -> str:
        check_name(self.uri, name)
        return self._prefix + name

    def _key_prefix(self, prefix: str) -> str:
        check_prefix(self.uri, prefix)
        return self._prefix + prefix

    def _as_outages(self, name: str, reads: bool = False) -> AbstractContextManager[None]:
        return as_outages(self.uri, name, reads)


def _whole(data: bytes) -> Source:
    return Source(memoryview(data), _COPIED_BYTES)
