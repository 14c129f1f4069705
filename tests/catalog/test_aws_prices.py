"""What AWS answers becomes a price of today; what it refuses is one line."""

import json
from datetime import UTC, datetime
from typing import Any

import boto3
from botocore.stub import ANY, Stubber

from convoy.catalog.aws_prices import fetch_aws_prices
from convoy.catalog.prices import ObservedPrice

REGION = "us-west-2"
TYPE = "p4d.24xlarge"


class Aws:
    """Clients that answer once, in the order of `fetch_aws_prices`, and refuse what the service would not take."""

    def __init__(self) -> None:
        keys = {"aws_access_key_id": "x", "aws_secret_access_key": "x"}
        self.clients = {
            "pricing": boto3.client("pricing", region_name="us-east-1", **keys),
            "ec2": boto3.client("ec2", region_name=REGION, **keys),
        }
        self.pricing, self.ec2 = (Stubber(client) for client in self.clients.values())
        self.pricing.activate()
        self.ec2.activate()
        self.asked: list[tuple[str, str]] = []

    def client(self, service: str, region: str) -> Any:
        self.asked.append((service, region))
        return self.clients[service]

    def read(self) -> list[ObservedPrice | str]:
        return list(fetch_aws_prices([TYPE], [REGION], self.client))


def term(usd: str, **attributes: str) -> dict[str, Any]:
    dimension = {"unit": "Hrs", "pricePerUnit": {"USD": usd}}
    upfront = {"unit": "Quantity", "pricePerUnit": {"USD": "1000"}}
    return {
        "priceDimensions": {"b": dimension} if not attributes else {"a": upfront, "b": dimension},
        "effectiveDate": "2026-11-01T00:00:00Z",
        "termAttributes": attributes,
    }


def with_list(aws: Aws) -> None:
    no_upfront = {"LeaseContractLength": "1yr", "OfferingClass": "standard", "PurchaseOption": "No Upfront"}
    three_years = no_upfront | {"LeaseContractLength": "3yr"}
    all_upfront = no_upfront | {"PurchaseOption": "All Upfront"}
    reserved = {"0": term("1.0", **all_upfront), "1": term("13.0", **no_upfront), "2": term("9.0", **three_years)}
    product = json.dumps({"product": {}, "terms": {"OnDemand": {"x": term("21.95")}, "Reserved": reserved}})
    listed = {"FormatVersion": "aws_v1", "PriceList": [product]}
    aws.pricing.add_response("get_products", listed, {"ServiceCode": "AmazonEC2", "Filters": ANY})


def with_spot(aws: Aws) -> None:
    history = [
        {
            "InstanceType": TYPE,
            "AvailabilityZone": f"{REGION}{zone}",
            "SpotPrice": usd,
            "Timestamp": datetime(2026, 1, day, tzinfo=UTC),
            "ProductDescription": "Linux/UNIX",
        }
        for zone, usd, day in [("a", "9.5", 1), ("a", "9.0", 2), ("b", "8.0", 1)]
    ]
    aws.ec2.add_response("describe_spot_price_history", {"SpotPriceHistory": history})


def answering() -> Aws:
    aws = Aws()
    with_list(aws)
    with_spot(aws)
    blocks = [
        {"UpfrontFee": usd, "CapacityBlockDurationHours": 24, "InstanceCount": count, "InstanceType": TYPE}
        for usd, count in (("720.0", 2), ("360.0", 1))
    ]
    aws.ec2.add_response("describe_capacity_block_offerings", {"CapacityBlockOfferings": blocks})
    return aws


def test_each_market_has_its_price_of_today() -> None:
    aws = answering()
    found = [row for row in aws.read() if isinstance(row, ObservedPrice)]

    assert {row.market: row.usd_per_hour for row in found} == {
        "on_demand": (21.95,),
        "reserved": (13.0,),
        "reserved_3y": (9.0,),
        "spot": (9.0, 8.0),
        "capacity_block": (15.0,),
    }
    assert {(row.date, row.region) for row in found} == {(datetime.now(UTC).date(), REGION)}
    assert found[0].source == "AWS Price List, effective 2026-11-01"
    assert aws.asked == [("pricing", "us-east-1"), ("ec2", REGION), ("ec2", REGION)]


def test_what_is_refused_is_said_and_the_rest_is_read() -> None:
    """And a type that comes in no capacity block is passed over."""
    aws = Aws()
    aws.pricing.add_client_error("get_products", "AccessDeniedException", "no pricing:GetProducts")
    with_spot(aws)
    aws.ec2.add_client_error("describe_capacity_block_offerings", "InvalidParameterValue", "not offered")
    line, spot = aws.read()
    assert isinstance(spot, ObservedPrice)
    assert spot.market == "spot"
    assert str(line).startswith("list prices of us-west-2: An error occurred (AccessDeniedException)")
