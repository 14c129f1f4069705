"""The price of a run: settled once, where it starts."""

from datetime import date
from pathlib import Path

import pytest

from convoy.catalog.prices import SHIPPED
from convoy.config.cluster import PriceConfig
from convoy.config.errors import ConfigError
from convoy.config.loader import resolve
from convoy.config.run import RunConfig
from convoy.launch.pricing import (
    NAME,
    gang_usd_per_hour,
    instance_price,
    machine_count,
    machine_rent,
    read_prices,
    settle_price_from_root,
)
from convoy.storage import open_store
from tests.launch.checks.test_compatibility import BATCH, on, run
from tests.launch.price_list import refresh_prices

PRICE = SHIPPED.price("p4d.24xlarge", "on_demand", "us-east-1")
assert PRICE is not None
ON_DEMAND = {
    "usd_per_hour_on_demand": 21.9576, "on_demand_date": PRICE.date, "on_demand_source": PRICE.source,
}  # fmt: skip


def a_config(root: Path, **cluster: object) -> RunConfig:
    remote = {"backend": "kubernetes", "nodes": 4, "instance_type": "p4d.24xlarge", "market": "spot"}
    return RunConfig.model_validate({"root": str(root), "cluster": remote | cluster})


def test_the_catalogs_price_is_settled_with_its_day(tmp_path: Path) -> None:
    known = SHIPPED.price("p4d.24xlarge", "spot", "us-east-1")
    assert known is not None
    settled = settle_price_from_root(a_config(tmp_path)).cluster.price
    assert settled == PriceConfig(usd_per_hour=known.usd_per_hour, date=known.date, source=known.source, **ON_DEMAND)


def test_a_refreshed_price_is_settled_where_it_is_newer(tmp_path: Path) -> None:
    refresh_prices(tmp_path, spot=5.0, on_demand=19.0)
    config = settle_price_from_root(a_config(tmp_path))
    assert config.cluster.price == PriceConfig(
        usd_per_hour=5.0, date=date(2027, 1, 1), source="AWS", usd_per_hour_on_demand=19.0,
        on_demand_date=date(2027, 1, 1), on_demand_source="AWS",
    )  # fmt: skip
    assert gang_usd_per_hour(config) == 20.0
    found = machine_rent(config)
    assert found is not None
    assert (found.usd_per_hour, found.price_date, found.source) == (5.0, date(2027, 1, 1), "AWS")
    on_demand = (found.usd_per_hour_on_demand, found.on_demand_date, found.on_demand_source)
    assert on_demand == (19.0, date(2027, 1, 1), "AWS")  # of that refresh too, and not the catalog's


def test_what_it_costs_on_demand_can_be_ones_own(tmp_path: Path) -> None:
    refresh_prices(tmp_path, spot=5.0, on_demand=19.0)
    undated = {"usd_per_hour": 7.5, "date": "2026-01-01", "usd_per_hour_on_demand": 20.0}
    own = {**undated, "on_demand_date": "2026-02-01", "on_demand_source": "our contract"}
    found = machine_rent(settle_price_from_root(a_config(tmp_path, price=own)))
    assert found is not None
    assert (found.usd_per_hour, found.usd_per_hour_on_demand) == (7.5, 20.0)
    assert (found.on_demand_date, found.on_demand_source) == (date(2026, 2, 1), "our contract")
    with pytest.raises(ConfigError) as refused:
        resolve({"cluster": {"price": undated}}, {})
    assert str(refused.value) == "cluster.price.usd_per_hour_on_demand = 20: must come with on_demand_date"


def test_ones_own_price_counts_for_more(tmp_path: Path) -> None:
    own = PriceConfig(usd_per_hour=7.5, date=date(2026, 1, 1), source="our contract")
    config = settle_price_from_root(a_config(tmp_path, price=own.model_dump()))
    assert config.cluster.price == own.model_copy(update=ON_DEMAND)
    found = instance_price(config, SHIPPED)
    assert found is not None
    assert (found.usd_per_hour, found.low_usd_per_hour, found.source) == (7.5, 7.5, "our contract")


def test_what_has_no_price_is_left_without(tmp_path: Path) -> None:
    unknown = a_config(tmp_path, region="eu-west-1")
    assert settle_price_from_root(unknown) == unknown
    told = machine_rent(unknown)
    assert told is not None
    assert (told.usd_per_hour, told.instance, told.region) == (None, "p4d.24xlarge", "eu-west-1")
    local = RunConfig.model_validate({"root": str(tmp_path)})
    assert settle_price_from_root(local) == local
    assert machine_rent(local) is None


def test_a_broken_list_is_told_before_the_run(tmp_path: Path) -> None:
    assert read_prices(open_store(str(tmp_path))) is None
    (tmp_path / NAME).write_text("{")
    with pytest.raises(ConfigError, match=r"prices\.json: the file"):
        settle_price_from_root(a_config(tmp_path))


def test_a_local_trial_of_a_cluster_preset_does_not_cost_what_the_cluster_does() -> None:
    assert instance_price(on(BATCH), SHIPPED) is not None
    assert instance_price(on(BATCH, backend="local"), SHIPPED) is None
    assert (machine_count(run(cluster={"nodes": 4})), machine_count(on(BATCH, nodes=4))) == (1, 4)
