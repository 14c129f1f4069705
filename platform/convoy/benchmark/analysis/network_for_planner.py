"""Network constants for the planner: latency and bandwidth of collectives, within hosts and between them. Pure.

The lines are of the way that training takes: NCCL's own collectives on GPUs; on CPUs the exchange that
`parallel/gloo.py` makes of gathers and reductions, which is the algorithm `direct exchange`, and gloo's own all-reduce.
"""

import statistics
from collections.abc import Mapping, Sequence

from convoy.benchmark.analysis.network import link_gbps, network_config
from convoy.benchmark.results.case import Case
from convoy.benchmark.results.network import SUITE_NAME, measured_sizes, seconds_name
from convoy.catalog.measured_machine import CollectiveTiming, MeasuredLinks
from convoy.config.network import Operation
from convoy.network.link_model import LinkModel, fit_link
from convoy.planner.step.communication import Collective, Kind
from convoy.planner.step.traffic import link_load

KINDS: Mapping[Operation, str] = {"all_gather": "gather", "reduce_scatter": "reduce", "all_reduce": "all_reduce"}
"""The field of `MeasuredLinks` of each operation."""

ON_CPUS: Mapping[Operation, str] = {
    "all_gather": "direct exchange",
    "reduce_scatter": "direct exchange",
    "all_reduce": "backend",
}
"""The case that is what training does on CPUs."""


def measured_links(cases: Sequence[Case]) -> tuple[MeasuredLinks, ...]:
    """One for each number of hosts and ranks that measured, fewest first; of operations that were measured at too few
    sizes there is no line."""
    lines: dict[tuple[int, int], dict[str, CollectiveTiming]] = {}
    for case in cases:
        operation = _operation_of_training(case)
        model = None if operation is None else _fit(case)
        if operation is not None and model is not None:
            hardware = case.hardware
            line = CollectiveTiming(
                latency_seconds=model.alpha.estimate, bytes_per_second=model.beta.estimate, ranks=hardware.ranks
            )
            lines.setdefault((hardware.nodes, hardware.ranks), {})[KINDS[operation]] = line
    return tuple(MeasuredLinks(hosts=hosts, **lines[hosts, ranks]) for hosts, ranks in sorted(lines))


def _operation_of_training(case: Case) -> Operation | None:
    """The collective of a case if it is the way that training takes; None: it is not, or nothing was measured."""
    config = network_config(case) if case.suite == SUITE_NAME and case.status == "measured" else None
    if config is None or len(config.operations) != 1 or config.operations[0] not in KINDS:
        return None
    (operation,) = config.operations
    on_gpus = "nccl" in case.provenance.versions
    return operation if case.name == ("backend" if on_gpus else ON_CPUS[operation]) else None


def _fit(case: Case) -> LinkModel | None:
    return fit_link({size: case.samples[seconds_name(size)] for size in measured_sizes(case.samples)})


def catalog_constants(cases: Sequence[Case]) -> dict[str, float]:
    """`between_efficiency` and `hop_factor` of the planner's constants, as the collectives between catalog machines
    show them: medians over operations. Empty: there are none, or the rate of their network is not known."""
    shares, factors = list[float](), list[float]()
    for case in cases:
        operation, hosts = _operation_of_training(case), case.hardware.nodes
        config = network_config(case)
        gbps = link_gbps(case, config) if config is not None else None
        model = _fit(case)
        if operation is None or gbps is None or model is None or hosts < 2 or case.hardware.instance_type is None:
            continue
        each, most = case.hardware.ranks // hosts, gbps * 1e9 / 8
        kind = _collective(operation, case.hardware.ranks)
        shares.append(min(1.0, model.beta.estimate * link_load(kind, each).between / kind.bytes / most))
        factors.append(model.alpha.estimate / link_load(kind, each).hops)
    if not shares:
        return {}
    found = {"between_efficiency": statistics.median(shares), "hop_factor": statistics.median(factors)}
    return {name: float(f"{value:.3g}") for name, value in found.items() if value > 0}


def _collective(operation: Operation, ranks: int) -> Collective:
    """The planner's collective with one byte per rank, since loads are proportional to the size."""
    kinds: dict[Operation, Kind] = {"all_gather": "all_gather", "reduce_scatter": "reduce_scatter"}
    return Collective(kinds.get(operation, "all_reduce"), "weights", "block", 1, ranks, ranks, 1)
