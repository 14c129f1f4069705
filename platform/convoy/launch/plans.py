"""The plan of a job, as a run makes and keeps it: when it starts, and once more where its ranks had to measure machines
that the catalog does not know. No run is stopped for one."""

import contextlib
from typing import TYPE_CHECKING, Any

from convoy.config.errors import ConfigError
from convoy.config.run import RunConfig
from convoy.storage import ObjectMissing, Store, StoreUnavailable

if TYPE_CHECKING:
    from convoy.catalog.measured_machine import MeasuredMachine
    from convoy.catalog.prices import PriceBook
    from convoy.planner.measurements import Measurements
    from convoy.planner.plan_schema import Plan
    from convoy.report.train_report import TrainReport

Json = dict[str, Any]

NAME = "plan.json"
"""Below a job."""

WITHOUT = "prices are the catalog's alone: "
"""Begins what a plan says where those of the root could not be read."""


def plan_safely(config: RunConfig, measured: "MeasuredMachine | None" = None, *, root_answers: bool = True) -> "Plan":
    """What `convoy plan` would say, or a plan that says why there is none. measured: by ranks of the job. root_answers:
    whether the root, which may hold prices, is asked."""
    from convoy.catalog.prices import SHIPPED
    from convoy.launch.pricing import without_settled_price
    from convoy.planner.plan import empty_plan, plan

    try:
        prices, why = _prices_or_reason(config) if root_answers else (SHIPPED, "the root cannot be read yet")
        result = plan(without_settled_price(config, prices), _measurements(config, measured, prices))
        return result.model_copy(update={"assumed": (*result.assumed, f"{WITHOUT}{why}")}) if why else result
    except ValueError as error:
        return empty_plan(config, str(error))
    except Exception as error:  # not even a bug in the planner is worth a run
        return empty_plan(config, f"{type(error).__name__}: {error}")


def plan_caveats(config: RunConfig, plan: "Plan") -> tuple[str, ...]:
    """What a person who starts the run should know of this plan next to what it says: where the time of a step comes
    from, that the prices of the root are not in it, and that `cluster.price` is not used. Where a job goes on its ranks
    measure nothing, and what they measured when it began counts."""
    from convoy.catalog.gpus import chip_peak
    from convoy.planner.cost.assumptions import UNUSED_PRICE

    later = plan.step is None and plan.parameters is not None and chip_peak(plan.machines.gpu) is None
    measures = config.train.matmul_peak_seconds > 0 and not config.parallel.cpu_offload
    note = ("a job's first start measures its rates: cards of as many ranks have the step's time from then on",)
    noted = (each for each in plan.assumed if each.startswith(WITHOUT) or each == UNUSED_PRICE)
    return (*(note if later and measures else ()), *noted)


def read_plan(job: Store) -> "Plan | None":
    """The newest one; None: there is none that this version can read. Raises StoreUnavailable."""
    from convoy.planner.plan_schema import Plan

    try:
        return Plan.model_validate_json(job.read(NAME))
    except (ObjectMissing, ValueError):
        return None


class JobPlan:
    """The plan that a job's cards show. Used by one thread at a time."""

    def __init__(self, job: Store, config: RunConfig, plan: "Plan | Json | None" = None) -> None:
        """plan: as the run's first step made it; None: it is made when it is needed."""
        self._job = job
        self._config = config
        self._initial = plan
        self._plan: Plan | None = None
        self._written: Plan | None = None
        self._tried: MeasuredMachine | None = None

    def for_report(self, report: "TrainReport") -> "Plan":
        """With what the log says of the machines by now. The steps themselves never come into it."""
        plan = self._plan or self._initial_or_new_plan()
        machine = report.hardware.machine if report.hardware else None
        if machine is not None and self._says_more(plan, machine):
            self._tried = machine
            again = plan_safely(self._config, machine)
            plan = plan if again.step is None else again
        self._plan = plan
        self._keep(plan)
        return plan

    def _says_more(self, plan: "Plan", machine: "MeasuredMachine") -> bool:
        """Each measurement is tried once: a slower rank may report later."""
        is_catalogued = plan.step is not None and plan.measured is None
        same = machine.ranks == plan.machines.ranks
        return same and not is_catalogued and machine not in (plan.measured, self._tried)

    def _initial_or_new_plan(self) -> "Plan":
        from convoy.planner.plan_schema import Plan

        if self._initial is not None:
            with contextlib.suppress(ValueError):  # of another version, in a run that was resumed
                return Plan.model_validate(self._initial)
        return plan_safely(self._config)

    def _keep(self, plan: "Plan") -> None:
        """Where the store takes it; else again with the next card."""
        if plan is self._written:
            return
        with contextlib.suppress(StoreUnavailable):  # which the agent reports: a card is drawn all the same
            self._job.write(NAME, (plan.model_dump_json(indent=1) + "\n").encode())
            self._written = plan


def _measurements(config: RunConfig, measured: "MeasuredMachine | None", prices: "PriceBook") -> "Measurements":
    from convoy.planner.measurements import Measurements

    host = this_host_facts(config)
    return Measurements(measured=measured, **host) if host else Measurements(measured=measured, prices=prices)


def this_host_facts(config: RunConfig) -> dict[str, Any]:
    """What this host has, as `Measurements` takes it: only a run on it needs it."""
    from convoy.launch.checks import host
    from convoy.launch.checks.memory import host_memory_mib
    from convoy.planner.workload import rented_type

    if rented_type(config) is not None:
        return {}
    return {"host_bytes": host_memory_mib() * 2.0**20, "host_gpus": host.local_gpus()}


def _prices_or_reason(config: RunConfig) -> tuple["PriceBook", str]:
    """With those of the run's own root, or why they cannot be read."""
    from convoy.catalog.prices import SHIPPED, PriceBook
    from convoy.launch.pricing import read_prices
    from convoy.planner.workload import rented_type
    from convoy.storage import open_store

    if rented_type(config) is None or config.root is None:
        return SHIPPED, ""
    try:
        return PriceBook(read_prices(open_store(config.root, config.checkpoint.store))), ""
    except (ConfigError, StoreUnavailable) as error:
        return SHIPPED, str(error)
