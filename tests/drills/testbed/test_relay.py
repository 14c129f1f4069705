"""Frames leave the relay in their order, none before its time, and all are counted."""

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from convoy.drills.testbed.relay import BATCH, Relay

DELAY_SECONDS = 0.02

Line = tuple[socket.socket, socket.socket]
"""The relay's end, which stands for a TAP device, and the other."""


@pytest.fixture
def lines() -> Iterator[list[Line]]:
    with ExitStack() as stack:
        made = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2)]
        for pair in made:
            for end in pair:
                stack.enter_context(end)
                end.setblocking(False)
        yield made


@pytest.fixture
def relay(lines: list[Line]) -> Relay:
    return Relay(DELAY_SECONDS, {name: near.fileno() for name, (near, _) in zip("ab", lines, strict=True)})


def test_frames_wait_their_time_and_leave_where_they_came_from(relay: Relay, lines: list[Line]) -> None:
    (a, far_a), (b, far_b) = lines
    for frame in (b"one", b"two"):
        far_a.send(frame)
    far_b.send(b"other")
    began = time.monotonic()
    relay.take_in(a.fileno())
    relay.take_in(b.fileno())
    assert (relay.counts["a"].held, relay.counts["b"].held) == (2, 1)
    wait = relay.release()
    while wait is not None:
        assert 0 <= wait <= DELAY_SECONDS
        time.sleep(wait)
        wait = relay.release()
    assert time.monotonic() - began >= DELAY_SECONDS
    assert [far_a.recv(9), far_a.recv(9), far_b.recv(9)] == [b"one", b"two", b"other"]
    assert [(counts.held, counts.forwarded, counts.dropped) for counts in relay.counts.values()] == [
        (0, 2, 0),
        (0, 1, 0),
    ]


def test_nothing_is_written_before_it_is_due(relay: Relay, lines: list[Line]) -> None:
    (near, far), _ = lines
    far.send(b"frame")
    relay.take_in(near.fileno())
    assert relay.release() == pytest.approx(DELAY_SECONDS, abs=DELAY_SECONDS / 2)
    with pytest.raises(BlockingIOError):
        far.recv(9)


def test_a_busy_interface_does_not_keep_the_relay_from_the_others(lines: list[Line]) -> None:
    (near, far), _ = lines
    relay = Relay(0.0, {"a": near.fileno()})
    sent = 0
    try:
        while sent < 2 * BATCH:
            far.send(b"frame")
            sent += 1
    except BlockingIOError:
        pass
    relay.take_in(near.fileno())
    assert relay.counts["a"].held == min(sent, BATCH)


def test_what_the_kernel_does_not_take_back_is_counted_as_dropped(lines: list[Line]) -> None:
    (near, far), _ = lines
    relay = Relay(0.0, {"a": near.fileno()})
    far.send(b"frame")
    relay.take_in(near.fileno())
    far.close()
    assert relay.release() is None
    assert (relay.counts["a"].forwarded, relay.counts["a"].dropped) == (0, 1)
