"""An S3 server that is no bottleneck: objects in memory, nothing copied twice, and a link to it of limited bandwidth.

    python benchmarks/s3_server.py

It prints its URL and serves until its stdin is closed. It implements what checkpoints need of S3's protocol:
conditional puts, multipart uploads, ranges, listings; it checks CRC32C as S3 does, and no signatures. moto reads the
whole object for each range of it, and copies large ones to a file first: what it takes for that hides what a client
takes.
"""

import base64
import contextlib
import itertools
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from awscrt.checksums import crc32c

COUNT = "/?requests"
"""Answered with the number of requests so far, without this one."""

_META = "x-amz-meta-"


@contextlib.contextmanager
def serve() -> Iterator[str]:
    """URL of a server in a process of its own."""
    with _printed_url([sys.executable, __file__]) as url:
        yield url


@contextlib.contextmanager
def capped_link(server: str, bytes_per_second: float) -> Iterator[str]:
    """URL of a proxy that lets so many bytes of bodies pass in each direction, in a process of its own."""
    command = [sys.executable, "-m", "tests.s3_proxy", server, "--bytes-per-second", str(bytes_per_second)]
    with _printed_url(command) as url:
        yield url


@contextlib.contextmanager
def _printed_url(command: Sequence[str]) -> Iterator[str]:
    """The first line that a server prints, which runs meanwhile."""
    root = Path(__file__).resolve().parents[1]
    with subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        try:
            yield run.stdout.readline().strip()
        finally:
            run.kill()


def requests_so_far(server: str) -> int:
    return int(urllib.request.urlopen(server + COUNT).read())


@dataclass
class Object:
    """Its bytes as they came, in one piece or in the parts of an upload."""

    pieces: list[bytearray]
    metadata: dict[str, str]
    modified: float = field(default_factory=time.time)

    @property
    def bytes(self) -> int:
        return sum(map(len, self.pieces))

    def span(self, start: int, end: int) -> list[memoryview]:
        """The bytes from `start` up to, not including, `end`."""
        views, at = [], 0
        for piece in self.pieces:
            view = memoryview(piece)[max(0, start - at) : max(0, end - at)]
            views += [view] if len(view) else []
            at += len(piece)
        return views


@dataclass
class Upload:
    key: str
    metadata: dict[str, str]
    parts: dict[int, bytearray] = field(default_factory=dict)


