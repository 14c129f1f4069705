"""What S3 objects hold: small ones whole, ranges of large ones straight into a buffer.

boto tries a request again, but no reply that breaks off: that is done here.
"""

import http.client
from typing import TYPE_CHECKING, Any

import urllib3.exceptions
from botocore.exceptions import BotoCoreError, ClientError

from convoy.storage.base import StoreUnavailable
from convoy.storage.s3_client import code, pause

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_TRIES = 8
"""In a row, without a byte between them."""

_BROKEN_OFF = (OSError, http.client.HTTPException, urllib3.exceptions.HTTPError, BotoCoreError)


def read_rest(s3: "S3Client", bucket: str, key: str, start: int) -> bytes:
    """All bytes from `start` on. Raises botocore's errors, StoreUnavailable where replies keep breaking off."""
    # The checksum that S3 keeps is that of the whole object.
    how: Any = {"Range": f"bytes={start}-"} if start else {"ChecksumMode": "ENABLED"}
    for tried in range(_TRIES):
        try:
            reply = s3.get_object(Bucket=bucket, Key=key, **how)
        except ClientError as error:
            if code(error) == "InvalidRange":  # nothing there from `start` on
                return b""
            raise
        try:
            return reply["Body"].read()
        except _BROKEN_OFF as error:
            reason = str(error)
        pause(tried)
    raise StoreUnavailable(f"s3://{bucket}/{key}: {_TRIES} replies in a row broke off: {reason}")


def read_range(s3: "S3Client", bucket: str, key: str, start: int, buffer: memoryview) -> int:
    """Fill the buffer from byte `start` on; how many bytes there were. A reply that breaks off is gone on with.

    Raises as `read_rest`.
    """
    filled, tried = 0, 0
    while filled < len(buffer):
        with buffer[filled:] as rest:
            count, promised, reason = _receive(s3, bucket, key, start + filled, rest)
        filled += count
        if count == promised:
            break
        tried = 0 if count else tried + 1
        if tried == _TRIES:
            raise StoreUnavailable(f"s3://{bucket}/{key}: {_TRIES} replies in a row broke off: {reason}")
        pause(tried)
    return filled


def _receive(s3: "S3Client", bucket: str, key: str, start: int, buffer: memoryview) -> tuple[int, int, str]:
    """Bytes that came, bytes that the reply was to have, and why it broke off."""
    try:
        reply = s3.get_object(Bucket=bucket, Key=key, Range=f"bytes={start}-{start + len(buffer) - 1}")
    except ClientError as error:
        if code(error) == "InvalidRange":  # nothing there from `start` on
            return 0, 0, ""
        raise
    promised = reply["ContentLength"]
    if promised > len(buffer):
        raise StoreUnavailable(f"s3://{bucket}/{key}: sent {promised} bytes where {len(buffer)} were asked for")
    body, received = reply["Body"], 0
    try:
        with body:
            stream = _stream(body)
            while received < promised:
                with buffer[received:promised] as rest:
                    count = stream.readinto(rest)
                if not count:
                    return received, promised, "its connection was closed early"
                received += count
            body.read()  # its end, upon which the connection can serve the next request
    except _BROKEN_OFF as error:
        return received, promised, str(error)
    return received, promised, ""


def _stream(body: Any) -> Any:
    """What receives into a buffer: urllib3's own `readinto` copies each byte once more, http.client's does not."""
    return getattr(getattr(body, "_raw_stream", None), "_fp", None) or body
