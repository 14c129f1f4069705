"""Which node is slow, by how much each rank waits for others."""

import random
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.gang.diagnosis.stragglers import (
    MIN_SHARE,
    WINDOW_SECONDS,
    WINDOWS,
    StragglerChange,
    StragglerDetector,
    excess_wait_share,
)
from convoy.gang.workers.board import Mark
from tests.campaign import examples

pytestmark = pytest.mark.campaign

LOOKS_PER_SECOND = 10
STEPS_PER_SECOND = 8


class Gang:
    """Ranks that wait for a part of their time, and a clock."""

    def __init__(self, nodes: int, per_node: int = 1, seed: int = 0, stages: int = 1) -> None:
        self.slow = StragglerDetector(nodes, nodes * per_node, stages)
        self.now = 100.0
        self.rng = random.Random(seed)
        self.marks = {rank: Mark("step", 10, 1, 0.0) for rank in range(nodes * per_node)}

    def train(self, seconds: float, waits: Mapping[int, float] | Callable[[int], float]) -> list[StragglerChange]:
        """waits: of each rank the part of its time that it waits for others."""
        part = waits.__getitem__ if isinstance(waits, Mapping) else waits
        found, until = list[StragglerChange](), self.now + seconds
        while self.now < until:
            self.now += 1 / LOOKS_PER_SECOND
            for rank, mark in self.marks.items():
                waiting = self.rng.random() < part(rank)
                step = 10 + int((self.now - 100.0) * STEPS_PER_SECOND)
                self.marks[rank] = Mark("step", step, 1, 0.0, looks=mark.looks + 1, waits=mark.waits + waiting)
            found += self.slow.update(self.marks, self.now)
        return found


def test_a_node_that_the_others_wait_for_is_told_once_within_so_many_windows_and_when_it_is_over() -> None:
    gang = Gang(3)
    assert gang.train(20, dict.fromkeys(range(3), 0.3)) == []
    (slow,) = gang.train(WINDOW_SECONDS * (WINDOWS + 1.2), {0: 0.6, 1: 0.6, 2: 0.05})
    assert slow.node == 2
    assert slow.share == pytest.approx(0.5, abs=0.2)
    assert slow.seconds == pytest.approx(WINDOWS * WINDOW_SECONDS, rel=0.2)
    assert str(slow).startswith("node 2 is slow: the others wait for it ")
    assert gang.train(60, {0: 0.6, 1: 0.6, 2: 0.05}) == []
    (over,) = gang.train(30, dict.fromkeys(range(3), 0.3))
    assert (over.node, over.share, str(over)) == (2, 0.0, "node 2 is not slow any more")


def test_one_slow_rank_makes_its_node_slow() -> None:
    gang = Gang(2, per_node=4)
    (slow,) = gang.train(30, lambda rank: 0.02 if rank == 6 else 0.7)
    assert slow.node == 1


def test_two_ranks_that_share_a_core_are_not_slow_nodes() -> None:
    """Of three ranks on two cores one has a core of its own, and waits for both others."""
    assert Gang(3).train(120, {0: 0.65, 1: 0.2, 2: 0.2}) == []


def test_a_gang_of_one_node_has_no_slow_node() -> None:
    assert Gang(1, per_node=4).train(30, lambda rank: 0.0 if rank == 1 else 0.9) == []


@pytest.mark.parametrize(("nodes", "per_node", "stages"), [(2, 1, 2), (4, 2, 2), (2, 4, 4), (6, 1, 3)])
def test_a_stage_with_more_work_makes_no_node_slow(nodes: int, per_node: int, stages: int) -> None:
    last = nodes * per_node // stages * (stages - 1)
    waits = {rank: 0.05 if rank >= last else 0.7 for rank in range(nodes * per_node)}
    assert Gang(nodes, per_node, stages=stages).train(60, waits) == []


@pytest.mark.parametrize("slow", range(6))
def test_a_node_that_those_with_its_stage_wait_for_is_slow(slow: int) -> None:
    """The second of two stages, each on three nodes, has more work."""
    (found,) = Gang(6, stages=2).train(30, lambda rank: 0.0 if rank == slow else 0.8 - 0.2 * (rank >= 3))
    assert found.node == slow


def test_nodes_with_several_stages_are_compared_where_they_have_the_same() -> None:
    """Of three stages of two ranks, the second one is on both nodes."""
    waits = {0: 0.7, 1: 0.7, 2: 0.7, 3: 0.0, 4: 0.3, 5: 0.3}
    assert [slow.node for slow in Gang(2, per_node=3, stages=3).train(30, waits)] == [1]


def test_what_lasts_for_a_moment_only_is_not_told() -> None:
    gang = Gang(3)
    for _ in range(10):
        assert gang.train(WINDOW_SECONDS * 0.5, {0: 0.7, 1: 0.7, 2: 0.0}) == []
        assert gang.train(WINDOW_SECONDS * 1.5, dict.fromkeys(range(3), 0.3)) == []


def test_only_training_is_looked_at_and_only_of_all_ranks() -> None:
    gang = Gang(3)
    slow = StragglerDetector(3, 3)
    for _ in range(60):
        gang.train(1, {0: 0.7, 1: 0.7, 2: 0.0})
        assert slow.update({rank: mark for rank, mark in gang.marks.items() if rank}, gang.now) == []
        compiling = {**gang.marks, 0: Mark("first_step", 10, 1, 0.0)}
        assert slow.update(compiling, gang.now) == []


def test_new_workers_begin_anew() -> None:
    gang = Gang(3)
    slowly = {0: 0.7, 1: 0.7, 2: 0.0}
    assert len(gang.train(20, slowly)) == 1
    gang.slow.begin_generation()
    assert len(gang.train(20, slowly)) == 1


def test_one_other_node_that_does_not_wait_hides_nobody_in_a_large_gang() -> None:
    waits = dict.fromkeys(range(9), 0.6) | {3: 0.0, 7: 0.1}
    assert excess_wait_share(3, waits) == pytest.approx(0.6)
    assert excess_wait_share(7, waits) == pytest.approx(0.5)
    assert excess_wait_share(0, waits) < MIN_SHARE


@pytest.mark.processes
@examples(60)
@given(st.integers(2, 6), st.floats(0.0, 0.9), st.integers(0, 2**32))
def test_ranks_that_wait_alike_are_never_slow(nodes: int, part: float, seed: int) -> None:
    assert Gang(nodes, seed=seed).train(300, lambda _: part) == []


@examples(60)
@given(st.integers(2, 6), st.floats(0.0, 0.2), st.floats(0.75, 1.0), st.integers(0, 2**32), st.data())
def test_who_is_waited_for_most_of_the_time_is_always_found(
    nodes: int, own: float, others: float, seed: int, data: st.DataObject
) -> None:
    node = data.draw(st.integers(0, nodes - 1))
    found = Gang(nodes, seed=seed).train(40, lambda rank: own if rank == node else others)
    assert [slow.node for slow in found] == [node]
