"""One rank's part of a schedule, carried out with sends and receives of the backend."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist

from convoy.network.collectives.schedule import Schedule, Transfer

LARGE_BYTES = 2**16
"""Messages from this size on are asked for before anything is sent: gloo sends data only once it is waited for. For
smaller ones the question costs more than it saves."""

PIECE_BYTES = 2**17
"""Chunks from this size on are cut in two, so that one half is added while the other is on its way."""


Layout = Sequence[Sequence[slice]]
"""Where the chunks of a schedule are in a buffer, for each piece that carries out the schedule by itself."""


class _Message(NamedTuple):
    """A send or a receive of this rank."""

    peer: int
    places: tuple[torch.Tensor, ...]
    """Views of what is sent, or of where what comes belongs."""
    wire: torch.Tensor
    """What is sent, or where it arrives: the only place itself, or a buffer of its own."""
    add: bool

    @property
    def staged(self) -> bool:
        """Whether it is put together before it is sent, or stored after it came."""
        return self.wire is not self.places[0]


class _Round(NamedTuple):
    """This rank's messages of a round."""

    receives: tuple[_Message, ...]
    sends: tuple[_Message, ...]
    moves: tuple[tuple[torch.Tensor, torch.Tensor], ...]
    """Places within the buffer, and what is copied there."""


def layout_of(length: int, chunks: int, itemsize: int, *, parts: int = 1) -> Layout:
    """Chunks in a buffer of so many elements, a multiple of `chunks`. parts: the buffer consists of so many parts,
    each of which holds as many consecutive chunks; 1: any elements may be in any chunk.

    Where chunks are large, there are two pieces: one half is added while the other is on its way.
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
    """A schedule on a buffer of this rank."""

    def __init__(
        self,
        schedule: Schedule,
        rank: int,
        buffer: torch.Tensor,
        layout: Layout,
        group: dist.ProcessGroup | None,
    ) -> None:
        """buffer: 1-D. group: of the schedule's ranks; None: torch's default group."""
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
        """Ask for what is received, and send. tag: distinguishes the pieces."""
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
        """A batch for each round, in the order of the stream."""
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
    """Wait for what was begun, and copy or add what came."""
    for work in pending:
        work.wait()
    for each in messages.receives:
        _store(each)


def _rank_round(transfers: Sequence[Transfer], rank: int, places: Sequence[slice], buffer: torch.Tensor) -> _Round:
    """What a rank sends, receives and moves in a round. What comes goes straight to its place only if that overwrites
    nothing that this rank sends in the same round. Chunks without elements are left out."""
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
    """Slices with neighbours in one."""
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
    """Copy or add what came to where it belongs."""
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
