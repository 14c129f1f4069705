"""Which piece of a gang's evidence is the first cause. Pure.

A failure shows in many places at once: a killed worker, and workers that lost their peer, perhaps noticed before it. So
nothing is decided for a short time after the first possible cause, and the cause is then the earliest one; what may be
a consequence counts only where there is nothing else.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from convoy.gang.evidence import Evidence
from convoy.job.events.types import UNFIT, FailureDetected, FailureKind

SETTLE_SECONDS = 0.2
"""After the first possible cause, evidence of an earlier one may still be in transit from another node."""

PEERS_SECONDS = 2.0
"""After a worker lost a peer: a node must be silent for about this long before it is known to be lost."""

LEAD_SECONDS = 0.1
"""A consequence is noticed at most this long before its cause: exits are noticed in any order, and over a network."""


@dataclass(frozen=True)
class AgentPlace:
    """The position in its gang of the agent that judges."""

    node: int
    nodes: int
    world_size: int

    @property
    def leads(self) -> bool:
        """Node 0's agent decides for all; another one only decides that it cannot continue without a lost node."""
        return self.node == 0

    def node_of(self, rank: int) -> int:
        return rank * self.nodes // self.world_size


def causes(evidence: Sequence[Evidence], place: AgentPlace) -> list[Evidence]:
    """The evidence that can be a first cause."""
    return list(_causes(evidence, place))


def due(possible: Sequence[Evidence]) -> float | None:
    """When the time is over in which an earlier cause could still be noticed; None: there is no possible cause."""
    waits = [e.noticed + (PEERS_SECONDS if e.is_lost_peer else SETTLE_SECONDS) for e in possible]
    return min(waits, default=None)


def first(possible: Sequence[Evidence]) -> Evidence:
    """The first cause among the possible ones."""
    return min(possible, key=_precedence)


def failure(cause: Evidence, evidence: Sequence[Evidence], now: float, place: AgentPlace) -> FailureDetected:
    """The event for a first cause, before it is known what follows."""
    # After a partition that heals at once both sides report silences: what counts is the node that they have in common.
    apart = _node_apart(evidence, place) if cause.kind == "silent" else None
    cut_off = apart == place.node
    return FailureDetected(
        cause="cut_off" if cut_off else _failure_kind(cause),
        failed_node=cause.node if apart is None else apart,
        worker=cause.rank,
        exit_code=cause.exit_code,
        signal=cause.signal,
        reason="" if cut_off else cause.reason,
        log_tail=cause.log_tail,
        step=cause.step,
        silent_seconds=max(now - cause.at, 0.0),
        retryable=not cause.lasting,
    )


def _causes(evidence: Sequence[Evidence], place: AgentPlace) -> Iterator[Evidence]:
    done = {node for node in range(place.nodes) if _is_done(node, evidence, place)}
    others_fail = any(e.kind == "hung" or e.is_lost_peer for e in evidence)
    for e in evidence:
        match e.kind:
            case "exited" if e.by_us:
                pass
            case "exited" if e.is_success:
                # Without a progress board it is unknown whether it was at its end: the others show it.
                if e.exit_code == 0 and e.finishing is None and others_fail:
                    yield e
            case "gone" | "left" if e.node in done:
                pass
            case "exited" | "stopped" | "hung" | "gone" | "silent" | "left" | "agent":
                yield e


def _is_done(node: int, evidence: Sequence[Evidence], place: AgentPlace) -> bool:
    ended = {e.rank for e in evidence if e.is_success and e.node == node}
    return len(ended) * place.nodes == place.world_size


def _precedence(e: Evidence) -> tuple[int, tuple[int, int, int], float, int, int, str]:
    """The least is the first cause: by kind of evidence, for hangs by how far the rank came, then by time."""
    # Workers fail when a peer or its node is gone. A process does not die by a signal because of that, except by
    # SIGABRT, with which a communication library may end it.
    hard = e.kind in ("gone", "silent", "stopped") or (e.signal is not None and e.signal != "SIGABRT")
    return _kind_order(e), e.progress, e.at - (LEAD_SECONDS if hard else 0.0), e.node, e.rank or 0, e.kind


def _kind_order(e: Evidence) -> int:
    if e.is_lost_peer:
        return 4
    if e.kind == "hung":
        return 3  # a rank that waits for another one hangs as well
    if e.kind == "left":
        return 2  # it knew why, and may have reported it
    return 1 if e.is_success else 0


def _failure_kind(e: Evidence) -> FailureKind:
    match e.kind:
        case "exited" | "agent" if e.exit_code == UNFIT:
            return "unfit"
        case "exited" if e.is_lost_peer:
            return "link_lost"
        case "exited" if e.exit_code == 0:
            return "exited_early"
        case "stopped" | "hung":
            return e.kind
        case "silent":
            return "node_silent"
        case "gone" | "left":
            return "node_gone"
        case "agent":
            return "agent_failed"
        case _:
            return "exited"


def _node_apart(evidence: Sequence[Evidence], place: AgentPlace) -> int | None:
    """The node that no other one hears, or that hears no other one; this node, if that holds for several. None: there
    is none, or there are only two nodes, neither of which can know whose fault it is."""
    pairs = {frozenset((e.node, e.by)) for e in evidence if e.kind == "silent" and e.node != e.by}
    apart = [node for node in range(place.nodes) if sum(node in pair for pair in pairs) == place.nodes - 1 > 1]
    return place.node if place.node in apart else next(iter(apart), None)
