"""Which of the signs that a gang shows is the first cause. Pure.

A failure shows in many places at once: a killed worker, and workers that lost their peer, perhaps seen before it. So
nothing is decided for a short time after the first thing that could be a cause, and the cause is then the earliest of
what was seen; what may be a consequence counts only where there is nothing else.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from convoy.gang.evidence import Sign
from convoy.job.events.types import UNFIT, FailureDetected, FailureKind

SETTLE_SECONDS = 0.2
"""After the first possible cause an earlier one may still be on its way from another node."""

PEERS_SECONDS = 2.0
"""After a worker that lost a peer: a node must be silent for about so long before it is known to be lost."""

LEAD_SECONDS = 0.1
"""What fails because of another is seen at most this much before it: ends are seen in any order, and over a network."""


@dataclass(frozen=True)
class Seat:
    """Where the agent that judges stands in its gang."""

    node: int
    nodes: int
    world_size: int

    @property
    def leads(self) -> bool:
        """Node 0's agent decides for all; another one only that it cannot go on without a node that is lost."""
        return self.node == 0


def causes(signs: Sequence[Sign], seat: Seat) -> list[Sign]:
    """The signs that can be a first cause."""
    return list(_causes(signs, seat))


def due(found: Sequence[Sign]) -> float | None:
    """When the time is over in which an earlier cause could still be seen; None: nothing was found."""
    waits = [s.seen + (PEERS_SECONDS if s.lost_peer else SETTLE_SECONDS) for s in found]
    return min(waits, default=None)


def first(found: Sequence[Sign]) -> Sign:
    """The first cause among those that were found."""
    return min(found, key=_precedence)


def failure(sign: Sign, signs: Sequence[Sign], now: float, seat: Seat) -> FailureDetected:
    """The event for a first cause, before it is known what follows."""
    # A partition that heals at once tells of silences on both sides: what counts is whom they have in common.
    apart = _apart(signs, seat) if sign.kind == "silent" else None
    cut_off = apart == seat.node
    return FailureDetected(
        cause="cut_off" if cut_off else _kind(sign),
        failed_node=sign.node if apart is None else apart,
        worker=sign.rank,
        exit_code=sign.exit_code,
        signal=sign.signal,
        reason="" if cut_off else sign.reason,
        log_tail=sign.log_tail,
        step=sign.step,
        silent_seconds=max(now - sign.at, 0.0),
        retryable=not sign.lasting,
    )


def _causes(signs: Sequence[Sign], seat: Seat) -> Iterator[Sign]:
    done = {node for node in range(seat.nodes) if _is_done(node, signs, seat)}
    others_fail = any(s.kind == "hung" or s.lost_peer for s in signs)
    for s in signs:
        match s.kind:
            case "exited" if s.by_us:
                pass
            case "exited" if s.well:
                # Without a progress board it cannot be known whether it was at its end: the others show it.
                if s.exit_code == 0 and s.finishing is None and others_fail:
                    yield s
            case "gone" | "left" if s.node in done:
                pass
            case "exited" | "stopped" | "hung" | "gone" | "silent" | "left" | "agent":
                yield s


def _is_done(node: int, signs: Sequence[Sign], seat: Seat) -> bool:
    ended = {s.rank for s in signs if s.well and s.node == node}
    return len(ended) * seat.nodes == seat.world_size


def _precedence(s: Sign) -> tuple[int, tuple[int, int, int], float, int, int, str]:
    """The least is the first cause: by kind of evidence, for hangs by how far the rank came, then by time."""
    # Failing is what workers do when a peer or its node is gone. A process does not die by a signal because of that,
    # but for SIGABRT, with which a communication library may end it.
    hard = s.kind in ("gone", "silent", "stopped") or (s.signal is not None and s.signal != "SIGABRT")
    return _rank_of(s), s.progress, s.at - (LEAD_SECONDS if hard else 0.0), s.node, s.rank or 0, s.kind


def _rank_of(s: Sign) -> int:
    if s.lost_peer:
        return 4
    if s.kind == "hung":
        return 3  # whoever waits for another rank hangs as well
    if s.kind == "left":
        return 2  # it knew why, and may have told
    return 1 if s.well else 0


def _kind(s: Sign) -> FailureKind:
    match s.kind:
        case "exited" | "agent" if s.exit_code == UNFIT:
            return "unfit"
        case "exited" if s.lost_peer:
            return "link_lost"
        case "exited" if s.exit_code == 0:
            return "exited_early"
        case "stopped" | "hung":
            return s.kind
        case "silent":
            return "node_silent"
        case "gone" | "left":
            return "node_gone"
        case "agent":
            return "agent_failed"
        case _:
            return "exited"


def _apart(signs: Sequence[Sign], seat: Seat) -> int | None:
    """The node that does not hear, or is not heard by, any other one: this node, if that is so of several. None: there
    is none, or only two nodes, of which neither can tell whose fault it is."""
    pairs = {frozenset((s.node, s.by)) for s in signs if s.kind == "silent" and s.node != s.by}
    apart = [node for node in range(seat.nodes) if sum(node in pair for pair in pairs) == seat.nodes - 1 > 1]
    return seat.node if seat.node in apart else next(iter(apart), None)
