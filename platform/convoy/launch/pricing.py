"""How the machines of a run are bought and at what price, which is settled once, where the run starts: the price that
the configuration names, else the newest that `convoy prices refresh` wrote below the root or that the catalog has."""

from typing import TYPE_CHECKING

from convoy.catalog.prices import SHIPPED, Price, PriceBook, PriceList, parse_price_list, price_over_zones
from convoy.catalog.services import file_system_price
from convoy.config.cluster import PriceConfig
from convoy.config.run import RunConfig
from convoy.planner.workload import rented_type
from convoy.storage import ObjectMissing, Store, open_store

if TYPE_CHECKING:
    from convoy.job.events.gang import FileSystemRent, Rent

NAME = "prices.json"
"""Below a root."""


def read_prices(root: Store) -> PriceList | None:
    """None where nothing was refreshed. Raises ConfigError for a file that is no price list, and StoreUnavailable."""
    try:
        text = root.read(NAME)
    except ObjectMissing:
        return None
    return parse_price_list(text, f"{root.uri}/{NAME}")


def settle_price_from_root(config: RunConfig) -> RunConfig:
    """The configuration with the prices of today, so that all machines of the run, and all its attempts, have the same
    ones. Raises as `read_prices`."""
    cluster = config.cluster
    if rented_type(config) is None or (cluster.price is not None and cluster.price.usd_per_hour_on_demand is not None):
        return config
    assert config.root is not None
    return settle_price(config, PriceBook(read_prices(open_store(config.root, config.checkpoint.store))))


def settle_price(config: RunConfig, prices: PriceBook) -> RunConfig:
    """With the price of its machine, and what that costs on demand, where the configuration names neither."""
    bought, on_demand = instance_price(config, prices), _on_demand_price(config, prices)
    if bought is None:
        return config
    price = config.cluster.price
    if price is None:
        price = PriceConfig(usd_per_hour=bought.usd_per_hour, date=bought.date, source=bought.source)
    if on_demand is not None:
        price = price.model_copy(
            update={
                "usd_per_hour_on_demand": on_demand.usd_per_hour,
                "on_demand_date": on_demand.date,
                "on_demand_source": on_demand.source,
            }
        )
    return config.model_copy(update={"cluster": config.cluster.model_copy(update={"price": price})})


def without_settled_price(config: RunConfig, prices: PriceBook) -> RunConfig:
    """What `settle_price_from_root` made this of, without the price of one zone that it settled, if `prices` would
    settle the same: then all that they say of the other zones counts again."""
    if config.cluster.price is None or rented_type(config) is None:
        return config
    original = config.model_copy(update={"cluster": config.cluster.model_copy(update={"price": None})})
    return original if settle_price(original, prices) == config else config


def machine_count(config: RunConfig) -> int:
    """Machines that are paid for: the nodes, or one host that runs all local processes."""
    return 1 if config.cluster.backend == "local" else config.cluster.nodes


def instance_price(config: RunConfig, prices: PriceBook) -> Price | None:
    """Price of one machine of the run; None where it is not known, and where nothing is rented. prices: once a run's
    price is settled in its configuration, `SHIPPED` gives that."""
    cluster, rented = config.cluster, rented_type(config)
    return None if rented is None else prices.for_cluster(cluster).price(rented, cluster.market, cluster.region)


def gang_usd_per_hour(config: RunConfig) -> float | None:
    """US dollars of one hour of all machines of a run whose price is settled; None where it is not known."""
    price = instance_price(config, SHIPPED)
    return None if price is None else price.usd_per_hour * machine_count(config)


def machine_rent(config: RunConfig) -> "Rent | None":
    """How each machine of the run is bought, as its log records it; None where nothing is rented. config: settled."""
    cluster, rented = config.cluster, rented_type(config)
    if rented is None:
        return None
    from convoy.job.events.gang import Rent  # which a plan that only asks for refusals need not wait for

    bought, on_demand = instance_price(config, SHIPPED), _on_demand_price(config, SHIPPED)
    return Rent(
        instance=rented,
        market=cluster.market,
        region=cluster.region,
        usd_per_hour=bought.usd_per_hour if bought else None,
        price_date=bought.date if bought else None,
        source=bought.source if bought else "",
        usd_per_hour_on_demand=on_demand.usd_per_hour if on_demand else None,
        on_demand_date=on_demand.date if on_demand else None,
        on_demand_source=on_demand.source if on_demand else "",
        file_system=_file_system_rent(config),
    )


def _file_system_rent(config: RunConfig) -> "FileSystemRent | None":
    from convoy.job.events.gang import FileSystemRent

    wanted = config.cluster.file_system
    if wanted is None:
        return None
    price = file_system_price(wanted, config.cluster.region)
    return FileSystemRent(
        gib=wanted.gib,
        mb_per_second_per_tib=wanted.mb_per_second_per_tib,
        usd_per_gib_month=price.usd if price else None,
        price_date=price.date if price else None,
        source=price.source if price else "",
    )


def _on_demand_price(config: RunConfig, prices: PriceBook) -> Price | None:
    """What the run's cost is compared with: as configured, or else what anybody pays, also where the run itself is on
    demand at a price of its own."""
    region, own, rented = config.cluster.region, config.cluster.price, rented_type(config)
    if rented is None:
        return None
    if own is None or own.usd_per_hour_on_demand is None or own.on_demand_date is None:
        return prices.price(rented, "on_demand", region)
    usd, day = [own.usd_per_hour_on_demand], own.on_demand_date
    return price_over_zones(rented, "on_demand", region, usd, day, own.on_demand_source)
