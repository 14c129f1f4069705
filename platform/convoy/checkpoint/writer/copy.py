"""Copying commits to another tier, with the same protocol: files, then part records, then the commit, only if absent.

Each file gets a name that nobody else uses, and the part record on the target names those: of two that copy the same
part one record exists, complete, and no half-written file is ever named. Copying again what is there does nothing.
"""

import contextlib
import mmap
import re
import time
import uuid
from collections.abc import Callable, Sequence
from typing import cast

from convoy.checkpoint.commits import chunk_span, create_commit, digest, file_digest, read_chunk, read_commit, read_part
from convoy.checkpoint.format import (
    Commit,
    DataFile,
    Digest,
    PartRecord,
    copy_failures_prefix,
    failure_note_name,
    part_record_name,
    removal_mark_name,
)
from convoy.checkpoint.verify.commit import Stop, StoppedError
from convoy.checkpoint.writer.retention import GRACE_SECONDS
from convoy.config.errors import ConfigError
from convoy.job.leases import lease
from convoy.job.lineage import CommitRef, config_name, generation_name, generation_numbers, read_generation
from convoy.job.record import RECORD
from convoy.storage import ObjectMissing, Store, StoreUnavailable
from convoy.storage.thread_map import in_parallel

COPY_SECONDS = 900.0
SLOWEST_BYTES_PER_SECOND = 10e6
"""A part may take so many seconds, and a copy at this pace, before it counts as one that will not come."""

_LOOK_SECONDS = 0.5
_READERS = 8


class CopyFailedError(RuntimeError):
    """The copy cannot be committed: a part did not come in time, or is not what the source has, or may go just now."""


class CopyAbortedError(CopyFailedError):
    """A writer has left a note that it cannot do its share."""


def copy_part(
    source: Store, target: Store, ref: CommitRef, writer: int, *, stop: Stop = lambda: False, threads: int = 4
) -> int:
    """Copy what one writer wrote of a commit, each chunk checked on the way: bytes copied, 0 if it was there.

    Raises DamagedCommitError (of the source, which is not marked), CommitGoneError, StoreUnavailable (also if the job
    is not on the target, see `copy_job_records`), StoppedError, CopyFailedError while the target prunes the commit.
    """
    _refuse_unmounted(target)
    with lease(source, ref), lease(target, ref):
        _check_not_being_pruned(target, ref)
        commit = read_commit(source, ref)
        name = commit.prefix + part_record_name(writer)
        if name in target.sizes(name):
            return 0
        record, copied = read_part(source, commit, writer), list[DataFile]()
        try:
            for file in record.files:
                copied.append(_copy_file(source, target, commit, record, file, stop, threads))
            ours = record.model_copy(update={"files": copied})
            if not target.create(name, ours.model_dump_json().encode()):
                raise FileExistsError(name)
        except BaseException as error:
            with contextlib.suppress(StoreUnavailable):
                for file in copied:
                    target.delete(commit.prefix + file.name)
            if isinstance(error, FileExistsError):
                return 0  # another copied it meanwhile
            raise
        return sum(file.bytes for file in copied)


def copy_deadline_seconds(commit: Commit) -> float:
    """How long the committer of a copy waits for the parts, while no writer notes that its own will not come."""
    written: dict[str, int] = {}
    for name, file in commit.files.items():
        writer = name.partition(".")[0]
        written[writer] = written.get(writer, 0) + file.bytes
    return COPY_SECONDS + max(written.values(), default=0) / SLOWEST_BYTES_PER_SECOND


