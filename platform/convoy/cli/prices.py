"""`convoy prices`: what machines cost, as known here, and as AWS tells now."""

from typing import TYPE_CHECKING, Any

import click

from convoy.cli.options import ENDPOINT, ROOT, root_of, store_at

if TYPE_CHECKING:
    from convoy.catalog.prices import Price

REGIONS = ("us-east-1", "us-east-2", "us-west-2")


@click.group()
def prices() -> None:
    """Prices of machines: known ones, and reading them anew."""


@prices.command("list")
@click.option("--region", "regions", multiple=True, help="Only this one; may be repeated.")
@click.option("--instance", "instances", multiple=True, help="Only this type; may be repeated.")
@ROOT
@ENDPOINT
def listed(regions: tuple[str, ...], instances: tuple[str, ...], root: str | None, endpoint_url: str | None) -> None:
    """The newest price of each type, market and region, with its day and the number of its source below."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    found = [p for p in _known(root, endpoint_url) if _wanted(p, regions, instances)]
    sources = list(dict.fromkeys(each.source for each in found))
    table = Table(
        "type", "market", "region", "USD/h", "zones", "day", "#", box=None, padding=(0, 1, 0, 0), pad_edge=False
    )
    for each in found:
        zones = "" if each.low_usd_per_hour == each.high_usd_per_hour else _range(each)
        usd, source = f"{each.usd_per_hour:,.2f}", str(sources.index(each.source) + 1)
        table.add_row(*map(Text, (each.instance, each.market, each.region, usd, zones, str(each.date), source)))
    console = Console()
    console.print(table)
    for number, source in enumerate(sources, 1):
        console.print(f"{number}: {source}", markup=False, highlight=False)


@prices.command()
@click.option("--region", "regions", multiple=True, default=REGIONS, show_default=True, help="May be repeated.")
@click.option("--instance", "instances", multiple=True, help="May be repeated. Default: every type of the catalog.")
@ROOT
@ENDPOINT
def refresh(regions: tuple[str, ...], instances: tuple[str, ...], root: str | None, endpoint_url: str | None) -> None:
    """Ask AWS for prices, and keep them below the root with today's day; runs that start from then on use them. Of spot
    it keeps by how much the last two weeks' prices differ with the hour of the day, too.

    Needs pricing:GetProducts, ec2:DescribeSpotPriceHistory and ec2:DescribeCapacityBlockOfferings. What AWS does not
    tell keeps the price that was known, with its own day. Exit code 1 if nothing was told at all.
    """
    import sys
    from datetime import UTC, datetime

    from convoy.catalog.instances import instance, instance_names
    from convoy.catalog.prices import Observed, SpotHours, merged
    from convoy.launch.aws_prices import aws_prices
    from convoy.launch.pricing import NAME, read_prices

    names = [instance(name).name for name in instances] or instance_names()
    store = store_at(root_of(root), endpoint_url)
    known = read_prices(store)
    found: list[Observed] = []
    hours: list[SpotHours] = []
    for told in aws_prices(names, regions, _client):
        if isinstance(told, str):
            click.echo(f"convoy: {told}", err=True)
        elif isinstance(told, SpotHours):
            hours.append(told)
        else:
            found.append(told)
    if not found:
        sys.exit(1)
    store.write(NAME, merged(known, found, datetime.now(UTC), hours).model_dump_json(indent=1).encode())
    click.echo(f"{len(found)} prices of today in {store.uri}/{NAME}")


def _client(service: str, region: str) -> Any:
    import boto3

    make: Any = boto3.client  # whose types are one for each service
    return make(service, region_name=region)


def _known(root: str | None, endpoint_url: str | None) -> "list[Price]":
    from convoy.catalog.prices import PriceBook
    from convoy.launch.pricing import read_prices

    return PriceBook(read_prices(store_at(root_of(root), endpoint_url))).prices()


def _wanted(price: "Price", regions: tuple[str, ...], instances: tuple[str, ...]) -> bool:
    return (not regions or price.region in regions) and (not instances or price.instance in instances)


def _range(price: "Price") -> str:
    return f"{price.low_usd_per_hour:,.2f}-{price.high_usd_per_hour:,.2f}"
