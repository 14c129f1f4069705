"""Frames come out as they went in, however the stream was cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.gang.network.framing import MOST_BYTES, BadFrameError, Frames, frame
from tests.campaign import examples

pytestmark = pytest.mark.campaign


@examples(200)
@given(st.lists(st.binary(max_size=300), max_size=20), st.lists(st.integers(1, 50), min_size=1))
def test_frames_come_out_as_they_went_in_however_the_stream_was_cut(bodies: list[bytes], cuts: list[int]) -> None:
    stream, frames, found = b"".join(frame(body) for body in bodies), Frames(), []
    at, turn = 0, 0
    while at < len(stream):
        size = cuts[turn % len(cuts)]
        found += frames.feed(stream[at : at + size])
        at, turn = at + size, turn + 1
    assert found == bodies


def test_as_much_as_a_frame_lacks_ends_with_the_frame() -> None:
    stream, frames, found = frame(b"a nonce") + frame(b"a message"), Frames(), []
    while not found:
        piece, stream = stream[: frames.lacking], stream[frames.lacking :]
        found = frames.feed(piece)
    assert (found, stream) == ([b"a nonce"], frame(b"a message"))


def test_what_is_too_long_is_neither_made_nor_taken() -> None:
    assert Frames().feed(frame(bytes(MOST_BYTES))) == [bytes(MOST_BYTES)]
    with pytest.raises(ValueError, match="must be at most"):
        frame(bytes(MOST_BYTES + 1))
    with pytest.raises(BadFrameError, match="must be at most"):
        Frames().feed(b"GET / HTTP/1.1\r\n")
    with pytest.raises(BadFrameError, match="must be at most 10"):
        Frames(most_bytes=10).feed(frame(bytes(11))[:4])
