"""How far each worker of a node is, in shared memory that the agent reads at any time: no call, no lock, no wait.

The memory is an anonymous file, which workers open by its path below the agent's /proc entry: however the agent ends,
nothing of it remains. Every value is one aligned store of 8 bytes, by one writer.
"""

import contextlib
import mmap
import os
import sys
import threading
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from types import CodeType
from typing import Literal, get_args

Phase = Literal[
    "start", "connect", "build", "restore", "first_step", "step", "evaluate", "save", "finish", "leave",
    "script",
]  # fmt: skip
"""What a worker does. first_step: the first one of its process, whatever its number. finish: training is over. leave:
it failed, and closes its log. script: a user's own program runs, and has not reported any progress."""

OrderKind = Literal["none", "save_and_end", "end", "save"]

ORDERS_BY_STRENGTH: tuple[OrderKind, ...] = ("none", "save", "save_and_end", "end")

PHASES: tuple[Phase, ...] = get_args(Phase)
_KINDS: tuple[OrderKind, ...] = get_args(OrderKind)

_MAGIC = int.from_bytes(b"cvboard1", "little")
_WORD = 8
_HEADER_WORDS, _SLOT_WORDS = 16, 16  # 128 bytes each: no two writers share a cache line
_ORDER, _AWAY = 1, 2
(
    _POINT, _AT, _STEP_SECONDS, _OWN_SECONDS, _SAVE_SECONDS, _BEAT_AT, _WAITING_AT, _LOOKS, _WAITS, _ADVANCES, _EARNED,
    _POLLS,
) = range(12)  # fmt: skip

_MAX_TIERS = 62

# A point in a run is one word, so that no reader sees the phase of one and the step of another.
_COUNT_BITS, _STEP_BITS = 24, 32
_MAX_COUNT = 2**_COUNT_BITS - 1


LOOK_SECONDS = 0.1
"""Between two looks; a beat that is older than `hang_detector.RECENT_SECONDS` says nothing about now."""

_COLLECTIVES = "/torch/distributed/"
"""Files in which the main thread waits for other ranks: FSDP's gathers, barriers, synchronous collectives."""

_OPERATORS = "/torch/_ops.py"
"""Between a collective that is an operator and the function that waits for it."""


@dataclass(frozen=True)
class Mark:
    """How far a worker is, and how long its last step took. Moments are seconds by `time.monotonic`."""

    phase: Phase
    step: int
    """Steps done."""
    count: int
    """Points passed since that step was done. Ranks of a gang pass the same ones in the same order."""
    at: float
    """When the last one was passed, or the worker last advanced since."""
    step_seconds: float = 0.0
    """Of the last step; 0: none yet."""
    own_seconds: float = 0.0
    """The part of it in which the worker did not wait for other ranks; 0: unknown."""
    save_seconds: float = 0.0
    """Of the newest save, from the call to the commit; 0: none yet."""
    beat_at: float = 0.0
    """When Python last ran in the worker, as its heartbeat thread reports; 0: there is no such thread."""
    waiting_at: float = 0.0
    """When that thread last found the worker waiting for other ranks; 0: never."""
    looks: int = 0
    """How often it has looked, and how often it found that."""
    waits: int = 0
    advances: int = 0
    """How often it advanced between two points, in all."""
    earned: int | None = None
    """The exit code of a script whose last line has run: its threads and exit handlers are left. None: the script still
    runs, or the worker runs none."""
    polls_orders: bool = False
    """The script has requested its agent's orders, and can be expected to do so again."""

    def shifted(self, seconds: float) -> "Mark":
        """The same by another host's clock, which is so far ahead of this one."""
        at, beat_at, waiting_at = self.at + seconds, self.beat_at + seconds, self.waiting_at + seconds
        return replace(self, at=at, beat_at=beat_at, waiting_at=waiting_at)


@dataclass(frozen=True)
class Order:
    """An order of the agent to its workers. They vote for it in the gang's next step."""

    kind: OrderKind
    """save_and_end: commit the state, then end. end: at once, on the last commit. save: now, and continue."""
    number: int
    """Counts the orders on this board: the same kind may be repeated."""


