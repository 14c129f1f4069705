"""A proxy before a bucket's server that refuses, resets, stalls, flips bits, loses replies, and has a bandwidth.

In a test: `with S3Proxy(server_url) as proxy`, lead boto to `proxy.url`, and `proxy.inject(fault, "UploadPart")`. As a
process of its own, where its CPU time must not disturb what is measured:
`python -m tests.s3_proxy SERVER_URL [--bytes-per-second N]` prints its URL and serves until its stdin is closed.
"""

import argparse
import contextlib
import http.client
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import urlsplit

from convoy.storage.checksum import as_s3_header, crc32c
from tests.s3_faults import Direction, Fault, FlipBit, LoseReply, Refuse, Request, Reset, Stall, Truncate

BLOCK_BYTES = 2**18


@dataclass
class _Rule:
    fault: Fault
    operation: str
    key: str
    skip: int
    times: int

    def wants(self, request: Request) -> bool:
        return self.times > 0 and self.operation in ("", request.operation) and request.key.endswith(self.key)


@dataclass
class _Bucket:
    """Bytes through it, all threads together, at one rate."""

    bytes_per_second: float
    _free: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, count: int) -> None:
        with self._lock:
            now = time.monotonic()
            self._free = max(self._free, now - 0.01) + count / self.bytes_per_second
            wait = self._free - now
        if wait > 0:
            time.sleep(wait)


class S3Proxy:
    """Listens until its `close` on a port of its own. Faults are used up in the order they were injected."""

    def __init__(
        self,
        server_url: str,
        bytes_per_second: float | None = None,
        checks: bool = False,
        describe: Callable[[str, str, int], Request] = Request.of,
    ) -> None:
        """bytes_per_second: of bodies, each direction by itself. checks: compare each body with its CRC32C, as S3 does
        and moto does not. describe: which request it is, by its method, its target and the bytes of its body."""
        self.describe = describe
        self.server = urlsplit(server_url).netloc
        self.checks = checks
        self.forgets: set[str] = set()
        """Headers of requests, in small letters, that are not passed on."""
        self.buckets = {way: bytes_per_second and _Bucket(bytes_per_second) for way in ("request", "reply")}
        self.requests: list[Request] = []
        self.released = threading.Event()
        self.one_at_a_time = threading.Lock()
        """For conditional requests: moto looks whether there is an object and then writes; S3 does both at once."""
        self._rules: list[_Rule] = []
        self._lock = threading.Lock()
        self._listener = _Listener(("127.0.0.1", 0), _Handler)
        self._listener.proxy = self
        self.url = f"http://127.0.0.1:{self._listener.server_port}"
        threading.Thread(target=self._listener.serve_forever, args=(0.05,), daemon=True).start()

    def inject(self, fault: Fault, operation: str = "", *, times: int = 1, skip: int = 0, key: str = "") -> None:
        """Do this to the next `times` requests of that operation (or any) whose key ends so, after the first `skip`."""
        with self._lock:
            self._rules.append(_Rule(fault, operation, key, skip, times))

    def heal(self) -> None:
        """No faults any more; connections that stall are closed."""
        with self._lock:
            self._rules.clear()
            stalled, self.released = self.released, threading.Event()
        stalled.set()

    def count(self, operation: str) -> int:
        """Requests of that operation so far, those that met a fault included."""
        return sum(request.operation == operation for request in self.requests)

    def close(self) -> None:
        self.heal()
        self._listener.shutdown()
        self._listener.server_close()

    def fault_for(self, request: Request) -> Fault | None:
        with self._lock:
            self.requests.append(request)
            for rule in self._rules:
                if rule.wants(request):
                    if rule.skip:
                        rule.skip -= 1
                        continue
                    rule.times -= 1
                    return rule.fault
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    proxy: S3Proxy

    def shutdown_request(self, request: Any) -> None:
        """Without the FIN that would go before a reset."""
        self.close_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""


class _EndOfConnectionError(Exception):
    """There is nothing more to say on it."""


