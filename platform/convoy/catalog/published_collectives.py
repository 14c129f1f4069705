"""Published measurements of collectives, each with its date and source, to hold own ones against."""

from datetime import date

from pydantic import Field

from convoy.catalog import load_table
from convoy.config.base import FrozenConfig
from convoy.config.network import Operation


class PublishedCollective(FrozenConfig):
    """One published row of nccl-tests, out of place."""

    instance: str | None
    """AWS's instance type; None: the page does not name it."""
    nodes: int = Field(ge=1)
    ranks: int = Field(ge=2)
    """One for each GPU that took part."""
    transport: str
    """What carried it between GPUs: `NVLink`, `EFA` or `TCP`."""
    operation: Operation
    size: int = Field(ge=1)
    """Bytes."""
    microseconds: float = Field(gt=0)
    busbw_gb_per_second: float = Field(ge=0)
    """10^9 bytes per second, as printed: to two decimals."""
    date: date
    """Day of the measurement's publication, or of the version of the page that has it."""
    source: str
    """Title of the page."""
    url: str


def published_collectives(operation: Operation, instance: str | None = None) -> list[PublishedCollective]:
    """Published rows of an operation, in the catalog's order: of one instance type, or all of them."""
    book = load_table("published_collectives")
    return [
        PublishedCollective(
            **{
                **row,
                "date": date.fromisoformat(row["date"]),
                "source": book["sources"][row["source"]]["title"],
                "url": book["sources"][row["source"]]["url"],
            }
        )
        for row in book["anchors"]
        if row["operation"] == operation and instance in (None, row["instance"])
    ]
