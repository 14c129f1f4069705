"""Copies of the state in shared memory, made while training continues.

What only the optimizer changes is copied in the background, until its next step waits for the copy. Everything else,
such as a BatchNorm's statistics, changes in the forward already and is copied before `stage` returns.
"""

import contextlib
import functools
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from convoy.checkpoint.errors import CheckpointError
from convoy.checkpoint.save.shm_buffers import Buffer, Buffers
from convoy.checkpoint.state.flat_shard import FlatShard
from convoy.checkpoint.state.layout import Box, Layout, local_tensor
from convoy.checkpoint.state.replicas import condense, condensed_digest
from convoy.config.errors import one_line

BATCH_BYTES = 64 * 2**20
"""Copied in one go, without Python's lock; whoever waits for the copy takes batches too. Each end of one asks training
for the lock, and holds it up."""

NICENESS = 19
"""Niceness of the thread that copies."""

SMALL_BYTES = 2**16
"""Shorter ones are copied at once: that takes less than to hand them over."""


class StagedCopy:
    """A slot's copy of the state."""

    def __init__(self, slot: int, layout: Layout, buffer: Buffer) -> None:
        self.slot = slot
        self.layout = layout
        self.path = buffer.path
        self.error: Exception | None = None
        """Why there is no copy, and never will be; whoever waits for it continues all the same."""
        self.copied_at: float | None = None
        """When the copy was whole, by `time.perf_counter`; None: not yet."""
        self._event: torch.cuda.Event | None = None
        self._work: deque[Callable[[], object]] = deque()
        self._digests: dict[str, int] = {}
        self._condensed: dict[str, torch.Tensor] = {}
        """Condensed tensors on the device: whole when the event is over."""
        self._sources: Any = None
        self._left = 0
        self._lock = threading.Lock()
        self._copied = threading.Event()

    @property
    def done(self) -> bool:
        """Whether the copy is whole: the state may change."""
        return self._copied.is_set() and (self._event is None or self._event.query())

    def wait(self) -> None:
        """Until the copy is whole, copying along."""
        self._run_batches()
        self._copied.wait()
        if self._event is not None:
            self._run_noting_error(self._event.synchronize)
        self._sources = None
        self.copied_at = self.copied_at or time.perf_counter()

    def join_on_device(self) -> None:
        """Like `wait`, but it is the device's next work that waits for what the device still copies."""
        self._run_batches()
        self._copied.wait()
        if self._event is not None:
            torch.cuda.current_stream().wait_event(self._event)

    def digests(self) -> dict[str, int]:
        """Digests of the compared tensors by name, once the copy is whole. Raises CheckpointError if it failed."""
        if self.error is not None:
            raise CheckpointError(f"staging: {one_line(self.error)}") from self.error
        return self._digests | {name: condensed_digest(data) for name, data in self._condensed.items()}

    def _begin(self, work: Iterable[Callable[[], object]], event: Any, sources: Any) -> None:
        """work: what is left to be copied during training."""
        self._event, self._sources = event, sources
        self._work.extend(work)
        self._left = len(self._work)
        if not self._left:
            self._copied.set()

    def _add_digest(self, name: str, tensor: torch.Tensor) -> None:
        self._digests[name] = condensed_digest(condense(tensor))

    @torch.no_grad()
    def _run_batches(self) -> None:
        while True:
            try:
                work = self._work.popleft()
            except IndexError:
                return
            self._run_noting_error(work)
            with self._lock:
                self._left -= 1
                if not self._left:
                    self._copied.set()

    def _run_noting_error(self, work: Callable[[], object]) -> None:
        """Have the copy fail where the work does, and neither the thread nor the optimizer's step that does it."""
        try:
            work()
        except Exception as error:
            self.error = self.error or error


class _CopyBatch:
    """A batch that is copied in one go."""

    def __init__(self) -> None:
        self.sources: list[torch.Tensor] = []
        self.targets: list[torch.Tensor] = []
        self.bytes = 0


