"""The time of one optimizer step, part by part, before it is taken: from counts and constants to seconds.

Formulas use only sums, products and absolute values, so that arguments may be numbers or arrays of them.
docs/explanation/step-time.md derives each part.
"""

import dataclasses
import math
from dataclasses import dataclass, field, fields

from convoy.config.run import RunConfig
from convoy.model.counts import (
    attention_flops_per_token,
    flops_per_token,
    forward_flops_per_token,
    mfu,
    multiplied_parameters,
)
from convoy.planner.step.calibration import Calibration, Constants, efficiency_key, shipped_calibration
from convoy.planner.step.communication import ExposedSeconds, communication_seconds
from convoy.planner.step.hardware import PeakRates, peak_rates
from convoy.planner.step.traffic import BlockTraffic, LinkLoad, block_traffic
from convoy.planner.step.work import Kernels, PassWork, pass_work
from convoy.planner.workload import Workload


@dataclass(frozen=True)
class StepTime:
    """Seconds of one step; the parts, named in `PART_NAMES`, add up to it. Recomputation is in the first four."""

    matmul: float
    attention: float
    memory: float
    kernels: float
    host: float
    """The GPU, with nothing to compute or to send, waits for the CPU that starts its kernels."""
    gather: float
    reduce: float
    packing: float
    tensor: float
    bubble: float
    """A stage of the pipeline waits for the others, and for what they hand on."""
    optimizer: float
    step: float
    straggling: float

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
class ReachedRates:
    """What a rank reaches: operations/s; bytes/s of memory; seconds from one kernel to the next."""

    matmul: float
    head: float
    """Never fp8."""
    attention: float
    memory: float
    gap: float


Seconds = dict[str, float]
"""Time of some work, by what bounds it: `matmul`, `attention`, `memory` and `kernels`, as in `StepTime`."""


@dataclass(frozen=True)
class StepCounts:
    """All that the formulas need of a workload; numbers, or arrays of them for many workloads."""

    work: PassWork
    traffic: BlockTraffic
    hardware: PeakRates
    passes: float
    stages: float
    log_nodes: float
    """Natural logarithm of the machines."""
    tokens: float
    """Tokens of one step and GPU."""
    exposed: ExposedSeconds = field(default_factory=ExposedSeconds)
    """What collectives take by measured lines; where there are none, that follows from `traffic`."""


def step_time(
    job: Workload,
    calibration: Calibration | None = None,
    kernels: Kernels | None = None,
    machine: PeakRates | None = None,
) -> StepTime:
    """machine: peaks in place of the catalog's. Raises ValueError where no time can be planned: a GPU without figures,
    states in host memory."""
    calibration, kernels = calibration or calibration_of(job), kernels or Kernels()
    if job.parallel.cpu_offload:
        raise ValueError("cpu_offload: its time is not planned")
    counted = step_counts(job, kernels, machine)
    return time_from_counts(counted, calibration.constants, efficiency_key(calibration, counted.hardware.chip), kernels)


def calibration_of(job: Workload) -> Calibration:
    """The shipped one for its machines."""
    return shipped_calibration(job.machine.measured and job.machine.measured.kind)


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


def gpu_tokens_per_second(job: Workload, time: StepTime) -> float:
    """Speed of each GPU."""
    return job.tokens_per_step / job.ranks / time.total


def step_counts(job: Workload, kernels: Kernels, machine: PeakRates | None = None) -> StepCounts:
    """Raises ValueError as `peak_rates` and `communication_seconds`."""
    peaks, measured = machine or peak_rates(job.machine, job.train.param_dtype, job.ranks), job.machine.measured
    return StepCounts(
        work=pass_work(job, kernels),
        traffic=block_traffic(job),
        hardware=peaks,
        passes=job.passes,
        stages=job.parallel.pipeline,
        log_nodes=math.log(job.nodes),
        tokens=job.tokens_per_step / job.ranks,
        exposed=communication_seconds(job, measured) if measured is not None and not peaks.hides else ExposedSeconds(),
    )


