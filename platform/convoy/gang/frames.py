"""Frames on a stream: a length of four bytes, big-endian, then so many bytes."""

import struct

_LENGTH = struct.Struct("!I")

MOST_BYTES = 2**20
"""Of one frame. What agents tell each other is small; what claims to be larger is no agent."""


class BadFrameError(Exception):
    """What came is no frame of ours."""


def frame(data: bytes) -> bytes:
    """The frame that holds `data`. Raises ValueError if it is longer than MOST_BYTES."""
    if len(data) > MOST_BYTES:
        raise ValueError(f"{len(data)} bytes: must be at most {MOST_BYTES}")
    return _LENGTH.pack(len(data)) + data


class Frames:
    """Takes a stream apart, however it was cut into pieces."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """What the frames hold that are whole now. Raises BadFrameError."""
        self._rest += data
        found, start = [], 0
        while len(self._rest) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._rest, start)
            if length > MOST_BYTES:
                raise BadFrameError(f"a frame of {length} bytes: must be at most {MOST_BYTES}")
            end = start + _LENGTH.size + length
            if len(self._rest) < end:
                break
            found.append(bytes(self._rest[start + _LENGTH.size : end]))
            start = end
        del self._rest[:start]
        return found
