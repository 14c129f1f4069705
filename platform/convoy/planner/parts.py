"""The parts of a plan, as they are kept: each of what the planner works out for one workload."""

import dataclasses

from convoy.config.run import RunConfig
from convoy.model.counts import multiplied_parameters
from convoy.planner.memory.gpu import Memory
from convoy.planner.memory.host import host_memory
from convoy.planner.plan_parts import (
    PlannedBatch,
    PlannedBreakEven,
    PlannedHostMemory,
    PlannedMachines,
    PlannedMemory,
    PlannedSaves,
    PlannedStep,
)
from convoy.planner.step.break_even import (
    FLOPS_PER_PARAMETER,
    FORWARD_FLOPS_PER_PARAMETER,
    break_even_tokens,
    sending,
)
from convoy.planner.step.calibration import Calibration, chip_of
from convoy.planner.step.hardware import hardware
from convoy.planner.step.mfu import hfu, mfu
from convoy.planner.step.step_time import StepTime
from convoy.planner.step.work import Kernels, work
from convoy.planner.workload import Machine, Workload


def planned_machines(config: RunConfig, machine: Machine) -> PlannedMachines:
    cluster = config.cluster
    return PlannedMachines(
        nodes=cluster.nodes,
        ranks_per_node=machine.ranks,
        gpu=machine.gpu,
        instance_type=cluster.instance_type,
        market=cluster.market,
        region=cluster.region,
    )


def planned_batch(job: Workload) -> PlannedBatch:
    return PlannedBatch(
        tokens_per_step=job.tokens_per_step,
        passes=job.passes,
        sequences_per_pass=job.sequences_per_pass,
        tokens_per_pass=job.tokens_per_pass,
        padded_sequences=job.passes * job.sequences_per_pass * job.data_ranks - job.train.global_batch,
    )


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


def planned_host_memory(job: Workload, needed: Memory | None) -> PlannedHostMemory:
    """Raises ValueError where nobody knows how much memory the host has."""
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


def planned_break_even(job: Workload, calibration: Calibration) -> PlannedBreakEven:
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
