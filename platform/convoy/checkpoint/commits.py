"""Commits, part records and chunks in a store: created only if absent, and read so that damage and outage differ.

Damage is what two reads of a store that demonstrably is there agree on; everything else is StoreUnavailable.
"""

import contextlib
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from pydantic import ValidationError

from convoy.checkpoint.format import (
    CHUNK_BYTES,
    Commit,
    DamagedCommitError,
    DataFile,
    Digest,
    PartRecord,
    encode_commit,
    parse_commit,
    part_record_name,
)
from convoy.config.errors import first_mistake
from convoy.job.lineage import CommitRef, generation_name
from convoy.storage import ObjectMissing, Store, StoreUnavailable
from convoy.storage.checksum import crc32c
from convoy.storage.thread_map import in_parallel

_READERS = 8

T = TypeVar("T")


class CommitGoneError(DamagedCommitError):
    """The commit object is not there (any more), though its store is: pruned. There is nothing to mark as damaged."""


class DamagedPartError(DamagedCommitError):
    """The part of one writer is not what the commit says."""

    def __init__(self, text: str, writer: int | None = None) -> None:
        """writer: None where the object's name does not include it."""
        super().__init__(text)
        self.writer = writer


class TensorsMissingError(DamagedCommitError):
    """All parts are as the commit says, but are not all of its tensors: reading them again would not help."""


def create_commit(store: Store, commit: Commit) -> Commit:
    """Make the checkpoint exist: the commit as it is in the store.

    Where another save of the same generation and step was first, its commit is given: it holds the same state.
    Raises DamagedCommitError if what is there under that name is no commit of that generation and step.
    """
    raw = encode_commit(commit)
    if store.create(commit.ref.name, raw):
        return parse_commit(raw, _object_uri(store, commit.ref.name))
    # A lost reply looks like "already there" too, and then our own attempt is read back.
    return read_commit(store, commit.ref)


def read_commit(store: Store, ref: CommitRef) -> Commit:
    """The commit. Raises DamagedCommitError if it is not what was written (CommitGoneError: not there any more),
    ConfigError for another format, StoreUnavailable if the job is not there at all, as where nothing is mounted."""

    def read() -> Commit:
        commit = parse_commit(store.read(ref.name), _object_uri(store, ref.name))
        if commit.ref != ref:
            raise DamagedCommitError(f"{_object_uri(store, ref.name)}: holds the commit {commit.ref.name}")
        return commit

    try:
        return _reread_if_damaged(store, ref.name, read)
    except ObjectMissing:
        check_mounted(store, ref.generation)
        raise CommitGoneError(f"{_object_uri(store, ref.name)}: there is no such commit") from None


def read_part(store: Store, commit: Commit, writer: int) -> PartRecord:
    """The part record of a writer, as the commit describes it. Raises DamagedCommitError, StoreUnavailable."""
    name = part_record_name(writer)

    def read() -> PartRecord:
        raw = store.read(commit.prefix + name)
        if name not in commit.parts or digest(raw) != commit.parts[name]:
            raise DamagedCommitError(f"{_object_uri(store, commit.prefix + name)}: not what the commit says")
        where = _object_uri(store, commit.prefix + name)
        try:
            record = PartRecord.model_validate_json(raw)
        except ValidationError as error:
            raise DamagedCommitError(f"{where}: is not a part record: {first_mistake(error)}") from None
        if record.writer != writer:
            raise DamagedCommitError(f"{where}: is the part of writer {record.writer}")
        return record

    return read_confirming_damage(store, commit, name, read)


def read_commit_and_parts(store: Store, ref: CommitRef) -> tuple[Commit, list[PartRecord]]:
    """The commit and its part records, every file there with its length. Raises as `read_commit` and `read_part`."""
    commit = read_commit(store, ref)
    _check_file_lengths(store, commit)
    records = in_parallel(lambda writer: read_part(store, commit, writer), len(commit.parts), _READERS)
    _check_parts_and_files(store, commit, records)
    return commit, records


