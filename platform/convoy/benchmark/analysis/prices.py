"""What the machines of a benchmark cost by its own configuration. Pure."""

from collections.abc import Mapping

from pydantic import ValidationError

from convoy.benchmark.results.case import Case
from convoy.catalog.own_prices import own_prices
from convoy.catalog.prices import Price
from convoy.config.cluster import PriceConfig


def configured_prices(case: Case) -> tuple[Price, ...]:
    """Of one machine (`cluster.price`): in the market in which it was bought, and on demand where that is told with its
    day; none where it was not configured."""
    cluster, name = case.config.get("cluster"), case.hardware.instance_type
    if name is None or not isinstance(cluster, Mapping) or not cluster.get("price"):
        return ()
    try:
        undated = cluster["price"].get("on_demand_date") is None  # older results may tell it without a day
        own = {key: told for key, told in cluster["price"].items() if not (undated and "on_demand" in key)}
        return own_prices(PriceConfig.model_validate(own), name, cluster["market"], cluster["region"])
    except (AttributeError, KeyError, ValidationError):  # of another version, or by hand
        return ()
