"""A client of the EC2 instance metadata service, version 2 only: each request carries a token requested first.

Source: AWS EC2 user guide, "How Instance Metadata Service Version 2 works".
"""

import http.client
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

from convoy.gang.notices.notice import NoAnswerError

ENDPOINT = "http://169.254.169.254"
ENDPOINT_IPV6 = "http://[fd00:ec2::254]"

TIMEOUT_SECONDS = 1.0
"""For each step of a request: to connect, to send it, to receive the answer."""

TOKEN_SECONDS = 21_600
"""Requested lifetime of a token: the longest that is granted."""

_MAX_BYTES = 65_536


@dataclass(frozen=True)
class Answer:
    """What the service returns for a path."""

    status: int
    text: str
    server_time: float | None
    """Unix time of the answer by the service's clock, in whole seconds; None: it did not say."""


class Imds:
    """Queries one service; not for several threads at once. Its address follows from the environment, as for boto:
    AWS_EC2_METADATA_SERVICE_ENDPOINT, AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE, AWS_EC2_METADATA_DISABLED.
    """

    def __init__(self, environ: Mapping[str, str], timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self._environ = environ
        self._timeout = timeout_seconds
        self._token = ""

    def get(self, path: str) -> Answer | None:
        """What is at `/latest/PATH`; None if nothing is. Raises NoAnswerError."""
        answer = self._get_with_token(path)
        if answer.status == 401:  # the token has ended, or the service has forgotten it
            self._token = ""
            answer = self._get_with_token(path)
        if answer.status == 404:
            return None
        if answer.status != 200:
            raise NoAnswerError(f"{self._url()}: answered {answer.status} to GET {path}")
        return answer

    def _get_with_token(self, path: str) -> Answer:
        if not self._token:
            self._token = self._request_token()
        return self._request("GET", path, {"X-aws-ec2-metadata-token": self._token})

    def _request_token(self) -> str:
        answer = self._request("PUT", "api/token", {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_SECONDS)})
        if answer.status != 200:
            raise NoAnswerError(f"{self._url()}: answered {answer.status} to the question for a token")
        if not (answer.text.isascii() and answer.text.isprintable() and answer.text):
            raise NoAnswerError(f"{self._url()}: is no metadata service: what it gave is no token")
        return answer.text

    def _request(self, method: str, path: str, headers: dict[str, str]) -> Answer:
        url = self._url()
        parts = urlsplit(url)
        assert parts.hostname is not None
        # Never by a proxy: the service is on this machine's own link.
        connection = http.client.HTTPConnection(parts.hostname, parts.port or 80, timeout=self._timeout)
        try:
            connection.connect()
        except OSError as error:
            connection.close()
            raise NoAnswerError(f"{url}: cannot be reached ({error})") from None
        try:
            place = f"{parts.path.rstrip('/')}/latest/{path}"
            connection.request(method, place, headers={**headers, "Connection": "close"})
            response = connection.getresponse()
            text = response.read(_MAX_BYTES).decode(errors="replace").strip()
            return Answer(response.status, text, _parse_http_date(response.getheader("Date")))
        except TimeoutError:
            # Answers to PUT may travel no further than the instance's hop limit: 1, if nobody has raised it.
            hint = "; in a container the instance's metadata hop limit must be at least 2" if method == "PUT" else ""
            raise NoAnswerError(f"{url}: no answer within {self._timeout:g} s{hint}") from None
        except (OSError, http.client.HTTPException) as error:
            raise NoAnswerError(f"{url}: {error!r}") from None
        finally:
            connection.close()

    def _url(self) -> str:
        """The service's address. Raises NoAnswerError if the environment disables it, or gives no usable address."""
        if self._environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
            raise NoAnswerError("AWS_EC2_METADATA_DISABLED = true")
        endpoint = self._environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", "")
        if not endpoint:
            mode = self._environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE", "")
            return ENDPOINT_IPV6 if mode.lower() == "ipv6" else ENDPOINT
        if not _is_http(endpoint):
            raise NoAnswerError(f"AWS_EC2_METADATA_SERVICE_ENDPOINT = {endpoint}: must be a URL such as {ENDPOINT}")
        return endpoint.rstrip("/")


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme == "http" and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _parse_http_date(date: str | None) -> float | None:
    """Unix time of an HTTP date; None if there is none, or it is malformed."""
    try:
        return parsedate_to_datetime(date).timestamp() if date else None
    except ValueError:
        return None