class Board:
    """The agent's side: one slot per worker of the node, for one generation."""

    def __init__(self, descriptor: int, slots: int) -> None:
        self._descriptor = descriptor
        self.slots = slots
        self.path = f"/proc/{os.getpid()}/fd/{descriptor}"
        """Where a worker finds it, for as long as this process lives and the board is open."""
        self._memory = _SharedWords(mmap.mmap(descriptor, _size_bytes(slots)))

    @classmethod
    def create(cls, slots: int) -> "Board":
        """A board on which every worker's start begins now. Raises OSError if there is no memory for it."""
        descriptor = os.memfd_create("convoy-board", os.MFD_CLOEXEC)
        try:
            os.posix_fallocate(descriptor, 0, _size_bytes(slots))
            board = cls(descriptor, slots)
        except OSError:
            os.close(descriptor)
            raise
        for slot in range(slots):
            board._memory.reals[_first_word(slot) + _AT] = time.monotonic()
        board._memory.ints[0] = _MAGIC
        return board

    def read(self, local_rank: int) -> Mark:
        """A worker's newest mark, the last one if it has ended."""
        first = _first_word(_check_slot(local_rank, self.slots))
        reals = self._memory.reals
        # A worker writes these in the opposite order: what is read after a point is at least as new as the point.
        phase, step, count = _unpack_point(self._memory.ints[first + _POINT])
        advances = self._memory.ints[first + _ADVANCES]
        return Mark(
            phase=phase,
            step=step,
            count=count,
            at=reals[first + _AT],
            step_seconds=reals[first + _STEP_SECONDS],
            own_seconds=reals[first + _OWN_SECONDS],
            save_seconds=reals[first + _SAVE_SECONDS],
            beat_at=reals[first + _BEAT_AT],
            waiting_at=reals[first + _WAITING_AT],
            looks=self._memory.ints[first + _LOOKS],
            waits=self._memory.ints[first + _WAITS],
            advances=advances,
            earned=earned - 1 if (earned := self._memory.ints[first + _EARNED]) else None,
            polls_orders=bool(self._memory.ints[first + _POLLS]),
        )

    def give_order(self, kind: OrderKind) -> Order:
        """Give all workers of this node an order, which replaces the one before. The whole gang follows one node's
        order: a save that several agents order is made several times."""
        order = Order(kind, _decode_order(self._memory.ints[_ORDER]).number + 1)
        self._memory.ints[_ORDER] = order.number << 8 | _KINDS.index(kind)
        return order

    def set_unusable_tiers(self, tiers: Collection[int]) -> None:
        """Tell all workers of this node which of the job's tiers, by index, are full or out of reach."""
        self._memory.ints[_AWAY] = sum(1 << tier for tier in tiers if tier < _MAX_TIERS)

    def close(self) -> None:
        """Workers that have it open keep it; no other can open it any more."""
        self._memory.close()
        os.close(self._descriptor)


class Marker:
    """A worker's side: it alone writes to its slot. Without a board marks go nowhere, and there are no orders."""

    def __init__(self, path: str | None, local_rank: int) -> None:
        """Raises OSError if there is no board at `path`, ValueError if it has no such slot."""
        self._memory = _SharedWords(bytearray(_size_bytes(1))) if path is None else _open_board(path)
        slots = len(self._memory.ints) // _SLOT_WORDS - _HEADER_WORDS // _SLOT_WORDS
        self._first = _first_word(0 if path is None else _check_slot(local_rank, slots))
        self._phase, self._step, self._count = 0, 0, 0
        self._answered = 0

    def enter(self, phase: Phase, step: int | None = None) -> None:
        """A phase begins, or continues. step: steps done, where that is not known from `step_done`."""
        self._phase = PHASES.index(phase)
        if step is not None:
            self._step, self._count = step, 0
        self.mark_shared_point()

    def mark_shared_point(self) -> None:
        """The worker reaches a point within the phase, the same on all ranks."""
        self._count = min(self._count + 1, _MAX_COUNT)
        self._memory.reals[self._first + _AT] = time.monotonic()
        self._memory.ints[self._first + _POINT] = _pack_point(self._phase, self._step, self._count)

    def mark_own_progress(self) -> None:
        """The worker makes progress that other ranks make in another order, or more often, such as the stages of a
        pipeline. It is no point: the rank with the fewest is not the one that the others wait for."""
        self._memory.reals[self._first + _AT] = time.monotonic()
        self._memory.ints[self._first + _ADVANCES] += 1

    def step_done(self, step: int, seconds: float, own_seconds: float) -> None:
        """`step` steps are done; the last one took `seconds`, of which `own_seconds` were not spent waiting."""
        self._memory.reals[self._first + _OWN_SECONDS] = own_seconds
        self._memory.reals[self._first + _STEP_SECONDS] = seconds
        self._step, self._count = step, 0
        self.mark_shared_point()

    def set_exit_code(self, code: int) -> None:
        """The script's last line has run, and the worker is to end with this exit code."""
        self._memory.ints[self._first + _EARNED] = code + 1
        self.mark_shared_point()

    def save_done(self, seconds: float) -> None:
        """A commit exists. seconds: since the call to save."""
        self._memory.reals[self._first + _SAVE_SECONDS] = seconds

    def beat(self, *, waiting: bool) -> None:
        """Python runs in this worker. waiting: its main thread waits for other ranks. Called by a thread of its own."""
        now = time.monotonic()
        if waiting:
            self._memory.ints[self._first + _WAITS] += 1
            self._memory.reals[self._first + _WAITING_AT] = now
        self._memory.ints[self._first + _LOOKS] += 1
        self._memory.reals[self._first + _BEAT_AT] = now

    def current_order(self) -> Order:
        """The agent's order, unless it was answered."""
        order = _decode_order(self._memory.ints[_ORDER])
        return Order("none", order.number) if order.number == self._answered else order

    def set_polls_orders(self) -> None:
        """The script asks for orders."""
        self._memory.ints[self._first + _POLLS] = 1

    def unusable_tiers(self) -> frozenset[int]:
        """The tiers that are full or out of reach, as the agent reports."""
        word = self._memory.ints[_AWAY]
        return frozenset(tier for tier in range(word.bit_length()) if word >> tier & 1)

    def acknowledge(self, kind: OrderKind) -> None:
        """The gang has carried out an order of this kind: if it is the present one, it is no longer returned."""
        order = self.current_order()
        if order.kind == kind:
            self._answered = order.number


