"""Waiting for all nodes, and what is told of their clocks meanwhile."""

from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any, cast

import pytest

from convoy.gang.network.handshake import Skew
from convoy.gang.network.peer_events import Failed, Formed, Joined, PeerEvent
from convoy.gang.network.peers import Peers
from convoy.gang.rendezvous import await_all
from convoy.job.generations import FormationRefusedError
from tests.gang.tasks import a_node


def peers(*events: PeerEvent) -> Any:
    """A Peers that tells this."""
    told: SimpleQueue[PeerEvent] = SimpleQueue()
    for event in events:
        told.put(event)
    made = SimpleNamespace(events=told, closed=False)
    made.close = lambda: setattr(made, "closed", True)
    return made


def nothing(seconds: float) -> None:
    """Nothing keeps the node from waiting."""


def test_a_clock_that_is_wrong_is_told_in_one_line_by_node_0_alone(capsys: pytest.CaptureFixture[str]) -> None:
    joined = [Joined(1, "b", Skew(-7.5, 0.01)), Joined(2, "c", Skew(0.2, 0.01)), Joined(3, "d", Skew(9.0, 6.0))]
    for index in (0, 1):
        made = peers(*joined, Formed(()))
        await_all(cast(Peers, made), a_node(index=index, nodes=4), nothing)
        assert not made.closed
    assert capsys.readouterr().err == (
        "convoy: the clock of node 1 is 7.5 s behind node 0's: what is told of several nodes may come in the wrong "
        "order; check their time synchronisation\n"
    )


def test_nodes_that_will_not_come_together_are_told_and_the_connections_closed() -> None:
    made = peers(Joined(1, "b", Skew(0.0, 0.0)), Failed(2, "node 2 did not come within 600 s"))
    with pytest.raises(FormationRefusedError, match=r"^node 2 did not come within 600 s$"):
        await_all(cast(Peers, made), a_node(nodes=3), nothing)
    assert made.closed


def test_what_ends_the_waiting_closes_the_connections() -> None:
    def notice(seconds: float) -> None:
        raise KeyError("notice")

    made = peers()
    with pytest.raises(KeyError):
        await_all(cast(Peers, made), a_node(nodes=3), notice)
    assert made.closed