def read_confirming_damage(store: Store, commit: Commit, name: str, read: Callable[[], T]) -> T:
    """The result of `read` for the object `name` below the commit's shards, read a second time where it finds damage.

    read: raises DamagedCommitError or ObjectMissing for what may be damage. Raises DamagedCommitError only if the
    commit itself can still be read (DamagedPartError, if that is not damaged too), CommitGoneError if it was pruned
    meanwhile, else StoreUnavailable.
    """
    try:
        return _reread_if_damaged(store, commit.prefix + name, read)
    except ObjectMissing:
        damage = f"{_object_uri(store, commit.prefix + name)}: there is no such object"
    except DamagedCommitError as error:
        damage = str(error)
    read_commit(store, commit.ref)
    raise DamagedPartError(damage, _writer_in_name(name))


def check_mounted(store: Store, generation: int) -> None:
    """Raises StoreUnavailable unless the generation's own object is there: an empty mount point looks like a store."""
    try:
        store.read(generation_name(generation))
    except ObjectMissing:
        raise StoreUnavailable(
            f"{_object_uri(store, generation_name(generation))} is missing: is it mounted?"
        ) from None


def digest(raw: bytes) -> Digest:
    """The digest of a part record's bytes."""
    return Digest(bytes=len(raw), crc32c=crc32c(raw))


def file_digest(file: DataFile) -> Digest:
    """The digest of a data file: its length, and the CRC32C of its chunks' checksums, each as 4 bytes, big endian."""
    return Digest(bytes=file.bytes, crc32c=crc32c(b"".join(check.to_bytes(4, "big") for check in file.crc32c)))


def _reread_if_damaged(store: Store, name: str, read: Callable[[], T]) -> T:
    try:
        return read()
    except (DamagedCommitError, ObjectMissing):
        with contextlib.suppress(ObjectMissing, StoreUnavailable):
            store.drop_cache(name)  # the second read goes to the storage, not to this host's memory
    return read()


def _check_file_lengths(store: Store, commit: Commit) -> None:
    """One listing shows at once which files are gone, or of another length than they were written with."""
    there = store.sizes(commit.prefix)
    for name, file in commit.files.items():
        if there.get(commit.prefix + name) != file.bytes:
            read_confirming_damage(store, commit, name, partial(_check_file_length, store, commit, name))


def _check_parts_and_files(store: Store, commit: Commit, records: Sequence[PartRecord]) -> None:
    """A commit and its parts, each as it was written, must agree on how many parts and which files there are."""
    files = {file.name: file_digest(file) for record in records for file in record.files}
    if not records or any(record.writers != len(records) for record in records):
        raise DamagedCommitError(
            f"{_object_uri(store, commit.ref.name)}: has {len(records)} parts, and its writers made more"
        )
    if files != commit.files:
        raise DamagedCommitError(f"{_object_uri(store, commit.ref.name)}: its files are not those of its parts")


def _check_file_length(store: Store, commit: Commit, name: str) -> None:
    where, wanted = commit.prefix + name, commit.files[name].bytes
    length = store.sizes(where).get(where)
    if length != wanted:
        raise DamagedCommitError(f"{store.uri}/{where}: {length} bytes, the commit says {wanted}")


def _writer_in_name(name: str) -> int | None:
    """The writer in the name of a part record or a data file, a copy's too."""
    match = re.match(r"(?:part-)?(\d+)\.", name)
    return int(match[1]) if match else None


def _object_uri(store: Store, name: str) -> str:
    return f"{store.uri}/{name}"


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
    where = f"{store.uri}/{commit.prefix}{file.name}"

    def read() -> None:
        got = store.read_into(commit.prefix + file.name, start, buffer)
        if got != length:
            raise DamagedCommitError(f"{where}: ends at byte {start + got} of {file.bytes}")
        if index >= len(file.crc32c) or crc32c(buffer) != file.crc32c[index]:
            raise DamagedCommitError(f"{where}: the checksum of chunk {index} does not match its content")

    read_confirming_damage(store, commit, file.name, read)
