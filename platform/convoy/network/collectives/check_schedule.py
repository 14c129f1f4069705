"""Check by symbolic execution that a schedule computes the result of its operation. Pure."""

from collections import Counter
from typing import NamedTuple

from convoy.config.network import Operation
from convoy.network.collectives.schedule import ROOT, Schedule

_BITS = 8
"""Bits that count each rank's contributions, so that one that was added twice is not taken for another rank's."""


class Content(NamedTuple):
    """The contributions that a chunk holds."""

    origin: int
    """Chunk of the contributions in it."""
    counts: int
    """Number of times that each rank's contribution is in the chunk, as `_BITS` bits for each rank."""

    def __str__(self) -> str:
        ranks = {r: self.counts >> _BITS * r & (1 << _BITS) - 1 for r in range(self.counts.bit_length() // _BITS + 1)}
        ranked = [f"rank {r}{f' × {times}' if times > 1 else ''}" for r, times in ranks.items() if times]
        return f"chunk {self.origin} of {', '.join(ranked)}"


State = list[list[Content | None]]
"""Contents by rank and chunk; None: the content is undefined."""


def contribution(rank: int, chunk: int) -> Content:
    """The content of a chunk that holds the contribution of one rank."""
    return Content(chunk, 1 << _BITS * rank)


def problems(operation: Operation, schedule: Schedule) -> list[str]:
    """Errors of a schedule, one line for each chunk of a rank with a wrong result; empty: the schedule is correct.

    A schedule with transfers that cannot be carried out has a line for each of these instead.
    """
    found = _wrong_transfers(schedule)
    if found:
        return found
    state = carry_out(schedule, initial_state(operation, schedule))
    demanded = final_state(operation, schedule)
    return [
        f"rank {rank}, chunk {chunk}: has {state[rank][chunk] or 'nothing'}, must have {wanted}"
        for rank, chunks in enumerate(demanded)
        for chunk, wanted in enumerate(chunks)
        if wanted is not None and state[rank][chunk] != wanted
    ]


def carry_out(schedule: Schedule, state: State) -> State:
    """The contents after all rounds. state: the contents before the first round, which are overwritten."""
    for each in schedule.rounds:
        messages = [[state[transfer.source][chunk] for chunk in transfer.chunks] for transfer in each]
        for transfer, message in zip(each, messages, strict=True):
            own = state[transfer.target]
            for stored, content in zip(transfer.stored, message, strict=True):
                own[stored] = content if transfer.op == "copy" else _sum(own[stored], content)
    return state


def _sum(first: Content | None, second: Content | None) -> Content | None:
    """The sum of two contents; None: one of them is undefined, or they belong to different chunks."""
    if first is None or second is None or first.origin != second.origin:
        return None
    return Content(first.origin, first.counts + second.counts)


def _wrong_transfers(schedule: Schedule) -> list[str]:
    """Transfers that no executor could carry out, or whose result depends on which message comes first."""
    found = []
    for number, each in enumerate(schedule.rounds):
        pairs = Counter((t.source, t.target) for t in each)
        found += [f"round {number}: {pair[0]} sends to {pair[1]} twice" for pair, n in pairs.items() if n > 1]
        for t in each:
            chunks = (*t.chunks, *t.stored)
            if not (0 <= t.source < schedule.ranks and 0 <= t.target < schedule.ranks):
                found.append(f"round {number}: from {t.source} to {t.target}, of {schedule.ranks} ranks")
            if not chunks or min(chunks) < 0 or max(chunks) >= schedule.chunks or len(t.chunks) != len(t.stored):
                found.append(f"round {number}: chunks {t.chunks} to {t.stored}, of {schedule.chunks}")
        stored = Counter((t.target, chunk) for t in each for chunk in t.stored)
        copied = dict.fromkeys((t.target, chunk) for t in each if t.op == "copy" for chunk in t.stored)
        found += [
            f"round {number}: rank {rank}, chunk {chunk}: a message overwrites what another one stores"
            for rank, chunk in copied
            if stored[rank, chunk] > 1
        ]
    return found


def initial_state(operation: Operation, schedule: Schedule) -> State:
    """The contents that each rank has before the first round (see the table in `schedule.py`)."""

    def content(rank: int, chunk: int) -> Content | None:
        part = _part_of(chunk, schedule)
        has = {
            "broadcast": rank == ROOT,
            "scatter": rank == ROOT,
            "all_gather": part == rank,
            "gather": part == rank,
            "all_to_all": chunk < schedule.chunks // 2,
        }
        return contribution(rank, chunk) if has.get(operation, True) else None

    return [[content(rank, chunk) for chunk in range(schedule.chunks)] for rank in range(schedule.ranks)]


def final_state(operation: Operation, schedule: Schedule) -> State:
    """The contents that each rank must have after the last round; None: any content is right."""
    ranks, half = schedule.ranks, schedule.chunks // 2
    everyone = sum(1 << _BITS * rank for rank in range(ranks))

    def content(rank: int, chunk: int) -> Content | None:
        part = _part_of(chunk, schedule)
        match operation:
            case "all_reduce":
                return Content(chunk, everyone)
            case "reduce":
                return Content(chunk, everyone) if rank == ROOT else None
            case "reduce_scatter":
                return Content(chunk, everyone) if part == rank else None
            case "broadcast":
                return contribution(ROOT, chunk)
            case "scatter":
                return contribution(ROOT, chunk) if part == rank else None
            case "all_gather":
                return contribution(part, chunk)
            case "gather":
                return contribution(part, chunk) if rank == ROOT else None
            case "all_to_all":
                return contribution(chunk - half, rank) if chunk >= half else None

    return [[content(rank, chunk) for chunk in range(schedule.chunks)] for rank in range(ranks)]


def _part_of(chunk: int, schedule: Schedule) -> int:
    """The rank whose part a chunk belongs to, where each has one."""
    return chunk * schedule.ranks // schedule.chunks


class Cost(NamedTuple):
    """Cost of a schedule, independent of the links."""

    rounds: int
    sent: float
    """The largest amount of data that any rank sends, as a share of the operation's buffer."""


def cost(operation: Operation, schedule: Schedule) -> Cost:
    """Cost of a schedule of the operation."""
    sent = [0] * schedule.ranks
    for each in schedule.rounds:
        for t in each:
            sent[t.source] += len(t.chunks) if t.source != t.target else 0
    return Cost(len(schedule.rounds), max(sent) / schedule.whole(operation))
