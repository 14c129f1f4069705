"""Prices as AWS has them now: its Price List, spot price history and capacity block offerings, through boto3."""

import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from convoy.catalog.prices import Market, Observed, SpotHours, by_hour

PRICE_LIST_REGION = "us-east-1"
"""Where the Price List answers, for all regions."""

SPOT_DAYS = 14
"""Over which the hours of the day are compared; AWS keeps 90."""

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


def aws_prices(
    instances: Sequence[str], regions: Sequence[str], client: Client
) -> Iterator[Observed | SpotHours | str]:
    """Each price that AWS gives; and in one line each what it would not give, and why."""
    for region in regions:
        for read in (_listed, _spot, _spot_hours, _blocks):
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
    changes = _spot_changes(instances, client("ec2", region), now)
    for name in instances:
        zones = [max(prices)[1] for (instance, _), prices in sorted(changes.items()) if instance == name]
        if zones:
            yield Observed(
                instance=name, market="spot", region=region, usd_per_hour=tuple(zones), date=now.date(),
                source="AWS DescribeSpotPriceHistory",
            )  # fmt: skip


def _spot_hours(instances: Sequence[str], region: str, client: Client) -> Iterator[SpotHours]:
    """How the prices of the last days depend on the hour."""
    now = datetime.now(UTC)
    changes = _spot_changes(instances, client("ec2", region), now - timedelta(days=SPOT_DAYS))
    for name in instances:
        zones = {zone: sorted(prices) for (instance, zone), prices in changes.items() if instance == name}
        hours = by_hour(name, region, zones, now, SPOT_DAYS, "AWS DescribeSpotPriceHistory") if zones else None
        if hours is not None:
            yield hours


def _spot_changes(
    instances: Sequence[str], ec2: Any, start: datetime
) -> dict[tuple[str, str], list[tuple[datetime, float]]]:
    """Of each type and zone the price at `start` and those since, each with the time from which it held."""
    pages = ec2.get_paginator("describe_spot_price_history")
    answers = pages.paginate(
        InstanceTypes=list(instances), ProductDescriptions=["Linux/UNIX", "Linux/UNIX (Amazon VPC)"], StartTime=start
    )
    changes: dict[tuple[str, str], list[tuple[datetime, float]]] = {}
    for page in answers:
        for row in page["SpotPriceHistory"]:
            prices = changes.setdefault((row["InstanceType"], row["AvailabilityZone"]), [])
            prices.append((row["Timestamp"], float(row["SpotPrice"])))
    return changes


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
