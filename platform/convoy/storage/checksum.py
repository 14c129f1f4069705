"""The checksum of every byte that Convoy writes in bulk: CRC32C, which S3 checks too."""

import base64

from awscrt import checksums  # type: ignore[import-untyped]


def crc32c(data: bytes | bytearray | memoryview, previous: int = 0) -> int:
    """CRC32C (Castagnoli) of the data; `previous` is that of the bytes before it."""
    return int(checksums.crc32c(data, previous))


def as_s3_header(checksum: int) -> str:
    """As `x-amz-checksum-crc32c` carries it: base64 of the four bytes, big endian."""
    return base64.b64encode(checksum.to_bytes(4, "big")).decode()
