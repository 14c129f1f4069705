"""Waiting until every node of the gang is there, before any worker starts."""

from collections.abc import Callable
from queue import Empty

from convoy.gang.network.peer_events import Failed, Formed, Joined
from convoy.gang.network.peers import Peers
from convoy.gang.say import say
from convoy.gang.task import Node
from convoy.job.generations import FormationRefusedError

JOIN_SECONDS = {"local": 600.0, "remote": 3600.0}
"""So long the nodes wait for each other: one may still be copying data, or have no machine yet."""

_POLL_SECONDS = 0.2

Pause = Callable[[float], None]
"""Wait for so many seconds; raises what keeps the node from waiting on."""


def await_all(peers: Peers, node: Node, pause: Pause) -> None:
    """Until every node is connected with every other. Raises FormationRefusedError with one line if they will not be.

    The peers are closed if it raises.
    """
    try:
        while True:
            try:
                event = peers.events.get(timeout=_POLL_SECONDS)
            except Empty:
                pause(0.0)
                continue
            match event:
                case Formed():
                    return
                case Failed():
                    raise FormationRefusedError(event.reason)
                case Joined():
                    _warn(event, node)
    except BaseException:
        peers.close()
        raise


def _warn(joined: Joined, node: Node) -> None:
    """Of a clock that is wrong, by node 0 alone."""
    warning = joined.skew.warning(joined.node, node.index) if node.leads else None
    if warning is not None:
        say(f"convoy: {warning}", error=True)
