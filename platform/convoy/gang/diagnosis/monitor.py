"""An agent's knowledge of its gang: evidence, its own and other agents', and the marks of all workers."""

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace

from convoy.gang.diagnosis.hang_detector import HangDetector, find_hang, progress_key
from convoy.gang.messages import Evidence
from convoy.gang.network.formation import PeerEvent, PeerGone, PeerLeft, PeerReportedSilent, PeersFailed, PeerSilent
from convoy.gang.task import STOPPED, Node
from convoy.gang.workers.board import Mark

FRESH_SECONDS = 1.0
"""Marks from another node that are older than this say nothing about now."""


class GangMonitor:
    """Used by one thread."""

    def __init__(self, node: Node, detector: HangDetector, exit_seconds: float = math.inf) -> None:
        """detector: for the whole gang, which node 0 alone needs. exit_seconds: as in `Script`."""
        self._exit_seconds = exit_seconds
        self._node = node
        self._detector = detector
        self.marks: dict[int, Mark] = {}
        """The newest mark of each rank, as far as this agent has one."""
        self._marked_at: dict[int, float] = {}
        """When each rank's mark arrived."""
        self.evidence: list[Evidence] = []
        self._unsent: list[Evidence] = []

    def begin_generation(self) -> None:
        """New workers start: evidence of those before them no longer counts. Evidence of nodes does."""
        self.evidence = [item for item in self.evidence if not item.lapses_with_generation]
        self._unsent = [item for item in self._unsent if not item.lapses_with_generation]
        self.marks, self._marked_at = {}, {}
        self._detector.begin_generation()

    def add_own(self, evidence: Iterable[Evidence]) -> None:
        """Add what this agent observed itself."""
        for item in evidence:
            self.evidence.append(item)
            self._unsent.append(item)

    def add_received(self, evidence: Iterable[Evidence]) -> None:
        """Add what another agent observed."""
        self.evidence.extend(evidence)

    def take_unsent(self) -> list[Evidence]:
        """What this agent observed since the last call: the others are to have it."""
        unsent, self._unsent = self._unsent, []
        return unsent

    def has_lost(self, node: int) -> bool:
        """Whether no decision of the node's agent can reach this one any more."""
        own = (e for e in self.evidence if e.by == self._node.index and e.kind in ("gone", "silent", "left"))
        return any(e.node == node for e in own)

    def add_own_failure(self, reason: str, *, lasting: bool) -> None:
        """This agent cannot continue. lasting: another attempt would not do better."""
        self.add_own([self._node_evidence("agent", self._node.index, reason=reason, lasting=lasting)])

    def add_peer_event(self, event: PeerEvent) -> None:
        """Add what was learned of another agent."""
        match event:
            case PeerGone():
                self.add_own([self._node_evidence("gone", event.node)])
            case PeerLeft():
                self.add_own([self._node_evidence("left", event.node)])
            case PeerSilent():
                self.add_own([self._node_evidence("silent", event.node, ago=event.seconds)])
            case PeerReportedSilent():
                silent = self._node_evidence("silent", event.node, ago=event.seconds)
                self.add_received([silent.model_copy(update={"by": event.by})])
            case PeersFailed():
                self.add_own_failure(event.reason, lasting=False)

    def update_marks(self, marks: Mapping[int, Mark], now: float) -> None:
        """Take the newest marks of some workers."""
        for rank, mark in marks.items():
            before = self.marks.get(rank)
            if before is not None and _progress_point(before) == _progress_point(mark):
                # When another host's rank came there is known only up to its message's delay, which varies.
                mark = replace(mark, at=before.at)
            self.marks[rank], self._marked_at[rank] = mark, now

    def look_for_hangs(self, now: float) -> None:
        """Learn how long things take, and detect whether the gang hangs. Call it at least once a second."""
        ended = {e.rank for e in self.evidence if e.kind == "exited"}
        hung = {e.rank for e in self.evidence if e.kind == "hung"}
        left = {rank: mark for rank, mark in self.marks.items() if rank not in ended}
        running = {rank: mark for rank, mark in left.items() if mark.earned is None}
        self._detector.learn_from(running, now)
        complete = len(left) + len(ended) == self._node.world_size
        if not complete or any(now - self._marked_at[rank] > FRESH_SECONDS for rank in left):
            return
        if not running:
            self._add_idle_script_exits(left, now)
            return
        found = find_hang(running, now, self._detector)
        if found is not None and found[0] not in hung:
            rank, why = found
            mark = running[rank]
            self.add_own([self._rank_evidence("hung", rank, mark, at=mark.at, progress=progress_key(mark), reason=why)])

    def _add_idle_script_exits(self, marks: Mapping[int, Mark], now: float) -> None:
        """Every script has run its last line. Where no rank that is left makes progress, they do not wait for each
        other: they have ended, with the exit codes that they earned. A failed one is reported by its own agent."""
        if all(now - mark.at > self._exit_seconds for mark in marks.values()):
            successful = {rank: mark for rank, mark in marks.items() if mark.earned in (0, STOPPED)}
            ended_at = time.monotonic()
            self.add_own(
                self._rank_evidence("exited", rank, mark, at=ended_at, exit_code=mark.earned)
                for rank, mark in successful.items()
            )

    def _rank_evidence(self, kind: str, rank: int, mark: Mark, **facts: object) -> Evidence:
        return self._new_evidence(kind, rank // self._node.nproc_per_node, rank=rank, step=mark.step, **facts)

    def _node_evidence(
        self, kind: str, node: int, *, ago: float = 0.0, reason: str = "", lasting: bool = False
    ) -> Evidence:
        return self._new_evidence(kind, node, at=time.monotonic() - ago, reason=reason, lasting=lasting)

    def _new_evidence(self, kind: str, node: int, **facts: object) -> Evidence:
        own = {"kind": kind, "node": node, "by": self._node.index, "noticed": time.monotonic()}
        return Evidence.model_validate(own | facts)


def _progress_point(mark: Mark) -> tuple[str, int, int, int]:
    return mark.phase, mark.step, mark.count, mark.advances
