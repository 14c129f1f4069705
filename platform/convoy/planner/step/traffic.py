"""What the collectives of `communication.py` carry: bytes through NVLink and through the machine's network, and hops.

A group of ranks that lie next to each other has `q` of them on each of `m` machines. A ring carries (n - 1) / n of a
message of n = q m ranks through each of its links. Between machines it crosses each network card (m - 1) / m of a
message times as often as there are such groups on a machine: they share its network.
docs/explanation/step-time.md#communication.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from convoy.planner.step.communication import Collective, busiest_stage
from convoy.planner.step.fsdp_units import stages
from convoy.planner.workload import Workload

INSIDE_HOP_SECONDS, BETWEEN_HOP_SECONDS = 3.4e-6, 14e-6
"""One way, of a ring over NVLink and of one over a network: NCCL's tuning.cc, protocol Simple."""

ENDS = ("root", "embed", "head", "last bucket")
"""Units outside of blocks. DDP reduces its last bucket when backward is over."""


@dataclass(frozen=True)
class LinkLoad:
    """What collectives of a block, or of what is outside of blocks, load links with: bytes in each direction."""

    inside: float = 0.0
    """Through NVLink of a rank."""
    between: float = 0.0
    """Through the network of a machine."""
    hops: float = 0.0
    """Seconds of latency, at the catalog's figures."""
    held: float = 0.0
    """In a rank's memory."""

    def __add__(self, other: "LinkLoad") -> "LinkLoad":
        return LinkLoad(
            self.inside + other.inside, self.between + other.between, self.hops + other.hops, self.held + other.held
        )

    def times(self, count: float) -> "LinkLoad":
        return LinkLoad(self.inside * count, self.between * count, self.hops * count, self.held * count)


@dataclass(frozen=True)
class BlockTraffic:
    """Loads by one rank: for a block, and `root` for what is outside of blocks."""

    gather: LinkLoad
    """Parameters."""
    gather_root: LinkLoad
    """For a forward pass."""
    gather_again: LinkLoad
    """The same during a backward pass: an embedding with a head of its own, and what is gathered ahead of that head and
    never used."""
    reduce: LinkLoad
    """Gradients, over the ranks that share them."""
    reduce_root: LinkLoad
    replicate: LinkLoad
    """Gradients, added up over replicas once a step; of DDP a block's share of all buckets but the last."""
    replicate_root: LinkLoad
    gathering: float
    """Passes of a step that gather. In a pipeline what a backward has gathered stays for the forward that follows, so
    one more than there are passes; or one where parameters stay."""
    again: float
    """1 if their backward pass gathers too, else 0."""
    reducing: float
    """Passes of a step that reduce."""
    tensor: LinkLoad
    """Activations that the ranks of a product add up, `tensor_sums` times in a block and pass."""
    tensor_sums: float
    tensor_head: LinkLoad
    """What these ranks exchange for the head in a pass."""
    send: LinkLoad
    """Activations of a pass, to the next stage of a pipeline; their gradients come back the same way."""
    updated: float
    """Parameters that a rank's optimizer updates."""


