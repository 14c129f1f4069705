"""A gang of the network suite: one collective, by every algorithm in turns, at every size."""

import socket
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from convoy import script
from convoy.benchmark.groups import Group, VariantSpec
from convoy.benchmark.measure.collectives import has_room
from convoy.benchmark.measure.provenance import host_memory_bytes, provenance
from convoy.benchmark.results.case import Case, Hardware
from convoy.benchmark.results.network import IN_PLACE_SUFFIX, Figure, figure_name, seconds_name
from convoy.config.network import NetworkConfig, Operation
from convoy.network.algorithms import algorithms_for
from convoy.network.collectives import DTYPES, Exchange, backend_exchange, element_count, scheduled_exchange
from convoy.network.exact import ExactProblem
from convoy.network.turns import Meeting, OperationTimes, time_in_turns
from convoy.training.measure.machine import environment
from convoy.training.process_groups import Ranks


@dataclass
class NetworkResult:
    """What was measured of a case, the same on all ranks; by the names of `Case`."""

    samples: dict[str, tuple[float, ...]] = field(default_factory=dict)
    values: dict[str, float] = field(default_factory=dict)
    not_measured: dict[str, str] = field(default_factory=dict)


def measure_network(group: Group, ranks: Ranks, cores: int) -> list[Case]:
    """The group's cases on rank 0; on others none. All ranks call it alike. cores: of this host."""
    began, meeting = datetime.now(UTC), meeting_of(ranks, group)
    blocks = iter(range(1, 10**9))

    def progress() -> None:
        script.progress(next(blocks))

    assert group.network is not None
    (operation,) = group.network.operations
    results = measure_collective(operation, group, group.network, meeting, ranks, progress)
    if not ranks.first:
        return []
    return [_case(group, spec, results[spec.name], meeting, ranks, began, cores) for spec in group.variants]


def meeting_of(ranks: Ranks, group: Group) -> Meeting:
    """Where the ranks meet. In a lab, nodes are its hosts. All ranks call it alike."""
    place = ranks.place
    alone = Meeting(place.rank, place.world_size, ranks.control, ranks.device, ())
    name = f"host {place.node}" if group.lab else socket.gethostname()
    hosts = tuple(str(host) for host in alone.gather(name))
    return Meeting(place.rank, place.world_size, ranks.control, ranks.device, hosts)


def measure_collective(
    operation: Operation,
    group: Group,
    config: NetworkConfig,
    meeting: Meeting,
    ranks: Ranks,
    progress: Callable[[], None],
) -> dict[str, NetworkResult]:
    """Every case of a collective at every size for which all ranks have memory."""
    results = {spec.name: NetworkResult() for spec in group.variants}
    for size in config.all_sizes:
        if not has_room(ranks, size * len(results)):
            for result in results.values():
                result.not_measured[f"{size} bytes"] = "a rank has no memory for the buffers"
            continue
        exchanges = {name: _exchange(name, operation, size, config, ranks) for name in results}
        wrong = {name: exchange.check() for name, exchange in exchanges.items()}
        times = time_in_turns(
            {name: exchange.call for name, exchange in exchanges.items()},
            meeting,
            group.measure.rounds,
            progress=progress,
        )
        for name, exchange in exchanges.items():
            wrong[name] += exchange.check()
        for name, all_wrong in zip(wrong, meeting.sum(list(wrong.values())), strict=True):
            add_times(results[name], size, times[name], all_wrong)
    return results


def _exchange(name: str, operation: Operation, size: int, config: NetworkConfig, ranks: Ranks) -> Exchange:
    place, dtype = ranks.place, DTYPES[config.dtype]
    total = element_count(operation, size, place.world_size, dtype)
    problem = ExactProblem(operation, place.rank, place.world_size, total, dtype, ranks.device)
    for algorithm in algorithms_for(operation, place.world_size, place.nproc_per_node):
        if algorithm.name == name:
            schedule = algorithm.schedule(operation, place.world_size, place.nproc_per_node)
            return scheduled_exchange(problem, schedule, ranks.training_group)
    return backend_exchange(problem, ranks.training_group, in_place=name.endswith(IN_PLACE_SUFFIX))


def add_times(result: NetworkResult, size: int, times: OperationTimes, wrong: float) -> None:
    """Keep what was measured at a size. Percentiles are of the nearest rank, as those of nccl-tests."""
    ordered = sorted(times.operations)
    mean = statistics.fmean(ordered)
    figures: dict[Figure, float] = {
        "p50": nearest_rank(ordered, 50),
        "p95": nearest_rank(ordered, 95),
        "p99": nearest_rank(ordered, 99),
        "mean": mean,
        "cv": statistics.pstdev(ordered) / mean,
        "wrong": wrong,
        "operations": float(len(ordered)),
        "worst_rank": float(times.worst_rank),
    }
    result.samples[seconds_name(size)] = times.blocks
    result.values |= {figure_name(name, size): value for name, value in figures.items()}


def nearest_rank(ordered: list[float], percent: int) -> float:
    """The percentile of sorted figures by the nearest rank: the smallest that so many per cent do not exceed."""
    return ordered[-(-percent * len(ordered) // 100) - 1]


def _case(
    group: Group, spec: VariantSpec, result: NetworkResult, meeting: Meeting, ranks: Ranks, began: datetime, cores: int
) -> Case:
    """began: UTC. cores: of this host."""
    machine = environment(ranks, group.run.train.param_dtype)
    assert group.network is not None
    return Case(
        suite=group.suite,
        group=group.name,
        name=spec.name,
        baseline=group.baseline_of(spec),
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
        not_measured=spec.not_measured | result.not_measured,
    )