def time_from_counts(counted: StepCounts, k: Constants, chip: str, kernels: Kernels) -> StepTime:
    """chip: under which the constants have its efficiencies."""
    done, sent, passes = counted.work, counted.traffic, counted.passes
    rates = _reached_rates(counted.hardware, k, chip, kernels)
    ahead = _forward_seconds(done, rates, k)
    back = _backward_seconds(done, ahead)
    head = _head_seconds(done, rates, k)
    whole = {bound: done.blocks * (ahead[bound] + back[bound]) + head.get(bound, 0.0) for bound in ahead}
    running = {bound: seconds * passes for bound, seconds in whole.items()}
    modelled, lines = counted.hardware.hides, counted.exposed
    gather, reduce = _exposed_gather_reduce(counted, k, ahead, back)
    gather, reduce = modelled * gather + lines.gather, modelled * reduce + lines.reduce
    packing = k.sharding_traffic * (modelled * _message_bytes(counted) + lines.copied_bytes) / rates.memory
    tensor = done.blocks * sent.tensor_sums * _message_seconds(sent.tensor, counted.hardware, k)
    tensor = modelled * (tensor + _message_seconds(sent.tensor_head, counted.hardware, k))
    # Nothing is taken to hide what a stage hands on, forward and back: torch's schedule waits for it.
    handed_on = modelled * 2 * _message_seconds(sent.send, counted.hardware, k)
    one_pass = sum(whole.values()) + tensor + lines.tensor / passes
    # The CPU starts kernels and collectives ahead of the GPU, which does not stop for it while it has work of either.
    on_gpu = sum(running.values()) + gather + reduce + packing + tensor * passes + lines.tensor
    waiting = _maximum(0.0, _launch_seconds(done, k) * passes - on_gpu)
    seconds = {
        **running,
        "host": waiting,
        "gather": gather,
        "reduce": reduce,
        "packing": packing,
        "tensor": tensor * passes + lines.tensor,
        "bubble": (counted.stages - 1) * (one_pass + waiting / passes + handed_on) + passes * handed_on,
        "optimizer": k.optimizer_bytes * sent.updated / rates.memory,
        "step": k.step_seconds,
    }
    return StepTime(**seconds, straggling=k.straggling * counted.log_nodes * sum(seconds.values()))


def _reached_rates(machine: PeakRates, k: Constants, chip: str, kernels: Kernels) -> ReachedRates:
    head = machine.flops * k.matmul_efficiency[chip]
    efficiency = k.attention_efficiency if kernels.attention == "sdpa" else k.triton_attention_efficiency
    return ReachedRates(
        matmul=head * (k.fp8_speedup if kernels.matmul == "fp8" else 1.0),
        head=head,
        attention=_maximum(machine.attention_flops, machine.flops * (machine.attention_flops == 0)) * efficiency[chip],
        memory=machine.memory_bytes_per_second * k.memory_efficiency,
        gap=k.kernel_seconds + k.operations * machine.operation_seconds,
    )


def _maximum(a: float, b: float) -> float:
    """Elementwise where they are arrays."""
    return (a + b + abs(a - b)) / 2


def _forward_seconds(work: PassWork, rates: ReachedRates, k: Constants) -> Seconds:
    """One block."""
    return {
        "matmul": work.matmul_flops / rates.matmul + k.matmul_traffic * work.matmul_bytes / rates.memory,
        "attention": work.attention_flops / rates.attention * (1 + k.narrow_head / work.head_width),
        "memory": k.elementwise_traffic * work.memory_bytes / rates.memory,
        "kernels": work.kernels * rates.gap,
    }


def _backward_seconds(work: PassWork, forward: Seconds) -> Seconds:
    """One block, and what of its forward pass is computed again. forward: its forward pass."""
    return {
        "matmul": forward["matmul"] * (2 + work.again.matmul),
        "attention": forward["attention"] * (work.attention_backward + work.again.attention),
        "memory": forward["memory"] * (2 + work.again.rest),
        "kernels": forward["kernels"] * (2 + work.again.rest),
    }


def _head_seconds(work: PassWork, rates: ReachedRates, k: Constants) -> Seconds:
    """Logits, loss, and their backward pass."""
    return {
        "matmul": 3 * (work.head_flops / rates.head + k.matmul_traffic * work.head_bytes / rates.memory),
        "memory": k.logit_bytes * work.logits / rates.memory,
    }


def _launch_seconds(work: PassWork, k: Constants) -> float:
    """Seconds that the CPU needs to start the kernels of a pass."""
    return work.blocks * work.kernels * (3 + work.again.rest) * k.host_seconds


