"""How many requests this process has sent to buckets, and how many bytes went each way: what a bill counts.

One tally for all clients of a process, as stores are opened wherever they are needed; a forked process begins anew.
"""

import os
import re
import threading
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_PUTS = frozenset(
    {
        "PutObject", "CopyObject", "CreateMultipartUpload", "UploadPart", "UploadPartCopy", "CompleteMultipartUpload",
        "ListObjectsV2", "ListMultipartUploads", "ListParts",
    }
)  # fmt: skip
"""What S3's price list has as PUT, COPY, POST and LIST."""

_FREE = frozenset({"DeleteObject", "DeleteObjects", "AbortMultipartUpload"})

_HOST = re.compile(r"^https?://[^/]*\bs3[.-]([a-z]{2}(?:-[a-z]+)+-\d)\.amazonaws\.com")
"""s3.amazonaws.com, without a region, may be that of any bucket."""


class BucketRequests(BaseModel):
    """Requests to one bucket. The event log has these names."""

    model_config = ConfigDict(frozen=True)

    bucket: str
    """The name of one of S3; one of Google's begins with `gs://`."""
    region: str | None = None
    """Of the bucket; None: no reply named it, as none of Google's does."""
    puts: int = 0
    """PUT, COPY, POST and LIST, Google's class A; each try counts."""
    gets: int = 0
    """All others, Google's class B, but DELETE, and an upload that is given up, which are free."""
    sent_bytes: int = 0
    received_bytes: int = 0


class RequestCounter:
    """Counts from many threads. Its lock takes 0.1 microseconds of a request that takes milliseconds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, BucketRequests] = {}

    def add(self, counted: BucketRequests) -> None:
        with self._lock:
            total = self._counts.get(counted.bucket, BucketRequests(bucket=counted.bucket))
            self._counts[counted.bucket] = BucketRequests(
                bucket=counted.bucket,
                region=counted.region or total.region,
                puts=total.puts + counted.puts,
                gets=total.gets + counted.gets,
                sent_bytes=total.sent_bytes + counted.sent_bytes,
                received_bytes=total.received_bytes + counted.received_bytes,
            )

    def take(self) -> list[BucketRequests]:
        """What was counted since the last call, for each bucket; a region that is known once stays known. The bytes of
        a reply that came after its request was taken are counted with the bucket's next request."""
        with self._lock:
            taken = [each for each in self._counts.values() if each.puts or each.gets]
            self._counts |= {each.bucket: BucketRequests(bucket=each.bucket, region=each.region) for each in taken}
        return taken


_counters: dict[int, RequestCounter] = {}


def bucket_name(uri: str) -> str | None:
    """`BucketRequests.bucket` of a store; None: it is a folder, which nobody is billed requests for."""
    scheme, _, rest = uri.partition("://")
    bucket = rest.partition("/")[0]
    return {"s3": bucket, "gs": f"gs://{bucket}"}.get(scheme)


def request_counter() -> RequestCounter:
    """Of this process."""
    pid = os.getpid()
    return _counters.get(pid) or _counters.setdefault(pid, RequestCounter())


def register_counting(s3: "S3Client", bucket: str) -> None:
    """Have the client's requests counted. Each client asks one bucket."""

    def count_sent(request: Any, event_name: str, **_: Any) -> None:
        request_counter().add(_classify(bucket, event_name.rpartition(".")[2], request.headers.get("Content-Length")))

    def count_received(http_response: Any, parsed: Any, model: Any, **_: Any) -> None:
        received = parsed.get("ContentLength", 0) if model.name == "GetObject" else 0
        request_counter().add(BucketRequests(bucket=bucket, region=_region(http_response), received_bytes=received))

    s3.meta.events.register("before-send.s3", count_sent)
    s3.meta.events.register("after-call.s3", count_received)


def _region(reply: Any) -> str | None:
    """Of the bucket, by a header that not all replies have, or by the endpoint that served the request."""
    region: str | None = reply.headers.get("x-amz-bucket-region")
    host = _HOST.search(reply.url or "") if reply.status_code < 300 else None
    return region or (host[1] if host else None)


def _classify(bucket: str, operation: str, length: Any) -> BucketRequests:
    size = int(length) if operation in ("PutObject", "UploadPart") and length else 0
    if operation in _FREE:
        return BucketRequests(bucket=bucket)
    if operation in _PUTS:
        return BucketRequests(bucket=bucket, puts=1, sent_bytes=size)
    return BucketRequests(bucket=bucket, gets=1)


def count_gcs_request(bucket: str, method: str, url: str, length: str | None) -> None:
    """Count a request to Google's JSON API as it is sent. bucket: without `gs://`.

    An upload is one operation of class A whether it is simple, multipart or resumable (Google's price list, operations
    by API), so the requests that carry a resumable one are free.
    """
    parts = urlsplit(url)
    upload, resumable = parts.path.startswith("/upload/"), "resumable" in parse_qs(parts.query).get("uploadType", ())
    is_put = (method == "POST" and upload) or (method == "GET" and parts.path.endswith("/o"))
    request_counter().add(
        BucketRequests(
            bucket=f"gs://{bucket}",
            puts=is_put,
            gets=method == "GET" and not is_put,
            sent_bytes=int(length or 0) if upload and not (resumable and method == "POST") else 0,
        )
    )


def count_gcs_reply(bucket: str, url: str, length: str | None) -> None:
    """Count the bytes of a reply that has an object's content."""
    if urlsplit(url).path.startswith("/download/"):
        request_counter().add(BucketRequests(bucket=f"gs://{bucket}", received_bytes=int(length or 0)))
