"""What a step would take and cost, were the machines nearer to each other or farther apart: a model. Pure.

Collectives go round a ring, and the slowest link is the pace of all: with p ranks on N machines an all-gather, or a
reduce-scatter, of n bytes moves (p - 1) / p n bytes over each link, in p - N steps within machines and N - 1 between
them (Thakur, Rabenseifner and Gropp 2005, "Optimization of Collective Communication Operations in MPICH"; the split of
the steps is that of NCCL's tuning.cc). FSDP gathers all parameters for forward and, if they were freed, for backward,
and scatters the gradients (Rajbhandari et al. 2020, "ZeRO", section 7).
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import ValidationError

from convoy.benchmark.analysis.model import Placement, Topology
from convoy.benchmark.results import values
from convoy.benchmark.results.case import Case
from convoy.benchmark.results.figures import step_seconds
from convoy.catalog.instances import instance, instance_names
from convoy.catalog.links import Link, inside, links
from convoy.catalog.services import GB
from convoy.config.parallel import ParallelConfig
from convoy.config.train import TrainConfig

BORDER = 2
"""Links of a ring that lead from one of two places to the other, and back."""

_BYTES = {"bf16": 2, "fp32": 4}

_MODELLED = ("fsdp", "hsdp", "ddp")


class Traffic(NamedTuple):
    """What the ranks of a training send each other in a step."""

    ranks: int
    nodes: int
    edge_bytes: float
    collectives: int

    def seconds(self, link: Link) -> float:
        """For all of it, one after the other, if the machines are joined so."""
        nodes = 1 if link.level == "node" else self.nodes
        latency = (self.ranks - nodes) * inside() + (nodes - 1) * link.latency_seconds
        return self.collectives * latency + self.edge_bytes / link.bytes_per_second


def topology(case: Case, region: str | None, usd_per_hour: float | None) -> Topology | None:
    """Of a measured case. usd_per_hour: of all machines together; None: not known. None for one machine alone, and for
    one that the catalog does not have."""
    hardware, step = case.hardware, step_seconds(case)
    if hardware.nodes < 2 or step is None or hardware.instance_type not in instance_names():
        return None
    exposed = case.values.get(values.COMMUNICATION_SECONDS)
    found, told = _traffic(case)
    compute = step.estimate - (exposed or 0.0)
    facts: dict[str, Any] = {
        "case": case.key,
        "ranks": hardware.ranks,
        "nodes": hardware.nodes,
        "compute_seconds": compute,
        "compute_told": "the step as measured" if exposed is None else "the step without the exposed communication",
        "edge_told": told,
    }
    if found is None:
        return Topology(**facts, edge_bytes=0.0, collectives=0, placements=(), why=told)
    joined = links(instance(str(hardware.instance_type)), region or "")
    placements = tuple(placement(found, link, compute, case.tokens_per_step, usd_per_hour) for link in joined)
    return Topology(**facts, edge_bytes=found.edge_bytes, collectives=found.collectives, placements=placements)


def placement(traffic: Traffic, link: Link, compute: float, tokens: int, usd_per_hour: float | None) -> Placement:
    """compute: seconds of a step without communication. tokens: of a step. usd_per_hour: as for `topology`."""
    seconds = traffic.seconds(link)
    low, high = max(compute, seconds), compute + seconds
    transfer = None
    if link.usd_per_gb is not None:
        transfer = BORDER * traffic.edge_bytes / GB * link.usd_per_gb / tokens * 1e6
    usd = None
    if usd_per_hour is not None and transfer is not None:
        usd = tuple(usd_per_hour / 3600 * step / tokens * 1e6 + transfer for step in (low, high))
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


def _traffic(case: Case) -> tuple[Traffic | None, str]:
    """And where its bytes are from, or why there is none."""
    hardware, config = case.hardware, case.config
    try:
        parallel = ParallelConfig.model_validate(config.get("parallel", {}))
        train = TrainConfig.model_validate({"param_dtype": "bf16"} | dict(config.get("train", {})))
    except ValidationError:
        return None, "its configuration tells of a strategy that the model does not have"
    ranks, nodes = hardware.ranks, hardware.nodes
    if parallel.shared_by > 1:
        return None, "it knows neither tensor nor pipeline parallelism"
    if parallel.strategy not in _MODELLED:
        return None, f"it knows {', '.join(_MODELLED)}, and not {parallel.strategy}"
    if parallel.strategy == "hsdp" and parallel.shard_size not in (None, ranks // nodes):
        return None, f"hsdp with shards of {parallel.shard_size} ranks, which are no whole machines"
    passes = math.ceil(math.ceil(train.global_batch / ranks) / train.micro_batch)
    members = nodes if parallel.strategy == "hsdp" else ranks
    gathers, scatters = 0, 2  # between replicas, once a step: an all-reduce is a reduce-scatter and an all-gather
    if parallel.strategy == "fsdp":
        gathers = passes * (1 + parallel.reshard_after_forward)
        scatters = passes if parallel.reduce_every_pass else 1
    width = gathers * _BYTES[train.param_dtype] + scatters * _BYTES[train.reduce_dtype]
    collectives = (gathers + scatters) * (_blocks(config) + 1)
    measured = case.values.get(values.NETWORK_BYTES)
    if measured is not None:
        return Traffic(ranks, nodes, measured, collectives), "measured"
    edge = width * case.parameters * (members - 1) / members
    return Traffic(ranks, nodes, edge, collectives), f"{width} bytes per parameter in a step ({parallel.strategy})"


def _blocks(config: Mapping[str, Any]) -> int:
    model = config.get("model")
    layers = model.get("n_layers") if isinstance(model, Mapping) else None
    return layers if isinstance(layers, int) else 0
