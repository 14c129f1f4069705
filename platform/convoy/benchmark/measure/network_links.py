"""Links by themselves: between every two hosts, over several rails, by NIXL and by tools that others keep."""

import os
import socket
from collections.abc import Callable
from dataclasses import replace

import torch

from convoy.benchmark.groups import Group
from convoy.benchmark.results.network import NetworkResult, seconds_name
from convoy.benchmark.results.pairs import pair_cases
from convoy.benchmark.results.rails import rail_cases
from convoy.benchmark.results.transports import WRONG, one_sided_cases, transport_case_name, transport_figures
from convoy.config.network import NetworkConfig
from convoy.network.copies import NoGpuError, measure_copies
from convoy.network.one_sided.measure import OneSidedPlan, measure_one_sided
from convoy.network.pairs.measure import measure_pairs
from convoy.network.rails.measure import measure_rails
from convoy.network.timing import Meeting
from convoy.network.transports import measure_transports, usual_transports
from convoy.stats.interval import FEWEST
from convoy.training.process_groups import Ranks

Progress = Callable[[], None]

ONE_SIDED_SIZES = (64, 2**12, 2**16, 2**20, 2**24)
"""Bytes of a transfer, as far as `network.sizes` reaches."""

HOST_MEMORY, GPU_MEMORY = "host memory", "GPU memory"
"""Where the buffers of one-sided transfers are."""

IPERF_SECONDS = 1.0
"""Of one run of iperf3."""

UDP_SHARE = 0.8
"""Rate of the datagrams, as a share of the link's: all of it, and what is above would be lost."""


def measure_links(group: Group, meeting: Meeting, ranks: Ranks, progress: Progress) -> dict[str, NetworkResult]:
    """The cases of the group's kind of measurement, by name; where there are none, the kind with the reason. All ranks
    call it alike."""
    config = group.network
    assert config is not None
    (kind,) = config.links
    match kind:
        case "pairs":
            return _pairs(group, config, meeting, ranks, progress)
        case "rails":
            return _rails(group, config, meeting, progress)
        case "one-sided":
            return _one_sided(group, config, meeting, progress)
        case "transports":
            return _transports(config, meeting, progress)
        case "copies":
            return _copies(group, config, meeting, progress)


def _ends(meeting: Meeting) -> tuple[int, int]:
    """Two ranks on different hosts, or the first two ranks of one."""
    first, *others = meeting.host_ranks
    return first, others[0] if others else 1


def _pairs(
    group: Group, config: NetworkConfig, meeting: Meeting, ranks: Ranks, progress: Progress
) -> dict[str, NetworkResult]:
    largest, rounds = config.all_sizes[-1], group.measure.rounds
    return pair_cases(measure_pairs(meeting, ranks.training_group, largest, rounds, progress=progress), meeting.hosts)


def _rails(group: Group, config: NetworkConfig, meeting: Meeting, progress: Progress) -> dict[str, NetworkResult]:
    result = measure_rails(meeting, _ends(meeting), config.all_sizes[-1], group.measure.rounds, progress=progress)
    if result.why_not:
        return {"rails": NetworkResult({}, {}, {"rails": result.why_not})}
    return rail_cases(result.rails, result.times, are_communicators=meeting.device.type == "cuda")


def _one_sided(group: Group, config: NetworkConfig, meeting: Meeting, progress: Progress) -> dict[str, NetworkResult]:
    initiator, target = _ends(meeting)
    sizes = tuple(size for size in ONE_SIDED_SIZES if size <= config.all_sizes[-1]) or ONE_SIDED_SIZES[:1]
    plan = OneSidedPlan(initiator, target, sizes, rounds=group.measure.rounds)
    meetings = {HOST_MEMORY: replace(meeting, device=torch.device("cpu"))}
    if meeting.device.type == "cuda":
        meetings[GPU_MEMORY] = meeting
    cases: dict[str, NetworkResult] = {}
    for memory, where in meetings.items():
        result = measure_one_sided(plan, where, progress)
        found = one_sided_cases(result, memory if len(meetings) > 1 else "")
        cases |= found or {f"NIXL, {memory}": NetworkResult({}, {}, {"one-sided transfers": result.not_measured})}
    if GPU_MEMORY not in meetings:
        next(iter(cases.values())).not_measured[GPU_MEMORY] = "there is no GPU"
    return cases


def _copies(group: Group, config: NetworkConfig, meeting: Meeting, progress: Progress) -> dict[str, NetworkResult]:
    try:
        found = measure_copies(meeting, config.all_sizes, group.measure.rounds, progress)
    except NoGpuError as error:
        return {"copies": NetworkResult({}, {}, {"copies between host and GPU": str(error)})}
    return {
        str(copy): NetworkResult(
            samples={seconds_name(size): each.times.blocks for size, each in by_size.items()},
            values={f"{WRONG}.{size}": each.wrong for size, each in by_size.items()},
            not_measured={},
        )
        for copy, by_size in found.items()
    }


def _transports(config: NetworkConfig, meeting: Meeting, progress: Progress) -> dict[str, NetworkResult]:
    client, server = _ends(meeting)
    udp = None if config.link_gbps is None else UDP_SHARE * config.link_gbps * 1e9
    results = measure_transports(
        usual_transports(IPERF_SECONDS, udp),
        meeting,
        server=server,
        client=client,
        address=own_address(),
        rounds=FEWEST,
        progress=progress,
    )
    return {transport_case_name(each): transport_figures(each) for each in results}


def own_address() -> str:
    """Of this host in the network in which ranks meet."""
    meet = os.environ.get("MASTER_ADDR", "127.0.0.1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((meet, 9))  # sends nothing: the kernel only chooses the address
        return str(probe.getsockname()[0])
