"""The prices that are known where a run starts: those of its root, which `convoy prices refresh` wrote, and the
catalog's."""

from convoy.catalog.price_list import PriceList, newest_price, price_list
from convoy.config.cluster import PriceConfig
from convoy.config.run import RunConfig
from convoy.storage import ObjectMissing, Store, open_store

NAME = "prices.json"
"""Below a root."""


def read_prices(root: Store) -> PriceList | None:
    """None where nothing was refreshed. Raises ConfigError for a file that is no price list, and StoreUnavailable."""
    try:
        text = root.read(NAME)
    except ObjectMissing:
        return None
    return price_list(text, f"{root.uri}/{NAME}")


def with_price(config: RunConfig) -> RunConfig:
    """The configuration with the prices of today, so that all machines of the run, and all its attempts, have the same
    ones. Raises as `read_prices`."""
    cluster = config.cluster
    if cluster.backend == "local" or cluster.instance_type is None:
        return config
    if cluster.price is not None and cluster.price.usd_per_hour_on_demand is not None:
        return config
    assert config.root is not None
    return filled(config, read_prices(open_store(config.root, config.checkpoint.store)))


def as_asked(config: RunConfig, known: PriceList | None) -> RunConfig:
    """What `with_price` made this of, without the price of one zone that it filled in, if `known` still tells: all that
    is known of the others counts again."""
    if config.cluster.price is None or config.cluster.instance_type is None:
        return config
    asked = config.model_copy(update={"cluster": config.cluster.model_copy(update={"price": None})})
    return asked if filled(asked, known) == config else config


def filled(config: RunConfig, known: PriceList | None) -> RunConfig:
    """With the newest price of its machine that the catalog or `known` has, where none is configured."""
    cluster = config.cluster
    assert cluster.instance_type is not None
    told = cluster.price
    if told is None:
        found = newest_price(known, cluster.instance_type, cluster.market, cluster.region)
        if found is None:
            return config
        told = PriceConfig(usd_per_hour=found.usd_per_hour, date=found.date, source=found.source)
    on_demand = newest_price(known, cluster.instance_type, "on_demand", cluster.region)
    if on_demand is not None:
        told = told.model_copy(
            update={
                "usd_per_hour_on_demand": on_demand.usd_per_hour,
                "on_demand_date": on_demand.date,
                "on_demand_source": on_demand.source,
            }
        )
    return config.model_copy(update={"cluster": cluster.model_copy(update={"price": told})})
