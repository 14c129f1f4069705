"""Joining the generation that node 0 formed, which all other nodes do."""

from convoy.gang.leader import Formed
from convoy.gang.network.peers import Peers
from convoy.gang.roster import JOIN_SECONDS, Pause, await_all
from convoy.gang.workers.worker_group import Site
from convoy.job.generations import FormationRefusedError, await_generation, refusal_of
from convoy.job.tokens import read_token
from convoy.storage import ObjectMissing


def gather(site: Site, pause: Pause) -> tuple[Formed, Peers]:
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
    return Formed(generation), peers
