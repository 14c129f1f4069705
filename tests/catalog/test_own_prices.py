"""A price of one's own stands for the catalog's, and only where it is of the same thing."""

from datetime import date

from convoy.catalog.own_prices import own_prices, price_of
from convoy.catalog.prices import price
from convoy.config.cluster import PriceConfig

P4D, EAST = "p4d.24xlarge", "us-east-1"
OWN = PriceConfig(usd_per_hour=7.5, date=date(2026, 1, 1), source="our contract")
BOTH = OWN.model_copy(update={"usd_per_hour_on_demand": 15.0, "on_demand_date": date(2026, 2, 2)})


def test_one_s_own_counts_though_the_catalog_s_is_newer() -> None:
    found = price_of(own_prices(OWN, P4D, "spot", EAST), None, P4D, "spot", EAST)
    assert found is not None
    assert (found.usd_per_hour, found.low_usd_per_hour, found.high_usd_per_hour) == (7.5, 7.5, 7.5)
    assert (found.date, found.source) == (date(2026, 1, 1), "our contract")


def test_other_machines_markets_and_regions_have_the_price_that_is_known() -> None:
    own = own_prices(OWN, P4D, "spot", EAST)
    assert price_of(own, None, P4D, "on_demand", EAST) == price(P4D, "on_demand", EAST)
    assert price_of(own, None, P4D, "spot", "us-west-2") == price(P4D, "spot", "us-west-2")
    assert price_of(own, None, "p5.48xlarge", "spot", EAST) == price("p5.48xlarge", "spot", EAST)
    assert price_of(own, None, P4D, "spot", "af-south-1") is None


def test_what_it_costs_on_demand_is_one_s_own_too() -> None:
    spot, on_demand = own_prices(BOTH, P4D, "spot", EAST)
    assert (spot.market, spot.usd_per_hour) == ("spot", 7.5)
    assert (on_demand.market, on_demand.usd_per_hour, on_demand.date) == ("on_demand", 15.0, date(2026, 2, 2))
    assert own_prices(BOTH, P4D, "on_demand", EAST)[0].usd_per_hour == 7.5