class Server(ThreadingHTTPServer):
    """All buckets are one."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.objects: dict[str, Object] = {}
        self.uploads: dict[str, Upload] = {}
        self.numbers = itertools.count()
        self.requests = 0
        self.lock = threading.Lock()

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is no news."""

    def put(self, key: str, new: Object, only_if_absent: bool) -> bool:
        with self.lock:
            if only_if_absent and key in self.objects:
                return False
            self.objects[key] = new
            return True


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server
    query: dict[str, str]
    key: str

    def log_message(self, *_: object) -> None:
        """Silence."""

    def do_PUT(self) -> None:
        self._parse()
        body = self._body()
        if not self.key:  # a bucket
            return self._reply()
        expected = self.headers.get("x-amz-checksum-crc32c")
        if expected not in (None, base64.b64encode(crc32c(body).to_bytes(4, "big")).decode()):
            return self._error(400, "BadDigest")
        if "uploadId" in self.query:
            upload = self.server.uploads.get(self.query["uploadId"])
            if upload is None:
                return self._error(404, "NoSuchUpload")
            upload.parts[int(self.query["partNumber"])] = body
            return self._reply(headers={"ETag": f'"part-{self.query["partNumber"]}"'})
        if not self._put(self.key, Object([body], self._metadata())):
            return self._error(412, "PreconditionFailed")
        return self._reply(headers={"ETag": '"object"'})

    def do_POST(self) -> None:
        self._parse()
        body = self._body()
        if "uploads" in self.query:
            name = f"upload-{next(self.server.numbers)}"
            self.server.uploads[name] = Upload(self.key, self._metadata())
            return self._xml("InitiateMultipartUploadResult", f"<UploadId>{name}</UploadId>")
        upload = self.server.uploads.get(self.query.get("uploadId", ""))
        if upload is None:
            return self._error(404, "NoSuchUpload")
        numbers = [int(e.text or 0) for e in ElementTree.fromstring(bytes(body)).iter() if e.tag.endswith("PartNumber")]
        if not self._put(upload.key, Object([upload.parts[n] for n in numbers], upload.metadata)):
            return self._error(412, "PreconditionFailed")
        del self.server.uploads[self.query["uploadId"]]
        return self._xml("CompleteMultipartUploadResult", '<ETag>"object"</ETag>')

    def do_GET(self) -> None:
        if self.path == COUNT:
            return self._reply([memoryview(str(self.server.requests).encode())])
        self._parse()
        if not self.key:
            return self._list()
        return self._object(send=True)

    def do_HEAD(self) -> None:
        self._parse()
        self._object(send=False)

    def do_DELETE(self) -> None:
        self._parse()
        if "uploadId" in self.query:
            self.server.uploads.pop(self.query["uploadId"], None)
        else:
            self.server.objects.pop(self.key, None)
        self._reply(status=204)

    def _object(self, *, send: bool) -> None:
        stored = self.server.objects.get(self.key)
        if stored is None:
            return self._error(404, "NoSuchKey")
        start, end, status = 0, stored.bytes, 200
        headers = {_META + name: value for name, value in stored.metadata.items()} | {"ETag": '"object"'}
        if "Range" in self.headers:
            first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
            start, status = int(first), 206
            end = min(end, int(last) + 1) if last else end
            if start >= stored.bytes:
                return self._error(416, "InvalidRange")
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{stored.bytes}"
        return self._reply(stored.span(start, end), status, headers, send=send)

    def _list(self) -> None:
        if "uploads" in self.query:
            return self._xml("ListMultipartUploadsResult", "<IsTruncated>false</IsTruncated>")
        prefix = self.query.get("prefix", "")
        with self.server.lock:
            objects = {key: o for key, o in sorted(self.server.objects.items()) if key.startswith(prefix)}
        rows = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{o.bytes}</Size><LastModified>{_iso(o.modified)}</LastModified>"
            "</Contents>"
            for key, o in objects.items()
        )
        return self._xml(
            "ListBucketResult", f"<IsTruncated>false</IsTruncated><KeyCount>{len(objects)}</KeyCount>{rows}"
        )

    def _parse(self) -> None:
        with self.server.lock:
            self.server.requests += 1
        parts = urlsplit(self.path)
        self.query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        self.key = unquote(parts.path).lstrip("/").partition("/")[2]

    def _body(self) -> bytearray:
        body = bytearray(int(self.headers.get("Content-Length") or 0))
        at = 0
        with memoryview(body) as view:
            while at < len(body):
                received = self.rfile.readinto(view[at:])  # type: ignore[attr-defined]
                if not received:
                    raise EOFError
                at += received
        return body

    def _put(self, key: str, new: Object) -> bool:
        return self.server.put(key, new, only_if_absent=self.headers.get("If-None-Match") == "*")

    def _metadata(self) -> dict[str, str]:
        headers = {name.lower(): value for name, value in self.headers.items()}
        return {name.removeprefix(_META): value for name, value in headers.items() if name.startswith(_META)}

    def _xml(self, root: str, inner: str, status: int = 200) -> None:
        text = f'<?xml version="1.0"?><{root} xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{inner}</{root}>'
        self._reply([memoryview(text.encode())], status, {"Content-Type": "application/xml"})

    def _error(self, status: int, code: str) -> None:
        text = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()
        self._reply([memoryview(text)], status, send=self.command != "HEAD")

    def _reply(
        self,
        body: list[memoryview] | None = None,
        status: int = 200,
        headers: dict[str, str] | None = None,
        *,
        send: bool = True,
    ) -> None:
        body = body or []
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(sum(map(len, body))))
        self.end_headers()
        for piece in body if send else []:
            self.wfile.write(piece)


def _iso(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at)) + f".{int(at * 1000) % 1000:03d}Z"


if __name__ == "__main__":
    with Server() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        print(f"http://127.0.0.1:{server.server_port}", flush=True)
        sys.stdin.read()
