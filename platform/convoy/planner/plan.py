"""A configuration's plan: memory, step, time and cost, what holds it back and what to change."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from convoy.config.model import CustomModelConfig
from convoy.config.run import RunConfig, with_param_dtype
from convoy.config.timing_hash import training_hash
from convoy.config.train import ParamDtype
from convoy.display.formatting import gib
from convoy.model.counts import parameter_count
from convoy.planner.cost.assumptions import of_course, of_label, of_step
from convoy.planner.cost.campaign import Course, planned_budget, planned_saves
from convoy.planner.cost.stopping import planned_stop
from convoy.planner.measurements import Measurements
from convoy.planner.memory.capacity import Room, least_nodes, room_of
from convoy.planner.memory.gpu import Memory, memory
from convoy.planner.parts import (
    planned_batch,
    planned_break_even,
    planned_host_memory,
    planned_machines,
    planned_memory,
    planned_step,
)
from convoy.planner.plan_parts import Missing, Part, PlannedBreakEven, PlannedMachines
from convoy.planner.plan_schema import Plan
from convoy.planner.search.advice import Judged, changes, limits
from convoy.planner.step.calibration import Calibration, shipped, shipped_for
from convoy.planner.step.step_time import StepTime, step_time, unmodelled
from convoy.planner.workload import (
    UNNAMED,
    Machine,
    Workload,
    as_measured,
    machine_of,
    rented_type,
    unlabelled,
)

_PARTS: tuple[Part, ...] = ("memory", "host_memory", "step", "break_even", "saves", "budget")

_DTYPES: tuple[ParamDtype, ...] = ("fp32", "bf16")

T = TypeVar("T")


def plan(config: RunConfig, measurements: Measurements | None = None, machine: Machine | None = None) -> Plan:
    """What cannot be planned is missing from it, with the reason. machine: in place of the configuration's. Raises
    ConfigError for an instance type that the catalog does not have, and ValueError for ranks that cannot be divided as
    configured."""
    measurements, label = measurements or Measurements(), of_label(config)
    config = unlabelled(config)
    machine = as_measured(
        machine or machine_of(config, measurements.host_bytes, measurements.host_gpus), measurements.measured
    )
    if config.train.param_dtype == "auto":
        found = _with_auto(config, measurements, machine)
        return found.model_copy(update={"assumed": (*label, *found.assumed)})
    calibration = measurements.calibration or (shipped_for(machine.measured.kind) if machine.measured else shipped())
    machines = planned_machines(config, machine)
    model = config.model
    if isinstance(model, CustomModelConfig):
        why = f"model.build = {model.build}: nothing is known of it"
        return _plan(config, machines, calibration, [Missing(part=part, why=why) for part in _PARTS])
    job = Workload(model, config.data.sequence_length, config.train, config.parallel, machine, config.cluster.nodes)
    found = _Planning(config, job, measurements, calibration, machines).plan()
    return found.model_copy(update={"assumed": (*label, *found.assumed)})


def _with_auto(config: RunConfig, measurements: Measurements, machine: Machine) -> Plan:
    """With `train.param_dtype: auto`. A CPU is measured when the job first starts: until then the plan is that of the
    type with which a step is predicted to be shorter, or else of fp32, and says what the other one changes."""
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


def nothing_planned(config: RunConfig, why: str) -> Plan:
    """A plan without a part, for where `plan` raises: of the configuration as it stands, since whatever the planner is
    asked may raise again."""
    cluster = config.cluster
    machines = PlannedMachines(
        nodes=cluster.nodes,
        ranks_per_node=cluster.nproc_per_node or 1,
        gpu=UNNAMED,
        instance_type=rented_type(config),
        market=cluster.market,
        region=cluster.region,
    )
    return _told(config, machines, [Missing(part=part, why=why) for part in _PARTS], {"calibration": "none"})


class _Planning:
    """Part by part; what one lacks is noted, and those that need it say the same."""

    def __init__(
        self,
        config: RunConfig,
        job: Workload,
        measurements: Measurements,
        calibration: Calibration,
        machines: PlannedMachines,
    ) -> None:
        self._config, self._job, self._measurements = config, job, measurements
        self._calibration, self._machines = calibration, machines
        self._missing: list[Missing] = []

    def plan(self) -> Plan:
        job, config = self._job, self._config
        needed = self._part("memory", self._memory)
        host = self._part("host_memory", lambda: planned_host_memory(job, needed))
        time = self._part("step", lambda: step_time(job, self._calibration))
        even = self._part("break_even", self._break_even)
        course = self._course(time)
        saves = self._part("saves", lambda: planned_saves(course())) if time else None
        budget = self._part("budget", lambda: planned_budget(course())) if time else None
        space = None if needed is None else room_of(job, needed)
        least = self._least_nodes(space) if space else None
        judged = None
        if space and time:
            judged = Judged(config, job, space, time, self._calibration, self._measurements, least)
        told = {
            "parameters": parameter_count(job.model),
            "batch": planned_batch(job),
            "memory": needed and planned_memory(needed),
            "host_memory": host,
            "step": time and planned_step(job, time, saves),
            "break_even": even,
            "saves": saves,
            "budget": budget,
            "least_nodes": least,
            "stop": planned_stop(course()) if saves else None,
            "limits": limits(judged, even) if judged else (),
            "changes": changes(judged) if judged else (),
            "assumed": (
                *(of_step(job, self._calibration) if time else ()),
                *(of_course(course()) if saves or budget else ()),
            ),
            "measured": job.machine.measured if time else None,
        }
        return _plan(config, self._machines, self._calibration, self._missing, told)

    def _part(self, part: Part, made: Callable[[], T]) -> T | None:
        try:
            return made()
        except ValueError as error:
            self._missing.append(Missing(part=part, why=str(error)))
            return None

    def _memory(self) -> Memory:
        if not self._job.machine.memory_bytes:
            raise ValueError(f"{self._job.machine.gpu}: how much memory it has is not known")
        return memory(self._job, fused=self._config.optimizer.fused)

    def _least_nodes(self, space: Room) -> int | None:
        """Of rented machines: those of a local run are parts of one."""
        if self._config.cluster.instance_type is None or space.enough:
            return None
        return least_nodes(self._job, fused=self._config.optimizer.fused)

    def _break_even(self) -> PlannedBreakEven:
        return planned_break_even(self._job, self._calibration)

    def _course(self, time: StepTime | None) -> Callable[[], Course]:
        if time is None:
            why = "the step's time is not planned"
            self._missing += [Missing(part="saves", why=why), Missing(part="budget", why=why)]

        def course() -> Course:
            assert time is not None
            return Course(self._config, self._job, time.total, self._measurements)

        return course


def _plan(
    config: RunConfig,
    machines: PlannedMachines,
    calibration: Calibration,
    missing: list[Missing],
    told: dict[str, object] | None = None,
) -> Plan:
    of = {
        "training": training_hash(config),
        "unmodelled": unmodelled(config),
        "calibration": f"{calibration.date}: {calibration.data}",
    }
    return _told(config, machines, missing, {**of, **(told or {})})


def _told(config: RunConfig, machines: PlannedMachines, missing: list[Missing], told: Mapping[str, object]) -> Plan:
    nothing = dict.fromkeys(("parameters", "batch", *_PARTS)) | {"limits": (), "changes": (), "assumed": ()}
    known = {"model": config.model.name, "machines": machines, "missing": tuple(missing)}
    return Plan.model_validate({**known, **nothing, **told})
