"""Published measurements of collectives."""

from datetime import date

import pytest

from convoy.catalog import load_table
from convoy.catalog.instances import instance
from convoy.catalog.published_collectives import published_collectives
from convoy.network.bandwidth import bus_factor, busbw_bound

ANCHORS = published_collectives("all_reduce")


def test_all_of_the_catalog_are_read_with_date_and_source() -> None:
    assert len(ANCHORS) == len(load_table("published_collectives")["anchors"])
    assert all(anchor.url.startswith("https://") and anchor.date <= date.today() for anchor in ANCHORS)


@pytest.mark.parametrize("anchor", ANCHORS, ids=lambda a: f"{a.instance}-{a.nodes}-{a.transport}-{a.size}")
def test_bandwidth_is_that_of_the_time_and_no_more_than_the_network_s(anchor) -> None:  # type: ignore[no-untyped-def]
    busbw = anchor.size / anchor.microseconds / 1e3 * bus_factor(anchor.operation, anchor.ranks)
    assert anchor.busbw_gb_per_second == pytest.approx(busbw, abs=0.006)
    if anchor.instance is not None and anchor.nodes > 1:
        network = instance(anchor.instance).network_gbps * 1e9 / 8
        bound = busbw_bound(anchor.operation, anchor.nodes, anchor.ranks // anchor.nodes, network)
        assert 1e9 * anchor.busbw_gb_per_second <= bound


def test_an_instance_has_its_own_and_an_unknown_one_has_none() -> None:
    assert [anchor.nodes for anchor in published_collectives("all_reduce", "p4d.24xlarge")] == [1, 2, 3, 4]
    assert published_collectives("all_reduce", "p99.large") == []
    assert published_collectives("gather") == []
