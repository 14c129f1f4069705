"""Reading commits back, every byte, without torch: what is whole is marked so, what is damaged too."""

import contextlib
import functools
from collections.abc import Callable, Iterator

from convoy.checkpoint.commits import (
    CommitGoneError,
    chunk_span,
    read_chunk,
    read_commit,
    read_commit_and_parts,
    read_part,
)
from convoy.checkpoint.format import Commit, DamagedCommitError, DataFile, PartRecord, part_record_name
from convoy.checkpoint.verify.marks import dismiss_suspicions, mark_damaged, mark_part_verified, suspect, suspicions
from convoy.job.leases import lease
from convoy.job.lineage import CommitRef
from convoy.storage import ObjectMissing, Store, StoreUnavailable
from convoy.storage.thread_map import in_parallel


class StoppedError(RuntimeError):
    """Reading was stopped before its end."""


class SuspectedError(DamagedCommitError):
    """Damage that only this host has found so far: another must read the part before the commit is marked."""


Stop = Callable[[], bool]
"""Called between chunks; may wait until a save is over. True: end early, with StoppedError."""


def verify_part(
    store: Store,
    ref: CommitRef,
    part: int,
    drop_cache: bool = False,
    *,
    host: str = "",
    stop: Stop = lambda: False,
    threads: int = 1,
) -> int:
    """Read back all that writer `part` wrote of a commit, and mark it as verified: how many bytes.

    drop_cache: have this host forget the files first, where it may have written them itself. host: of this rank, in a
    gang of several hosts; empty: there is no other. Raises DamagedCommitError once the commit is marked as damaged,
    SuspectedError if it is not yet, CommitGoneError if it was pruned, StoreUnavailable, StoppedError.
    """
    with _marking_damage(store, ref, part, host):
        return verify_without_marking_damage(store, ref, part, drop_cache, stop=stop, threads=threads)


def verify_commit(
    store: Store, ref: CommitRef, drop_cache: bool = False, *, stop: Stop = lambda: False, threads: int = 4
) -> int:
    """Read back every part of a commit, as `verify_part` does, under a lease: how many bytes. No suspicion is left."""
    with lease(store, ref):
        with _marking_damage(store, ref):
            commit, records = read_commit_and_parts(store, ref)
            read = sum(_verify_record(store, commit, each, drop_cache, stop=stop, threads=threads) for each in records)
    dismiss_suspicions(store, *suspicions(store, ref))
    return read


def verify_without_marking_damage(
    store: Store, ref: CommitRef, part: int, drop_cache: bool, *, stop: Stop = lambda: False, threads: int = 1
) -> int:
    """As `verify_part`, but damage is only raised, and nothing marked for it."""
    commit = read_commit(store, ref)
    return _verify_record(store, commit, read_part(store, commit, part), drop_cache, stop=stop, threads=threads)


def _verify_record(
    store: Store, commit: Commit, record: PartRecord, drop_cache: bool, *, stop: Stop, threads: int
) -> int:
    for file in record.files if drop_cache else ():
        _drop_cache(store, commit.prefix + file.name)
    check_part_chunks(store, commit, record, stop=stop, threads=threads)
    mark_part_verified(store, commit.ref, record.writer, len(commit.parts))
    return sum(file.bytes for file in record.files)


def check_part_chunks(store: Store, commit: Commit, record: PartRecord, *, stop: Stop, threads: int) -> None:
    """Check every chunk of a part. Raises as `verify_part` does, and marks nothing."""

    def check(file: DataFile, index: int) -> None:
        if stop():
            raise StoppedError(f"{commit.ref.name}: stopped while it was read back")
        buffer = bytearray(chunk_span(file, index, record.chunk_bytes)[1])
        read_chunk(store, commit, file, index, memoryview(buffer), record.chunk_bytes)

    for file in record.files:
        in_parallel(functools.partial(check, file), -(-file.bytes // record.chunk_bytes), threads)


def reread_from_storage(store: Store, ref: CommitRef, part: int | None, *, files: bool, threads: int) -> None:
    """Read what another host has found damaged, from the storage itself: the commit and all part records, and with
    `files` the files of a part too, or those of all parts. Raises as `verify_part` does, and marks nothing."""
    _drop_cache(store, ref.name)
    commit = read_commit(store, ref)
    for writer in range(len(commit.parts)):
        _drop_cache(store, commit.prefix + part_record_name(writer))
    commit, records = read_commit_and_parts(store, ref)
    has_part = part is not None and part < len(records)
    for record in (r for r in records if files and (r.writer == part or not has_part)):
        for file in record.files:
            _drop_cache(store, commit.prefix + file.name)
        check_part_chunks(store, commit, record, stop=lambda: False, threads=threads)


def _drop_cache(store: Store, name: str) -> None:
    with contextlib.suppress(ObjectMissing, StoreUnavailable):  # which reading it will show
        store.drop_cache(name)


@contextlib.contextmanager
def _marking_damage(store: Store, ref: CommitRef, part: int = 0, host: str = "") -> Iterator[None]:
    """Damage that is found in the block is marked, or suspected. A commit that was pruned is not damaged."""
    try:
        yield
    except CommitGoneError:
        raise
    except DamagedCommitError as error:
        if not host:
            mark_damaged(store, ref, str(error))
        elif suspect(store, ref, part, str(error), host) is None:
            raise SuspectedError(f"{error}; only {host} finds it so yet") from error
        raise
