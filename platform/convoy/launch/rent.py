"""How the machines of a run are bought: which are paid for, and at what price."""

from typing import TYPE_CHECKING

from convoy.catalog.prices import Price, of_zones, price
from convoy.config.run import RunConfig

if TYPE_CHECKING:
    from convoy.job.events.generations import Rent


def instance_price(config: RunConfig) -> Price | None:
    """Price of one machine of the run: the configured one, or else the catalog's; None where that has none, and
    locally, where nobody said what runs it."""
    cluster = config.cluster
    if cluster.backend == "local" or cluster.instance_type is None:
        return None
    if cluster.price is not None:
        told = cluster.price
        return of_zones(
            cluster.instance_type, cluster.market, cluster.region, [told.usd_per_hour], told.date, told.source
        )
    return price(cluster.instance_type, cluster.market, cluster.region)


def rent(config: RunConfig) -> "Rent | None":
    """How each machine of the run is bought, as its log keeps it; None locally, where nobody said what runs it."""
    cluster = config.cluster
    if cluster.backend == "local" or cluster.instance_type is None:
        return None
    from convoy.job.events.generations import Rent  # which a plan that only asks for refusals need not wait for

    found, on_demand = instance_price(config), _on_demand(config)
    return Rent(
        instance=cluster.instance_type,
        market=cluster.market,
        region=cluster.region,
        usd_per_hour=found.usd_per_hour if found else None,
        price_date=found.date if found else None,
        source=found.source if found else "",
        usd_per_hour_on_demand=on_demand.usd_per_hour if on_demand else None,
        on_demand_date=on_demand.date if on_demand else None,
        on_demand_source=on_demand.source if on_demand else "",
    )


def _on_demand(config: RunConfig) -> Price | None:
    """Of the same machine: as it was configured, or else the catalog's."""
    cluster, told = config.cluster, config.cluster.price
    assert cluster.instance_type is not None
    if told is None or told.usd_per_hour_on_demand is None or told.on_demand_date is None:
        return price(cluster.instance_type, "on_demand", cluster.region)
    usd, day = [told.usd_per_hour_on_demand], told.on_demand_date
    return of_zones(cluster.instance_type, "on_demand", cluster.region, usd, day, told.on_demand_source)


def gang_price(config: RunConfig) -> float | None:
    """US dollars of one hour of all machines of the run; None where the price is not known."""
    found = instance_price(config)
    return None if found is None else found.usd_per_hour * machines(config)


def machines(config: RunConfig) -> int:
    """Machines that are paid for: the nodes, or one host that runs all local processes."""
    return 1 if config.cluster.backend == "local" else config.cluster.nodes
