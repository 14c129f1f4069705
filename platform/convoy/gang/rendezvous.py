"""How the nodes of a gang come together: node 0 forms a generation, and the other nodes join it.

Only node 0 forms generations: creating a generation's object is the right to continue the job.
"""

import contextlib
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from queue import Empty

from convoy.gang.async_call import Background
from convoy.gang.network.listener import listen, on_all_addresses
from convoy.gang.network.peer_events import Failed, Formed, Joined
from convoy.gang.network.peers import Peers
from convoy.gang.say import say
from convoy.gang.task import Node, Task
from convoy.gang.workers.worker_group import Site
from convoy.job.generations import (
    FormationRefusedError,
    await_generation,
    form_generation,
    new_token,
    read_token,
    refusal_of,
    remove_tokens,
)
from convoy.job.heartbeat import LiveMarker, check_not_live
from convoy.job.lineage import Generation
from convoy.job.record import ensure_record, existing_record, keep_config
from convoy.storage import ObjectMissing, Store, StoreUnavailable

JOIN_SECONDS = {"local": 600.0, "remote": 3600.0}
"""So long the nodes wait for each other: one may still be copying data, or have no machine yet."""

_POLL_SECONDS = 0.2

Pause = Callable[[float], None]
"""Wait for so many seconds; raises what keeps the node from waiting on."""


FORM_SECONDS = 60.0
"""For the next generation in place; a store that takes longer is out of reach."""

LEAVE_SECONDS = 5.0
"""For the mark that the job is running, or the token, to be removed."""


@dataclass(frozen=True)
class FormedGeneration:
    """A generation that exists, and what its workers need of this node."""

    generation: Generation
    listener: socket.socket | None = None
    """Bound to the rendezvous' port, on node 0: handed to rank 0, so that no other process can take it between."""

    def let_go(self) -> None:
        """The workers have what they need, or there will be none."""
        if self.listener is not None:
            self.listener.close()


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


def join(site: Site, pause: Pause) -> tuple[FormedGeneration, Peers]:
    """Find the first generation, and wait until all nodes have come. Raises as `await_generation` and `await_all`."""
    node = site.node
    generation = await_generation(
        site.store,
        node.formation,
        deadline_seconds=JOIN_SECONDS["remote" if site.remote else "local"],
        poll_seconds=0.5 if site.remote else 0.05,
        sleep=pause,
    )
    host, _, port = generation.control.rpartition(":")
    if not host or not generation.token_name:
        other = "was formed by another version of Convoy: all nodes need the same"
        raise FormationRefusedError(f"{site.store.uri}/{generation.name}: {other}")
    try:
        token = read_token(site.store, generation.token_name)
    except ObjectMissing as error:
        gone = f"{site.store.uri}/tokens/{generation.token_name}: is gone"
        over = f"{gone}: node 0 stopped waiting, or another run took over"
        raise FormationRefusedError(refusal_of(site.store, node.formation) or over) from error
    size = {"nodes": node.nodes, "nproc": node.nproc_per_node}
    peers = Peers.join((host, int(port)), token, node=node.index, **size)
    await_all(peers, node, pause)
    return FormedGeneration(generation), peers


@contextlib.contextmanager
def holding(task: Task, node: Node, store: Store) -> Iterator[None]:
    """The job is this run's while the block runs. Raises ConfigError if another run has it, or started it with
    another configuration."""
    check_not_live(store, task.job, node.run)
    if task.known:
        existing_record(store, task.config, task.fingerprint)
    else:
        ensure_record(store, task.job, task.config, task.fingerprint)
    with marked(store, task.job, node.run):
        yield


@contextlib.contextmanager
def marked(store: Store, job: str, run: str, *, preparing: bool = False) -> Iterator[None]:
    """The job is marked as running while the block runs. Raises ConfigError if another run has it."""
    marker = LiveMarker(store, job, run, preparing=preparing).__enter__()
    try:
        yield
    finally:
        _wait_for(Background("the mark of a running job", marker.__exit__, LEAVE_SECONDS))


def lead(site: Site, pause: Pause) -> tuple[FormedGeneration, Peers]:
    """Form the first generation, and wait until all nodes have come. Raises as `form_generation` and `await_all`."""
    token, control = new_token(), listen(site.node.main_host)
    if on_all_addresses(control):
        where = f"listens on all addresses: {site.node.main_host}, where the others are to reach it, is none of its own"
        say(f"convoy: node 0 on {socket.gethostname()} {where}", error=True)
    try:
        formed = form(site, _address(site.node, control), token if site.node.nodes > 1 else "")
    except BaseException:
        control.close()
        raise
    size = {"nodes": site.node.nodes, "nproc": site.node.nproc_per_node}
    peers = Peers.lead(control, token, **size, join_seconds=JOIN_SECONDS["remote" if site.remote else "local"])
    try:
        await_all(peers, site.node, pause)
    except BaseException:
        formed.let_go()
        _wait_for(_removing_tokens(site, formed))
        raise
    _removing_tokens(site, formed)  # for which the workers need not wait
    return formed, peers


def form(site: Site, control: str, token: str = "") -> FormedGeneration:
    """Create the job's next generation, on from its newest commit. Raises as `form_generation`.

    control, token: for the first generation, which the other nodes have yet to join.
    """
    listener = listen(site.node.main_host)
    try:
        generation = form_generation(
            site.store,
            formation=site.node.formation,
            nodes=site.node.nodes,
            world_size=site.node.world_size,
            config_hash=keep_config(site.store, site.task.config),
            rendezvous=_address(site.node, listener),
            others=site.tiers[1:],
            control=control,
            token=token,
        )
    except BaseException:
        listener.close()
        raise
    return FormedGeneration(generation, listener)


def _removing_tokens(site: Site, formed: FormedGeneration) -> Background[None]:
    """Of this formation and those before it: the nodes have come together, or will not."""
    return Background("the token", lambda: remove_tokens(site.store, formed.generation.generation), LEAVE_SECONDS)


def _wait_for(removing: Background[None]) -> None:
    with contextlib.suppress(StoreUnavailable):  # what is done last may not hide how the gang ended
        removing.result()


def _address(node: Node, listener: socket.socket) -> str:
    return f"{node.main_host}:{listener.getsockname()[1]}"
