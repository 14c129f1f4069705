"""What each host of a gang uses for a case: the memory of its ranks and its own, and what its adapters carry."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import torch.distributed as dist

from convoy.benchmark.groups import Group
from convoy.benchmark.measure.memory_footprint import Footprint
from convoy.benchmark.results.case import HostUse
from convoy.gang.telemetry.host import Bytes, NodeReader, NodeSample
from convoy.training.process_groups import Ranks

METERED = frozenset({"memory", "utilisation", "communication"})
"""Groups that measure one of these also measure what each host uses."""


NOTHING = Bytes(0, 0)


@dataclass
class _Totals:
    """Over the blocks of a variant, on this host."""

    steps: int = 0
    network: Bytes = NOTHING
    rdma: Bytes | None = None
    memory_used_bytes: int = 0


class HostMeter:
    """Reads the counters of this host around blocks. One rank of each host has one."""

    def __init__(self) -> None:
        """Raises OSError if the kernel does not report something."""
        self._reader = NodeReader([], None)
        self.totals: dict[str, _Totals] = defaultdict(_Totals)

    @contextmanager
    def watch(self, name: str, steps: int) -> Iterator[None]:
        """Add what the host's adapters carry in a block of this variant to its totals."""
        self._reader.read()
        yield
        _add(self.totals[name], self._reader.read(), steps)


def host_meter(group: Group, ranks: Ranks) -> HostMeter | None:
    """The meter of this rank; None on all but one rank of a host, in groups that are not metered, and where the kernel
    does not report its counters."""
    if ranks.place.host_rank != 0 or not METERED & group.measures:
        return None
    with suppress(OSError):
        return HostMeter()
    return None


def host_uses(
    group: Group, meter: HostMeter | None, footprints: Mapping[str, Sequence[Footprint]], ranks: Ranks
) -> dict[str, tuple[HostUse, ...]]:
    """What each host used for each variant, in the order of the hosts; nothing of a host that was not metered. All
    ranks call it alike. footprints: of all ranks in their order, of each variant whose memory was measured."""
    if not METERED & group.measures:
        return {}
    world, on_host = ranks.place.world_size, ranks.place.host_ranks
    every: list[dict[str, _Totals] | None] = [None] * world
    dist.all_gather_object(every, None if meter is None else dict(meter.totals), group=ranks.control)
    found = {}
    for spec in group.variants:
        working = world if spec.at_once else spec.ranks or world
        uses = []
        for host, first in enumerate(range(0, world, on_host)):
            totals = (every[first] or {}).get(spec.name)
            if totals is not None:
                own = footprints.get(spec.name, [])[first : first + on_host]
                uses.append(_host_use(host, max(0, min(on_host, working - first)), totals, own))
        found[spec.name] = tuple(uses)
    return found


def _add(totals: _Totals, sample: NodeSample, steps: int) -> None:
    totals.steps += steps
    totals.network = _sum(totals.network, sample.network)
    if sample.rdma is not None:
        totals.rdma = _sum(totals.rdma or NOTHING, sample.rdma)
    totals.memory_used_bytes = max(totals.memory_used_bytes, sample.memory_used_bytes)


def _sum(one: Bytes, other: Bytes) -> Bytes:
    return Bytes(one.sent + other.sent, one.received + other.received)


def _host_use(host: int, working: int, totals: _Totals, footprints: Sequence[Footprint]) -> HostUse:
    """working: ranks of this host with a part in the variant. footprints: of its ranks; empty: not measured."""
    each, rdma = totals.steps, totals.rdma
    return HostUse(
        host=host,
        ranks=working,
        memory_peak_bytes=sum(taken.peak_bytes for taken in footprints) if footprints else None,
        offloaded_bytes=sum(taken.host for taken in footprints) if footprints else None,
        memory_used_bytes=totals.memory_used_bytes,
        sent_bytes=totals.network.sent / each,
        received_bytes=totals.network.received / each,
        rdma_sent_bytes=None if rdma is None else rdma.sent / each,
        rdma_received_bytes=None if rdma is None else rdma.received / each,
    )
