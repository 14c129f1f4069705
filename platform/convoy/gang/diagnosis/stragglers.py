"""A node that is alive and slow: the others wait for it, step after step, and it waits for nobody. Pure.

A thread of each worker checks ten times per second whether the worker waits for others. The reason for a slow node does
not matter to that: a throttled core or GPU host, a neighbour on the machine, swapping, a slow disk below its data.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from convoy.gang.workers.board import Mark, Phase

MIN_SHARE = 0.3
"""A node counts as slow if the others wait for this share of their time longer than it waits itself."""

WINDOW_SECONDS = 6.0
MIN_LOOKS = 50
MIN_STEPS = 10
"""Less than any of these says nothing about the ranks: each waits for another one now and then."""

WINDOWS = 2
"""This many windows in a row must show that a node is slow, or no longer slow."""

_TRAINING: frozenset[Phase] = frozenset({"step", "evaluate", "save"})


@dataclass(frozen=True)
class StragglerChange:
    """A node has become slow, or is no longer slow."""

    node: int
    share: float
    """The share of their time that the others wait for it; 0: it is no longer slow."""
    seconds: float
    """Length of the windows that show it."""

    def __str__(self) -> str:
        if not self.share:
            return f"node {self.node} is not slow any more"
        return f"node {self.node} is slow: the others wait for it {self.share:.0%} of their time"


class StragglerDetector:
    """For one gang, whose ranks are spread evenly over the nodes, one node after the other."""

    def __init__(self, nodes: int, world_size: int, stages: int = 1) -> None:
        """stages: of the pipeline, over which ranks are spread in the same way. Their work differs, so only ranks of
        the same stage are compared."""
        self._nodes = nodes
        self._world_size = world_size
        self._stages = stages
        self._began: float | None = None
        self._at_first: dict[int, Mark] = {}
        self._in_a_row: dict[int, int] = {}
        self._since: dict[int, float] = {}
        self._slow: set[int] = set()

    def begin_generation(self) -> None:
        """New workers start. A node that was slow is reported again."""
        self._began = None
        self._in_a_row, self._since, self._slow = {}, {}, set()

    def update(self, marks: Mapping[int, Mark], now: float) -> list[StragglerChange]:
        """The changes since the last call. marks: the newest ones, of the ranks that have any."""
        if len(marks) < self._world_size or any(mark.phase not in _TRAINING for mark in marks.values()):
            self._began = None
            return []
        if self._began is None:
            self._began, self._at_first = now, dict(marks)
            return []
        since = {rank: (self._at_first[rank], mark) for rank, mark in marks.items()}
        if (
            now - self._began < WINDOW_SECONDS
            or any(mark.looks - before.looks < MIN_LOOKS for before, mark in since.values())
            or any(mark.step - before.step < MIN_STEPS for before, mark in since.values())
        ):
            return []
        stages: dict[int, dict[int, float]] = {}
        for rank, (before, mark) in since.items():
            node, stage = (rank * parts // self._world_size for parts in (self._nodes, self._stages))
            waits = stages.setdefault(stage, {})
            waits[node] = min(waits.get(node, 1.0), (mark.waits - before.waits) / (mark.looks - before.looks))
        began, self._began, self._at_first = self._began, now, dict(marks)
        shares: dict[int, float] = {}
        for waits in stages.values():
            for node in waits:
                shares[node] = max(shares.get(node, 0.0), excess_wait_share(node, waits))
        return self._update_slow_nodes(shares, began, now)

    def _update_slow_nodes(self, shares: Mapping[int, float], began: float, now: float) -> list[StragglerChange]:
        changes = []
        for node, share in shares.items():
            slow = node in self._slow
            if slow == (share >= MIN_SHARE / (2 if slow else 1)):
                self._in_a_row[node] = 0
                continue
            row = self._in_a_row[node] = self._in_a_row.get(node, 0) + 1
            if row == 1:
                self._since[node] = began
            if row == WINDOWS:
                self._in_a_row[node] = 0
                self._slow ^= {node}
                changes.append(StragglerChange(node, 0.0 if slow else share, now - self._since[node]))
        return changes


def excess_wait_share(node: int, waits: Mapping[int, float]) -> float:
    """The least share of their time that three of four other nodes wait, beyond the share that this one waits.

    waits: the share of its time that each node waits for others.
    """
    others = sorted(part for other, part in waits.items() if other != node)
    return others[(len(others) - 1) // 4] - waits[node] if others else 0.0
