"""What turns a measured energy into that of a data centre, and into carbon: by AWS region, dated, with a source."""

from datetime import date

from pydantic import Field

from convoy.catalog import table
from convoy.config.base import Frozen


class Pue(Frozen):
    """Power usage effectiveness: what a region's data centres draw for what their machines draw."""

    region: str
    """E.g. `us-east-1`."""
    pue: float = Field(ge=1)
    year: int
    """Of which it is the average."""
    date: date
    """Day of the observation."""
    source: str


class GridIntensity(Frozen):
    """What a kilowatt-hour from a region's grid emits, whatever certificates were bought for it (location-based)."""

    region: str
    grams_per_kwh: float = Field(ge=0)
    """Of CO2 equivalent."""
    year: int
    """Of which it is the average."""
    date: date
    """Day of the observation."""
    source: str


def pue(region: str) -> Pue | None:
    """The newest of exactly this region; None where none was published, and a global average stands for none."""
    row = _newest("pue", region)
    return None if row is None else Pue.model_validate(row)


def grid_intensity(region: str) -> GridIntensity | None:
    """The newest of exactly this region; None where none is known."""
    row = _newest("grid", region)
    return None if row is None else GridIntensity.model_validate(row)


def _newest(name: str, region: str) -> dict[str, object] | None:
    rows = [row for row in table("energy")[name] if row["region"] == region]
    if not rows:
        return None
    newest = max(rows, key=lambda row: (int(row["year"]), str(row["date"])))
    return {**newest, "source": table("energy")["sources"][newest["source"]]}
