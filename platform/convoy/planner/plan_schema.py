"""What a run is planned to need, take and cost: the figures that `convoy plan` shows, as they are kept.

docs/reference/plan-formats.md#plan has every key. Bytes and seconds unless a name says otherwise.
"""

from typing import Literal

from convoy.catalog.measured_machine import MeasuredMachine
from convoy.planner.config_keys import Keys
from convoy.planner.plan_parts import (
    Missing,
    Planned,
    PlannedBatch,
    PlannedBreakEven,
    PlannedBudget,
    PlannedHostMemory,
    PlannedMachines,
    PlannedMarket,
    PlannedMemory,
    PlannedSaves,
    PlannedStep,
    PlannedStop,
)

SCHEMA = 1
"""Raised when a key changes its meaning or goes away; new keys may come without it."""


class Limit(Planned):
    """What holds the run back."""

    what: Literal["memory", "computation", "network", "memory bandwidth", "overheads"]
    text: str


class Change(Planned):
    """One key, or keys that go together, with which the plan is better."""

    keys: Keys
    text: str
    """Why."""
    seconds: float
    """Of a step with it."""
    memory_share: float
    """With it."""
    numerics: str = ""
    """What it changes of the results; empty: nothing beyond the order of sums."""
    run_seconds: float | None = None
    """Until the last token with it, in the market of the configuration; null: not planned."""
    usd: float | None = None
    """That this costs; null: no price is known."""


class Plan(Planned):
    """Of one configuration. What is null is in `missing`, with the reason."""

    schema_version: int = SCHEMA
    model: str
    parameters: int | None
    machines: PlannedMachines
    batch: PlannedBatch | None
    memory: PlannedMemory | None
    host_memory: PlannedHostMemory | None
    step: PlannedStep | None
    break_even: PlannedBreakEven | None
    saves: PlannedSaves | None
    budget: PlannedBudget | None
    limits: tuple[Limit, ...]
    changes: tuple[Change, ...]
    """The fastest first; those with more machines after them, and those that change the results last."""
    missing: tuple[Missing, ...]
    assumed: tuple[str, ...]
    """What stands for measurements, each with its day and source."""
    calibration: str
    """Day and data of the constants of the step's time."""
    measured: MeasuredMachine | None = None
    """What ranks of the job measured after its first step, where the step's time was planned from that; null: the
    catalog knows the machines, or there is no time."""
    training: str = ""
    """Hash of what of the configuration the time of steps and saves follows from; generations of a job whose log has
    the same trained as planned."""
    unmodelled: str = ""
    """What of the configuration no formula of a step has: its time is planned without that. Empty: nothing."""
    least_nodes: int | None = None
    """Fewest machines on which the same configuration fits, in up to 90 % of memory; null: it does already, or on no
    number of them."""
    stop: PlannedStop | None = None
    """null: no limit ends it, or its time is not planned."""
    refused: tuple[str, ...] = ()
    """Why the train flow would not start it, whatever it would take; where files are is not looked at."""

    @property
    def bought(self) -> PlannedMarket | None:
        """Time and cost in the market of the configuration."""
        if self.budget is None:
            return None
        spot = (self.budget.spot,) if self.budget.spot else ()
        return next((each for each in (*self.budget.steady, *spot) if each.market == self.machines.market), None)

    def lacking(self) -> tuple[str, ...]:
        """What of memory, time, saves and cost there is not, with the reason. Where there is no time of a step, the
        others follow from that."""
        parts = ("memory", "step") if self.step is None else ("memory", "saves", "budget")
        found: dict[str, list[str]] = {}
        for each in self.missing:
            if each.part in parts:
                found.setdefault(each.why, []).append(each.part)
        return tuple(f"{', '.join(names)} ({why})" for why, names in found.items())

    @property
    def fits(self) -> bool:
        """As far as that is known."""
        hosted = self.host_memory is None or self.host_memory.fits
        return hosted and (self.memory is None or self.memory.fits)

    @property
    def recommended(self) -> bool:
        """It fits, and that can be counted on."""
        return self.fits and self.memory is not None and self.memory.reliable