class _Handler(BaseHTTPRequestHandler):
    """One connection of a client, with one of its own to the server."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Listener

    def setup(self) -> None:
        super().setup()
        self.upstream = http.client.HTTPConnection(self.server.proxy.server, timeout=120)

    def finish(self) -> None:
        self.upstream.close()
        with contextlib.suppress(OSError):
            super().finish()

    def log_message(self, *_: Any) -> None:
        """Silence."""

    def relay(self) -> None:
        self.close_connection = False
        try:
            self._relay()
        except (_EndOfConnectionError, OSError, http.client.HTTPException):
            self.close_connection = True

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = relay  # noqa: N815

    def _relay(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        request = self.server.proxy.describe(self.command, self.path, length)
        fault = self.server.proxy.fault_for(request)
        if isinstance(fault, Refuse):
            for _ in self._blocks(self.rfile, length, "request", None):
                pass
            return self._refuse(request, fault)
        if self.server.proxy.buckets["request"] and fault is None and not self.server.proxy.checks:
            # As a link of that bandwidth: what has passed is at the server, which need not wait for the rest.
            return self._pass_on(request, self._blocks(self.rfile, length, "request", None), None)
        expected, checksum = self.headers.get("x-amz-checksum-crc32c"), 0
        body = []
        for block in self._blocks(self.rfile, length, "request", fault):
            checksum = crc32c(block, checksum)
            body.append(block)
        if self.server.proxy.checks and expected not in (None, as_s3_header(checksum)):
            return self._refuse(request, Refuse(400, "BadDigest"))
        return self._pass_on(request, body, fault)

    def _pass_on(self, request: Request, body: Iterable[bytes], fault: Fault | None) -> None:
        self.upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in self.server.proxy.forgets | {"expect"}:
                self.upstream.putheader(name, value)
        self.upstream.endheaders()
        conditional = "If-None-Match" in self.headers
        with self.server.proxy.one_at_a_time if conditional else contextlib.nullcontext():
            for block in body:
                self.upstream.send(block)
            reply = self.upstream.getresponse()
        request.status = reply.status
        if isinstance(fault, LoseReply):
            reply.read()
            self._reset()
        self._send_reply(reply, fault)

    def _send_reply(self, reply: http.client.HTTPResponse, fault: Fault | None) -> None:
        announced = reply.headers.get("Content-Length")
        whole = b"" if announced is not None or self.command == "HEAD" else reply.read()
        self.send_response_only(reply.status, reply.reason)
        for name, value in reply.headers.items():
            if name.lower() not in ("transfer-encoding", "connection"):
                self.send_header(name, value)
        if announced is None:
            self.send_header("Content-Length", str(len(whole)))
        self.end_headers()
        if self.command == "HEAD":
            reply.read()
            return
        for block in self._blocks(reply, int(announced or 0), "reply", fault):
            self.wfile.write(block)
        reply.read()  # nothing more, but the connection to the server is free only then
        self.wfile.write(whole)

    def _blocks(self, source: Any, length: int, direction: Direction, fault: Fault | None) -> Iterator[bytes]:
        """The body in blocks, at the rate of the proxy, with what the fault does to it."""
        bucket, done = self.server.proxy.buckets[direction], 0
        here = fault if getattr(fault, "direction", "reply") == direction else None
        end = min(length, here.after) if isinstance(here, Reset | Stall | Truncate) else length
        while done < end:
            block = source.read(min(BLOCK_BYTES, end - done))
            if not block:
                raise _EndOfConnectionError
            if bucket:
                bucket.take(len(block))
            if isinstance(here, FlipBit) and done <= here.bit // 8 < done + len(block):
                block = _flipped(block, here.bit - 8 * done)
            yield block
            done += len(block)
        if isinstance(here, Reset):
            self._reset()
        if isinstance(here, Stall):
            self.wfile.flush()
            self.server.proxy.released.wait()
        if isinstance(here, Truncate | Stall):
            raise _EndOfConnectionError

    def _reset(self) -> None:
        # A close that does not linger sends RST.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raise _EndOfConnectionError

    def _refuse(self, request: Request, fault: Refuse) -> None:
        request.status = fault.status
        body = f"<Error><Code>{fault.code}</Code><Message>injected</Message></Error>".encode()
        self.send_response_only(fault.status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(b"" if self.command == "HEAD" else body)


def _flipped(block: bytes, bit: int) -> bytes:
    changed = bytearray(block)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def main() -> None:
    parser = argparse.ArgumentParser(description="A proxy before an S3 server, with a bandwidth.")
    parser.add_argument("server_url")
    parser.add_argument("--bytes-per-second", type=float)
    arguments = parser.parse_args()
    with S3Proxy(arguments.server_url, arguments.bytes_per_second) as proxy:
        print(proxy.url, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
