"""The coordinator: waits for every writer's part, checks them against each other, and creates the commit."""

import logging
import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from convoy.checkpoint.commits import check_mounted, digest, file_digest
from convoy.checkpoint.format import Commit, Digest, PartRecord, TensorInfo, part_record_name, shards_prefix
from convoy.checkpoint.messages import WritePart
from convoy.checkpoint.save.commit_lookup import in_thread
from convoy.checkpoint.state.replicas import describe_difference
from convoy.checkpoint.writer.parts import AbandonCheck
from convoy.job.lineage import generation_name
from convoy.storage import Store, StoreUnavailable
from convoy.storage.thread_map import in_parallel

FIRST_PAUSE_SECONDS = 0.01
MAX_PAUSE_SECONDS = 0.5
"""Between two looks at the listing, which costs a request on S3."""

ROOT_SECONDS = 10.0
"""How long the root may take to list its generations while the save goes to another tier."""

_READERS = 8

log = logging.getLogger("convoy.checkpoint")


class AttemptFailedError(RuntimeError):
    """A part will not come, or the parts do not fit together."""


class WriterFailedError(AttemptFailedError):
    """A writer has left a note that its part will not come."""


class SupersededError(RuntimeError):
    """Another gang has formed a newer generation of the job: nothing this one commits would count."""


def assemble_commit(
    store: Store,
    root: Store | None,
    request: WritePart,
    *,
    check: AbandonCheck = lambda: None,
    sleep: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.time,
) -> Commit:
    """Poll for the parts of the attempt: the commit that is now to be created.

    root: the first tier; None if it is out of reach. check: raises AbandonedError past the deadline; called before each
    look and at the end. clock: Unix time. Raises AttemptFailedError, SupersededError, StoreUnavailable.
    """
    draft, attempt = request.draft, _ArrivedParts(store, request)
    if draft is None or (draft.generation, draft.step) != (request.generation, request.step):
        raise ValueError("only the coordinator commits, and only what its draft describes")
    for pause in _growing_pauses():
        check()
        if attempt.poll():
            break
        sleep(pause)
    commit = draft.model_copy(update={**attempt.commit_fields(draft), "attempt": request.attempt, "created": clock()})
    refuse_superseded(store, root, request.generation)
    check()
    return commit


def refuse_superseded(store: Store, root: Store | None, generation: int) -> None:
    """Raises SupersededError if `root` has a newer generation.

    A save to another tier continues where the root does not answer: that may be why it goes there.
    """
    if root is None:
        return
    if store.uri == root.uri:
        check_mounted(store, generation)
        names = set(store.sizes("generations/"))
    else:
        names = set()
        answer = in_thread("generations of the root", lambda: _mirror_and_list_generations(store, root, generation))
        try:
            names = answer.result(ROOT_SECONDS)
        except (StoreUnavailable, TimeoutError):
            pass  # the root may be away; a thread that hangs is left behind
        except Exception:  # the save does not depend on it
            log.exception("the generations of the root could not be listed")
    newest = max((int(m[1]) for name in names if (m := re.fullmatch(r"generations/(\d+)\.json", name))), default=0)
    if newest > generation:
        raise SupersededError(
            f"generation {generation} is superseded: another run of the job formed generation {newest}"
        )


class _ArrivedParts:
    """The parts of an attempt that have come so far."""

    def __init__(self, store: Store, request: WritePart) -> None:
        self._store = store
        self._request = request
        self._prefix = shards_prefix(request.generation, request.step, request.attempt)
        self._records: dict[int, PartRecord] = {}
        self._digests: dict[str, Digest] = {}

    def poll(self) -> bool:
        """Read what is new. True: every part is there, and every file as long as its record says."""
        there = {name[len(self._prefix) :]: size for name, size in self._store.sizes(self._prefix).items()}
        for name in there:
            if name.startswith("failed-"):
                raise WriterFailedError(self._store.read(self._prefix + name).decode(errors="replace"))
        new = [w for w in range(self._request.writers) if w not in self._records and part_record_name(w) in there]
        for writer, raw in zip(new, in_parallel(lambda i: self._read_record(new[i]), len(new), _READERS), strict=True):
            self._check_and_add(writer, raw, there)
        return len(self._records) == self._request.writers

    def commit_fields(self, draft: Commit) -> dict[str, object]:
        """The commit's parts, files and tensors. Raises AttemptFailedError unless they hold each tensor whole, and all
        writers that hold one hold the same."""
        records = [self._records[writer] for writer in sorted(self._records)]
        differs = describe_difference({record.writer: record.replicas for record in records})
        if differs:
            raise AttemptFailedError(differs)
        tensors = checked_tensor_infos(records)
        missing = [name for name, info in draft.tensors.items() if math.prod(info.shape) and name not in tensors]
        changed = [name for name, info in tensors.items() if draft.tensors and draft.tensors.get(name) != info]
        if missing or changed:
            raise AttemptFailedError(f"the parts do not hold the state: {', '.join((missing + changed)[:3])}")
        files = {file.name: file_digest(file) for record in records for file in record.files}
        parts = {name: self._digests[name] for name in sorted(self._digests)}
        return {"parts": parts, "files": files, "tensors": draft.tensors | tensors}

    def _read_record(self, writer: int) -> bytes:
        return self._store.read(self._prefix + part_record_name(writer))

    def _check_and_add(self, writer: int, raw: bytes, sizes: dict[str, int]) -> None:
        name, wanted = self._prefix + part_record_name(writer), self._request
        try:
            record = PartRecord.model_validate_json(raw)
        except ValueError:
            raise AttemptFailedError(f"{name}: {len(raw)} bytes that are not a part record") from None
        if (record.generation, record.step, record.attempt) != (wanted.generation, wanted.step, wanted.attempt):
            raise AttemptFailedError(f"{name}: is of another attempt")
        if (record.writer, record.writers) != (writer, wanted.writers):
            raise AttemptFailedError(f"{name}: is of writer {record.writer} of {record.writers}")
        for file in record.files:
            if sizes.get(file.name) != file.bytes:
                raise AttemptFailedError(
                    f"{self._prefix}{file.name}: {sizes.get(file.name)} bytes, its record says {file.bytes}"
                )
        self._records[writer] = record
        self._digests[part_record_name(writer)] = digest(raw)


