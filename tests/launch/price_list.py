"""The price list of a root, as a refresh leaves it."""

from datetime import UTC, date, datetime
from pathlib import Path

from convoy.catalog.prices import ObservedPrice, PriceList, merge_prices
from convoy.launch.pricing import NAME
from convoy.storage import open_store


def refresh_prices(root: Path | str, region: str = "us-east-1", **usd_per_hour: float | tuple[float, ...]) -> PriceList:
    """Write what p4d.24xlarge costs in each market, or in each of its zones, as AWS told on the first day of 2027."""
    rows = [
        ObservedPrice(
            instance="p4d.24xlarge", market=market, region=region, date=date(2027, 1, 1), source="AWS",
            usd_per_hour=usd if isinstance(usd, tuple) else (usd,),
        )
        for market, usd in usd_per_hour.items()
    ]  # fmt: skip
    prices = merge_prices(None, rows, datetime.now(UTC))
    open_store(str(root)).write(NAME, prices.model_dump_json().encode())
    return prices
