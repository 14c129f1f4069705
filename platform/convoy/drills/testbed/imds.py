"""A stand-in for the EC2 instance metadata service, version 2, with the protocol that AWS specifies.

Sources: AWS EC2 user guide, "How Instance Metadata Service Version 2 works" and "Spot Instance interruption notices".
"""

import secrets
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TTL_HEADER = "X-aws-ec2-metadata-token-ttl-seconds"
TOKEN_HEADER = "X-aws-ec2-metadata-token"
LONGEST_TTL = 21_600

TOKEN = "api/token"
SPOT_ACTION = "meta-data/spot/instance-action"
TERMINATION_TIME = "meta-data/spot/termination-time"
REBALANCE = "meta-data/events/recommendations/rebalance"


@dataclass(frozen=True)
class Reply:
    """What a path answers from some time on."""

    text: str = ""
    status: int = 200
    after_seconds: float = 0.0
    """From when on, counted from the call that schedules it."""
    delay_seconds: float = 0.0
    """How long the answer is kept back."""


@dataclass(frozen=True)
class Request:
    """A request, as it was answered."""

    method: str
    path: str
    status: int


GONE = Reply(status=404)


class ImdsStandIn:
    """Answers on a port of this host while a `with` block runs. Paths are those below `/latest/`."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self.requests: list[Request] = []
        """Every request so far, oldest first."""
        self._replies: dict[str, list[tuple[float, Reply]]] = {}
        self._tokens: dict[str, float] = {}
        """Until when each is good, by the monotonic clock."""
        self._lock = threading.Lock()
        self._server = _Server((host, port), self)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="imds", daemon=True)
        for path, text in _INSTANCE.items():
            self.schedule(path, Reply(text))

    @property
    def url(self) -> str:
        """For AWS_EC2_METADATA_SERVICE_ENDPOINT."""
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}"

    def __enter__(self) -> "ImdsStandIn":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def schedule(self, path: str, *replies: Reply) -> None:
        """What `path` answers from now on; before the first of `replies` is due, 404."""
        now = time.monotonic()
        due = sorted(((now + reply.after_seconds, reply) for reply in replies), key=lambda pair: pair[0])
        with self._lock:
            self._replies[path] = due

    def interrupt(self, action: str = "terminate", lead_seconds: float = 120.0, after_seconds: float = 0.0) -> None:
        """Give the notice of a spot interruption after so long, `lead_seconds` ahead of it."""
        at = utc(time.time() + after_seconds + lead_seconds)
        self.schedule(SPOT_ACTION, Reply(f'{{"action": "{action}", "time": "{at}"}}', after_seconds=after_seconds))
        if action == "terminate":
            self.schedule(TERMINATION_TIME, Reply(at, after_seconds=after_seconds))

    def recommend_rebalance(self, after_seconds: float = 0.0) -> None:
        """Tell after so long that the instance is at a raised risk of interruption."""
        at = utc(time.time() + after_seconds)
        self.schedule(REBALANCE, Reply(f'{{"noticeTime": "{at}"}}', after_seconds=after_seconds))

    def calm(self) -> None:
        """Take all notices back."""
        for path in (SPOT_ACTION, TERMINATION_TIME, REBALANCE):
            self.schedule(path)

    def forget_tokens(self) -> None:
        """Every token given so far is refused from now on."""
        with self._lock:
            self._tokens.clear()

    def answer(self, method: str, path: str, headers: Any) -> tuple[Reply, dict[str, str]]:
        """The reply to a request and its headers, by the rules of IMDSv2."""
        reply, headers_sent = self._by_the_rules(method, path, headers)
        self.requests.append(Request(method, path, reply.status))
        return reply, headers_sent

    def _by_the_rules(self, method: str, path: str, headers: Any) -> tuple[Reply, dict[str, str]]:
        if (method, path) == ("PUT", TOKEN):
            return self._token(headers)
        if method != "GET" or path == TOKEN:
            return Reply(status=405), {}
        with self._lock:
            good_until = self._tokens.get(headers.get(TOKEN_HEADER, ""), 0.0)
        if time.monotonic() >= good_until:
            return Reply(status=401), {}
        return self._scheduled(path) or GONE, {}

    def _token(self, headers: Any) -> tuple[Reply, dict[str, str]]:
        lifetime = headers.get(TTL_HEADER, "")
        if not lifetime.isascii() or not lifetime.isdigit() or not 1 <= int(lifetime) <= LONGEST_TTL:
            return Reply(status=400), {}
        if "X-Forwarded-For" in headers:  # a proxy that is open to the world must not give the instance's role away
            return Reply(status=403), {}
        scheduled = self._scheduled(TOKEN)
        if scheduled is not None and scheduled.status != 200:
            return scheduled, {}
        token = secrets.token_urlsafe(40)
        with self._lock:
            self._tokens[token] = time.monotonic() + int(lifetime)
        return Reply(token, delay_seconds=scheduled.delay_seconds if scheduled else 0.0), {TTL_HEADER: lifetime}

    def _scheduled(self, path: str) -> Reply | None:
        now = time.monotonic()
        with self._lock:
            due = [reply for at, reply in self._replies.get(path, []) if at <= now]
        return due[-1] if due else None


_INSTANCE = {
    "meta-data/instance-id": "i-0123456789abcdef0",
    "meta-data/instance-type": "p5.48xlarge",
    "meta-data/instance-life-cycle": "spot",
    "meta-data/placement/availability-zone": "us-east-1a",
    "meta-data/placement/region": "us-east-1",
}


def utc(unix: float) -> str:
    """A time as the service writes it."""
    return datetime.fromtimestamp(unix, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], imds: ImdsStandIn) -> None:
        self.imds = imds
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that would not wait for a slow answer is no fault of ours."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    server_version = "EC2ws"
    sys_version = ""
    timeout = 10

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        root, _, path = self.path.lstrip("/").partition("/")
        reply, headers_sent = self.server.imds.answer(
            self.command, path.rstrip("/") if root == "latest" else "", self.headers
        )
        time.sleep(reply.delay_seconds)
        text = reply.text if reply.status == 200 else HTTPStatus(reply.status).phrase
        self.send_response(reply.status)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(text.encode())))
        for name, value in headers_sent.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text.encode())

    do_GET = do_PUT = do_POST = do_DELETE = _answer  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Nothing on stderr for each request."""
