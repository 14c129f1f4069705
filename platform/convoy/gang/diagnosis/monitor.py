"""What an agent knows of its gang: signs, its own and those that others told, and where all workers are."""

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace

from convoy.gang.assignment import STOPPED
from convoy.gang.diagnosis.first_cause import Seat
from convoy.gang.diagnosis.hang_detector import Patience, hanging, progress
from convoy.gang.evidence import Sign
from convoy.gang.network.peer_events import Failed, Gone, Left, PeerEvent, Silent, Unheard
from convoy.gang.workers.board import Mark

FRESH_SECONDS = 1.0
"""What another node told of its workers longer ago says nothing of now."""


class Watch:
    """Used by one thread."""

    def __init__(self, seat: Seat, patience: Patience, exit_seconds: float = math.inf) -> None:
        """patience: of the whole gang, which node 0 alone needs. exit_seconds: of a script, as `Script` has it."""
        self._exit_seconds = exit_seconds
        self._seat = seat
        self._patience = patience
        self._marks: dict[int, Mark] = {}
        self._told_at: dict[int, float] = {}
        """When each rank's mark came."""
        self.signs: list[Sign] = []
        self._untold: list[Sign] = []

    @property
    def marks(self) -> Mapping[int, Mark]:
        """Where each rank was, as far as it is known here."""
        return self._marks

    def begin(self) -> None:
        """New workers: what was seen of those before them counts no more. What was seen of nodes does."""
        self.signs = [sign for sign in self.signs if not sign.of_a_worker]
        self._untold = [sign for sign in self._untold if not sign.of_a_worker]
        self._marks, self._told_at = {}, {}
        self._patience.begin()

    def saw(self, signs: Iterable[Sign]) -> None:
        """What this agent saw itself."""
        for sign in signs:
            self.signs.append(sign)
            self._untold.append(sign)

    def heard(self, signs: Iterable[Sign]) -> None:
        """What another agent told."""
        self.signs.extend(signs)

    def untold(self) -> list[Sign]:
        """What this agent saw since the last call: the others are to know it."""
        untold, self._untold = self._untold, []
        return untold

    def lost(self, node: int) -> bool:
        """Whether the node's agent can decide nothing more that comes to this one."""
        mine = (s for s in self.signs if s.by == self._seat.node and s.kind in ("gone", "silent", "left"))
        return any(s.node == node for s in mine)

    def cannot_go_on(self, reason: str, *, lasting: bool) -> None:
        """This agent itself failed. lasting: another attempt would not do better."""
        self.saw([self._of_node("agent", self._seat.node, reason=reason, lasting=lasting)])

    def met(self, event: PeerEvent) -> None:
        """What was learned of another agent."""
        match event:
            case Gone():
                self.saw([self._of_node("gone", event.node)])
            case Left():
                self.saw([self._of_node("left", event.node)])
            case Silent():
                self.saw([self._of_node("silent", event.node, ago=event.seconds)])
            case Unheard():
                silent = self._of_node("silent", event.node, ago=event.seconds)
                self.heard([silent.model_copy(update={"by": event.by})])
            case Failed():
                self.cannot_go_on(event.reason, lasting=False)

    def placed(self, marks: Mapping[int, Mark], now: float) -> None:
        """Where some workers are now."""
        for rank, mark in marks.items():
            before = self._marks.get(rank)
            if before is not None and _point(before) == _point(mark):
                # When another host came there is known but for what its message took, each time another time.
                mark = replace(mark, at=before.at)
            self._marks[rank], self._told_at[rank] = mark, now

    def look_for_hangs(self, now: float) -> None:
        """Learn how long things take, and see whether the gang hangs. To be called at least once a second."""
        ended = {s.rank for s in self.signs if s.kind == "exited"}
        hung = {s.rank for s in self.signs if s.kind == "hung"}
        left = {rank: mark for rank, mark in self._marks.items() if rank not in ended}
        running = {rank: mark for rank, mark in left.items() if mark.earned is None}
        self._patience.look(running, now)
        known = len(left) + len(ended) == self._seat.world_size
        if not known or any(now - self._told_at[rank] > FRESH_SECONDS for rank in left):
            return
        if not running:
            self._end_scripts(left, now)
            return
        found = hanging(running, now, self._patience)
        if found is not None and found[0] not in hung:
            self.saw([self._hung(*found, running[found[0]])])

    def _end_scripts(self, left: Mapping[int, Mark], now: float) -> None:
        """Every script has run its last line. Where no rank that is left makes progress, they do not wait for each
        other: they have ended, with what each has earned. One that failed, its own node's agent tells of."""
        if all(now - mark.at > self._exit_seconds for mark in left.values()):
            well = {rank: mark for rank, mark in left.items() if mark.earned in (0, STOPPED)}
            self.saw(self._ended(rank, mark) for rank, mark in well.items())

    def _ended(self, rank: int, mark: Mark) -> Sign:
        now, seat = time.monotonic(), self._seat
        return Sign(
            kind="exited",
            node=rank * seat.nodes // seat.world_size,
            by=seat.node,
            at=now,
            seen=now,
            rank=rank,
            step=mark.step,
            exit_code=mark.earned,
        )

    def _hung(self, rank: int, text: str, mark: Mark) -> Sign:
        seat = self._seat
        return Sign(
            kind="hung",
            node=rank * seat.nodes // seat.world_size,
            by=seat.node,
            at=mark.at,
            seen=time.monotonic(),
            rank=rank,
            step=mark.step,
            progress=progress(mark),
            reason=text,
        )

    def _of_node(self, kind: str, node: int, *, ago: float = 0.0, reason: str = "", lasting: bool = False) -> Sign:
        now, by = time.monotonic(), self._seat.node
        facts = {"kind": kind, "node": node, "by": by, "at": now - ago, "seen": now}
        return Sign.model_validate(facts | {"reason": reason, "lasting": lasting})


def _point(mark: Mark) -> tuple[str, int, int, int]:
    return mark.phase, mark.step, mark.count, mark.went_on
