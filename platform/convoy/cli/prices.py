"""`convoy prices`: what machines cost, by the known prices, and by AWS now."""

import json
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import click
from botocore.exceptions import BotoCoreError, ClientError
from rich.console import Console
from rich.table import Table
from rich.text import Text

from convoy.catalog.instances import instance, instance_names
from convoy.catalog.prices import Market, Observed, PriceBook, merged
from convoy.cli.options import ENDPOINT, ROOT, store_at
from convoy.config.loader import default_root
from convoy.launch.pricing import NAME, read_prices

PRICE_LIST_REGION = "us-east-1"
"""Where the Price List answers, for all regions."""

BLOCK_HOURS = 24
"""Of the capacity blocks that are asked for."""

_NOTHING_UPFRONT = {"OfferingClass": "standard", "PurchaseOption": "No Upfront"}

RESERVED: dict[Market, dict[str, str]] = {
    "reserved": {"LeaseContractLength": "1yr", **_NOTHING_UPFRONT},
    "reserved_3y": {"LeaseContractLength": "3yr", **_NOTHING_UPFRONT},
}
"""What is read of reserved instances: it can be compared with the others by its hour."""

Client = Callable[[str, str], Any]
"""A boto3 client, by service and region."""


def aws_prices(instances: Sequence[str], regions: Sequence[str], client: Client) -> Iterator[Observed | str]:
    """Each price that AWS gives; and in one line each what it would not give, and why."""
    for region in regions:
        for read in (_listed, _spot, _blocks):
            try:
                yield from read(instances, region, client)
            except (BotoCoreError, ClientError) as error:
                yield f"{read.__name__.removeprefix('_')} prices of {region}: {error}"


def _listed(instances: Sequence[str], region: str, client: Client) -> Iterator[Observed]:
    """On demand and reserved: Linux, shared tenancy, without further software."""
    pages = client("pricing", PRICE_LIST_REGION).get_paginator("get_products")
    for name in instances:
        wanted = {
            "instanceType": name, "regionCode": region, "operatingSystem": "Linux", "tenancy": "Shared",
            "preInstalledSw": "NA", "capacitystatus": "Used",
        }  # fmt: skip
        filters = [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in wanted.items()]
        for page in pages.paginate(ServiceCode="AmazonEC2", Filters=filters):
            for text in page["PriceList"]:
                terms = (json.loads(text) if isinstance(text, str) else text).get("terms", {})
                yield from _terms(terms.get("OnDemand", {}), name, "on_demand", region, {})
                for market, attributes in RESERVED.items():
                    yield from _terms(terms.get("Reserved", {}), name, market, region, attributes)


def _terms(
    terms: dict[str, Any], name: str, market: Market, region: str, attributes: dict[str, str]
) -> Iterator[Observed]:
    for term in terms.values():
        stated = term.get("termAttributes", {})
        if any(stated.get(key) != value for key, value in attributes.items()):
            continue
        hourly = [
            float(dimension["pricePerUnit"]["USD"])
            for dimension in term["priceDimensions"].values()
            if dimension.get("unit") == "Hrs" and "USD" in dimension["pricePerUnit"]
        ]
        if hourly and hourly[0] > 0:
            day = datetime.now(UTC).date()
            yield Observed(
                instance=name, market=market, region=region, usd_per_hour=(hourly[0],), date=day,
                source=f"AWS Price List, effective {term['effectiveDate'][:10]}",
            )  # fmt: skip


def _spot(instances: Sequence[str], region: str, client: Client) -> Iterator[Observed]:
    """The newest price of each zone."""
    now = datetime.now(UTC)
    pages = (
        client("ec2", region)
        .get_paginator("describe_spot_price_history")
        .paginate(
            InstanceTypes=list(instances), ProductDescriptions=["Linux/UNIX", "Linux/UNIX (Amazon VPC)"], StartTime=now
        )
    )
    newest: dict[tuple[str, str], tuple[datetime, float]] = {}
    for page in pages:
        for row in page["SpotPriceHistory"]:
            key, price = (row["InstanceType"], row["AvailabilityZone"]), (row["Timestamp"], float(row["SpotPrice"]))
            newest[key] = max(price, newest.get(key, price))
    for name in instances:
        zones = [usd for (instance, _), (_, usd) in sorted(newest.items()) if instance == name]
        if zones:
            yield Observed(
                instance=name, market="spot", region=region, usd_per_hour=tuple(zones), date=now.date(),
                source="AWS DescribeSpotPriceHistory",
            )  # fmt: skip


def _blocks(instances: Sequence[str], region: str, client: Client) -> Iterator[Observed]:
    """What one machine of a capacity block costs an hour, over all that are offered now."""
    ec2 = client("ec2", region)
    for name in instances:
        try:
            offered = ec2.describe_capacity_block_offerings(
                InstanceType=name, InstanceCount=1, CapacityDurationHours=BLOCK_HOURS
            )["CapacityBlockOfferings"]
        except ClientError as error:
            if error.response["Error"]["Code"] in ("InvalidParameterValue", "InvalidParameterCombination"):
                continue  # the type is not offered so
            raise
        hourly = [float(o["UpfrontFee"]) / o["CapacityBlockDurationHours"] / o["InstanceCount"] for o in offered]
        if hourly:
            yield Observed(
                instance=name, market="capacity_block", region=region, usd_per_hour=(statistics.median(hourly),),
                date=datetime.now(UTC).date(), source="AWS DescribeCapacityBlockOfferings",
            )  # fmt: skip


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
    prices = [
        price
        for price in PriceBook(read_prices(store_at(root or default_root(), endpoint_url))).prices()
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
@ROOT
@ENDPOINT
def refresh(regions: tuple[str, ...], instances: tuple[str, ...], root: str | None, endpoint_url: str | None) -> None:
    """Ask AWS for prices, and keep them below the root with today's day; runs that start from then on use them.

    Needs pricing:GetProducts, ec2:DescribeSpotPriceHistory and ec2:DescribeCapacityBlockOfferings. What AWS does not
    tell keeps the price that was known, with its own day. Exit code 1 if nothing was told at all.
    """
    names = [instance(name).name for name in instances] or instance_names()
    store = store_at(root or default_root(), endpoint_url)
    earlier = read_prices(store)
    observed: list[Observed] = []
    for answer in aws_prices(names, regions, _client):
        if isinstance(answer, str):
            click.echo(f"convoy: {answer}", err=True)
        else:
            observed.append(answer)
    if not observed:
        sys.exit(1)
    store.write(NAME, merged(earlier, observed, datetime.now(UTC)).model_dump_json(indent=1).encode())
    click.echo(f"{len(observed)} prices of today in {store.uri}/{NAME}")


def _client(service: str, region: str) -> Any:
    import boto3

    make: Any = boto3.client  # whose types are one for each service
    return make(service, region_name=region)