class _SharedWords:
    """Memory as 8-byte words, of either kind."""

    def __init__(self, memory: mmap.mmap | bytearray) -> None:
        self._whole = memory
        self._view = memoryview(memory)
        self.ints = self._view.cast("q")
        self.reals = self._view.cast("d")

    def close(self) -> None:
        for view in (self.ints, self.reals, self._view):
            view.release()
        if isinstance(self._whole, mmap.mmap):
            self._whole.close()


def _open_board(path: str) -> _SharedWords:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        memory = mmap.mmap(descriptor, 0)
    finally:
        os.close(descriptor)
    words = _SharedWords(memory)
    if words.ints[0] != _MAGIC:
        words.close()
        raise ValueError(f"{path}: no progress board")
    return words


def _size_bytes(slots: int) -> int:
    return (_HEADER_WORDS + _SLOT_WORDS * slots) * _WORD


def _first_word(slot: int) -> int:
    return _HEADER_WORDS + _SLOT_WORDS * slot


def _check_slot(local_rank: int, slots: int) -> int:
    if not 0 <= local_rank < slots:
        raise ValueError(f"local rank {local_rank}: the board has {slots} slots")
    return local_rank


def _pack_point(phase: int, step: int, count: int) -> int:
    return phase << (_STEP_BITS + _COUNT_BITS) | step << _COUNT_BITS | count


def _unpack_point(point: int) -> tuple[Phase, int, int]:
    step = point >> _COUNT_BITS & (2**_STEP_BITS - 1)
    return PHASES[point >> (_STEP_BITS + _COUNT_BITS)], step, point & _MAX_COUNT


def _decode_order(word: int) -> Order:
    return Order(_KINDS[word & 0xFF], word >> 8)


@contextlib.contextmanager
def heartbeat(marker: Marker, waits_in: Collection[CodeType] = ()) -> Iterator[None]:
    """Mark while the context lasts, in a thread, that Python runs in this worker, and whether it waits for other ranks.
    Enter it in the thread that trains.

    Of ranks at the same point all but one wait for that one: by this the agent knows which. And a slow node is the one
    that waits less than all others. waits_in: functions outside of torch that wait for other ranks.
    """
    over, main = threading.Event(), threading.get_ident()
    thread = threading.Thread(target=_beat_until_over, args=(marker, main, waits_in, over), name="beat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()


def _beat_until_over(marker: Marker, main_thread: int, waits_in: Collection[CodeType], over: threading.Event) -> None:
    while True:
        marker.beat(waiting=is_waiting(main_thread, waits_in))
        if over.wait(LOOK_SECONDS):
            return


def is_waiting(thread: int, waits_in: Collection[CodeType]) -> bool:
    """Whether a thread waits for other ranks now."""
    frame = sys._current_frames().get(thread)
    while frame is not None and frame.f_code.co_filename.endswith(_OPERATORS):
        frame = frame.f_back
    return frame is not None and (frame.f_code in waits_in or _COLLECTIVES in frame.f_code.co_filename)
