"""A configuration's plan: memory, step, time and cost, what holds it back and what to change."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import TypeVar

from convoy.config.model import CustomModelConfig
from convoy.config.run import RunConfig
from convoy.config.timed import training_hash
from convoy.model.counts import multiplied_parameters, parameter_count
from convoy.planner.advice import Judged, changes, limits
from convoy.planner.assumptions import of_course, of_label, of_step
from convoy.planner.breakeven import (
    FLOPS_PER_PARAMETER,
    FORWARD_FLOPS_PER_PARAMETER,
    break_even_tokens,
    sending,
)
from convoy.planner.calibration import Calibration, chip_of, shipped, shipped_for
from convoy.planner.campaign import Course, planned_budget, planned_saves
from convoy.planner.given import Given
from convoy.planner.hardware import hardware
from convoy.planner.host_memory import host_memory
from convoy.planner.machine import UNNAMED, as_measured, machine_of, rented_type, unlabelled
from convoy.planner.memory import Memory, memory
from convoy.planner.room import Room, least_nodes, room_of
from convoy.planner.step import StepTime, step_time
from convoy.planner.stopping import planned_stop
from convoy.planner.unmodelled import unmodelled
from convoy.planner.utilisation import hfu, mfu
from convoy.planner.work import Kernels, work
from convoy.planner.workload import Machine, Workload
from convoy.results.plan import Plan
from convoy.results.plan_parts import (
    Missing,
    Part,
    PlannedBatch,
    PlannedBreakEven,
    PlannedHostMemory,
    PlannedMachines,
    PlannedMemory,
    PlannedSaves,
    PlannedStep,
)

_PARTS: tuple[Part, ...] = ("memory", "host_memory", "step", "break_even", "saves", "budget")

T = TypeVar("T")


def plan(config: RunConfig, given: Given | None = None, machine: Machine | None = None) -> Plan:
    """What cannot be planned is missing from it, with the reason. machine: in place of the configuration's. Raises
    ConfigError for an instance type that the catalog does not have, and ValueError for ranks that cannot be divided as
    configured."""
    given, label = given or Given(), of_label(config)
    config = unlabelled(config)
    machine = as_measured(machine or machine_of(config, given.host_bytes, given.host_gpus), given.measured)
    calibration = given.calibration or (shipped_for(machine.measured.kind) if machine.measured else shipped())
    machines = _machines(config, machine)
    model = config.model
    if isinstance(model, CustomModelConfig):
        why = f"model.build = {model.build}: nothing is known of it"
        return _plan(config, machines, calibration, [Missing(part=part, why=why) for part in _PARTS])
    job = Workload(model, config.data.sequence_length, config.train, config.parallel, machine, config.cluster.nodes)
    found = _Planning(config, job, given, calibration, machines).plan()
    return found.model_copy(update={"assumed": (*label, *found.assumed)})


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
        self, config: RunConfig, job: Workload, given: Given, calibration: Calibration, machines: PlannedMachines
    ) -> None:
        self._config, self._job, self._given = config, job, given
        self._calibration, self._machines = calibration, machines
        self._missing: list[Missing] = []

    def plan(self) -> Plan:
        job, config = self._job, self._config
        needed = self._part("memory", self._memory)
        host = self._part("host_memory", lambda: _host_memory(job, needed))
        time = self._part("step", lambda: step_time(job, self._calibration))
        even = self._part("break_even", self._break_even)
        course = self._course(time)
        saves = self._part("saves", lambda: planned_saves(course())) if time else None
        budget = self._part("budget", lambda: planned_budget(course())) if time else None
        space = None if needed is None else room_of(job, needed)
        least = self._least_nodes(space) if space else None
        judged = None
        if space and time:
            judged = Judged(config, job, space, time, self._calibration, self._given, least)
        told = {
            "parameters": parameter_count(job.model),
            "batch": _batch(job),
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
        return break_even(self._job, self._calibration)

    def _course(self, time: StepTime | None) -> Callable[[], Course]:
        if time is None:
            why = "the step's time is not planned"
            self._missing += [Missing(part="saves", why=why), Missing(part="budget", why=why)]

        def course() -> Course:
            assert time is not None
            return Course(self._config, self._job, time.total, self._given)

        return course


def planned_memory(needed: Memory) -> PlannedMemory:
    return PlannedMemory(
        parts={str(part): size for part, size in needed.parts.items()},
        peak_bytes=needed.peak,
        fixed_bytes=needed.fixed,
        nominal_bytes=needed.nominal,
        capacity_bytes=needed.capacity,
        margin_bytes=needed.margin,
        share=needed.share,
        fits=needed.fits,
        reliable=needed.reliable,
    )


def planned_step(job: Workload, time: StepTime, saves: PlannedSaves | None) -> PlannedStep:
    speed, peak = job.tokens_per_step / time.total, hardware(job.machine, job.train.param_dtype).flops
    each = speed / job.ranks
    stall = None
    if saves is not None:
        stall = saves.stall_seconds / saves.every_steps if saves.every_steps else 0.0
    return PlannedStep(
        parts=dataclasses.asdict(time),
        seconds=time.total,
        save_stall_seconds=stall,
        tokens_per_second=speed,
        tokens_per_second_per_gpu=each,
        peak_flops=peak,
        mfu=mfu(job, each, peak),
        hfu=hfu(job, each, peak),
        multiplied_parameters=multiplied_parameters(job.model),
    )


def break_even(job: Workload, calibration: Calibration) -> PlannedBreakEven:
    """Raises ValueError where nothing of the kind crosses the network."""
    parallel, constants = job.parallel, calibration.constants
    if job.nodes == 1:
        raise ValueError("one machine: nothing crosses the network")
    if parallel.pipeline > 1:
        raise ValueError("pipeline: what a pass sends does not grow with the parameters")
    machine = hardware(job.machine, job.train.param_dtype, job.ranks)
    size = sending(job).bytes_per_parameter(job.train.param_dtype, job.train.reduce_dtype)
    again = FORWARD_FLOPS_PER_PARAMETER * work(job, Kernels()).again.matmul
    rate = machine.flops * constants.matmul_efficiency[chip_of(calibration, machine.chip)] * parallel.tensor
    between = machine.between_bytes_per_second * constants.between_efficiency
    tokens = break_even_tokens(size, between, rate, FLOPS_PER_PARAMETER + again)
    return PlannedBreakEven(tokens_per_pass=tokens, bytes_per_parameter=size)


def _host_memory(job: Workload, needed: Memory | None) -> PlannedHostMemory:
    if not job.machine.host_bytes:
        raise ValueError("how much memory the host has is not known")
    found = host_memory(job, needed.peak if needed else 0)
    return PlannedHostMemory(
        states_bytes=found.states,
        staged_bytes=found.staged,
        processes_bytes=found.processes,
        capacity_bytes=found.capacity,
        fits=found.fits,
    )


def _machines(config: RunConfig, machine: Machine) -> PlannedMachines:
    cluster = config.cluster
    return PlannedMachines(
        nodes=cluster.nodes,
        ranks_per_node=machine.ranks,
        gpu=machine.gpu,
        instance_type=cluster.instance_type,
        market=cluster.market,
        region=cluster.region,
    )


def _batch(job: Workload) -> PlannedBatch:
    return PlannedBatch(
        tokens_per_step=job.tokens_per_step,
        passes=job.passes,
        sequences_per_pass=job.sequences_per_pass,
        tokens_per_pass=job.tokens_per_pass,
        padded_sequences=job.passes * job.sequences_per_pass * job.data_ranks - job.train.global_batch,
    )


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
