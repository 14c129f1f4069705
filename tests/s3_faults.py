"""What can befall a request to a bucket, and which request to S3 it is. `tests/s3_proxy.py` does it."""

from dataclasses import dataclass
from typing import Literal, Self
from urllib.parse import parse_qs, unquote, urlsplit

Direction = Literal["request", "reply"]


@dataclass(frozen=True)
class Refuse:
    """Answered by the proxy; the server never sees it."""

    status: int = 503
    code: str = "SlowDown"


@dataclass(frozen=True)
class Reset:
    """The connection is reset after so many bytes of the body. A request's body never reaches the server whole."""

    after: int
    direction: Direction = "request"


@dataclass(frozen=True)
class Stall:
    """Not a byte more after so many of the body, until the proxy heals."""

    after: int
    direction: Direction = "reply"


@dataclass(frozen=True)
class FlipBit:
    """One bit of the body is another one."""

    bit: int
    direction: Direction = "request"


@dataclass(frozen=True)
class LoseReply:
    """The server has done it; its reply is lost, and the connection reset."""


@dataclass(frozen=True)
class Truncate:
    """The reply's connection is closed, without an error, after so many bytes of the body that was announced."""

    after: int


Fault = Refuse | Reset | Stall | FlipBit | LoseReply | Truncate


@dataclass
class Request:
    """What came by. `status` is 0 until the server has answered."""

    operation: str
    """S3's name of it, such as `UploadPart`."""
    key: str
    query: dict[str, str]
    bytes: int
    """Of the body."""
    status: int = 0

    @classmethod
    def of(cls, method: str, target: str, length: int) -> Self:
        """target: of the request line, with the bucket first in its path."""
        parts = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        _, _, key = unquote(parts.path).lstrip("/").partition("/")
        return cls(_operation(method, key, query), key, query, length)


def _operation(method: str, key: str, query: dict[str, str]) -> str:
    upload = "uploadId" in query
    if not key:
        return {"GET": "ListMultipartUploads" if "uploads" in query else "ListObjects"}.get(method, method)
    return {
        "PUT": "UploadPart" if upload else "PutObject",
        "POST": "CompleteMultipartUpload" if upload else "CreateMultipartUpload",
        "DELETE": "AbortMultipartUpload" if upload else "DeleteObject",
        "GET": "GetObject",
        "HEAD": "HeadObject",
    }[method]
