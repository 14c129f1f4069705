"""`convoy prices`: what machines cost, by the known prices, and by AWS now."""

import sys
from datetime import UTC, datetime

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from convoy.catalog.aws_prices import boto3_client, fetch_aws_prices
from convoy.catalog.instances import instance, instance_names
from convoy.catalog.prices import ObservedPrice, PriceBook, merge_prices
from convoy.cli.options import Jobs, store_at, with_jobs
from convoy.launch.pricing import NAME, read_prices

REGIONS = ("us-east-1", "us-east-2", "us-west-2")


@click.group()
def prices() -> None:
    """Prices of machines: known ones, and reading them anew."""


@prices.command("list")
@click.option("--region", "regions", multiple=True, help="Only this one; may be repeated.")
@click.option("--instance", "instances", multiple=True, help="Only this type; may be repeated.")
@with_jobs
def list_prices(jobs: Jobs, regions: tuple[str, ...], instances: tuple[str, ...]) -> None:
    """The newest price of each type, market and region, with its day and the number of its source below."""
    prices = [
        price
        for price in PriceBook(read_prices(store_at(jobs.root, jobs.endpoint_url))).prices()
        if (not regions or price.region in regions) and (not instances or price.instance in instances)
    ]
    sources = list(dict.fromkeys(price.source for price in prices))
    table = Table(
        "type", "market", "region", "USD/h", "zones", "day", "#", box=None, padding=(0, 1, 0, 0), pad_edge=False
    )
    for price in prices:
        low, high = (f"{usd:,.2f}" for usd in (price.low_usd_per_hour, price.high_usd_per_hour))
        zones = "" if price.low_usd_per_hour == price.high_usd_per_hour else f"{low}-{high}"
        usd, source = f"{price.usd_per_hour:,.2f}", str(sources.index(price.source) + 1)
        table.add_row(*map(Text, (price.instance, price.market, price.region, usd, zones, str(price.date), source)))
    console = Console()
    console.print(table)
    for number, source in enumerate(sources, 1):
        console.print(f"{number}: {source}", markup=False, highlight=False)


@prices.command()
@click.option("--region", "regions", multiple=True, default=REGIONS, show_default=True, help="May be repeated.")
@click.option("--instance", "instances", multiple=True, help="May be repeated. Default: every type of the catalog.")
@with_jobs
def refresh(jobs: Jobs, regions: tuple[str, ...], instances: tuple[str, ...]) -> None:
    """Ask AWS for prices, and keep them below the root with today's day; runs that start from then on use them.

    Needs pricing:GetProducts, ec2:DescribeSpotPriceHistory and ec2:DescribeCapacityBlockOfferings. What AWS does not
    name keeps the price that was known, with its own day. Exit code 1 if AWS names no price at all.
    """
    names = [instance(name).name for name in instances] or instance_names()
    store = store_at(jobs.root, jobs.endpoint_url)
    earlier = read_prices(store)
    observed: list[ObservedPrice] = []
    for answer in fetch_aws_prices(names, regions, boto3_client):
        if isinstance(answer, str):
            click.echo(f"convoy: {answer}", err=True)
        else:
            observed.append(answer)
    if not observed:
        sys.exit(1)
    store.write(NAME, merge_prices(earlier, observed, datetime.now(UTC)).model_dump_json(indent=1).encode())
    click.echo(f"{len(observed)} prices of today in {store.uri}/{NAME}")
