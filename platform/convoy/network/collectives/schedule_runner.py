"""The executor of schedules: it carries out one rank's part with point-to-point messages of the backend."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist

from convoy.network.collectives.schedule import Schedule, Transfer

LARGE_BYTES = 2**16
"""From this message size on, receives are posted before sends: gloo sends data only once a receive waits for it. For
smaller messages the order costs more than it saves."""

PIECE_BYTES = 2**17
"""From this size on, chunks are split in two, so that one half is added while the other is in flight."""


Layout = Sequence[Sequence[slice]]
"""Slices of the buffer that hold the chunks of a schedule, for each piece that runs the schedule separately."""


class _Message(NamedTuple):
    """A send or a receive of this rank."""

    peer: int
    places: tuple[torch.Tensor, ...]
    """Views of the buffer that are sent, or in which received data is stored."""
    wire: torch.Tensor
    """The tensor that is sent or received: the only place itself, or a separate staging buffer."""
    add: bool

    @property
    def staged(self) -> bool:
        """Whether the message passes through a staging buffer."""
        return self.wire is not self.places[0]


class _Round(NamedTuple):
    """The messages of this rank in one round."""

    receives: tuple[_Message, ...]
    sends: tuple[_Message, ...]
    moves: tuple[tuple[torch.Tensor, torch.Tensor], ...]
    """Pairs of target and source views for copies within the buffer."""


def layout_of(length: int, chunks: int, itemsize: int, *, parts: int = 1) -> Layout:
    """Slices of the chunks of a buffer, by piece. length: elements of the buffer. itemsize: bytes of an element.

    parts: the number of equal parts of the buffer, each of which holds the same number of consecutive chunks; 1: any
    element may be in any chunk. Large chunks are split into two pieces: one half is added while the other is in flight.
    """
    each = length // chunks
    cut = 2 if each * itemsize >= PIECE_BYTES else 1
    if parts == 1:  # each piece is consecutive, so that a message of several chunks needs no copy
        bounds = [length * piece // cut for piece in range(cut + 1)]
        return [_divide(start, stop, chunks) for start, stop in itertools.pairwise(bounds)]
    whole = _divide(0, length, chunks)
    return [[_divide(chunk.start, chunk.stop, cut)[piece] for chunk in whole] for piece in range(cut)]


def _divide(start: int, stop: int, parts: int) -> list[slice]:
    bounds = [start + (stop - start) * part // parts for part in range(parts + 1)]
    return [slice(first, last) for first, last in itertools.pairwise(bounds)]


class ScheduleRunner:
    """Runs a schedule on a buffer of this rank."""

    def __init__(
        self,
        schedule: Schedule,
        rank: int,
        buffer: torch.Tensor,
        layout: Layout,
        group: dist.ProcessGroup | None,
    ) -> None:
        """buffer: 1-D. group: the ranks of the schedule; None: torch's default group."""
        self._group = group
        self._on_gpu = buffer.device.type == "cuda"
        self._pieces = [[_rank_round(each, rank, piece, buffer) for each in schedule.rounds] for piece in layout]
        sent = [each.wire.nbytes for piece in self._pieces for of in piece for each in (*of.sends, *of.receives)]
        self._ask_first = max(sent, default=0) >= LARGE_BYTES

    def run(self) -> None:
        """Carry out the schedule. All ranks call it. On the host it returns when this rank's part is done."""
        if self._on_gpu:
            self._run_on_gpu()
            return
        pending: list[list[dist.Work]] = [[] for _ in self._pieces]
        for number in range(len(self._pieces[0])):
            for piece, rounds in enumerate(self._pieces):
                if number:
                    _finish(pending[piece], rounds[number - 1])
                pending[piece] = self._begin(rounds[number], piece)
        for piece, rounds in enumerate(self._pieces):
            _finish(pending[piece], rounds[-1])

    def _begin(self, messages: _Round, tag: int) -> list[dist.Work]:
        """Post the receives and the sends of a round. tag: distinguishes the pieces."""
        for each in messages.sends:
            _put_together(each)

        def ask() -> list[dist.Work]:
            return [_post(dist.irecv(e.wire, group=self._group, group_src=e.peer, tag=tag)) for e in messages.receives]

        def send() -> list[dist.Work]:
            return [_post(dist.isend(e.wire, group=self._group, group_dst=e.peer, tag=tag)) for e in messages.sends]

        pending = ask() + send() if self._ask_first else send() + ask()
        _move(messages)
        return pending

    def _run_on_gpu(self) -> None:
        """Enqueue one batch of messages for each round, in the order of the stream."""
        for rounds in self._pieces:
            for messages in rounds:
                for each in messages.sends:
                    _put_together(each)
                _move(messages)
                receives = [(dist.irecv, each) for each in messages.receives]
                sends = [(dist.isend, each) for each in messages.sends]
                batch = [dist.P2POp(call, e.wire, group=self._group, group_peer=e.peer) for call, e in receives + sends]
                _finish(dist.batch_isend_irecv(batch) if batch else [], messages)


