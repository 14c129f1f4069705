"""What joins machines, by hand from the documents that the table names."""

import itertools

import pytest

from convoy.catalog.instances import instance, instance_names
from convoy.catalog.links import Link, links


def of(name: str, region: str = "us-east-1") -> dict[str, Link]:
    return {link.level: link for link in links(instance(name), region)}


@pytest.mark.parametrize(
    ("name", "gb_per_second"),
    [
        # NVLink; EFA at its rate, twice; 16 sockets of 5 Gbit/s; the same, as half of the network is more
        ("p4d.24xlarge", {"node": 300, "placement_group": 50, "zone": 50, "zones": 10, "regions": 10}),
        ("p5.48xlarge", {"node": 450, "placement_group": 400, "zone": 400, "zones": 10, "regions": 10}),
        # neither NVLink nor EFA: 2.5 Gbit/s whatever the sockets; 5 Gbit/s to regions is more than it has
        ("g5.xlarge", {"placement_group": 0.3125, "zone": 0.3125, "zones": 0.3125, "regions": 0.3125}),
        # 32 vCPUs: half of 12.5 Gbit/s to other regions
        ("c7i.8xlarge", {"placement_group": 1.5625, "zone": 1.5625, "zones": 1.5625, "regions": 0.78125}),
    ],
)
def test_the_links_of_a_machine(name: str, gb_per_second: dict[str, float]) -> None:
    assert {level: link.bytes_per_second / 1e9 for level, link in of(name).items()} == pytest.approx(gb_per_second)


@pytest.mark.parametrize("name", instance_names())
def test_what_is_farther_is_slower_later_and_dearer(name: str) -> None:
    told = links(instance(name), "us-east-1")
    for near, far in itertools.pairwise(told):
        assert far.bytes_per_second <= near.bytes_per_second
        assert far.latency_seconds > near.latency_seconds
        assert (far.usd_per_gb or 0) >= (near.usd_per_gb or 0)


def test_transfer_within_a_zone_is_free_and_between_zones_both_pay() -> None:
    told = of("p4d.24xlarge")
    assert [told[level].usd_per_gb for level in ("placement_group", "zone", "zones", "regions")] == [0, 0, 0.02, 0.02]
    assert of("p4d.24xlarge", "af-south-1")["zones"].usd_per_gb is None
