"""The time of one optimizer step, part by part, before it is taken. docs/explanation/step-time.md derives each part."""

import math
from dataclasses import dataclass, field, fields

from convoy.config.run import RunConfig
from convoy.planner.step import compute
from convoy.planner.step.calibration import Calibration, Constants, chip_of, shipped, shipped_for
from convoy.planner.step.compute import Rates, Seconds, larger
from convoy.planner.step.exposed import Exposed, exposed
from convoy.planner.step.hardware import Hardware, hardware
from convoy.planner.step.traffic import Message, Traffic, traffic
from convoy.planner.step.work import Kernels, Work, work
from convoy.planner.workload import Workload


@dataclass(frozen=True)
class StepTime:
    """Seconds of one step; the parts add up to it. What is computed again in backward is in the first four."""

    matmul: float
    """Linear layers and the head."""
    attention: float
    memory: float
    """Kernels bound by memory: norms, nonlinearities, residuals, the loss."""
    kernels: float
    """Gaps between kernels."""
    host: float
    """The GPU, with nothing to compute or to send, waits for the CPU that starts its kernels."""
    gather: float
    """Parameters are gathered, and no computation hides it."""
    reduce: float
    """The same of gradients."""
    packing: float
    """Messages are moved through the GPU's memory."""
    tensor: float
    """Ranks of one product add up activations."""
    bubble: float
    """A stage of the pipeline waits for the others, and for what they hand on."""
    optimizer: float
    step: float
    """What a step takes whatever it computes."""
    straggling: float
    """Machines wait for the slowest."""

    @property
    def total(self) -> float:
        parts: list[float] = [getattr(self, part.name) for part in fields(self)]
        return sum(parts)


PART_NAMES = {
    "matmul": "matrix products",
    "attention": "attention",
    "memory": "norms and other work bound by memory",
    "kernels": "gaps between kernels",
    "host": "waiting for the CPU",
    "gather": "exposed gathers of parameters",
    "reduce": "exposed reductions of gradients",
    "packing": "packing and unpacking messages",
    "tensor": "adding up activations",
    "bubble": "waiting for other stages",
    "optimizer": "the update",
    "step": "fixed cost of a step",
    "straggling": "waiting for the slowest machine",
}
"""The parts of `StepTime` in words."""


@dataclass(frozen=True)
class Counted:
    """All that the formulas need of a workload; numbers, or arrays of them for many workloads."""

    work: Work
    traffic: Traffic
    hardware: Hardware
    passes: float
    stages: float
    log_nodes: float
    """Natural logarithm of the machines."""
    tokens: float
    """Of one step and GPU."""
    exposed: Exposed = field(default_factory=Exposed)
    """What collectives take by measured lines; where there are none, that follows from `traffic`."""


def step_time(
    job: Workload,
    calibration: Calibration | None = None,
    kernels: Kernels | None = None,
    machine: Hardware | None = None,
) -> StepTime:
    """machine: peaks in place of the catalog's. Raises ValueError where no time can be planned: a GPU without figures,
    states in host memory."""
    calibration, kernels = calibration or calibration_of(job), kernels or Kernels()
    if job.parallel.cpu_offload:
        raise ValueError("cpu_offload: its time is not planned")
    counted = count(job, kernels, machine)
    return parts(counted, calibration.constants, chip_of(calibration, counted.hardware.chip), kernels)


def calibration_of(job: Workload) -> Calibration:
    """The shipped one for its machines."""
    measured = job.machine.measured
    return shipped() if measured is None else shipped_for(measured.kind)


def unmodelled(config: RunConfig) -> str:
    """What of this configuration no formula of a step covers; empty: nothing. Its measured steps then say nothing about
    the formulas."""
    if not config.data.packing:
        return "padded samples are not planned"
    if not config.optimizer.fused:
        return "AdamW that is not fused is not planned"
    if not config.train.prefetch_steps:
        return "batches that are not made ahead are not planned"
    return ""


def tokens_per_second(job: Workload, time: StepTime) -> float:
    """Of each GPU."""
    return job.tokens_per_step / job.ranks / time.total


def count(job: Workload, kernels: Kernels, machine: Hardware | None = None) -> Counted:
    """Raises ValueError as `hardware` and `exposed`."""
    peaks, measured = machine or hardware(job.machine, job.train.param_dtype, job.ranks), job.machine.measured
    return Counted(
        work=work(job, kernels),
        traffic=traffic(job),
        hardware=peaks,
        passes=job.passes,
        stages=job.parallel.pipeline,
        log_nodes=math.log(job.nodes),
        tokens=job.tokens_per_step / job.ranks,
        exposed=exposed(job, measured) if measured is not None and not peaks.hides else Exposed(),
    )


