"""What the collectives of `communication.py` carry: bytes through NVLink and through the machine's network, and hops.

A group of ranks that lie next to each other has `q` of them on each of `m` machines. A ring carries (n - 1) / n of a
message of n = q m ranks through each of its links. Between machines it crosses each network card (m - 1) / m of a
message times as often as there are such groups on a machine: they share its network.
docs/explanation/step-time.md#communication.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from convoy.planner.step.communication import Collective, busiest
from convoy.planner.step.fsdp_units import stages
from convoy.planner.workload import Workload

INSIDE_HOP_SECONDS, BETWEEN_HOP_SECONDS = 3.4e-6, 14e-6
"""One way, of a ring over NVLink and of one over a network: NCCL's tuning.cc, protocol Simple."""

ENDS = ("root", "embed", "head")
"""Units outside of blocks."""


@dataclass(frozen=True)
class Message:
    """Collectives of a block, or of what is outside of blocks: bytes in each direction."""

    inside: float = 0.0
    """Through NVLink of a rank."""
    between: float = 0.0
    """Through the network of a machine."""
    hops: float = 0.0
    """Seconds of latency, at the catalog's figures."""
    held: float = 0.0
    """In a rank's memory."""

    def __add__(self, other: "Message") -> "Message":
        return Message(
            self.inside + other.inside, self.between + other.between, self.hops + other.hops, self.held + other.held
        )

    def times(self, count: float) -> "Message":
        return Message(self.inside * count, self.between * count, self.hops * count, self.held * count)


@dataclass(frozen=True)
class Traffic:
    """Messages of one rank: of a block, and `root` of what is outside of blocks."""

    gather: Message
    """Parameters."""
    gather_root: Message
    """For a forward pass."""
    gather_again: Message
    """The same during a backward pass: an embedding with a head of its own, and what is gathered ahead of that head and
    never used."""
    reduce: Message
    """Gradients, over the ranks that share them."""
    reduce_root: Message
    replicate: Message
    """Gradients, added up over replicas once a step."""
    replicate_root: Message
    gathering: float
    """Passes of a step that gather. In a pipeline what a backward has gathered stays for the forward that follows, so
    one more than there are passes; or one where parameters stay."""
    again: float
    """1 if their backward pass gathers too, else 0."""
    reducing: float
    """Passes of a step that reduce."""
    tensor: Message
    """Activations that the ranks of a product add up, `tensor_sums` times in a block and pass."""
    tensor_sums: float
    tensor_head: Message
    """What these ranks exchange for the head in a pass."""
    send: Message
    """Activations of a pass, to the next stage of a pipeline; their gradients come back the same way."""
    updated: float
    """Parameters that a rank's optimizer updates."""


def traffic(job: Workload) -> Traffic:
    """Messages of the rank that sends most."""
    stage, sent = busiest(job)
    node, passes, shared = job.machine.ranks, float(job.passes), job.parallel.tensor > 1
    gathers = _of(sent, "all_gather", "weights")
    reductions = _of(sent, "reduce_scatter", "gradients")
    added_up = _of(sent, "all_reduce", "gradients")
    sums = _of(sent, "all_reduce", "activations")
    of_head = _of(sent, "all_gather", "activations") + (added_up if shared else [])
    copied = [] if shared else added_up
    again = 1.0 if job.parallel.reshard_after_forward and job.parallel.pipeline == 1 else 0.0
    gathering = _each(gathers, stage.blocks) / (1 + again) or passes
    reducing = _each(reductions, stage.blocks) or passes
    ends = [(each, each.number / gathering) for each in gathers if each.unit in ENDS]
    return Traffic(
        gather=_blocks(gathers, node),
        gather_root=_sum(((each, min(1.0, times)) for each, times in ends), node),
        gather_again=_sum(((each, max(0.0, times - 1)) for each, times in ends), node),
        reduce=_blocks(reductions, node),
        reduce_root=_sum(((each, each.number / reducing) for each in reductions if each.unit in ENDS), node),
        replicate=_blocks(copied, node),
        replicate_root=_sum(((each, each.number) for each in copied if each.unit in ENDS), node),
        gathering=gathering,
        again=again,
        reducing=reducing,
        tensor=_sum(((each, 1.0) for each in sums), node),
        tensor_sums=_each(sums, stage.blocks) / passes,
        tensor_head=_sum(((each, each.number / passes) for each in of_head), node),
        send=_handed_on(job, sent),
        updated=float(max(each.shard for each in stages(job))),
    )


def message(collective: Collective, ranks_per_machine: int) -> Message:
    """Of one collective: once around a ring, for an all-reduce twice. Ranks `stride` apart are on one machine as far as
    it has them; the others form groups like it, all active at once."""
    rounds = 2.0 if collective.kind == "all_reduce" else 1.0
    on_node = max(1, min(collective.ranks, ranks_per_machine // collective.stride))
    nodes, abreast = -(-collective.ranks // on_node), max(1, ranks_per_machine // on_node)
    ranks, size = on_node * nodes, rounds * collective.bytes
    return Message(
        inside=size * (ranks - 1) / ranks if on_node > 1 else 0.0,
        between=size * abreast * (nodes - 1) / nodes,
        hops=rounds * ((on_node - 1) * INSIDE_HOP_SECONDS + (nodes - 1) * BETWEEN_HOP_SECONDS),
        held=collective.bytes,
    )


def _handed_on(job: Workload, sent: Iterable[Collective]) -> Message:
    """What a stage of a pipeline sends to the next one goes its way straight. Neighbours are ranks / stages apart, so
    that on several machines some of them are on two, which set the pace of all: from each machine as many ranks at once
    as they are apart."""
    for each in _of(sent, "send", "activations"):
        size = float(each.bytes)
        if job.nodes == 1:
            return Message(inside=size, hops=INSIDE_HOP_SECONDS, held=size)
        return Message(between=size * min(each.stride, job.machine.ranks), hops=BETWEEN_HOP_SECONDS, held=size)
    return Message()


def _of(sent: Iterable[Collective], kind: str, what: str) -> list[Collective]:
    return [each for each in sent if (each.kind, each.what) == (kind, what)]


def _each(sent: list[Collective], blocks: int) -> float:
    """How often a step sends each unit of each block."""
    return next((each.number / blocks for each in sent if each.unit not in ENDS), 0.0)


def _blocks(sent: list[Collective], node: int) -> Message:
    """All units of one block."""
    return _sum(((each, 1.0) for each in sent if each.unit not in ENDS), node)


def _sum(sent: Iterable[tuple[Collective, float]], node: int) -> Message:
    """Each so many times."""
    return sum((message(each, node).times(times) for each, times in sent), start=Message())
