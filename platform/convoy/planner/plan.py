"""Plans a configuration: memory, step, time and cost, what holds it back and what to change."""

from collections.abc import Callable
from typing import Any, TypeVar

from convoy.config.model import CustomModelConfig
from convoy.config.run import RunConfig, training_hash, with_param_dtype
from convoy.config.train import ParamDtype
from convoy.display.formatting import gib
from convoy.model.counts import parameter_count
from convoy.planner.cost.assumptions import cost_assumptions, step_assumptions, unused_key_assumptions
from convoy.planner.cost.cost_model import CostModel, first_budget_stop, plan_saves
from convoy.planner.cost.market_plans import plan_markets
from convoy.planner.measurements import Measurements
from convoy.planner.memory.host import HostMemory, host_memory
from convoy.planner.memory.rank import Memory, MemoryFit, fit_with_host, least_nodes, rank_memory
from convoy.planner.plan_schema import MissingPart, Part, Plan
from convoy.planner.search.advice import PlannedConfig, bottlenecks, suggest_changes
from convoy.planner.step.break_even import break_even
from convoy.planner.step.calibration import Calibration, shipped_calibration
from convoy.planner.step.step_time import StepPlan, StepTime, step_time, unmodelled
from convoy.planner.workload import (
    UNNAMED,
    Machine,
    Workload,
    cluster_of,
    machine_of,
    with_measured_fallback,
    without_unused_instance_type,
)

_PARTS: tuple[Part, ...] = ("memory", "host_memory", "step", "break_even", "saves", "budget")

_DTYPES: tuple[ParamDtype, ...] = ("fp32", "bf16")

T = TypeVar("T")


def plan(config: RunConfig, measurements: Measurements | None = None, machine: Machine | None = None) -> Plan:
    """What cannot be planned is in `missing`, with the reason. machine: in place of the configuration's. Raises
    ConfigError for an instance type that the catalog does not have, and ValueError for ranks that cannot be divided as
    configured."""
    measurements, label = measurements or Measurements(), unused_key_assumptions(config)
    config = without_unused_instance_type(config)
    machine = machine or machine_of(config, measurements.host_bytes, measurements.host_gpus)
    machine = with_measured_fallback(machine, measurements.measured)
    if config.train.param_dtype == "auto":
        result = _plan_auto_dtype(config, measurements, machine)
    else:
        calibration = measurements.calibration or shipped_calibration(machine.measured and machine.measured.kind)
        result = _Planner(config, machine, measurements, calibration).plan()
    return result.model_copy(update={"assumed": (*label, *result.assumed)})


def _plan_auto_dtype(config: RunConfig, measurements: Measurements, machine: Machine) -> Plan:
    """Plans `train.param_dtype: auto`. A CPU is measured when the job first starts: until then the plan is that of the
    type with the shorter predicted step, or else of fp32, and says what the other one changes."""
    if machine.gpu != "cpu":
        return plan(with_param_dtype(config, "bf16"), measurements, machine)
    if machine.measured is not None:
        return plan(with_param_dtype(config, machine.measured.dtype), measurements, machine)
    plans = {dtype: plan(with_param_dtype(config, dtype), measurements, machine) for dtype in _DTYPES}
    chosen, other = sorted(_DTYPES, key=lambda dtype: step.seconds if (step := plans[dtype].step) else 0.0)
    text = (
        f"train.param_dtype = auto: planned as {chosen}; the job's first start measures whether fp32 or bf16 is faster "
        f"on its CPU"
    )
    if (needed := plans[other].memory) is not None:
        text += f"; in {other} a rank needs {gib(needed.peak_bytes)}"
    return plans[chosen].model_copy(update={"assumed": (text, *plans[chosen].assumed)})


def empty_plan(config: RunConfig, why: str) -> Plan:
    """A plan without a part, for where `plan` raises. It calls nothing of the planner that may raise again."""
    machines = cluster_of(config, config.cluster.nproc_per_node or 1, UNNAMED)
    return Plan(model=config.model.name, machines=machines, missing=_all_missing(why), calibration="none")


