"""What joins machines that are near or far from each other: dated inputs of a model, not measurements.

Sources are in `links.json`; docs/explanation/cost.md has them with what they leave out.
"""

from typing import Literal

from pydantic import Field

from convoy.catalog.instances import Instance
from convoy.catalog.services import service_price
from convoy.catalog.tables import table
from convoy.config.base import Frozen

Level = Literal["node", "placement_group", "zone", "zones", "regions"]
"""All GPUs on one NVLink; machines in one cluster placement group, which is one network segment, and often one rack; in
one availability zone; in two zones; in two regions."""


class Link(Frozen):
    """What the slowest link between two neighbours of a ring is like."""

    level: Level
    bytes_per_second: float = Field(gt=0)
    """Of one machine, in each direction; on NVLink of one GPU."""
    latency_seconds: float = Field(gt=0)
    """One way."""
    usd_per_gb: float | None
    """For 2**30 bytes, all who pay for it together; 0: free; None: the catalog has no price."""
    assumes: str


def links(machine: Instance, region: str) -> tuple[Link, ...]:
    """From the nearest to the farthest; without NVLink the first is left out."""
    links = (_node(machine), _grouped(machine), _zone(machine), _zones(machine, region), _regions(machine, region))
    return tuple(link for link in links if link is not None)


def inside() -> float:
    """Latency within a machine, in seconds."""
    return _latency("node")


def _node(machine: Instance) -> Link | None:
    if not machine.nvlink_gb_per_second:
        return None
    assumes = "all GPUs on the NVLink of one machine, were it that large"
    return _link("node", machine.nvlink_gb_per_second * 8, 0.0, assumes)


def _grouped(machine: Instance) -> Link:
    if machine.efa_interfaces:
        return _link("placement_group", machine.network_gbps, 0.0, "EFA at its full rate")
    gbps = min(machine.network_gbps, _flows("gbps_grouped"))
    return _link("placement_group", gbps, 0.0, "TCP, by NCCL's sockets at 10 Gbit/s each")


def _zone(machine: Instance) -> Link:
    if machine.efa_interfaces:
        return _link("zone", machine.network_gbps, 0.0, "EFA at its full rate, in one subnet")
    return _link("zone", min(machine.network_gbps, _flows("gbps")), 0.0, "TCP, by NCCL's sockets at 5 Gbit/s each")


def _zones(machine: Instance, region: str) -> Link:
    price = service_price("transfer_between_zones", region)
    gbps = min(machine.network_gbps, _flows("gbps"))
    return _link("zones", gbps, price.usd if price else None, "no EFA; TCP, by NCCL's sockets at 5 Gbit/s each")


def _regions(machine: Instance, region: str) -> Link:
    price, far = service_price("transfer_between_regions", region), table("links")["far"]
    gbps = far["least_gbps"]
    if machine.vcpus >= far["least_vcpus"]:
        gbps = min(max(gbps, machine.network_gbps * far["share"]), _flows("gbps"))
    # Both directions of the ring are sent by somebody, and each of the two regions pays for its own.
    assumes = "no EFA; TCP, by NCCL's sockets at 5 Gbit/s each, of at most half the network; Virginia to Oregon"
    return _link("regions", min(gbps, machine.network_gbps), price.usd if price else None, assumes)


def _link(level: Level, gbps: float, usd_per_gb: float | None, assumes: str) -> Link:
    return Link(
        level=level,
        bytes_per_second=gbps * 1e9 / 8,
        latency_seconds=_latency(level),
        usd_per_gb=usd_per_gb,
        assumes=assumes,
    )


def _latency(level: Level) -> float:
    return float(table("links")["latency"][level]["us"]) * 1e-6


def _flows(gbps: str) -> float:
    flow = table("links")["flow"]
    return float(flow["sockets"] * flow[gbps])
