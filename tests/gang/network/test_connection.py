"""FrameReader come out as they went in, however the stream was cut."""

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.gang.network.connection import MAX_BYTES, BadFrameError, Connection, FrameReader, frame
from tests.campaign import examples

pytestmark = pytest.mark.campaign


@examples(200)
@given(st.lists(st.binary(max_size=300), max_size=20), st.lists(st.integers(1, 50), min_size=1))
def test_frames_come_out_as_they_went_in_however_the_stream_was_cut(bodies: list[bytes], cuts: list[int]) -> None:
    stream, frames, found = b"".join(frame(body) for body in bodies), FrameReader(), []
    at, turn = 0, 0
    while at < len(stream):
        size = cuts[turn % len(cuts)]
        found += frames.feed(stream[at : at + size])
        at, turn = at + size, turn + 1
    assert found == bodies


def test_as_much_as_a_frame_lacks_ends_with_the_frame() -> None:
    stream, frames, found = frame(b"a nonce") + frame(b"a message"), FrameReader(), []
    while not found:
        piece, stream = stream[: frames.missing_bytes], stream[frames.missing_bytes :]
        found = frames.feed(piece)
    assert (found, stream) == ([b"a nonce"], frame(b"a message"))


def test_what_is_too_long_is_neither_made_nor_taken() -> None:
    assert FrameReader().feed(frame(bytes(MAX_BYTES))) == [bytes(MAX_BYTES)]
    with pytest.raises(ValueError, match="must be at most"):
        frame(bytes(MAX_BYTES + 1))
    with pytest.raises(BadFrameError, match="must be at most"):
        FrameReader().feed(b"GET / HTTP/1.1\r\n")
    with pytest.raises(BadFrameError, match="must be at most 10"):
        FrameReader(most_bytes=10).feed(frame(bytes(11))[:4])


def test_what_is_lost_is_sent_again_at_an_even_pace_whatever_the_host_s_default_is() -> None:
    link = Connection(socket.socket(socket.AF_INET, socket.SOCK_STREAM), None)
    try:
        # Under BBR the kernel takes no stream for thin: see tests/system/test_partition.py for what follows.
        assert link.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0") == b"reno"
        assert link.socket.getsockopt(socket.IPPROTO_TCP, 16) == 1  # TCP_THIN_LINEAR_TIMEOUTS
    finally:
        link.close()
