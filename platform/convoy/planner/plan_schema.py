"""The plan of a run: what it needs, takes and costs, as `convoy plan` prints it and a job stores it.

docs/reference/plan-formats.md has every key. Bytes and seconds unless a name says otherwise. The parts are the objects
that the planner computes with.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict

from convoy.catalog.measured_machine import MeasuredMachine
from convoy.planner.config_keys import Keys
from convoy.planner.cost.cost_model import BudgetStop, SavePlan
from convoy.planner.cost.market_plans import MarketPlan, MarketPlans
from convoy.planner.memory.host import HostMemory
from convoy.planner.memory.rank import Memory
from convoy.planner.step.break_even import BreakEven
from convoy.planner.step.step_time import StepPlan
from convoy.planner.workload import Batch, Cluster

SCHEMA = 1
"""Raised when a key changes its meaning or goes away; new keys may come without it."""

Part = Literal["memory", "host_memory", "step", "break_even", "saves", "budget"]


class PlanModel(BaseModel):
    """Keys of later versions are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class MissingPart(PlanModel):
    """A part that could not be planned."""

    part: Part
    why: str


class Bottleneck(PlanModel):
    """What holds the run back."""

    what: Literal["memory", "computation", "network", "memory bandwidth", "overheads"]
    text: str


class Change(PlanModel):
    """One key, or keys that go together, with which the plan is better, and the figures of that plan."""

    keys: Keys
    text: str
    """Why."""
    seconds: float
    """Time of a step."""
    memory_share: float
    numerics: str = ""
    """What it changes in the results; empty: nothing beyond the order of sums."""
    run_seconds: float | None = None
    """Until the last token, in the market of the configuration; null: not planned."""
    usd: float | None = None
    """Cost of that; null: no price is known."""


class Plan(PlanModel):
    """The plan of one configuration. Parts that are null are in `missing`, with the reason."""

    schema_version: int = SCHEMA
    model: str
    parameters: int | None = None
    machines: Cluster
    batch: Batch | None = None
    memory: Memory | None = None
    host_memory: HostMemory | None = None
    step: StepPlan | None = None
    break_even: BreakEven | None = None
    saves: SavePlan | None = None
    budget: MarketPlans | None = None
    limits: tuple[Bottleneck, ...] = ()
    changes: tuple[Change, ...] = ()
    """The fastest first; those with more machines after them, and those that change the results last."""
    missing: tuple[MissingPart, ...]
    assumed: tuple[str, ...] = ()
    """Assumptions in place of measurements, each with its day and source."""
    calibration: str
    """Day and data of the constants of the step's time."""
    measured: MeasuredMachine | None = None
    """What ranks of the job measured after its first step, if the step's time was planned from that; null: the catalog
    knows the machines, or there is no time."""
    training: str = ""
    """Hash of what determines the time of steps and saves; generations of a job whose log has the same trained as
    planned."""
    unmodelled: str = ""
    """What of the configuration no formula of a step covers, so that its time is planned without it."""
    least_nodes: int | None = None
    """Fewest machines on which the same configuration fits, in up to 90 % of memory; null: it fits already, or on no
    number of them."""
    stop: BudgetStop | None = None
    """Null: no limit ends the run early, or its time is not planned."""
    refused: tuple[str, ...] = ()
    """Why the train flow would not start it; where its files are is not checked."""

    @property
    def configured_market(self) -> MarketPlan | None:
        """Time and cost in the market of the configuration."""
        if self.budget is None:
            return None
        return next((each for each in self.budget.markets if each.market == self.machines.market), None)

    def missing_reasons(self) -> tuple[str, ...]:
        """Which of memory, time, saves and cost are missing, with the reason. Without the time of a step the others
        are missing for the same reason."""
        parts = ("memory", "step") if self.step is None else ("memory", "saves", "budget")
        reasons: dict[str, list[str]] = {}
        for each in self.missing:
            if each.part in parts:
                reasons.setdefault(each.why, []).append(each.part)
        return tuple(f"{', '.join(names)} ({why})" for why, names in reasons.items())

    @property
    def fits(self) -> bool:
        """As far as that is known."""
        hosted = self.host_memory is None or self.host_memory.fits
        return hosted and (self.memory is None or self.memory.fits)

    @property
    def fits_reliably(self) -> bool:
        """It fits, and that can be counted on."""
        return self.fits and self.memory is not None and self.memory.reliable
