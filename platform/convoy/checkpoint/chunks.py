"""Reading data files: whole chunks only, each checked against its CRC32C."""

from convoy.checkpoint.commits import confirmed
from convoy.checkpoint.format import CHUNK_BYTES, Commit, DamagedCommitError, DataFile
from convoy.storage import Store
from convoy.storage.checksum import crc32c


def chunk_span(file: DataFile, index: int, chunk_bytes: int = CHUNK_BYTES) -> tuple[int, int]:
    """First byte of a chunk in its file, and how many bytes it has.

    chunk_bytes: of the part record. Raises IndexError if the file has no such chunk.
    """
    start = index * chunk_bytes
    if not 0 <= start < file.bytes:
        raise IndexError(f"{file.name} has no chunk {index}")
    return start, min(chunk_bytes, file.bytes - start)


def read_chunk(
    store: Store, commit: Commit, file: DataFile, index: int, buffer: memoryview, chunk_bytes: int = CHUNK_BYTES
) -> None:
    """Fill `buffer`, of exactly the chunk's length, with the chunk's checked bytes. Many threads may call it.

    Raises DamagedCommitError (two reads did not give what was written), StoreUnavailable; `buffer` holds anything then.
    """
    start, length = chunk_span(file, index, chunk_bytes)
    if len(buffer) != length:
        raise ValueError(f"{len(buffer)} bytes for chunk {index} of {file.name}, which has {length}")
    where = f"{store.uri}/{commit.shards}{file.name}"

    def read() -> None:
        got = store.read_into(commit.shards + file.name, start, buffer)
        if got != length:
            raise DamagedCommitError(f"{where}: ends at byte {start + got} of {file.bytes}")
        if index >= len(file.crc32c) or crc32c(buffer) != file.crc32c[index]:
            raise DamagedCommitError(f"{where}: the checksum of chunk {index} does not match its content")

    confirmed(store, commit, file.name, read)
