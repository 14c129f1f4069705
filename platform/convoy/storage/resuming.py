"""What stores in buckets share: pauses between tries, and ranges that continue where a reply broke off."""

import http.client
import random
import time
from collections.abc import Callable
from typing import Any

import urllib3.exceptions

from convoy.storage.base import StoreUnavailable

TRIES = 8
"""In a row, without a byte between them."""

BROKEN_OFF = (OSError, http.client.HTTPException, urllib3.exceptions.HTTPError)
"""What reading the body of a reply may raise."""

Receive = Callable[[int, memoryview], tuple[int, int, str]]
"""Request a range: from its first byte into a buffer. Bytes that came, bytes that the reply was to have, and why it
broke off."""


def pause_before_retry(tried: int) -> None:
    """Before trying again what a client does not: 25 ms on average after the first time, doubled with every further
    one."""
    time.sleep(random.uniform(0, 0.05 * 2**tried))


def fill(receive: Receive, where: str, start: int, buffer: memoryview) -> int:
    """Fill the buffer from byte `start` on; how many bytes there were. A reply that breaks off is continued.

    Raises what `receive` raises, StoreUnavailable where replies keep breaking off.
    """
    filled, tried = 0, 0
    while filled < len(buffer):
        with buffer[filled:] as rest:
            count, promised, reason = receive(start + filled, rest)
        filled += count
        if count == promised:
            break
        tried = 0 if count else tried + 1
        if tried == TRIES:
            raise broken_off(where, reason)
        pause_before_retry(tried)
    return filled


def broken_off(where: str, reason: str) -> StoreUnavailable:
    return StoreUnavailable(f"{where}: {TRIES} replies in a row broke off: {reason}")


def receive_body(
    body: Any, stream: Any, promised: int, buffer: memoryview, errors: tuple[type[Exception], ...] = BROKEN_OFF
) -> tuple[int, str]:
    """Bytes of a reply's body that came, at most `promised`, and why it broke off.

    stream: receives into a buffer. body: is read to its end, upon which the connection can serve the next request.
    errors: what both may raise where the connection fails.
    """
    received = 0
    try:
        while received < promised:
            with buffer[received:promised] as rest:
                count = stream.readinto(rest)
            if not count:
                return received, "its connection was closed early"
            received += count
        body.read()
    except errors as error:
        return received, str(error)
    return received, ""