def commit_copied_parts(
    source: Store,
    target: Store,
    ref: CommitRef,
    deadline_seconds: float | None = None,
    *,
    stop: Stop = lambda: False,
    sleep: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Commit:
    """Wait until every part is on the target, then make the commit there: as it is there. Also copies what describes
    the job: its record and its generations. deadline_seconds: None: as `copy_deadline_seconds` says.

    Raises CopyFailedError (as `copy_part`, too), CopyAbortedError if a part will not come, DamagedCommitError,
    StoreUnavailable as `copy_part`, StoppedError.
    """
    _refuse_unmounted(target)
    with lease(source, ref), lease(target, ref):
        commit, began = read_commit(source, ref), clock()
        patience = copy_deadline_seconds(commit) if deadline_seconds is None else deadline_seconds
        copy_job_records(source, target)
        if ref.name in target.sizes(ref.name):
            return read_commit(target, ref)
        _check_not_being_pruned(target, ref)
        while missing := _missing_parts(target, commit):
            if stop():
                raise StoppedError(f"{ref.name}: stopped while it was copied")
            check_copy_failures(target, ref)
            if clock() - began > patience:
                raise CopyFailedError(f"{target.uri}: {missing[0]} did not come within {patience:.0f} s")
            sleep(_LOOK_SECONDS)
        return create_commit(target, _commit_of_copy(source, target, commit))


def write_copy_failure(target: Store, ref: CommitRef, writer: int, reason: str) -> None:
    """Tell all who wait for this writer's part, or for the commit of writer 0, that it will not come.

    Raises StoreUnavailable. What is left is removed as that of any attempt without a commit.
    """
    _refuse_unmounted(target)
    target.create(
        copy_failures_prefix(ref.generation, ref.step) + failure_note_name(writer),
        f"writer {writer}: {reason}".encode(),
    )


def check_copy_failures(target: Store, ref: CommitRef) -> None:
    """Raises CopyAbortedError if a writer has left a note that it cannot do its share, StoreUnavailable."""
    for name in target.sizes(copy_failures_prefix(ref.generation, ref.step)):
        with contextlib.suppress(ObjectMissing):  # pruned meanwhile
            raise CopyAbortedError(target.read(name).decode(errors="replace"))


def copy_commit(
    source: Store, target: Store, ref: CommitRef, *, stop: Stop = lambda: False, threads: int = 4
) -> tuple[Commit, int]:
    """Copy a whole commit alone, also to a fresh place: the commit on the target, and the bytes copied."""
    copy_job_records(source, target)
    parts = range(len(read_commit(source, ref).parts))
    copied = sum(copy_part(source, target, ref, part, stop=stop, threads=threads) for part in parts)
    return commit_copied_parts(source, target, ref, 0.0, stop=stop), copied


def copy_job_records(source: Store, target: Store) -> None:
    """Copy the job's record, its generations, and the configurations that these ran with.

    Raises ConfigError, with nothing changed, if the target holds another job, or the job as it continued elsewhere: a
    generation's number would then stand for two, whose commits have the same names.
    """
    ours, theirs = ({generation_name(n) for n in generation_numbers(store)} for store in (source, target))
    _refuse_other_job(source, target, sorted(ours & theirs))
    with contextlib.suppress(ObjectMissing):  # outside a flow there is no record
        _copy_object(source, target, RECORD)
    for ran_with in {read_generation(source, name).config_hash for name in ours - theirs} - {""}:
        with contextlib.suppress(ObjectMissing):  # tiers of older versions have none
            _copy_object(source, target, config_name(ran_with))
    for name in sorted(ours - theirs):  # last: a target with a generation has all that belongs to it
        _copy_object(source, target, name)


def _refuse_unmounted(target: Store) -> None:
    """Raises StoreUnavailable if the target has no generation at all: an empty mount point looks like a store."""
    if not generation_numbers(target):
        raise StoreUnavailable(f"{target.uri} has nothing of the job: is it mounted?")


def _check_not_being_pruned(target: Store, ref: CommitRef) -> None:
    """Raises CopyFailedError while something prunes the commit on the target. To be called under a lease there.

    What prunes looks for leases before it removes files, and not between them: what came later must not build on these.
    """
    name = removal_mark_name(ref)
    mark = target.listing(name).get(name)
    if mark is None:
        return
    age = max(0.0, target.now() - mark.modified)  # clocks of a store have whole seconds
    since = f"{name} is {age / 60:.0f} minutes old"
    if age <= GRACE_SECONDS:
        raise CopyFailedError(
            f"{target.uri}: {ref.name} is being pruned there: {since}; try again when that is gone, "
            "or, should it stay, in an hour"
        )
    raise CopyFailedError(
        f"{target.uri}: {ref.name} is half pruned there, probably by what died at it: {since}; the next pruning there "
        "ends that: by the job, after its next commit, if this is a tier of its own, or by convoy checkpoints prune "
        f"{target.uri} --keep-last N, with --root FIRST_TIER if it is a further one; --dry-run shows what else would go"
    )


def _refuse_other_job(source: Store, target: Store, generations: Sequence[str]) -> None:
    """Raises ConfigError unless each of these objects is the same on both."""

    def same(index: int) -> bool:
        return source.read(generations[index]) == target.read(generations[index])

    alike = in_parallel(same, len(generations), _READERS)
    if not all(alike):
        name = generations[alike.index(False)]
        raise ConfigError(
            f"{target.uri}/{name}: differs from {source.uri}/{name}; it holds another job, or this one as it continued "
            "there by itself: copy to an empty place"
        )


def _copy_object(source: Store, target: Store, name: str) -> None:
    data = source.read(name)
    if not target.create(name, data) and target.read(name) != data:
        raise ConfigError(f"{target.uri}/{name}: differs from {source.uri}/{name}; it holds another job")


def _copy_file(
    source: Store, target: Store, commit: Commit, record: PartRecord, file: DataFile, stop: Stop, threads: int
) -> DataFile:
    stem, _, suffix = re.sub(r"\.copy-[0-9a-f]+", "", file.name).rpartition(".")
    name = f"{stem}.copy-{uuid.uuid4().hex[:12]}.{suffix}"
    checked = _CheckedFile(source, commit, record, file, stop)
    # A put takes slices of its data, each once: these are read when they are taken.
    checks = target.put(commit.prefix + name, cast(memoryview, checked), record.chunk_bytes, threads)
    if checks != file.crc32c:
        raise StoreUnavailable(f"{target.uri}/{commit.prefix}{name}: changed on its way")
    return DataFile(name=name, bytes=file.bytes, crc32c=checks)


class _CheckedFile:
    """A file of the source as a put sees it: its length, and slices of whole chunks, which are checked."""

    def __init__(self, source: Store, commit: Commit, record: PartRecord, file: DataFile, stop: Stop) -> None:
        self._source = source
        self._commit = commit
        self._chunk_bytes = record.chunk_bytes
        self._file = file
        self._stop = stop

    def __len__(self) -> int:
        return self._file.bytes

    def __getitem__(self, span: slice) -> memoryview:
        start, stop, _ = span.indices(self._file.bytes)
        if stop <= start:
            return memoryview(b"")
        # Memory of whole pages, so that it can go past the page cache.
        buffer = memoryview(mmap.mmap(-1, stop - start))
        for index in range(start // self._chunk_bytes, -(-stop // self._chunk_bytes)):
            self._read_chunk(index, buffer, start)
        return buffer

    def __bytes__(self) -> bytes:
        return bytes(self[:])

    def _read_chunk(self, index: int, buffer: memoryview, offset: int) -> None:
        if self._stop():
            raise StoppedError(f"{self._commit.ref.name}: stopped while it was copied")
        first, length = chunk_span(self._file, index, self._chunk_bytes)
        with buffer[first - offset : first - offset + length] as chunk:
            read_chunk(self._source, self._commit, self._file, index, chunk, self._chunk_bytes)


def _missing_parts(target: Store, commit: Commit) -> list[str]:
    there = target.sizes(commit.prefix)
    return [name for name in commit.parts if commit.prefix + name not in there]


def _commit_of_copy(source: Store, target: Store, commit: Commit) -> Commit:
    """The commit as it is on the target, where files have other names. Raises CopyFailedError if a part differs."""
    there = target.sizes(commit.prefix)

    def verify_copied_part(writer: int) -> tuple[Digest, dict[str, Digest]]:
        theirs = read_part(source, commit, writer)
        raw = target.read(commit.prefix + part_record_name(writer))
        ours = _parse_record(raw)
        if ours is None or _without_file_names(ours) != _without_file_names(theirs):
            raise CopyFailedError(f"{target.uri}/{commit.prefix}{part_record_name(writer)}: belongs to another save")
        for file in ours.files:
            if there.get(commit.prefix + file.name) != file.bytes:
                raise CopyFailedError(f"{target.uri}/{commit.prefix}{file.name}: is missing or has another size")
        return digest(raw), {file.name: file_digest(file) for file in ours.files}

    described_parts = in_parallel(verify_copied_part, len(commit.parts), _READERS)
    parts = {part_record_name(writer): checked for writer, (checked, _) in enumerate(described_parts)}
    return commit.model_copy(
        update={"parts": parts, "files": {name: file for _, files in described_parts for name, file in files.items()}}
    )


def _parse_record(raw: bytes) -> PartRecord | None:
    try:
        return PartRecord.model_validate_json(raw)
    except ValueError:
        return None


def _without_file_names(record: PartRecord) -> PartRecord:
    return record.model_copy(update={"files": [file.model_copy(update={"name": ""}) for file in record.files]})