def parts(counted: Counted, k: Constants, chip: str, kernels: Kernels) -> StepTime:
    """chip: under which the constants have its efficiencies."""
    done, sent, passes = counted.work, counted.traffic, counted.passes
    rates = _rates(counted.hardware, k, chip, kernels)
    ahead = compute.forward(done, rates, k)
    back = compute.backward(done, ahead)
    whole = (ahead + back).times(done.blocks) + compute.head(done, rates, k)
    modelled, lines = counted.hardware.hides, counted.exposed
    gather, reduce = _exposed(counted, k, ahead, back)
    gather, reduce = modelled * gather + lines.gather, modelled * reduce + lines.reduce
    packing = k.sharding_traffic * (modelled * _held(counted) + lines.moved) / rates.memory
    tensor = done.blocks * sent.tensor_sums * _seconds(sent.tensor, counted.hardware, k)
    tensor = modelled * (tensor + _seconds(sent.tensor_head, counted.hardware, k))
    # Nothing is taken to hide what a stage hands on, forward and back: torch's schedule waits for it.
    handed_on = modelled * 2 * _seconds(sent.send, counted.hardware, k)
    running = whole.times(passes)
    among = tensor + lines.tensor / passes
    # The CPU starts kernels and collectives ahead of the GPU, which does not stop for it while it has work of either.
    on_gpu = running.total + gather + reduce + packing + tensor * passes + lines.tensor
    waiting = larger(0.0, compute.host(done, k) * passes - on_gpu)
    seconds = {
        "matmul": running.matmul,
        "attention": running.attention,
        "memory": running.memory,
        "kernels": running.kernels,
        "host": waiting,
        "gather": gather,
        "reduce": reduce,
        "packing": packing,
        "tensor": tensor * passes + lines.tensor,
        "bubble": (counted.stages - 1) * (whole.total + waiting / passes + among + handed_on) + passes * handed_on,
        "optimizer": k.optimizer_bytes * sent.updated / rates.memory,
        "step": k.step_seconds,
    }
    return StepTime(**seconds, straggling=k.straggling * counted.log_nodes * sum(seconds.values()))


def _rates(machine: Hardware, k: Constants, chip: str, kernels: Kernels) -> Rates:
    head = machine.flops * k.matmul_efficiency[chip]
    efficiency = k.attention_efficiency if kernels.attention == "sdpa" else k.triton_attention_efficiency
    return Rates(
        matmul=head * (k.fp8_speedup if kernels.matmul == "fp8" else 1.0),
        head=head,
        attention=larger(machine.attention_flops, machine.flops * (machine.attention_flops == 0)) * efficiency[chip],
        memory=machine.memory_bytes_per_second * k.memory_efficiency,
        gap=k.kernel_seconds + k.operations * machine.operation_seconds,
    )


def _exposed(counted: Counted, k: Constants, ahead: Seconds, back: Seconds) -> tuple[float, float]:
    """Seconds of a step that gathers and reductions add to it.

    A block's parameters are gathered while the block before it computes, and its gradients are reduced while the next
    one's backward runs: all but the first gather and the last reduction of a pass have something to hide behind.
    """
    sent, machine, hidden = counted.traffic, counted.hardware, counted.work.blocks - 1
    gather, reduce = _seconds(sent.gather, machine, k), _seconds(sent.reduce, machine, k)
    copies = _seconds(sent.replicate, machine, k)
    again = sent.again * gather
    forward = _seconds(sent.gather_root, machine, k) + gather + hidden * _added(gather, ahead.total, k)
    gathering = hidden * _added(again, back.total, k)
    ends = _added(_seconds(sent.gather_again, machine, k), back.total, k)
    reducing = hidden * _added(again + reduce, back.total, k)
    replicating = hidden * _added(again + reduce + copies, back.total, k)
    last = reduce + _seconds(sent.reduce_root, machine, k)
    once = replicating - reducing + copies + _seconds(sent.replicate_root, machine, k)
    return sent.gathering * (forward + gathering + ends), sent.reducing * (reducing - gathering + last) + once


def _added(message: float, above: float, k: Constants) -> float:
    """By which a collective lengthens the computation above it: what it is longer than that, and what it takes from it
    meanwhile."""
    longer = larger(0.0, message - above)
    return longer + k.contention * (message - longer)


def _seconds(message: Message, machine: Hardware, k: Constants) -> float:
    """Of a collective alone: its slowest link, and its hops."""
    inside = message.inside / (machine.inside_bytes_per_second * k.inside_efficiency)
    between = message.between / (machine.between_bytes_per_second * k.between_efficiency)
    return larger(inside, between) + k.hop_factor * message.hops


def _held(counted: Counted) -> float:
    """Bytes of all messages of a step that hold parameters or gradients."""
    sent, blocks = counted.traffic, counted.work.blocks
    gathered = blocks * sent.gather.held * (1 + sent.again) + sent.gather_root.held + sent.gather_again.held
    reduced = blocks * sent.reduce.held + sent.reduce_root.held
    copied = blocks * sent.replicate.held + sent.replicate_root.held
    return sent.gathering * gathered + sent.reducing * reduced + copied
