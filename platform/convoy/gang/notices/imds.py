"""A client of the EC2 instance metadata service, version 2 only: each request carries a token requested first.

Source: AWS EC2 user guide, "How Instance Metadata Service Version 2 works".
"""

import http.client
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

from convoy.gang.notices.notice import NoAnswer

ENDPOINT = "http://169.254.169.254"
ENDPOINT_IPV6 = "http://[fd00:ec2::254]"

TIMEOUT_SECONDS = 1.0
"""For each step of a request: to connect, to send it, to receive the answer."""

TOKEN_SECONDS = 21_600
"""Requested lifetime of a token: the longest that is granted."""

_REFRESH = 0.9
"""A token is replaced after this share of its lifetime, so that time remains to try again."""

_MOST_BYTES = 65_536


@dataclass(frozen=True)
class Answer:
    """What the service returns for a path."""

    text: str
    server_time: float | None
    """Unix time of the answer by the service's clock, in whole seconds; None: it did not say."""


@dataclass(frozen=True)
class _Reply:
    status: int
    text: str
    server_time: float | None
    token_seconds: float | None


class Imds:
    """Queries one service; not for several threads at once. Its address follows from the environment, as for boto:
    AWS_EC2_METADATA_SERVICE_ENDPOINT, AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE, AWS_EC2_METADATA_DISABLED.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        timeout_seconds: float = TIMEOUT_SECONDS,
        token_seconds: int = TOKEN_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """clock: in seconds, from any start; tokens are timed by it."""
        self._environ = environ
        self._timeout = timeout_seconds
        self._token_seconds = token_seconds
        self._clock = clock
        self._token = ""
        self._refresh_at = self._ends_at = -1.0

    def get(self, path: str) -> Answer | None:
        """What is at `/latest/PATH`; None if nothing is. Raises NoAnswer."""
        reply = self._request("GET", path, {"X-aws-ec2-metadata-token": self._good_token()})
        if reply.status == 401:  # it has forgotten the token, or our clock was paused
            reply = self._request("GET", path, {"X-aws-ec2-metadata-token": self._new_token()})
        if reply.status == 404:
            return None
        if reply.status != 200:
            raise NoAnswer(f"{self._url()}: answered {reply.status} to GET {path}")
        return Answer(reply.text, reply.server_time)

    def _good_token(self) -> str:
        now = self._clock()
        if now >= self._refresh_at:
            try:
                return self._new_token()
            except NoAnswer:
                if now >= self._ends_at:
                    raise
        return self._token

    def _new_token(self) -> str:
        requested_at = self._clock()
        reply = self._request("PUT", "api/token", {"X-aws-ec2-metadata-token-ttl-seconds": str(self._token_seconds)})
        if reply.status != 200:
            raise NoAnswer(f"{self._url()}: answered {reply.status} to the question for a token")
        if not (reply.text.isascii() and reply.text.isprintable() and reply.text):
            raise NoAnswer(f"{self._url()}: is no metadata service: what it gave is no token")
        lifetime = min(self._token_seconds, reply.token_seconds or self._token_seconds)
        self._token = reply.text
        self._refresh_at, self._ends_at = requested_at + _REFRESH * lifetime, requested_at + lifetime
        return self._token

    def _request(self, method: str, path: str, headers: dict[str, str]) -> _Reply:
        url = self._url()
        parts = urlsplit(url)
        assert parts.hostname is not None
        # Never by a proxy: the service is on this machine's own link.
        connection = http.client.HTTPConnection(parts.hostname, parts.port or 80, timeout=self._timeout)
        try:
            connection.connect()
        except OSError as error:
            connection.close()
            raise NoAnswer(f"{url}: cannot be reached ({error})") from None
        try:
            place = f"{parts.path.rstrip('/')}/latest/{path}"
            connection.request(method, place, headers={**headers, "Connection": "close"})
            response = connection.getresponse()
            text = response.read(_MOST_BYTES).decode(errors="replace").strip()
            lifetime = response.getheader("X-aws-ec2-metadata-token-ttl-seconds")
            return _Reply(response.status, text, _unix(response.getheader("Date")), _number(lifetime))
        except TimeoutError:
            # Answers to PUT may travel no further than the instance's hop limit: 1, if nobody has raised it.
            hint = "; in a container the instance's metadata hop limit must be at least 2" if method == "PUT" else ""
            raise NoAnswer(f"{url}: no answer within {self._timeout:g} s{hint}") from None
        except (OSError, http.client.HTTPException) as error:
            raise NoAnswer(f"{url}: {error!r}") from None
        finally:
            connection.close()

    def _url(self) -> str:
        """The service's address. Raises NoAnswer if the environment disables it, or gives no usable address."""
        if self._environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
            raise NoAnswer("AWS_EC2_METADATA_DISABLED = true")
        endpoint = self._environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", "")
        if not endpoint:
            mode = self._environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE", "")
            return ENDPOINT_IPV6 if mode.lower() == "ipv6" else ENDPOINT
        if not _is_http(endpoint):
            raise NoAnswer(f"AWS_EC2_METADATA_SERVICE_ENDPOINT = {endpoint}: must be a URL such as {ENDPOINT}")
        return endpoint.rstrip("/")


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme == "http" and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _unix(date: str | None) -> float | None:
    """Unix time of an HTTP date; None if there is none, or it is malformed."""
    try:
        return parsedate_to_datetime(date).timestamp() if date else None
    except ValueError:
        return None


def _number(text: str | None) -> float | None:
    return float(text) if text and text.isascii() and text.isdigit() else None
