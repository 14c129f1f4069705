"""The part of Google Cloud Storage's JSON API that google-cloud-storage uses, over HTTP, with its objects in memory.

Preconditions are decided in the same step as the write that they guard. Checksums that a request carries are compared,
and an object that an upload brings is visible as a whole once the last byte is there. It stands for what Google
documents, and was compared with Google's own storage-testbench; it is not Google's service.

Faults are done by `tests/s3_proxy.py`, which stands between this and a store.
"""

import base64
import contextlib
import json
import re
import socket
import threading
import time
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email import message_from_bytes
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

from convoy.storage.checksum import as_s3_header, crc32c

PAGE = 1000
"""Names and folders on a page of a listing."""

_CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)$")
_RANGE = re.compile(r"bytes=(\d+)-(\d*)$")


class Refused(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Blob:
    """One generation of an object."""

    name: str
    data: bytes
    metadata: dict[str, str]
    generation: int
    crc: str

    def resource(self, bucket: str) -> dict[str, Any]:
        created = datetime.fromtimestamp(self.generation / 1e6, UTC).isoformat(timespec="milliseconds")
        return {
            "kind": "storage#object", "name": self.name, "bucket": bucket, "generation": str(self.generation),
            "metageneration": "1", "size": str(len(self.data)), "crc32c": self.crc, "metadata": self.metadata,
            "timeCreated": created.replace("+00:00", "Z"),
        }  # fmt: skip


@dataclass
class Upload:
    """A resumable upload that is not finished; once it is, what the last request was answered."""

    bucket: str
    resource: dict[str, Any]
    query: dict[str, str]
    data: bytearray = field(default_factory=bytearray)
    result: dict[str, Any] | None = None


class Buckets:
    """All objects. One lock: what a precondition finds is still so when the object is written."""

    def __init__(self) -> None:
        self.blobs: dict[str, dict[str, Blob]] = {}
        self.uploads: dict[str, Upload] = {}
        self.lock = threading.Lock()
        self._newest = 0

    def of(self, bucket: str) -> dict[str, Blob]:
        if bucket not in self.blobs:
            raise Refused(404, "The specified bucket does not exist.")
        return self.blobs[bucket]

    def blob(self, bucket: str, name: str, query: dict[str, str]) -> Blob:
        found = self.of(bucket).get(name)
        if found is None or query.get("generation", str(found.generation)) != str(found.generation):
            raise Refused(404, f"No such object: {bucket}/{name}")
        return found

    def insert(
        self, bucket: str, resource: dict[str, Any], query: dict[str, str], data: bytes, expected: str | None
    ) -> dict[str, Any]:
        """expected: the checksum that the request carries, if it does."""
        blobs, name, crc = self.of(bucket), resource.get("name") or query["name"], as_s3_header(crc32c(data))
        if expected not in (None, crc):
            raise Refused(400, f"Provided CRC32C {expected!r} doesn't match calculated CRC32C {crc!r}.")
        there = blobs[name].generation if name in blobs else 0
        wanted = query.get("ifGenerationMatch")
        if wanted is not None and int(wanted) != there:
            raise Refused(412, "At least one of the pre-conditions you specified did not hold.")
        self._newest = max(self._newest + 1, int(time.time() * 1e6))
        blobs[name] = Blob(name, data, resource.get("metadata", {}), self._newest, crc)
        return blobs[name].resource(bucket)

    def list(self, bucket: str, query: dict[str, str]) -> dict[str, Any]:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
        folders, items = set[str](), dict[str, Blob]()
        for name, blob in self.of(bucket).items():
            rest = name[len(prefix) :]
            if name.startswith(prefix):
                if delimiter and delimiter in rest:
                    folders.add(prefix + rest.partition(delimiter)[0] + delimiter)
                else:
                    items[name] = blob
        after = base64.b64decode(query.get("pageToken", "")).decode()
        entries = sorted((each for each in (*items, *folders) if each > after), key=str.encode)
        count = min(PAGE, int(query.get("maxResults", PAGE)))
        page = entries[:count]
        answer: dict[str, Any] = {
            "kind": "storage#objects",
            "items": [items[each].resource(bucket) for each in page if each in items],
            "prefixes": [each for each in page if each in folders],
        }
        if len(entries) > count:
            answer["nextPageToken"] = base64.b64encode(page[-1].encode()).decode()
        return answer


class GcsEmulator:
    """Listens until `stop` on a port of its own; what it holds outlives that."""

    def __init__(self) -> None:
        self.buckets = Buckets()
        self._port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Listen, on the same port as before."""
        self._listener = _Listener(("127.0.0.1", self._port), _Handler)
        self._listener.buckets = self.buckets
        self._port = self._listener.server_port
        threading.Thread(target=self._listener.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        self._listener.shutdown()
        self._listener.server_close()
        self._listener.hang_up()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    buckets: Buckets

    def __init__(self, *args: Any) -> None:
        self._connections = set[socket.socket]()
        super().__init__(*args)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._connections.discard(request)
        super().shutdown_request(request)

    def hang_up(self) -> None:
        """Close the connections that clients keep."""
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Listener

    def log_message(self, *_: Any) -> None:
        """Silence."""

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        path = [unquote(each) for each in parts.path.replace("/download", "", 1).split("/")[1:]]
        try:
            with self.server.buckets.lock:
                status, headers, reply = self._route(path, query, body)
        except Refused as error:
            status, headers = error.status, {}
            reply = json.dumps({"error": {"code": error.status, "message": str(error)}}).encode()
        self.send_response_only(status)
        for name, value in {"Date": formatdate(usegmt=True), "Content-Length": str(len(reply)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(reply)

    do_GET = do_PUT = do_POST = do_DELETE = answer  # noqa: N815

    def _route(self, path: list[str], query: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        buckets = self.server.buckets
        match self.command, path:
            case "POST", ["storage", "v1", "b"]:
                resource = json.loads(body)
                buckets.blobs.setdefault(resource["name"], {})
                return _json(resource)
            case "GET", ["storage", "v1", "b", bucket, "o"]:
                return _json(buckets.list(bucket, query))
            case "GET", ["storage", "v1", "b", bucket, "o", name]:
                blob = buckets.blob(bucket, name, query)
                return self._media(blob) if query.get("alt") == "media" else _json(blob.resource(bucket))
            case "DELETE", ["storage", "v1", "b", bucket, "o", name]:
                del buckets.of(bucket)[buckets.blob(bucket, name, query).name]
                return 204, {}, b""
            case "POST", ["upload", "storage", "v1", "b", bucket, "o"] if query["uploadType"] == "multipart":
                resource, data = _parts(self.headers["Content-Type"], body)
                return _json(buckets.insert(bucket, resource, query, data, resource.get("crc32c")))
            case "POST", ["upload", "storage", "v1", "b", bucket, "o"]:
                buckets.of(bucket)
                upload_id = uuid.uuid4().hex
                buckets.uploads[upload_id] = Upload(bucket, json.loads(body), query)
                where = f"http://{self.headers['Host']}/upload/storage/v1/b/{bucket}/o"
                return _json({}, Location=f"{where}?uploadType=resumable&upload_id={upload_id}")
            case "PUT", ["upload", "storage", "v1", "b", _, "o"]:
                if query["upload_id"] not in buckets.uploads:
                    raise Refused(404, "No such upload")
                return self._continue(buckets.uploads[query["upload_id"]], body)
        raise Refused(501, f"the emulator has no {self.command} {self.path}")

    def _continue(self, upload: Upload, body: bytes) -> tuple[int, dict[str, str], bytes]:
        """Bytes that are there already are ignored: a request whose reply was lost comes twice."""
        if upload.result is not None:
            return _json(upload.result)
        found = _CONTENT_RANGE.match(self.headers["Content-Range"])
        if found is None:
            raise Refused(400, "Content-Range")
        if found[1] is not None:
            first, last, there = int(found[1]), int(found[2]), len(upload.data)
            if first > there or last - first + 1 != len(body):
                raise Refused(400, f"{self.headers['Content-Range']} does not go on from {there}")
            upload.data += body[there - first :]
        if found[3] == "*" or int(found[3]) != len(upload.data):
            return 308, {"Range": f"bytes=0-{len(upload.data) - 1}"} if upload.data else {}, b""
        said = self.headers.get("x-goog-hash", "").removeprefix("crc32c=") or upload.resource.get("crc32c")
        upload.result = self.server.buckets.insert(
            upload.bucket, upload.resource, upload.query, bytes(upload.data), said
        )
        upload.data.clear()
        return _json(upload.result)

    def _media(self, blob: Blob) -> tuple[int, dict[str, str], bytes]:
        headers = {
            "x-goog-hash": f"crc32c={blob.crc}", "x-goog-generation": str(blob.generation),
            "x-goog-stored-content-length": str(len(blob.data)),
        }  # fmt: skip
        found = _RANGE.match(self.headers.get("Range", ""))
        if found is None:
            return 200, headers, blob.data
        first, last = int(found[1]), min(int(found[2] or len(blob.data)), len(blob.data) - 1)
        if first > last:
            raise Refused(416, "Request range not satisfiable")
        headers["Content-Range"] = f"bytes {first}-{last}/{len(blob.data)}"
        return 206, headers, blob.data[first : last + 1]


def _json(value: dict[str, Any], **headers: str) -> tuple[int, dict[str, str], bytes]:
    return 200, {"Content-Type": "application/json", **headers}, json.dumps(value).encode()


def _parts(content_type: str, body: bytes) -> tuple[dict[str, Any], bytes]:
    """The resource and the data of a multipart/related body, as the library frames them."""
    boundary = re.search(r'boundary="([^"]+)"', content_type)
    assert boundary is not None
    _, head, rest = body.split(b"--" + boundary[1].encode() + b"\r\n", 2)
    resource = json.loads(message_from_bytes(head).get_payload())
    data = rest.partition(b"\r\n\r\n")[2].removesuffix(b"\r\n--" + boundary[1].encode() + b"--")
    return resource, data
