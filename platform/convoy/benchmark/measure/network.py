"""The measurements of a gang of the network suite, and the cases that it makes of them."""

import socket
from datetime import UTC, datetime

from convoy import script
from convoy.benchmark.groups import Group
from convoy.benchmark.measure.network_collectives import measure_collective
from convoy.benchmark.measure.network_links import measure_links
from convoy.benchmark.measure.provenance import host_memory_bytes, provenance
from convoy.benchmark.results.case import Case, Hardware
from convoy.benchmark.results.network import NetworkResult
from convoy.network.timing import Meeting
from convoy.training.measure.machine import environment
from convoy.training.process_groups import Ranks


def measure_network(group: Group, ranks: Ranks, cores: int) -> list[Case]:
    """The group's cases on rank 0; on others none. All ranks call it alike. cores: of this host."""
    began, meeting = datetime.now(UTC), meeting_of(ranks, group)

    def progress() -> None:
        script.progress(0)  # no step: ranks that wait while two others measure do not wait for a slow node

    assert group.network is not None
    if group.network.operations:
        results = measure_collective(group, meeting, ranks, progress)
    else:
        results = measure_links(group, meeting, ranks, progress)
    next(iter(results.values())).not_measured.update(group.variants[0].not_measured)
    return [_case(group, name, result, meeting, ranks, began, cores) for name, result in results.items() if ranks.first]


def meeting_of(ranks: Ranks, group: Group) -> Meeting:
    """The meeting of the gang's ranks. The hosts of a lab are its nodes. All ranks call it alike."""
    place = ranks.place
    alone = Meeting(place.rank, place.world_size, ranks.control, ranks.device, ())
    name = f"host {place.node}" if group.lab else socket.gethostname()
    hosts = tuple(str(host) for host in alone.gather(name))
    return Meeting(place.rank, place.world_size, ranks.control, ranks.device, hosts)


def _case(
    group: Group, name: str, result: NetworkResult, meeting: Meeting, ranks: Ranks, began: datetime, cores: int
) -> Case:
    """began: UTC. cores: of this host."""
    machine = environment(ranks, group.run.train.param_dtype)
    assert group.network is not None
    return Case(
        suite=group.suite,
        group=group.name,
        name=name,
        baseline=None if name == group.baseline else group.baseline,
        model="",
        parameters=0,
        tokens_per_step=0,
        config={
            "network": group.network.model_dump(mode="json"),
            "cluster": group.run.cluster.model_dump(mode="json"),
        },
        hardware=Hardware(
            device=machine.device,
            nodes=len(meeting.host_ranks),
            ranks=meeting.ranks,
            threads=machine.threads,
            cores=cores,
            pinned=group.measure.pin,
            memory_bytes=host_memory_bytes(),
            instance_type=group.run.cluster.instance_type,
        ),
        provenance=provenance(group, began, machine.versions),
        lab=group.lab,
        samples=result.samples,
        values=result.values,
        not_measured=result.not_measured,
    )
