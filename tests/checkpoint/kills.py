"""Kills this process at a chosen mutating operation of its store: an os-level call on POSIX, a request to a bucket."""

import mmap
import os
import re
import signal
import threading
from collections.abc import Callable
from typing import Any, Literal

import botocore.httpsession
import requests.adapters

Moment = Literal["before", "half", "after"]
"""half: of a write, the first half of its bytes is there. after: in a bucket, applied, the answer was never seen."""

CALLS = ("mkdir", "open", "write", "pwrite", "fsync", "link", "rename", "replace", "unlink", "rmdir", "truncate")
WRITES = ("write", "pwrite")
_NAME_BYTES = 64


class Kill:
    """SIGKILL at operation `at` of this process. What the operation was is told in memory that the parent shares."""

    def __init__(self, at: int, moment: Moment) -> None:
        self._at = at
        self._moment = moment
        self._count = 0
        self._lock = threading.Lock()
        self._told = mmap.mmap(-1, _NAME_BYTES)

    @property
    def operation(self) -> str:
        """What it was killed at; empty: nothing so far."""
        return bytes(self._told[:]).rstrip(b"\0").decode()

    def watch(self) -> None:
        """Count from now on, in this process, which is not to be used for anything else afterwards."""
        for name in CALLS:
            setattr(os, name, self._call(name, getattr(os, name)))
        botocore.httpsession.URLLib3Session.send = self._send(botocore.httpsession.URLLib3Session.send)  # type: ignore[method-assign]
        requests.adapters.HTTPAdapter.send = self._send(requests.adapters.HTTPAdapter.send)  # type: ignore[method-assign]

    def _call(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if name == "open" and not args[1] & os.O_CREAT:
                return original(*args, **kwargs)
            if self._is_it(name):
                if self._moment == "half" and name in WRITES:
                    fd, data, *rest = args
                    original(fd, data[: len(data) // 2], *rest)
                self._die()
            return original(*args, **kwargs)

        return call

    def _send(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def send(session: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
            if request.method not in ("PUT", "POST", "DELETE"):
                return original(session, request, *args, **kwargs)
            is_it = self._is_it(f"{request.method} {_what(request.url, request.body)}")
            if is_it and self._moment == "before":
                self._die()
            answer = original(session, request, *args, **kwargs)
            if is_it:
                self._die()
            return answer

        return send

    def _is_it(self, operation: str) -> bool:
        with self._lock:
            self._count += 1
            if self._count - 1 != self._at:
                return False
        self._told[:] = operation.encode()[:_NAME_BYTES].ljust(_NAME_BYTES, b"\0")
        return True

    def _die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def _what(url: str, body: Any) -> str:
    """What is put: the kind of object, and the step of a multipart or resumable upload."""
    path, _, query = url.partition("?")
    if path.startswith("/upload/storage/", path.find("/", len("https://"))):  # of Google's, whose name is in the body
        name = re.search(rb'"name": "([^"]+)"', body if isinstance(body, bytes) else b"")
        path = f"/{name[1].decode()}" if name else path
    kind = "commit" if "/commits/" in path else "part record" if path.endswith(".json") else "data"
    steps = ("uploads", "partNumber", "uploadId", "upload_id", "uploadType=resumable")
    step = [word for word in steps if f"{word}=" in query or word in query.split("&")]
    return f"{kind} {step[0]}" if step else kind
