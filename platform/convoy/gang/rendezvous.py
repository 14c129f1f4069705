"""How the nodes of a gang come together: node 0 forms a generation, and the other nodes join it.

Only node 0 forms generations: creating a generation's object is the right to continue the job.
"""

import contextlib
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from queue import Empty

from convoy.gang.async_call import BackgroundCall, say
from convoy.gang.network.formation import GangFormed, PeerJoined, PeersFailed
from convoy.gang.network.peers import Peers
from convoy.gang.network.sockets import is_on_all_addresses, listen
from convoy.gang.task import Node, Task
from convoy.gang.workers.worker_group import NodeContext
from convoy.job.gang_tokens import new_token, read_token, remove_tokens
from convoy.job.generations import FormationError, await_generation, form_generation, read_refusal
from convoy.job.heartbeat import LiveMarker, check_not_live
from convoy.job.lineage import Generation
from convoy.job.record import ensure_record, keep_config, read_checked_record
from convoy.storage import ObjectMissing, Store, StoreUnavailable

LOCAL_JOIN_SECONDS, REMOTE_JOIN_SECONDS = 600.0, 3600.0
"""For the nodes to wait for each other: one may still be copying data, or have no machine yet."""

FORM_SECONDS = 60.0
"""For the next generation in place; a store that takes longer is out of reach."""

LEAVE_SECONDS = 5.0
"""For the mark of a running job, or the token, to be removed."""

_POLL_SECONDS = 0.2

Pause = Callable[[float], None]
"""Waits for so many seconds; raises what keeps the node from waiting any longer."""


@dataclass(frozen=True)
class FormedGeneration:
    """A generation that exists, and what its workers need of this node."""

    generation: Generation
    listener: socket.socket | None = None
    """Bound to the rendezvous' port, on node 0: handed to rank 0, so that no other process can take the port
    between."""

    def close_listener(self) -> None:
        """The workers have what they need, or there will be none."""
        if self.listener is not None:
            self.listener.close()


def form_first_generation(context: NodeContext, pause: Pause) -> tuple[FormedGeneration, Peers]:
    """Form the first generation, and wait until all nodes have joined. Raises as `form_generation` and
    `await_gang_formed`."""
    node, token, control = context.node, new_token(), listen(context.node.main_host)
    if is_on_all_addresses(control):
        where = f"listens on all addresses: {node.main_host}, where the others are to reach it, is none of its own"
        say(f"convoy: node 0 on {socket.gethostname()} {where}", error=True)
    try:
        formed = form_next_generation(context, _address(node, control), token if node.nodes > 1 else "")
    except BaseException:
        control.close()
        raise
    join_seconds = REMOTE_JOIN_SECONDS if context.is_remote else LOCAL_JOIN_SECONDS
    peers = Peers.lead(control, token, nodes=node.nodes, nproc=node.nproc_per_node, join_seconds=join_seconds)
    try:
        await_gang_formed(peers, node, pause)
    except BaseException:
        formed.close_listener()
        _await_removal(_remove_tokens(context, formed))
        raise
    _remove_tokens(context, formed)  # the workers need not wait for it
    return formed, peers


def join_first_generation(context: NodeContext, pause: Pause) -> tuple[FormedGeneration, Peers]:
    """Find the first generation, and wait until all nodes have joined. Raises as `await_generation` and
    `await_gang_formed`."""
    node = context.node
    generation = await_generation(
        context.store,
        node.formation,
        deadline_seconds=REMOTE_JOIN_SECONDS if context.is_remote else LOCAL_JOIN_SECONDS,
        poll_seconds=0.5 if context.is_remote else 0.05,
        sleep=pause,
    )
    host, _, port = generation.control.rpartition(":")
    if not host or not generation.token_name:
        other = "was formed by another version of Convoy: all nodes need the same"
        raise FormationError(f"{context.store.uri}/{generation.name}: {other}")
    try:
        token = read_token(context.store, generation.token_name)
    except ObjectMissing as error:
        gone = f"{context.store.uri}/tokens/{generation.token_name}: is gone"
        over = f"{gone}: node 0 stopped waiting, or another run took over"
        raise FormationError(read_refusal(context.store, node.formation) or over) from error
    peers = Peers.join((host, int(port)), token, node=node.index, nodes=node.nodes, nproc=node.nproc_per_node)
    await_gang_formed(peers, node, pause)
    return FormedGeneration(generation), peers


def await_gang_formed(peers: Peers, node: Node, pause: Pause) -> None:
    """Wait until every node is connected to every other. Raises FormationError with one line if they will not
    be.

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
                case GangFormed():
                    return
                case PeersFailed():
                    raise FormationError(event.reason)
                case PeerJoined() if node.leads:
                    warning = event.skew.warning(event.node, node.index)
                    if warning is not None:
                        say(f"convoy: {warning}", error=True)
    except BaseException:
        peers.leave()
        raise


def form_next_generation(context: NodeContext, control_address: str, token: str = "") -> FormedGeneration:
    """Create the job's next generation, which continues from its newest commit. Raises as `form_generation`.

    control_address, token: for the first generation, which the other nodes have yet to join.
    """
    node, listener = context.node, listen(context.node.main_host)
    try:
        generation = form_generation(
            context.store,
            formation=node.formation,
            nodes=node.nodes,
            world_size=node.world_size,
            config_hash=keep_config(context.store, context.task.config),
            rendezvous=_address(node, listener),
            others=context.tiers[1:],
            control=control_address,
            token=token,
        )
    except BaseException:
        listener.close()
        raise
    return FormedGeneration(generation, listener)


@contextlib.contextmanager
def job_claim(task: Task, node: Node, store: Store) -> Iterator[None]:
    """The job belongs to this run while the block runs. Raises ConfigError if another run has it, or started it with
    another configuration."""
    check_not_live(store, task.job, node.run)
    if task.has_record:
        read_checked_record(store, task.config, task.fingerprint)
    else:
        ensure_record(store, task.job, task.config, task.fingerprint)
    with marked_live(store, task.job, node.run):
        yield


@contextlib.contextmanager
def marked_live(store: Store, job: str, run: str, *, preparing: bool = False) -> Iterator[None]:
    """The job is marked as running while the block runs. Raises ConfigError if another run has it."""
    marker = LiveMarker(store, job, run, preparing=preparing).__enter__()
    try:
        yield
    finally:
        _await_removal(BackgroundCall("the mark of a running job", marker.__exit__, LEAVE_SECONDS))


def _remove_tokens(context: NodeContext, formed: FormedGeneration) -> BackgroundCall[None]:
    """Of this formation and those before it: the nodes have come together, or will not."""
    number = formed.generation.generation
    return BackgroundCall("the token", lambda: remove_tokens(context.store, number), LEAVE_SECONDS)


def _await_removal(removal: BackgroundCall[None]) -> None:
    with contextlib.suppress(StoreUnavailable):  # a failed last step must not hide how the gang ended
        removal.result()


def _address(node: Node, listener: socket.socket) -> str:
    return f"{node.main_host}:{listener.getsockname()[1]}"