def _move(messages: _Round) -> None:
    for place, of in messages.moves:
        place.copy_(of)


def _post(work: dist.Work | None) -> dist.Work:
    assert work is not None  # this rank is one of the group
    return work


def _finish(pending: Sequence[dist.Work], messages: _Round) -> None:
    """Wait for pending messages, and store the received ones."""
    for work in pending:
        work.wait()
    for each in messages.receives:
        _store(each)


def _rank_round(transfers: Sequence[Transfer], rank: int, places: Sequence[slice], buffer: torch.Tensor) -> _Round:
    """The messages and the copies of a rank in one round. Chunks without elements are left out.

    A message is received directly into its place only if that overwrites nothing that the rank sends in the same round.
    """
    own = [each for each in transfers if rank in (each.source, each.target) and _has_elements(each, places)]
    sent = {chunk for each in own if each.source == rank for chunk in each.chunks}

    def received(each: Transfer) -> _Message:
        direct = each.op == "copy" and not sent & {*each.stored}
        return _message(each.source, each.stored, places, buffer, add=each.op == "add", direct=direct)

    return _Round(
        receives=tuple(received(each) for each in own if each.source != rank),
        sends=tuple(_message(each.target, each.chunks, places, buffer) for each in own if each.target != rank),
        moves=tuple(
            (buffer[places[to]], buffer[places[of]])
            for each in own
            if each.source == each.target
            for of, to in zip(each.chunks, each.stored, strict=True)
        ),
    )


def _has_elements(transfer: Transfer, places: Sequence[slice]) -> bool:
    return any(places[chunk].stop > places[chunk].start for chunk in transfer.chunks)


def _message(
    peer: int,
    chunks: Sequence[int],
    places: Sequence[slice],
    buffer: torch.Tensor,
    *,
    add: bool = False,
    direct: bool = True,
) -> _Message:
    views = tuple(buffer[where] for where in _join([places[chunk] for chunk in chunks]))
    wire = views[0]
    if len(views) > 1 or not direct:
        wire = torch.empty(sum(len(each) for each in views), dtype=buffer.dtype, device=buffer.device)
    return _Message(peer, views, wire, add)


def _join(places: Sequence[slice]) -> list[slice]:
    """Merge adjacent slices."""
    joined: list[slice] = []
    for each in places:
        if joined and joined[-1].stop == each.start:
            joined[-1] = slice(joined[-1].start, each.stop)
        else:
            joined.append(each)
    return joined


def _put_together(message: _Message) -> None:
    if message.staged:
        torch.cat(message.places, out=message.wire)


def _store(message: _Message) -> None:
    """Copy a received message from its staging buffer to its places, or add it there."""
    if not message.staged:
        return
    start = 0
    for place in message.places:
        arrived = message.wire[start : start + len(place)]
        if message.add:
            place.add_(arrived)
        else:
            place.copy_(arrived)
        start += len(place)