def _copy_batches(moves: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> list[Callable[[], object]]:
    """moves: (from, to), both contiguous in host memory, and alike."""
    batches = [_CopyBatch()]
    for source, target in moves:
        for some, place in zip(_split_tensor(source), _split_tensor(target), strict=True):
            if batches[-1].bytes >= BATCH_BYTES:
                batches.append(_CopyBatch())
            batches[-1].sources.append(some)
            batches[-1].targets.append(place)
            batches[-1].bytes += some.nbytes
    return [partial(torch._foreach_copy_, b.targets, b.sources) for b in batches if b.bytes]


def _split_tensor(tensor: torch.Tensor) -> Sequence[torch.Tensor]:
    if tensor.nbytes <= BATCH_BYTES:
        return [tensor]
    return tensor.view(-1).split(BATCH_BYTES // tensor.element_size())


class Stager:
    """The two slots of a rank, and the thread that copies into them."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._buffers = Buffers(pin=self._cuda)
        self._stream = torch.cuda.Stream(device) if self._cuda else None
        self._targets: dict[int, tuple[Layout, Buffer, list[torch.Tensor]]] = {}
        self._unfinished: list[StagedCopy] = []
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run_tasks, name="staging", daemon=True)
        self._thread.start()

    def prepare_slot(self, slot: int, layout: Layout) -> None:
        """Have the slot's buffer ready. Raises OSError if there is too little memory."""
        target = self._targets.pop(slot, None)
        if target is None or target[0] is not layout or not target[1].exists:
            target = None  # what refers to the old buffer would keep its memory
            buffer = self._buffers.get_or_make(slot, layout.bytes)
            target = layout, buffer, _box_targets(layout, buffer)
        self._targets[slot] = target

    def discard(self, slot: int) -> None:
        """Never write to the slot's buffer again: a writer that was given up may still read it."""
        self._targets.pop(slot, None)
        self._buffers.drop(slot)

    @torch.no_grad()
    def stage(
        self,
        slot: int,
        layout: Layout,
        tensors: Mapping[str, torch.Tensor],
        deferred: Iterable[torch.Tensor],
        compared: Sequence[str] = (),
    ) -> StagedCopy:
        """Copy this rank's boxes; of tensors in the storage of a `deferred` one perhaps only after this returns.

        Nobody may read from the slot. compared: tensors of which the digest is wanted. Raises OSError if there is too
        little memory.
        """
        self.prepare_slot(slot, layout)
        _, buffer, targets = self._targets[slot]
        staged = StagedCopy(slot, layout, buffer)
        later = _DeferredTensors(deferred)
        sources = [_box_view(tensors, box) for box in layout.boxes]
        now, moves, on_device = list[int](), list[tuple[torch.Tensor, torch.Tensor]](), list[int]()
        for i, (source, box) in enumerate(zip(sources, layout.boxes, strict=True)):
            if source.is_cuda:
                on_device.append(i)
            elif _is_worth_deferring(source) and later.contains(tensors[box.name], source):
                moves.append((source, targets[i]))
            else:
                now.append(i)
        work, held = _copy_batches(moves), {name: tensors[name] for name in compared if tensors[name].is_cuda}
        for name in compared:
            if name in held:
                continue
            if _is_worth_deferring(tensors[name]) and later.contains(tensors[name], tensors[name]):
                work.append(partial(staged._add_digest, name, tensors[name]))
            else:
                staged._add_digest(name, tensors[name])
        event = self._copy_from_device(staged, sources, targets, on_device, held, later) if on_device or held else None
        if now:
            torch._foreach_copy_([targets[i] for i in now], [sources[i] for i in now])
        staged._begin(work, event, [*(sources[i] for i in on_device), *held.values()])
        self._unfinished = [s for s in self._unfinished if not s.done] + [staged]
        self._tasks.put(staged.wait)
        return staged

    def call_after(self, staged: StagedCopy, callback: Callable[[], None]) -> None:
        """Call `callback` in the staging thread once the copy is whole; after all earlier calls."""

        def task() -> None:
            staged.wait()
            callback()

        self._tasks.put(task)

    def join(self) -> None:
        """The state may change when this returns; on CUDA, by work on the current stream."""
        for staged in self._unfinished:
            staged.join_on_device()
        self._unfinished = [staged for staged in self._unfinished if not staged.done]

    def finish_tasks(self) -> None:
        """Wait until everything that was begun is done."""
        done = threading.Event()
        self._tasks.put(done.set)
        done.wait()

    def close(self) -> None:
        """Wait for what is being copied, and give the memory back: nobody reads it any more."""
        self._tasks.put(None)
        self._thread.join()
        self._unfinished.clear()
        self._targets.clear()
        self._buffers.close()

    def _copy_from_device(
        self,
        staged: StagedCopy,
        sources: Sequence[torch.Tensor],
        targets: Sequence[torch.Tensor],
        indices: Sequence[int],
        compared: Mapping[str, torch.Tensor],
        later: "_DeferredTensors",
    ) -> torch.cuda.Event:
        """Copy on a stream of its own; the current one waits for what may change before the optimizer's step."""
        assert self._stream is not None
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        for waits in (False, True):
            with torch.cuda.stream(self._stream):
                for i in indices:
                    if later.shares_storage(sources[i]) is waits:
                        targets[i].copy_(sources[i], non_blocking=True)
                some = {name: condense(t) for name, t in compared.items() if later.shares_storage(t) is waits}
                staged._condensed.update(_to_host(some))
            event = torch.cuda.Event()
            event.record(self._stream)
            if not waits:
                current.wait_event(event)
        return event

    def _run_tasks(self) -> None:
        _lower_thread_priority()
        while (task := self._tasks.get()) is not None:
            task()


def _lower_thread_priority() -> None:
    """Have this thread copy where training leaves a core idle, as ranks that wait for each other do in each step, and
    never on several. What it has not copied by the next update is copied by who waits for it."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
    others = torch.get_num_threads()
    torch.set_num_threads(1)
    # That holds for this thread, and for those that have not used torch yet: a further one takes the latter back.
    restore = threading.Thread(target=torch.set_num_threads, args=(others,))
    restore.start()
    restore.join()


def _box_targets(layout: Layout, buffer: Buffer) -> list[torch.Tensor]:
    """The piece of the buffer for each box."""
    pieces = (buffer.bytes[start : start + box.bytes] for start, box in zip(layout.starts(), layout.boxes, strict=True))
    return [piece.view(box.dtype).view(box.size) for piece, box in zip(pieces, layout.boxes, strict=True)]


def _to_host(data: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copy all at once on the current stream, without waiting for it."""
    if not data:
        return {}
    whole = torch.cat(list(data.values()))
    host = torch.empty(len(whole), dtype=torch.uint8, pin_memory=True).copy_(whole, non_blocking=True)
    return dict(zip(data, host.split([len(some) for some in data.values()]), strict=True))


def _box_view(tensors: Mapping[str, torch.Tensor], box: Box) -> torch.Tensor:
    tensor = tensors[box.name]
    if isinstance(tensor, FlatShard):
        return tensor.box_view(box.offset, box.size)
    local = local_tensor(tensor)
    if local.shape == box.size:
        return local
    for dim, (begin, length) in enumerate(zip(box.inner, box.size, strict=True)):
        local = local.narrow(dim, begin, length)
    return local


def _is_worth_deferring(source: torch.Tensor) -> bool:
    """As it lies in memory, and worth to be handed over."""
    return source.nbytes >= SMALL_BYTES and source.is_contiguous() and not (source.is_conj() or source.is_neg())


class _DeferredTensors:
    """Tensors that change with the optimizer's step only."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self._tensors = {id(tensor): tensor for tensor in tensors}

    def contains(self, tensor: torch.Tensor, local: torch.Tensor) -> bool:
        """Whether it is one of them, or a view of one. local: what lies on this rank."""
        return id(tensor) in self._tensors or self.shares_storage(local)

    def shares_storage(self, local: torch.Tensor) -> bool:
        """Whether one of them lies in the same storage."""
        return local.untyped_storage().data_ptr() in self._storage_addresses

    @functools.cached_property
    def _storage_addresses(self) -> set[int]:
        return {local_tensor(tensor).untyped_storage().data_ptr() for tensor in self._tensors.values()}
