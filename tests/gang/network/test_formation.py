"""Coming together, over messages that arrive in any order between nodes, and nodes that end on the way."""

import random
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.gang.network import handshake
from convoy.gang.network.formation import Action, ConnectTo, Formation, GangFormed, PeersFailed, SendMessage
from tests.campaign import examples
from tests.gang.agents import a_hello, a_member

pytestmark = pytest.mark.campaign

seeds = st.integers(0, 2**32)


class Nodes:
    """Formations that speak with each other: in order between any two, in any order otherwise."""

    def __init__(self, count: int, rng: random.Random) -> None:
        self.count = count
        self.rng = rng
        self.formations = [Formation(a_hello(node, count), 60.0, 0.0) for node in range(count)]
        self.queues: dict[tuple[int, int], deque[handshake.Message | None]] = {}
        self.ended: list[list[GangFormed | PeersFailed]] = [[] for _ in range(count)]
        self.do(0, self.formations[0].begin())

    def connect(self, node: int, to: int) -> None:
        """Both learn of it, each in its own time."""
        for here, there in ((node, to), (to, node)):
            self.queues[here, there] = deque([None])

    def do(self, node: int, steps: list[Action]) -> None:
        for step in steps:
            match step:
                case SendMessage(to=to, message=message):
                    for there in [to] if to is not None else self.connected(node):
                        self.queues[node, there].append(message)
                case ConnectTo(node=other):
                    self.connect(node, other.node)
                case _:
                    self.ended[node].append(step)

    def connected(self, node: int) -> list[int]:
        return [there for here, there in self.queues if here == node]

    def deliver(self) -> bool:
        """One message, of any pair of nodes; False: there is none."""
        waiting = [pair for pair, queue in self.queues.items() if queue]
        if not waiting:
            return False
        sender, receiver = self.rng.choice(waiting)
        message = self.queues[sender, receiver].popleft()
        formation = self.formations[receiver]
        if message is None:
            self.do(receiver, formation.on_joined(a_member(sender)))
        else:
            self.do(receiver, formation.on_message(sender, message))
        return True


@examples(200)
@given(seeds, st.integers(1, 7))
def test_all_are_formed_with_the_same_members_when_all_are_connected(seed: int, count: int) -> None:
    rng = random.Random(seed)
    nodes, coming = Nodes(count, rng), list(range(1, count))
    rng.shuffle(coming)
    while coming:
        nodes.connect(coming.pop(), 0)
        for _ in range(rng.randrange(4)):
            nodes.deliver()
        assert not coming or not any(nodes.ended)
    while nodes.deliver():
        pass
    pairs = {frozenset(pair) for pair in nodes.queues}
    assert len(pairs) == count * (count - 1) // 2
    assert nodes.ended == [[GangFormed()]] * count


@examples(200)
@given(seeds, st.integers(2, 6))
def test_a_node_that_ends_on_the_way_is_named_to_all_the_others(seed: int, count: int) -> None:
    """Or all are formed before."""
    rng = random.Random(seed)
    nodes, victim = Nodes(count, rng), rng.randrange(1, count)
    for node in range(1, count):
        nodes.connect(node, 0)
    for _ in range(rng.randrange(3 * count * count)):
        nodes.deliver()
    for pair, queue in nodes.queues.items():
        if victim in pair:
            queue.clear()
    nodes.do(0, nodes.formations[0].on_gone(victim))
    while nodes.deliver():
        pass
    others = [nodes.ended[node] for node in range(count) if node != victim]
    assert all(len(ended) == 1 for ended in others)
    if isinstance(others[0][0], PeersFailed):
        reason = f"node {victim} ended before all {count} nodes had come together"
        assert [ended[0] for ended in others] == [PeersFailed(reason)] * len(others)
    else:
        assert all(isinstance(ended[0], GangFormed) for ended in others)


def test_node_0_waits_no_longer_than_it_was_told_and_names_who_is_missing() -> None:
    formation = Formation(a_hello(0, 4), join_seconds=600.0, now=100.0)
    formation.on_joined(a_member(2))
    assert formation.on_tick(699.0) == []
    reason = "nodes 1, 3 of 4 did not come within 600 s"
    assert formation.on_tick(700.0) == [
        SendMessage(None, handshake.FormationFailed(reason=reason)),
        PeersFailed(reason),
    ]
    assert formation.on_tick(701.0) == []
    assert formation.on_joined(a_member(1)) == []


def test_what_one_node_finds_out_is_told_to_all_by_node_0() -> None:
    leader, other = Formation(a_hello(0, 3), 60.0, 0.0), Formation(a_hello(2, 3), 60.0, 0.0)
    failed = handshake.FormationFailed(reason="node 2 cannot connect to node 1")
    event = PeersFailed(failed.reason)
    assert other.fail(failed.reason) == [SendMessage(0, failed), event]
    assert leader.on_message(2, failed) == [SendMessage(None, failed), event]
    assert other.on_message(0, failed) == []
    assert Formation(a_hello(1, 3), 60.0, 0.0).on_message(0, failed) == [event]