def _exposed_gather_reduce(counted: StepCounts, k: Constants, ahead: Seconds, back: Seconds) -> tuple[float, float]:
    """Seconds of a step that gathers and reductions add to it.

    A block's parameters are gathered while the block before it computes, and its gradients are reduced while the next
    one's backward runs: all but the first gather and the last reduction of a pass have something to hide behind.
    """
    sent, machine, hidden = counted.traffic, counted.hardware, counted.work.blocks - 1
    forward_seconds, backward_seconds = sum(ahead.values()), sum(back.values())
    gather, reduce = _message_seconds(sent.gather, machine, k), _message_seconds(sent.reduce, machine, k)
    copies = _message_seconds(sent.replicate, machine, k)
    again = sent.again * gather
    root = _message_seconds(sent.gather_root, machine, k)
    forward = root + gather + hidden * _exposed_seconds(gather, forward_seconds, k)
    gathering = hidden * _exposed_seconds(again, backward_seconds, k)
    ends = _exposed_seconds(_message_seconds(sent.gather_again, machine, k), backward_seconds, k)
    reducing = hidden * _exposed_seconds(again + reduce, backward_seconds, k)
    replicating = hidden * _exposed_seconds(again + reduce + copies, backward_seconds, k)
    last = reduce + _message_seconds(sent.reduce_root, machine, k)
    once = replicating - reducing + copies + _message_seconds(sent.replicate_root, machine, k)
    return sent.gathering * (forward + gathering + ends), sent.reducing * (reducing - gathering + last) + once


def _exposed_seconds(message_seconds: float, hiding_seconds: float, k: Constants) -> float:
    """Time that a collective adds to the computation that it overlaps: its excess, and the slowdown meanwhile."""
    longer = _maximum(0.0, message_seconds - hiding_seconds)
    return longer + k.contention * (message_seconds - longer)


def _message_seconds(message: LinkLoad, machine: PeakRates, k: Constants) -> float:
    """Time of a collective alone: its slowest link, and its hops."""
    inside = message.inside / (machine.inside_bytes_per_second * k.inside_efficiency)
    between = message.between / (machine.between_bytes_per_second * k.between_efficiency)
    return _maximum(inside, between) + k.hop_factor * message.hops


def _message_bytes(counted: StepCounts) -> float:
    """Bytes of all messages of a step that hold parameters or gradients."""
    sent, blocks = counted.traffic, counted.work.blocks
    gathered = blocks * sent.gather.held * (1 + sent.again) + sent.gather_root.held + sent.gather_again.held
    reduced = blocks * sent.reduce.held + sent.reduce_root.held
    copied = blocks * sent.replicate.held + sent.replicate_root.held
    return sent.gathering * gathered + sent.reducing * reduced + copied


@dataclass(frozen=True)
class StepPlan:
    """An optimizer step, without saves."""

    parts: dict[str, float]
    """Seconds by part, as in `StepTime`; together `seconds`."""
    seconds: float
    save_stall_seconds: float | None
    """What periodic saves add to it on average; null: not planned."""
    tokens_per_second: float
    """All ranks together."""
    tokens_per_second_per_gpu: float
    peak_flops: float
    """Dense peak of a GPU in the type that computes, operations/s."""
    mfu: float
    """Model FLOPs (6 N + 12 L d S a token) over the peak."""
    hfu: float
    """With what backward recomputes."""
    multiplied_parameters: int | None = None
    """N: all parameters but the rows of input embeddings, which are looked up; a head counts, tied or not. Null: the
    plan is of an older version."""

    @classmethod
    def of(cls, job: Workload, time: StepTime, save_stall_seconds: float | None) -> "StepPlan":
        speed, peak = job.tokens_per_step / time.total, peak_rates(job.machine, job.train.param_dtype).flops
        flops = flops_per_token(job.model, job.sequence_length)
        return cls(
            parts=dataclasses.asdict(time),
            seconds=time.total,
            save_stall_seconds=save_stall_seconds,
            tokens_per_second=speed,
            tokens_per_second_per_gpu=speed / job.ranks,
            peak_flops=peak,
            mfu=mfu(speed / job.ranks, flops, peak),
            hfu=mfu(speed / job.ranks, flops + recomputed_flops_per_token(job), peak),
            multiplied_parameters=multiplied_parameters(job.model),
        )


def recomputed_flops_per_token(job: Workload) -> float:
    """Operations of blocks' forward that backward repeats. The scores that fused attention makes again within its
    kernel are not in it."""
    model, again = job.model, pass_work(job, Kernels()).again
    attention = attention_flops_per_token(model, job.sequence_length)
    head = 2.0 * model.vocab_size * model.d_model
    products = forward_flops_per_token(model, job.sequence_length) - attention - head
    return again.matmul * products + again.attention * attention
