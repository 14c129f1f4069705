"""Measure a collective by the backend and by every algorithm, which take turns at every size."""

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from convoy.benchmark.groups import Group
from convoy.benchmark.measure.collectives import has_room
from convoy.benchmark.results.network import (
    IN_PLACE_SUFFIX,
    Figure,
    HostFigure,
    NetworkResult,
    figure_name,
    seconds_name,
)
from convoy.config.network import NetworkConfig, Operation
from convoy.network.collectives.algorithms import algorithms_for
from convoy.network.collectives.exact import ExactProblem
from convoy.network.collectives.exchange import DTYPES, Exchange, backend_exchange, element_count, scheduled_exchange
from convoy.network.host_usage import HostUsage, watch_host
from convoy.network.timing import CheckedTimes, Meeting, time_checked
from convoy.training.process_groups import Ranks


def measure_collective(
    group: Group, meeting: Meeting, ranks: Ranks, progress: Callable[[], None]
) -> dict[str, NetworkResult]:
    """Measure every case of the group's collective at every size that fits the memory of all ranks.

    All ranks call it alike. progress: called after each block, on each rank.
    """
    config = group.network
    assert config is not None
    (operation,) = config.operations
    results = {spec.name: NetworkResult({}, {}, {}) for spec in group.variants}
    used: dict[str, HostUsage] = {}

    @contextmanager
    def watch(name: str) -> Iterator[None]:
        with watch_host(ranks.device) as watched:
            yield
        used[name] = used[name] + watched.usage if name in used else watched.usage

    for size in buffer_sizes(operation, config, ranks.place.world_size):
        if not has_room(ranks, size * len(results)):
            for result in results.values():
                result.not_measured[f"{size} bytes"] = "a rank has no memory for the buffers"
            continue
        exchanges = {name: _exchange(name, operation, size, config, ranks) for name in results}
        measured = time_checked(exchanges, meeting, group.measure.rounds, progress=progress, watch=watch)
        for name, found in measured.items():
            add_times(results[name], size, found)
    for name in used:
        results[name].values.update(host_values(used[name], meeting))
    return results


def buffer_sizes(operation: Operation, config: NetworkConfig, ranks: int) -> list[int]:
    """Bytes of the whole buffer at each configured size, which equal parts for all ranks round up or down."""
    dtype = DTYPES[config.dtype]
    sizes = (element_count(operation, size, ranks, dtype) * dtype.itemsize for size in config.all_sizes)
    return list(dict.fromkeys(sizes))


def host_values(own: HostUsage, meeting: Meeting) -> dict[str, float]:
    """Host resources that all ranks used, by the names of HostFigure; the same on all ranks, which call it alike."""
    seconds = own.seconds
    of_rank: dict[HostFigure, float] = {
        "host.user_cores": own.cpu.user_seconds / seconds,
        "host.system_cores": own.cpu.system_seconds / seconds,
        "host.switches_per_second": own.switches_per_second,
        "host.fragmentation": own.gpu.fragmentation if own.gpu else own.heap.fragmentation if own.heap else 0.0,
        "host.agent_cores": sum(each.cpu_seconds for each in own.convoy if each.role == "agent") / seconds,
        "host.writer_cores": sum(each.cpu_seconds for each in own.convoy if each.role == "writer") / seconds,
    }
    means = [each / meeting.ranks for each in meeting.sum(list(of_rank.values()))]
    (peak,) = meeting.slowest([float(own.peak_bytes or 0)])
    return {**dict(zip(map(str, of_rank), means, strict=True)), "host.peak_bytes": peak}


def _exchange(name: str, operation: Operation, size: int, config: NetworkConfig, ranks: Ranks) -> Exchange:
    place, dtype = ranks.place, DTYPES[config.dtype]
    total = element_count(operation, size, place.world_size, dtype)
    problem = ExactProblem(operation, place.rank, place.world_size, total, dtype, ranks.device)
    for algorithm in algorithms_for(operation, place.world_size, place.nproc_per_node):
        if algorithm.name == name:
            schedule = algorithm.schedule(operation, place.world_size, place.nproc_per_node)
            return scheduled_exchange(problem, schedule, ranks.training_group)
    return backend_exchange(problem, ranks.training_group, in_place=name.endswith(IN_PLACE_SUFFIX))


def add_times(result: NetworkResult, size: int, measured: CheckedTimes) -> None:
    """Keep what was measured at a size in bytes. Percentiles are of the nearest rank, as those of nccl-tests."""
    times = measured.times
    ordered = sorted(times.operations)
    mean = statistics.fmean(ordered)
    figures: dict[Figure, float] = {
        "p50": nearest_rank(ordered, 50),
        "p95": nearest_rank(ordered, 95),
        "p99": nearest_rank(ordered, 99),
        "mean": mean,
        "cv": statistics.pstdev(ordered) / mean,
        "wrong": float(measured.wrong),
        "operations": float(len(ordered)),
        "worst_rank": float(times.worst_rank),
    }
    result.samples[seconds_name(size)] = times.blocks
    result.values.update((figure_name(name, size), value) for name, value in figures.items())


def nearest_rank(ordered: list[float], percent: int) -> float:
    """The percentile of sorted figures by the nearest rank: the smallest that so many per cent do not exceed."""
    return ordered[-(-percent * len(ordered) // 100) - 1]
