"""What a step would take and cost, were its machines nearer to each other or farther apart: a model. Pure.

Computation is as measured; what is sent is what the planner expects of the training, over links of the catalog.
"""

from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from convoy.benchmark.analysis.model import Placement, Topology
from convoy.benchmark.results import values
from convoy.benchmark.results.case import Case
from convoy.benchmark.results.figures import step_seconds
from convoy.catalog.instances import instance, instance_names
from convoy.catalog.links import Link, links
from convoy.catalog.services import GB
from convoy.config.model import TransformerConfig
from convoy.config.run import RunConfig, with_param_dtype
from convoy.planner.step.communication import Collective, communication
from convoy.planner.step.traffic import BETWEEN_HOP_SECONDS, Message, group, message
from convoy.planner.workload import UNNAMED, Machine, Workload

BORDER = 2
"""Links of a ring that lead from one of two places to the other, and back."""


@dataclass(frozen=True)
class StepTraffic:
    """Communication of a training in a step."""

    apart: Message
    """On its machines."""
    crossings: float
    """Hops between two machines in it, one after the other."""
    near: Message
    """Were all ranks on one machine."""
    collectives: int
    """Number of those that cross machines."""

    def seconds(self, link: Link) -> float:
        """Time of all of it, one after the other, over that link."""
        if link.level == "node":
            return self.near.hops + self.near.inside / link.bytes_per_second
        hops = self.apart.hops + self.crossings * (link.latency_seconds - BETWEEN_HOP_SECONDS)
        return hops + self.apart.between / link.bytes_per_second


def topology(case: Case, region: str | None, usd_per_hour: float | None) -> Topology | None:
    """Of a measured case. usd_per_hour: of all machines together; None: not known. None for one machine alone, and for
    one that the catalog does not have."""
    hardware, step = case.hardware, step_seconds(case)
    if hardware.nodes < 2 or step is None or hardware.instance_type not in instance_names():
        return None
    exposed = case.values.get(values.COMMUNICATION_SECONDS)
    compute = step.estimate - (exposed or 0.0)
    facts: dict[str, Any] = {
        "case": case.key,
        "ranks": hardware.ranks,
        "nodes": hardware.nodes,
        "compute_seconds": compute,
        "compute_told": "the step as measured" if exposed is None else "the step without the exposed communication",
    }
    try:
        traffic = step_traffic(_workload(case), case.values.get(values.NETWORK_BYTES))
    except ValueError as error:
        return Topology(**facts, edge_bytes=0.0, edge_told="", collectives=0, placements=(), why=str(error))
    joined = links(instance(str(hardware.instance_type)), region or "")
    return Topology(
        **facts,
        edge_bytes=traffic.apart.between,
        edge_told="measured" if values.NETWORK_BYTES in case.values else "as the planner expects",
        collectives=traffic.collectives,
        placements=tuple(placement(traffic, link, compute, case.tokens_per_step, usd_per_hour) for link in joined),
    )


def placement(traffic: StepTraffic, link: Link, compute: float, tokens: int, usd_per_hour: float | None) -> Placement:
    """compute: seconds of a step without communication. tokens: of a step. usd_per_hour: as for `topology`."""
    seconds = traffic.seconds(link)
    low, high = max(compute, seconds), compute + seconds
    transfer = None
    if link.usd_per_gb is not None:
        transfer = BORDER * traffic.apart.between / GB * link.usd_per_gb / tokens * 1e6
    usd = None
    if usd_per_hour is not None and transfer is not None:
        usd = (
            usd_per_hour / 3600 * low / tokens * 1e6 + transfer,
            usd_per_hour / 3600 * high / tokens * 1e6 + transfer,
        )
    return Placement(
        level=link.level,
        bytes_per_second=link.bytes_per_second,
        latency_seconds=link.latency_seconds,
        communication_seconds=seconds,
        low_seconds=low,
        high_seconds=high,
        usd_per_million_tokens=usd,
        transfer_usd_per_million_tokens=transfer,
        assumes=link.assumes,
    )


def step_traffic(job: Workload, measured_bytes: float | None = None) -> StepTraffic:
    """By the planner. measured_bytes: that a rank sent in a step, in place of what passes a machine's network."""
    sent, on_node = communication(job), job.machine.ranks
    apart = _sum(sent, on_node)
    if measured_bytes is not None:
        apart = Message(apart.inside, measured_bytes, apart.hops, apart.held)
    between = [each for each in sent if each.crosses(on_node)]
    return StepTraffic(
        apart=apart,
        crossings=sum((group(each, on_node).nodes - 1) * _rounds(each) for each in between),
        near=_sum(sent, job.ranks),
        collectives=sum(each.number for each in between),
    )


def _sum(sent: tuple[Collective, ...], on_node: int) -> Message:
    return sum((message(each, on_node).times(each.number) for each in sent), start=Message())


def _rounds(collective: Collective) -> int:
    """In a step, each once around its ring."""
    return collective.number * (2 if collective.kind == "all_reduce" else 1)


def _workload(case: Case) -> Workload:
    """Raises ValueError for what the planner does not have."""
    hardware = case.hardware
    try:
        config = RunConfig.model_validate(dict(case.config))
    except ValidationError:
        raise ValueError("its configuration is of another version") from None
    model = config.model
    if not isinstance(model, TransformerConfig):
        raise ValueError(f"model.build = {model.build}: nothing is known of it")
    if config.train.param_dtype == "auto":
        config = with_param_dtype(config, "bf16")
    machine = Machine(UNNAMED, hardware.ranks // hardware.nodes, 0.0, 0.0, 0.0, 0.0)
    sequence_length = config.data.sequence_length
    return Workload(model, sequence_length, config.train, config.parallel, machine, hardware.nodes)