def checked_tensor_infos(records: list[PartRecord]) -> dict[str, TensorInfo]:
    """The tensors that the parts' shards make up. Raises AttemptFailedError if one is not whole, or not one tensor."""
    tensors: dict[str, TensorInfo] = {}
    boxes: dict[str, list[Box]] = {}
    for record in records:
        for shard in record.shards:
            info = TensorInfo(dtype=shard.dtype, shape=shard.shape)
            if tensors.setdefault(shard.name, info) != info:
                raise AttemptFailedError(f"{shard.name}: its shards are not of one tensor")
            box = zip(shard.offset, shard.size, shard.shape, strict=True)
            if any(first < 0 or first + count > whole for first, count, whole in box):
                raise AttemptFailedError(f"{shard.name}: a shard reaches out of its tensor")
            if shard.file >= len(record.files):
                raise AttemptFailedError(f"{shard.name}: a shard names no file of its part")
            if shard.start + shard.bytes > record.files[shard.file].bytes:
                raise AttemptFailedError(f"{shard.name}: a shard reaches past the end of its file")
            boxes.setdefault(shard.name, []).append(Box(tuple(shard.offset), tuple(shard.size)))
    for name, info in tensors.items():
        elements = sum(math.prod(box.size) for box in boxes[name])
        if elements != math.prod(info.shape):
            raise AttemptFailedError(f"{name}: {elements} elements in all parts, it has {math.prod(info.shape)}")
        if any_overlap(boxes[name]):
            raise AttemptFailedError(f"{name}: two shards hold the same elements, and others are missing")
    return tensors


def _mirror_and_list_generations(store: Store, root: Store, generation: int) -> set[str]:
    """The names of those on the root. The further tier `store` gets the one that is to have a commit there, if it was
    out of reach when that was formed: read without the root it would have a commit of nobody knows which branch."""
    name, names = generation_name(generation), set(root.sizes("generations/"))
    if name in names and not store.sizes(name):
        store.create(name, root.read(name))
    return names


def _growing_pauses() -> Iterator[float]:
    pause = FIRST_PAUSE_SECONDS
    while True:
        yield pause
        pause = min(MAX_PAUSE_SECONDS, pause * 1.5)


@dataclass(frozen=True)
class Box:
    """A part of a tensor, with one number per dimension."""

    offset: tuple[int, ...]
    size: tuple[int, ...]

    def overlaps(self, other: "Box") -> bool:
        spans = zip(self.offset, self.size, other.offset, other.size, strict=True)
        return all(max(a, b) < min(a + m, b + n) for a, m, b, n in spans)


def any_overlap(boxes: Sequence[Box]) -> bool:
    """Whether any two share an element. Pieces of a grid, as sharding makes them, take n log n; others up to n²."""
    if len(boxes) < 2:
        return False
    for dim in range(len(boxes[0].offset)):
        groups = _disjoint_groups(boxes, dim)
        if len(groups) > 1:
            return any(any_overlap(group) for group in groups)
    return any(one.overlaps(other) for one, other in combinations(boxes, 2))


def _disjoint_groups(boxes: Sequence[Box], dim: int) -> list[list[Box]]:
    """The boxes in groups, no two of which reach into each other along this dimension."""
    groups: list[list[Box]] = []
    end = -1
    for box in sorted(boxes, key=lambda box: box.offset[dim]):
        if box.offset[dim] >= end:
            groups.append([])
        groups[-1].append(box)
        end = max(end, box.offset[dim] + box.size[dim])
    return groups
