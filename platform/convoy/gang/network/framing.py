"""Frames on a stream: a length of four bytes, big-endian, then so many bytes."""

import struct

_LENGTH = struct.Struct("!I")

MOST_BYTES = 2**20
"""Of one frame. What agents tell each other is small; what claims to be larger is no agent."""

MOST_UNPROVEN_BYTES = 4096
"""Of one frame from an end that has not proven yet that it is of the gang."""


class BadFrameError(Exception):
    """What came is no frame of ours."""


def frame(data: bytes) -> bytes:
    """The frame that holds `data`. Raises ValueError if it is longer than MOST_BYTES."""
    if len(data) > MOST_BYTES:
        raise ValueError(f"{len(data)} bytes: must be at most {MOST_BYTES}")
    return _LENGTH.pack(len(data)) + data


class Frames:
    """Takes a stream apart, however it was cut into pieces."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        """most_bytes: of one frame; it may be changed between two calls."""
        self.most_bytes = most_bytes
        self._rest = bytearray()

    @property
    def lacking(self) -> int:
        """Bytes to come, as far as is known, until the next frame is whole."""
        if len(self._rest) < _LENGTH.size:
            return _LENGTH.size - len(self._rest)
        (length,) = _LENGTH.unpack_from(self._rest)
        return _LENGTH.size + int(length) - len(self._rest)

    def feed(self, data: bytes) -> list[bytes]:
        """What the frames hold that are whole now. Raises BadFrameError."""
        self._rest += data
        found, start = [], 0
        while len(self._rest) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._rest, start)
            if length > self.most_bytes:
                raise BadFrameError(f"a frame of {length} bytes: must be at most {self.most_bytes}")
            end = start + _LENGTH.size + length
            if len(self._rest) < end:
                break
            found.append(bytes(self._rest[start + _LENGTH.size : end]))
            start = end
        del self._rest[:start]
        return found
