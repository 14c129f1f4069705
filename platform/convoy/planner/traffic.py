"""What a rank's collectives carry, counted: bytes through NVLink and through the machine's network, and hops.

A group of ranks that lie beside each other has `q` of them on each of `m` machines. A ring carries (n - 1) / n of a
message of n = q m ranks through each of its links. Between machines it crosses each network card (m - 1) / m of a
message times as often as there are such groups on a machine: they share its network. docs/planner.md#communication.
"""

from dataclasses import dataclass

from convoy.catalog.links import inside
from convoy.model.counts import parameter_count
from convoy.planner.work import element_bytes
from convoy.planner.workload import Workload

BETWEEN_HOP_SECONDS = 14e-6
"""NCCL's tuning.cc, as in the catalog of links: a ring over a network, protocol Simple."""


@dataclass(frozen=True)
class Message:
    """One collective of a block, or of what is outside of blocks."""

    inside: float
    """Bytes that pass NVLink of a rank, in each direction."""
    between: float
    """Bytes that pass the network of a machine, in each direction."""
    hops: float
    """Seconds of latency, at the catalog's figures."""
    held: float
    """Bytes of the message, as it lies in a rank's memory."""


@dataclass(frozen=True)
class Traffic:
    """Of one rank."""

    gather: Message
    """Parameters of a block."""
    gather_root: Message
    """Parameters outside of blocks."""
    reduce: Message
    """Gradients of a block, over the ranks that share them."""
    reduce_root: Message
    replicate: Message
    """A block's gradients, added up over replicas once a step."""
    replicate_root: Message
    gathering: float
    """Passes of a step that gather. In a pipeline what a backward has gathered stays for the forward that follows: so
    there are as many gathers as passes, and one; or one where parameters stay."""
    again: float
    """1 if their backward pass gathers too, else 0."""
    reducing: float
    """Passes of a step that reduce."""
    tensor: Message
    """Activations that the ranks of a product add up, once."""
    tensor_sums: float
    """Of a block and pass."""
    updated: float
    """Parameters that a rank's optimizer updates."""


@dataclass(frozen=True)
class Group:
    """Ranks that share a collective."""

    on_node: int
    nodes: int
    abreast: int
    """Such groups on a machine, all active at once."""

    @property
    def ranks(self) -> int:
        return self.on_node * self.nodes

    def ring(self, size: float, messages: int = 1, rounds: float = 1.0) -> Message:
        """Once around. messages: collectives that it is sent as, each with its own latency; rounds: an all-reduce is
        two."""
        if self.ranks == 1:
            return Message(0.0, 0.0, 0.0, 0.0)
        share = (self.ranks - 1) / self.ranks if self.on_node > 1 else 0.0
        hops = (self.on_node - 1) * inside() + (self.nodes - 1) * BETWEEN_HOP_SECONDS
        return Message(
            inside=rounds * size * share,
            between=rounds * size * self.abreast * (self.nodes - 1) / self.nodes,
            hops=rounds * messages * hops,
            held=size,
        )


def traffic(job: Workload) -> Traffic:
    """Counted for the rank that has most of it."""
    model, train, parallel = job.model, job.train, job.parallel
    total = parameter_count(model)
    block = parameter_count(model.model_copy(update={"n_layers": model.n_layers + 1})) - total
    root = total - model.n_layers * block
    shards, replicas = _groups(job)
    size, reduced = element_bytes(train), 2 if train.reduce_dtype == "bf16" else 4
    part = block / parallel.tensor
    messages = 1 if parallel.wrap == "block" else (5 if model.mlp == "swiglu" else 4)
    passes = job.passes
    tensor = Group(parallel.tensor, 1, 1)
    whole = size * job.tokens_per_pass * model.d_model
    blocks = -(-model.n_layers // parallel.pipeline)
    return Traffic(
        gather=shards.ring(size * part, messages),
        gather_root=shards.ring(size * root),
        reduce=shards.ring(reduced * part, messages),
        reduce_root=shards.ring(reduced * root),
        replicate=replicas.ring(reduced * part / shards.ranks, messages, rounds=2.0),
        replicate_root=replicas.ring(reduced * root / shards.ranks, rounds=2.0),
        gathering=_gathering(job),
        again=1.0 if parallel.reshard_after_forward and parallel.pipeline == 1 else 0.0,
        reducing=float(passes if parallel.reduce_every_pass and parallel.pipeline == 1 else 1),
        tensor=tensor.ring(whole, rounds=2.0),
        tensor_sums=_sums(job),
        updated=(blocks * part + root) / shards.ranks,
    )


def _gathering(job: Workload) -> float:
    if job.parallel.pipeline == 1:
        return float(job.passes)
    return float(job.passes + 1) if job.parallel.reshard_after_forward else 1.0


def _groups(job: Workload) -> tuple[Group, Group]:
    """That shard states, and that hold copies of them. Ranks of one product lie beside each other, then those that
    shard, then stages or copies."""
    node, tensor = job.machine.ranks, job.parallel.tensor
    shards = job.shards
    on_node = max(1, min(shards, node // tensor))
    sharding = Group(on_node, -(-shards // on_node), max(1, node // on_node))
    filled = max(1, node // (on_node * tensor)) if shards * tensor < node else 1
    copies = min(job.replicas, filled)
    return sharding, Group(copies, -(-job.replicas // copies), max(1, node // copies))


def _sums(job: Workload) -> float:
    """In forward the second product of attention and of the MLP gives a part of a sum, in backward the first ones do;
    of what is computed again, only the first half is needed, but where a dropout follows the last product."""
    again = 0.0 if job.train.activation_checkpointing == "none" else 2.0 if job.model.dropout else 1.0
    return 2.0 + again + (3.0 if job.model.mlp == "swiglu" else 2.0)