def _all_missing(why: str) -> tuple[MissingPart, ...]:
    return tuple(MissingPart(part=part, why=why) for part in _PARTS)


class _Planner:
    """Plans part by part; notes what a part lacks, and the same for parts that need it."""

    def __init__(
        self, config: RunConfig, machine: Machine, measurements: Measurements, calibration: Calibration
    ) -> None:
        self._config, self._machine = config, machine
        self._measurements, self._calibration = measurements, calibration
        self._missing: list[MissingPart] = []

    def plan(self) -> Plan:
        config, model = self._config, self._config.model
        if isinstance(model, CustomModelConfig):
            return self._make_plan(missing=_all_missing(f"model.build = {model.build}: nothing is known of it"))
        if config.engine.name != "convoy":
            why = f"engine = {config.engine.name}: plans are of Convoy's own engine"
            return self._make_plan(missing=_all_missing(why))
        train, parallel, nodes = config.train, config.parallel, config.cluster.nodes
        job = Workload(model, config.data.sequence_length, train, parallel, self._machine, nodes)
        needed = self._plan_part("memory", lambda: self._rank_memory(job))
        host = self._plan_part("host_memory", lambda: _host_memory(job, needed))
        time = self._plan_part("step", lambda: step_time(job, self._calibration))
        even = self._plan_part("break_even", lambda: break_even(job, self._calibration))
        fit = fit_with_host(job, needed) if needed else None
        least = self._least_nodes(job, fit) if fit else None
        planned = None
        if fit and time:
            planned = PlannedConfig(config, job, fit, time, self._calibration, self._measurements, least)
        return self._make_plan(
            parameters=parameter_count(model),
            batch=job.batch,
            memory=needed,
            host_memory=host,
            break_even=even,
            least_nodes=least,
            limits=bottlenecks(planned, even) if planned else (),
            changes=suggest_changes(planned) if planned else (),
            **self._time_parts(job, time),
            missing=tuple(self._missing),
        )

    def _time_parts(self, job: Workload, time: StepTime | None) -> dict[str, Any]:
        """The parts that need the time of a step."""
        if time is None:
            why = "the step's time is not planned"
            self._missing += [MissingPart(part="saves", why=why), MissingPart(part="budget", why=why)]
            return {}
        costs = CostModel(self._config, job, time.total, self._measurements)
        saves = self._plan_part("saves", lambda: plan_saves(costs))
        budget = self._plan_part("budget", lambda: plan_markets(costs))
        assumed = cost_assumptions(costs) if saves or budget else ()
        return {
            "step": StepPlan.of(job, time, saves.stall_seconds_per_step if saves else None),
            "saves": saves,
            "budget": budget,
            "stop": first_budget_stop(costs) if saves else None,
            "assumed": (*step_assumptions(job, self._calibration), *assumed),
            "measured": job.machine.measured,
        }

    def _plan_part(self, part: Part, make: Callable[[], T]) -> T | None:
        try:
            return make()
        except ValueError as error:
            self._missing.append(MissingPart(part=part, why=str(error)))
            return None

    def _rank_memory(self, job: Workload) -> Memory:
        if not job.machine.memory_bytes:
            raise ValueError(f"{job.machine.gpu}: how much memory it has is not known")
        return rank_memory(job, fused=self._config.optimizer.fused)

    def _least_nodes(self, job: Workload, fit: MemoryFit) -> int | None:
        """Number of rented machines: those of a local run are parts of one."""
        if self._config.cluster.instance_type is None or fit.reliable:
            return None
        return least_nodes(job, fused=self._config.optimizer.fused)

    def _make_plan(self, **parts: Any) -> Plan:
        config, calibration = self._config, self._calibration
        return Plan(
            model=config.model.name,
            machines=cluster_of(config, self._machine.ranks, self._machine.gpu),
            training=training_hash(config),
            unmodelled=unmodelled(config),
            calibration=f"{calibration.date}: {calibration.data}",
            **parts,
        )


def _host_memory(job: Workload, needed: Memory | None) -> HostMemory:
    if not job.machine.host_bytes:
        raise ValueError("how much memory the host has is not known")
    return host_memory(job, needed.peak_bytes if needed else 0)
