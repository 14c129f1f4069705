"""How often spot machines are taken away, as AWS's Spot Instance Advisor tells it: in bands."""

import math
from datetime import date

from pydantic import Field

from convoy.catalog.tables import table
from convoy.config.base import Frozen

MONTH_SECONDS = 365.25 / 12 * 86400


class Interruptions(Frozen):
    """Of one instance type."""

    instance: str
    low: float = Field(ge=0, lt=1)
    """Share of machines that were taken away within a month: the band's lower end."""
    high: float = Field(gt=0, lt=1)
    date: date
    """Day of the observation."""
    source: str


def interruptions(instance: str) -> Interruptions | None:
    """The newest that the catalog has; None: nothing is known of this type."""
    rows = [row for row in table("interruptions")["interruptions"] if row["instance"] == instance]
    if not rows:
        return None
    newest = max(rows, key=lambda row: str(row["date"]))
    source = table("interruptions")["sources"][newest["source"]]
    return Interruptions.model_validate({**newest, "source": source})


def mtbf_seconds(share: float, nodes: int) -> float:
    """Mean time between interruptions of a gang of so many machines, of each of which `share` is the chance to be taken
    within a month: they are taken independently, at a constant rate. Raises ValueError unless 0 < share < 1."""
    if not 0 < share < 1:
        raise ValueError(f"share = {share}: must be between 0 and 1")
    return MONTH_SECONDS / (-math.log1p(-share) * nodes)
