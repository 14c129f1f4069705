"""Published times of transfers over several rails, with their date and source."""

from datetime import date

from pydantic import Field

from convoy.catalog import load_table
from convoy.config.base import FrozenConfig


class RailRow(FrozenConfig):
    """One size of message."""

    bytes: int = Field(gt=0)
    one: float = Field(gt=0)
    """Microseconds over one rail."""
    split: float = Field(gt=0)
    """Microseconds with each buffer split over all rails."""
    round_robin: float = Field(gt=0)
    """Microseconds of one buffer to each of `round_robin_targets` hosts at once, over a rail of its own each."""


class PublishedRails(FrozenConfig):
    """One published measurement."""

    what: str
    machine: str
    rails: int = Field(ge=2)
    gbps_per_rail: float = Field(gt=0)
    """10^9 bits per second in each direction."""
    round_robin_targets: int = Field(ge=1)
    source: str
    date: date
    microseconds: tuple[RailRow, ...]
    """From small to large."""


def published_rails() -> PublishedRails:
    """Libefaxx's table of RDMA writes over the four EFA devices that belong to one GPU."""
    return PublishedRails.model_validate(load_table("rails"))
