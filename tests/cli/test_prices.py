"""`convoy prices`: each known price is listed with its day, and AWS's answers are kept next to the catalog's."""

from pathlib import Path

import pytest

from convoy.catalog.prices import SHIPPED
from convoy.cli import prices
from convoy.launch.pricing import NAME, read_prices
from convoy.storage import open_store
from tests.catalog.test_aws_prices import REGION, TYPE, Aws, answering
from tests.cli import convoy


def test_the_catalog_s_prices_are_listed_with_day_and_source(tmp_path: Path) -> None:
    known = SHIPPED.price(TYPE, "on_demand", "us-east-1")
    assert known is not None
    done = convoy("prices", "list", "--instance", TYPE, "--region", "us-east-1", "--root", tmp_path)
    assert done.exit_code == 0, done.output
    (line,) = [line for line in done.output.splitlines() if "on_demand" in line]
    for told in (TYPE, "us-east-1", f"{known.usd_per_hour:,.2f}", str(known.date)):
        assert told in line
    assert f"\n{line.split()[-1]}: {known.source}\n" in done.output
    assert "p5.48xlarge" not in done.output


def test_every_price_is_one_whole_line_of_80_columns(tmp_path: Path) -> None:
    output = convoy("prices", "list", "--root", tmp_path, columns=80).output
    rows = {tuple(line.split()[:3]) for line in output.splitlines() if len(line) <= 80}
    assert {(p.instance, p.market, p.region) for p in SHIPPED.prices()} <= rows
    assert "…" not in output


def test_what_aws_answers_is_kept_and_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prices, "boto3_client", answering().client)
    where = ("--instance", TYPE, "--region", REGION, "--root", tmp_path)
    done = convoy("prices", "refresh", *where)
    assert done.exit_code == 0, done.output
    kept = read_prices(open_store(str(tmp_path)))
    assert kept is not None
    assert f"{len(kept.prices)} prices of today in {tmp_path}/{NAME}" in done.output
    listed = convoy("prices", "list", *where).output
    assert "AWS Price List, effective 2026-11-01" in listed
    assert "21.95" in listed


def test_without_any_answer_it_fails_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    aws = Aws()
    aws.pricing.add_client_error("get_products", "UnauthorizedOperation", "not allowed")
    for operation in ("describe_spot_price_history", "describe_capacity_block_offerings"):
        aws.ec2.add_client_error(operation, "UnauthorizedOperation", "not allowed")
    monkeypatch.setattr(prices, "boto3_client", aws.client)
    done = convoy("prices", "refresh", "--instance", TYPE, "--region", REGION, "--root", tmp_path)
    assert done.exit_code == 1
    assert "spot prices of us-west-2" in done.output
    assert not (tmp_path / NAME).exists()


def test_an_instance_that_is_not_known_is_one_line(tmp_path: Path) -> None:
    done = convoy("prices", "refresh", "--instance", "p9.huge", "--root", tmp_path)
    assert done.exit_code == 2
    assert done.output.startswith("convoy: ")
    assert "p9.huge" in done.output
