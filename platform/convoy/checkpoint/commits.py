"""Commit objects and part records in a store: created only if absent, and read so that damage and outage differ.

Damage is what two reads of a store that demonstrably is there agree on; everything else is StoreUnavailable.
"""

import contextlib
from collections.abc import Callable
from typing import TypeVar

from convoy.checkpoint.format import Commit, DamagedCommitError, DataFile, Digest, PartRecord, parsed, part_name, sealed
from convoy.job.lineage import CommitRef, generation_name
from convoy.storage import ObjectMissing, Store, StoreUnavailable
from convoy.storage.checksum import crc32c

T = TypeVar("T")


class CommitGoneError(DamagedCommitError):
    """The commit object is not there (any more), though its store is: pruned. There is nothing to mark as damaged."""


def create_commit(store: Store, commit: Commit) -> Commit:
    """Make the checkpoint exist: the commit as it stands in the store.

    Where another save of the same generation and step was first, its commit is given: it holds the same state.
    Raises DamagedCommitError if what is there under that name is no commit of that generation and step.
    """
    raw = sealed(commit)
    if store.create(commit.ref.name, raw):
        return parsed(raw, _where(store, commit.ref.name))
    # A lost reply looks like "already there" too, and then our own attempt is read back.
    return read_commit(store, commit.ref)


def read_commit(store: Store, ref: CommitRef) -> Commit:
    """The commit. Raises DamagedCommitError if it is not what was written (CommitGoneError: not there any more),
    ConfigError for another format, StoreUnavailable if the job is not there at all, as where nothing is mounted."""

    def read() -> Commit:
        commit = parsed(store.read(ref.name), _where(store, ref.name))
        if commit.ref != ref:
            raise DamagedCommitError(f"{_where(store, ref.name)}: holds the commit {commit.ref.name}")
        return commit

    try:
        return _twice(store, ref.name, read)
    except ObjectMissing:
        check_mounted(store, ref.generation)
        raise CommitGoneError(f"{_where(store, ref.name)}: there is no such commit") from None


def read_part(store: Store, commit: Commit, writer: int) -> PartRecord:
    """The part record of a writer, as the commit describes it. Raises DamagedCommitError, StoreUnavailable."""
    name = part_name(writer)

    def read() -> PartRecord:
        raw = store.read(commit.shards + name)
        if name not in commit.parts or digest(raw) != commit.parts[name]:
            raise DamagedCommitError(f"{_where(store, commit.shards + name)}: not what the commit says")
        return PartRecord.model_validate_json(raw)

    return confirmed(store, commit, name, read)


def confirmed(store: Store, commit: Commit, name: str, read: Callable[[], T]) -> T:
    """What `read` gives of the object `name` below the commit's shards, tried a second time where it finds damage.

    read: raises DamagedCommitError or ObjectMissing for what may be damage. Raises DamagedCommitError only if the
    commit itself can still be read, CommitGoneError if it was pruned meanwhile, else StoreUnavailable.
    """
    try:
        return _twice(store, commit.shards + name, read)
    except ObjectMissing:
        damage = f"{_where(store, commit.shards + name)}: there is no such object"
    except DamagedCommitError as error:
        damage = str(error)
    read_commit(store, commit.ref)
    raise DamagedCommitError(damage)


def check_mounted(store: Store, generation: int) -> None:
    """Raises StoreUnavailable unless the generation's own object is there: an empty mount point looks like a store."""
    try:
        store.read(generation_name(generation))
    except ObjectMissing:
        raise StoreUnavailable(f"{_where(store, generation_name(generation))} is missing: is it mounted?") from None


def digest(raw: bytes) -> Digest:
    """Of a part record's bytes."""
    return Digest(bytes=len(raw), crc32c=crc32c(raw))


def file_digest(file: DataFile) -> Digest:
    """Of a data file: its length, and the CRC32C of its chunks' checksums, each as 4 bytes, big endian."""
    return Digest(bytes=file.bytes, crc32c=crc32c(b"".join(check.to_bytes(4, "big") for check in file.crc32c)))


def _twice(store: Store, name: str, read: Callable[[], T]) -> T:
    try:
        return read()
    except (DamagedCommitError, ObjectMissing):
        with contextlib.suppress(ObjectMissing, StoreUnavailable):
            store.drop_cache(name)  # the second read asks the storage, not this host's memory
    return read()


def _where(store: Store, name: str) -> str:
    return f"{store.uri}/{name}"
