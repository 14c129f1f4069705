"""Limits on time and money: the job saves and ends cleanly when one is reached."""

from pydantic import Field

from convoy.config.base import Frozen


class BudgetConfig(Frozen):
    """Counted over all generations of the job."""

    max_hours: float | None = Field(None, gt=0)
    """Hours of gang time."""
    max_cost_usd: float | None = Field(None, gt=0)
    """US dollars of instance time, at the price that `cluster.price` tells of."""
