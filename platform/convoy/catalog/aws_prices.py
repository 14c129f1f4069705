"""What AWS says that machines cost now: on demand, reserved, on spot and in capacity blocks."""

import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from convoy.catalog.prices import Market, ObservedPrice

PRICE_LIST_REGION = "us-east-1"
"""Where the Price List answers, for all regions."""

BLOCK_HOURS = 24
"""Length of the capacity blocks whose price is read."""

_NOTHING_UPFRONT = {"OfferingClass": "standard", "PurchaseOption": "No Upfront"}

TERMS: dict[Market, tuple[str, dict[str, str]]] = {
    "on_demand": ("OnDemand", {}),
    "reserved": ("Reserved", {"LeaseContractLength": "1yr", **_NOTHING_UPFRONT}),
    "reserved_3y": ("Reserved", {"LeaseContractLength": "3yr", **_NOTHING_UPFRONT}),
}
"""The terms of the Price List that are read, and their attributes. With nothing upfront, reserved instances can be
compared with the others by the hour."""

Client = Callable[[str, str], Any]
"""A boto3 client, by service and region."""

_Reading = tuple[str, Market, Sequence[float], str]
"""Instance type, market, US dollars per hour of each zone, and source."""


def fetch_aws_prices(instances: Sequence[str], regions: Sequence[str], client: Client) -> Iterator[ObservedPrice | str]:
    """Each price that AWS gives, of today; and for each kind of price that it does not give, the reason in one line."""
    readers = {"list": _read_list_prices, "spot": _read_spot_prices, "capacity block": _read_block_prices}
    for region in regions:
        for kind, read in readers.items():
            try:
                for name, market, usd, source in read(instances, region, client):
                    day = datetime.now(UTC).date()
                    yield ObservedPrice(
                        instance=name, market=market, region=region, usd_per_hour=tuple(usd), date=day, source=source
                    )
            except (BotoCoreError, ClientError) as error:
                yield f"{kind} prices of {region}: {error}"


def boto3_client(service: str, region: str) -> Any:
    import boto3

    make: Any = boto3.client  # whose types are one for each service
    return make(service, region_name=region)


def _read_list_prices(instances: Sequence[str], region: str, client: Client) -> Iterator[_Reading]:
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
                for market, (kind, attributes) in TERMS.items():
                    for term in terms.get(kind, {}).values():
                        hourly = (
                            _hourly_usd(term) if attributes.items() <= term.get("termAttributes", {}).items() else 0.0
                        )
                        if hourly > 0:
                            yield name, market, (hourly,), f"AWS Price List, effective {term['effectiveDate'][:10]}"


def _hourly_usd(term: dict[str, Any]) -> float:
    """US dollars per hour; 0: the term has no hourly price."""
    prices = (
        float(dimension["pricePerUnit"]["USD"])
        for dimension in term["priceDimensions"].values()
        if dimension.get("unit") == "Hrs" and "USD" in dimension["pricePerUnit"]
    )
    return next(prices, 0.0)


def _read_spot_prices(instances: Sequence[str], region: str, client: Client) -> Iterator[_Reading]:
    """The newest price of each zone."""
    pages = client("ec2", region).get_paginator("describe_spot_price_history")
    kinds = ["Linux/UNIX", "Linux/UNIX (Amazon VPC)"]
    newest: dict[tuple[str, str], tuple[datetime, float]] = {}
    for page in pages.paginate(InstanceTypes=list(instances), ProductDescriptions=kinds, StartTime=datetime.now(UTC)):
        for row in page["SpotPriceHistory"]:
            key, price = (row["InstanceType"], row["AvailabilityZone"]), (row["Timestamp"], float(row["SpotPrice"]))
            newest[key] = max(price, newest.get(key, price))
    for name in instances:
        zones = [usd for (instance, _), (_, usd) in sorted(newest.items()) if instance == name]
        if zones:
            yield name, "spot", zones, "AWS DescribeSpotPriceHistory"


def _read_block_prices(instances: Sequence[str], region: str, client: Client) -> Iterator[_Reading]:
    """The hourly price of one machine of a capacity block: the median of all blocks on offer now."""
    ec2 = client("ec2", region)
    for name in instances:
        try:
            offered = ec2.describe_capacity_block_offerings(
                InstanceType=name, InstanceCount=1, CapacityDurationHours=BLOCK_HOURS
            )["CapacityBlockOfferings"]
        except ClientError as error:
            if error.response["Error"]["Code"] in ("InvalidParameterValue", "InvalidParameterCombination"):
                continue  # the type comes in no capacity block
            raise
        hourly = [float(o["UpfrontFee"]) / o["CapacityBlockDurationHours"] / o["InstanceCount"] for o in offered]
        if hourly:
            yield name, "capacity_block", (statistics.median(hourly),), "AWS DescribeCapacityBlockOfferings"
