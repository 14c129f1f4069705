"""`convoy prices`: what is known is told with its day, and what AWS tells is kept beside it."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from convoy.catalog.prices import SHIPPED
from convoy.cli import prices
from convoy.cli.main import main
from convoy.launch.pricing import NAME, read_prices
from convoy.storage import open_store
from tests.launch.test_aws_prices import REGION, TYPE, answered, refused


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
