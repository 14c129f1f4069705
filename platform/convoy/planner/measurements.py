"""What a plan takes for granted: what somebody measured, and in whose place assumptions stand."""

from dataclasses import dataclass

from convoy.catalog.measured_machine import MeasuredMachine
from convoy.catalog.prices import SHIPPED, PriceBook
from convoy.planner.cost.failures import Restart, Saving
from convoy.planner.step.calibration import Calibration


@dataclass(frozen=True)
class Given:
    """All of it may be left out."""

    saving: Saving | None = None
    """What a periodic save takes, as the checkpoint suite measures it."""
    restart: Restart | None = None
    """As the recovery suite measures it."""
    replacement_seconds: float | None = None
    """Until there is another machine in place of one that is gone, which no suite can measure. None: as `restart` has
    it, or assumed."""
    node_bytes_per_second: float | None = None
    """That one machine writes to the root while all others do. None: no notice is counted as used, and the storage is
    taken to hold nothing back."""
    sources: tuple[str, ...] = ()
    """Of these: what was measured, where and when, as a plan is to say it."""
    calibration: Calibration | None = None
    """Of the step's time. None: the shipped one."""
    prices: PriceBook = SHIPPED
    """A configuration's own price is added to it."""
    host_bytes: float = 0.0
    """Memory of this host, for a run without an instance type."""
    host_gpus: int = 0
    """The same of its GPUs."""
    measured: MeasuredMachine | None = None
    """By ranks of the job, after its first step: in place of the catalog where that does not know the machines."""
