"""`convoy prices`: what is known is told with its day, and what AWS tells is kept beside it."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.stub import ANY, Stubber
from click.testing import CliRunner, Result

from convoy.catalog.prices import SHIPPED, Observed
from convoy.cli import prices
from convoy.cli.main import main
from convoy.cli.prices import aws_prices
from convoy.launch.pricing import NAME, read_prices
from convoy.storage import open_store

REGION = "us-west-2"
TYPE = "p4d.24xlarge"


def term(usd: str, **attributes: str) -> dict[str, Any]:
    dimension = {"unit": "Hrs", "pricePerUnit": {"USD": usd}}
    upfront = {"unit": "Quantity", "pricePerUnit": {"USD": "1000"}}
    return {
        "priceDimensions": {"b": dimension} if not attributes else {"a": upfront, "b": dimension},
        "effectiveDate": "2026-11-01T00:00:00Z",
        "termAttributes": attributes,
    }


def product() -> str:
    no_upfront = {"LeaseContractLength": "1yr", "OfferingClass": "standard", "PurchaseOption": "No Upfront"}
    reserved = {"1": term("13.0", **no_upfront), "2": term("9.0", **(no_upfront | {"LeaseContractLength": "3yr"}))}
    return json.dumps({"product": {}, "terms": {"OnDemand": {"x": term("21.95")}, "Reserved": reserved}})


class Aws:
    """Clients that answer once as told, and refuse what the service would not take."""

    def __init__(self) -> None:
        keys = {"aws_access_key_id": "x", "aws_secret_access_key": "x"}
        self.pricing = boto3.client("pricing", region_name="us-east-1", **keys)
        self.ec2 = boto3.client("ec2", region_name=REGION, **keys)
        self.stubs = Stubber(self.pricing), Stubber(self.ec2)
        self.asked: list[tuple[str, str]] = []

    def client(self, service: str, region: str) -> Any:
        self.asked.append((service, region))
        return self.pricing if service == "pricing" else self.ec2

    def read(self) -> list[Observed | str]:
        for stub in self.stubs:
            stub.activate()
        return list(aws_prices([TYPE], [REGION], self.client))


def answered(change: Callable[[Aws], None] = lambda _: None) -> Aws:
    aws = Aws()
    now = datetime.now(UTC)
    change(aws)
    rows = [("a", "9.5", 1), ("a", "9.0", 2), ("b", "8.0", 1)]
    history = [
        {
            "InstanceType": TYPE,
            "AvailabilityZone": f"{REGION}{zone}",
            "SpotPrice": usd,
            "Timestamp": now.replace(year=2026, month=1, day=day),
            "ProductDescription": "Linux/UNIX",
        }
        for zone, usd, day in rows
    ]
    listed = {"FormatVersion": "aws_v1", "PriceList": [product()]}
    aws.stubs[0].add_response("get_products", listed, {"ServiceCode": "AmazonEC2", "Filters": ANY})
    aws.stubs[1].add_response("describe_spot_price_history", {"SpotPriceHistory": history})
    blocks = [
        {"UpfrontFee": "720.0", "CapacityBlockDurationHours": 24, "InstanceCount": 2, "InstanceType": TYPE},
        {"UpfrontFee": "360.0", "CapacityBlockDurationHours": 24, "InstanceCount": 1, "InstanceType": TYPE},
    ]
    aws.stubs[1].add_response("describe_capacity_block_offerings", {"CapacityBlockOfferings": blocks})
    return aws


def refused() -> Aws:
    """Who asks may ask for nothing."""
    aws = Aws()
    pricing, ec2 = aws.stubs
    pricing.add_client_error("get_products", "UnauthorizedOperation", "not allowed")
    for operation in ("describe_spot_price_history", "describe_capacity_block_offerings"):
        ec2.add_client_error(operation, "UnauthorizedOperation", "not allowed")
    return aws


def test_each_market_has_its_price_of_today() -> None:
    aws = answered()
    found = [row for row in aws.read() if isinstance(row, Observed)]

    assert {row.market: row.usd_per_hour for row in found} == {
        "on_demand": (21.95,),
        "reserved": (13.0,),
        "reserved_3y": (9.0,),
        "spot": (9.0, 8.0),
        "capacity_block": (15.0,),
    }
    assert {row.date for row in found} == {datetime.now(UTC).date()}
    assert {row.region for row in found} == {REGION}
    assert found[0].source == "AWS Price List, effective 2026-11-01"
    assert aws.asked == [("pricing", "us-east-1"), ("ec2", REGION), ("ec2", REGION)]


def test_what_is_not_told_is_said_and_the_rest_is_read() -> None:
    aws = answered()
    aws.stubs[0]._queue.clear()
    aws.stubs[0].add_client_error("get_products", "AccessDeniedException", "no pricing:GetProducts")
    found = aws.read()
    assert [row.market for row in found if isinstance(row, Observed)] == ["spot", "capacity_block"]
    [told] = [row for row in found if isinstance(row, str)]
    assert told.startswith("listed prices of us-west-2: An error occurred (AccessDeniedException)")


def test_a_type_that_comes_in_no_capacity_block_is_passed_over() -> None:
    aws = answered()
    aws.stubs[1]._queue.pop()
    aws.stubs[1].add_client_error("describe_capacity_block_offerings", "InvalidParameterValue", "not offered")
    assert [row.market for row in aws.read() if isinstance(row, Observed)] == [
        "on_demand",
        "reserved",
        "reserved_3y",
        "spot",
    ]


def run(root: Path, *words: str) -> Result:
    return CliRunner().invoke(main, ["prices", *words, "--root", str(root)], env={"COLUMNS": "200"})


def test_the_catalog_s_prices_are_listed_with_day_and_source(tmp_path: Path) -> None:
    known = SHIPPED.price(TYPE, "on_demand", "us-east-1")
    assert known is not None
    done = run(tmp_path, "list", "--instance", TYPE, "--region", "us-east-1")
    assert done.exit_code == 0, done.output
    (line,) = [line for line in done.output.splitlines() if "on_demand" in line]
    for told in (TYPE, "us-east-1", f"{known.usd_per_hour:,.2f}", str(known.date)):
        assert told in line
    assert f"\n{line.split()[-1]}: {known.source}\n" in done.output
    assert "p5.48xlarge" not in done.output


def test_every_price_is_one_whole_line_of_80_columns(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["prices", "list", "--root", str(tmp_path)], env={"COLUMNS": "80"})
    rows = {tuple(line.split()[:3]) for line in done.output.splitlines() if len(line) <= 80}
    assert {(p.instance, p.market, p.region) for p in SHIPPED.prices()} <= rows
    assert "…" not in done.output


def test_what_aws_tells_is_kept_and_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    aws = answered()
    for stub in aws.stubs:
        stub.activate()
    monkeypatch.setattr(prices, "_client", aws.client)
    done = run(tmp_path, "refresh", "--instance", TYPE, "--region", REGION)
    assert done.exit_code == 0, done.output
    kept = read_prices(open_store(str(tmp_path)))
    assert kept is not None
    assert {each.date for each in kept.prices} == {datetime.now(UTC).date()}
    assert f"{len(kept.prices)} prices of today in {tmp_path}/{NAME}" in done.output
    listed = run(tmp_path, "list", "--instance", TYPE, "--region", REGION).output
    assert "AWS Price List, effective 2026-11-01" in listed
    assert "21.95" in listed


def test_nothing_told_is_a_failure_that_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    aws = refused()
    for stub in aws.stubs:
        stub.activate()
    monkeypatch.setattr(prices, "_client", aws.client)
    done = run(tmp_path, "refresh", "--instance", TYPE, "--region", REGION)
    assert done.exit_code == 1
    assert "spot prices of us-west-2" in done.output
    assert not (tmp_path / NAME).exists()


def test_an_instance_that_is_not_known_is_one_line(tmp_path: Path) -> None:
    done = run(tmp_path, "refresh", "--instance", "p9.huge")
    assert done.exit_code == 2
    assert done.output.startswith("convoy: ")
    assert "p9.huge" in done.output
