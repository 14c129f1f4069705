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
MAX_TTL = 21_600

TOKEN = "api/token"
SPOT_ACTION = "meta-data/spot/instance-action"
TERMINATION_TIME = "meta-data/spot/termination-time"
REBALANCE = "meta-data/events/recommendations/rebalance"


@dataclass(frozen=True)
class Reply:
    """What a path answers."""

    text: str = ""
    status: int = 200
    delay_seconds: float = 0.0
    """How long the answer is kept back."""


@dataclass(frozen=True)
class Request:
    """A request, as it was answered."""

    method: str
    path: str
    status: int


class ImdsStandIn(ThreadingHTTPServer):
    """Answers on a port of this host while a `with` block runs. Paths are those below `/latest/`."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self.requests: list[Request] = []
        """Every request so far, oldest first."""
        self._replies = {path: Reply(text) for path, text in _INSTANCE.items()}
        self._tokens: dict[str, float] = {}
        """Until when each is good, by the monotonic clock."""
        super().__init__((host, port), _Handler)

    @property
    def url(self) -> str:
        """For AWS_EC2_METADATA_SERVICE_ENDPOINT."""
        host, port = self.server_address[:2]
        return f"http://{host!s}:{port}"

    def __enter__(self) -> "ImdsStandIn":
        threading.Thread(target=self.serve_forever, args=(0.05,), name="imds", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that would not wait for a slow answer is no fault of ours."""

    def set_reply(self, path: str, reply: Reply | None = None) -> None:
        """What `path` answers from now on; None: as if nothing had been set."""
        if reply is None:
            self._replies.pop(path, None)
        else:
            self._replies[path] = reply

    def announce_interruption(self, action: str = "terminate", lead_seconds: float = 120.0) -> None:
        """Give the notice of a spot interruption, `lead_seconds` ahead of it."""
        at = utc(time.time() + lead_seconds)
        self.set_reply(SPOT_ACTION, Reply(f'{{"action": "{action}", "time": "{at}"}}'))
        if action == "terminate":
            self.set_reply(TERMINATION_TIME, Reply(at))

    def recommend_rebalance(self) -> None:
        """The instance is at a raised risk of interruption."""
        self.set_reply(REBALANCE, Reply(f'{{"noticeTime": "{utc(time.time())}"}}'))

    def withdraw_notices(self) -> None:
        """Take all notices back."""
        for path in (SPOT_ACTION, TERMINATION_TIME, REBALANCE):
            self.set_reply(path)

    def forget_tokens(self) -> None:
        """Every token given so far is refused from now on."""
        self._tokens.clear()

    def reply_and_record(self, method: str, path: str, headers: Any) -> tuple[Reply, dict[str, str]]:
        """The reply to a request and its headers, by the rules of IMDSv2."""
        reply, headers_sent = self._reply_to(method, path, headers)
        self.requests.append(Request(method, path, reply.status))
        return reply, headers_sent

    def _reply_to(self, method: str, path: str, headers: Any) -> tuple[Reply, dict[str, str]]:
        if (method, path) == ("PUT", TOKEN):
            return self._token_reply(headers)
        if method != "GET" or path == TOKEN:
            return Reply(status=405), {}
        if time.monotonic() >= self._tokens.get(headers.get(TOKEN_HEADER, ""), 0.0):
            return Reply(status=401), {}
        return self._replies.get(path, Reply(status=404)), {}

    def _token_reply(self, headers: Any) -> tuple[Reply, dict[str, str]]:
        lifetime = headers.get(TTL_HEADER, "")
        if not lifetime.isascii() or not lifetime.isdigit() or not 1 <= int(lifetime) <= MAX_TTL:
            return Reply(status=400), {}
        if "X-Forwarded-For" in headers:  # a proxy that is open to the world must not give the instance's role away
            return Reply(status=403), {}
        reply = self._replies.get(TOKEN, Reply())
        if reply.status != 200:
            return reply, {}
        token = secrets.token_urlsafe(40)
        self._tokens[token] = time.monotonic() + int(lifetime)
        return Reply(token, delay_seconds=reply.delay_seconds), {TTL_HEADER: lifetime}


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


class _Handler(BaseHTTPRequestHandler):
    server: ImdsStandIn
    protocol_version = "HTTP/1.1"
    server_version = "EC2ws"
    sys_version = ""
    timeout = 10

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        root, _, path = self.path.lstrip("/").partition("/")
        reply, headers_sent = self.server.reply_and_record(
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
