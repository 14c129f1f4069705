"""What a plan takes in place of assumptions: figures that somebody measured, prices, and what this host has.

Apart from `workload.py`, which each task of a run imports: this needs what assumptions are made of.
"""

from dataclasses import dataclass

from convoy.catalog.measured_machine import MeasuredMachine
from convoy.catalog.prices import SHIPPED, PriceBook
from convoy.planner.cost.failures import RestartCost, SaveCost
from convoy.planner.step.calibration import Calibration


@dataclass(frozen=True)
class Measurements:
    """What somebody measured or named, in place of assumptions and of what is shipped."""

    saving: SaveCost | None = None
    """Cost of a periodic save, as the checkpoint suite measures it."""
    restart: RestartCost | None = None
    """As the recovery suite measures it."""
    replacement_seconds: float | None = None
    """Until another machine replaces one that is gone, which no suite can measure. None: that of `restart`, or
    assumed."""
    node_bytes_per_second: float | None = None
    """Rate at which one machine writes to the root while all others do. None: no notice counts as used, and the storage
    does not limit saves."""
    sources: tuple[str, ...] = ()
    """What was measured, where and when, as a plan is to report it."""
    calibration: Calibration | None = None
    """Constants of the step's time. None: the shipped ones."""
    prices: PriceBook = SHIPPED
    """A configuration's own price is added to it."""
    host_bytes: float = 0.0
    """Memory of this host, for a run without an instance type."""
    host_gpus: int = 0
    measured: MeasuredMachine | None = None
    """What ranks of the job measured after its first step: it replaces a catalog that lacks the machines."""