def block_traffic(job: Workload) -> BlockTraffic:
    """Of the rank that sends most."""
    stage, sent = busiest_stage(job)
    ranks_per_machine, passes, shared = job.machine.ranks, float(job.passes), job.parallel.tensor > 1
    gathers = _of_kind(sent, "all_gather", "weights")
    reductions = _of_kind(sent, "reduce_scatter", "gradients")
    added_up = _of_kind(sent, "all_reduce", "gradients")
    sums = _of_kind(sent, "all_reduce", "activations")
    of_head = _of_kind(sent, "all_gather", "activations") + (added_up if shared else [])
    copied = [] if shared else added_up + _of_kind(sent, "all_gather", "gradients")
    again = 1.0 if job.parallel.reshard_after_forward and job.parallel.pipeline == 1 else 0.0
    gathering = _sends_per_block(gathers, stage.blocks) / (1 + again) or passes
    reducing = _sends_per_block(reductions, stage.blocks) or passes
    ends = [(each, each.number / gathering) for each in gathers if each.unit in ENDS]
    return BlockTraffic(
        gather=_block_load(gathers, ranks_per_machine),
        gather_root=_total_load(((each, min(1.0, times)) for each, times in ends), ranks_per_machine),
        gather_again=_total_load(((each, max(0.0, times - 1)) for each, times in ends), ranks_per_machine),
        reduce=_block_load(reductions, ranks_per_machine),
        reduce_root=_total_load(
            ((each, each.number / reducing) for each in reductions if each.unit in ENDS), ranks_per_machine
        ),
        replicate=_total_load(
            ((each, each.number / stage.blocks) for each in copied if each.unit not in ENDS), ranks_per_machine
        ),
        replicate_root=_total_load(((each, each.number) for each in copied if each.unit in ENDS), ranks_per_machine),
        gathering=gathering,
        again=again,
        reducing=reducing,
        tensor=_total_load(((each, 1.0) for each in sums), ranks_per_machine),
        tensor_sums=_sends_per_block(sums, stage.blocks) / passes,
        tensor_head=_total_load(((each, each.number / passes) for each in of_head), ranks_per_machine),
        send=_stage_send(job, sent),
        updated=float(max(each.shard_elements for each in stages(job))),
    )


def link_load(collective: Collective, ranks_per_machine: int) -> LinkLoad:
    """Of one collective: once around a ring, for an all-reduce twice. Ranks `stride` apart are on one machine as far as
    it has them; the others form groups like it, all active at once."""
    rounds = 2.0 if collective.kind == "all_reduce" else 1.0
    on_node = max(1, min(collective.ranks, ranks_per_machine // collective.stride))
    nodes, abreast = -(-collective.ranks // on_node), max(1, ranks_per_machine // on_node)
    ranks, size = on_node * nodes, rounds * collective.bytes
    return LinkLoad(
        inside=size * (ranks - 1) / ranks if on_node > 1 else 0.0,
        between=size * abreast * (nodes - 1) / nodes,
        hops=rounds * ((on_node - 1) * INSIDE_HOP_SECONDS + (nodes - 1) * BETWEEN_HOP_SECONDS),
        held=collective.bytes,
    )


def _stage_send(job: Workload, sent: Iterable[Collective]) -> LinkLoad:
    """What a stage of a pipeline sends to the next one goes its way straight. Neighbours are ranks / stages apart, so
    that on several machines some of them are on two, which set the pace of all: from each machine as many ranks at once
    as they are apart."""
    for each in _of_kind(sent, "send", "activations"):
        size = float(each.bytes)
        if job.nodes == 1:
            return LinkLoad(inside=size, hops=INSIDE_HOP_SECONDS, held=size)
        return LinkLoad(between=size * min(each.stride, job.machine.ranks), hops=BETWEEN_HOP_SECONDS, held=size)
    return LinkLoad()


def _of_kind(sent: Iterable[Collective], kind: str, payload: str) -> list[Collective]:
    return [each for each in sent if (each.kind, each.payload) == (kind, payload)]


def _sends_per_block(sent: list[Collective], blocks: int) -> float:
    """How often a step sends each unit of each block."""
    return next((each.number / blocks for each in sent if each.unit not in ENDS), 0.0)


def _block_load(sent: list[Collective], ranks_per_machine: int) -> LinkLoad:
    """All units of one block."""
    return _total_load(((each, 1.0) for each in sent if each.unit not in ENDS), ranks_per_machine)


def _total_load(sent: Iterable[tuple[Collective, float]], ranks_per_machine: int) -> LinkLoad:
    """Each so many times."""
    return sum((link_load(each, ranks_per_machine).times(times) for each, times in sent), start=LinkLoad())
