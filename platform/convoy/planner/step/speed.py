"""The plan of a step: its time, how fast it trains, and how much of the GPUs' peak it uses."""

import dataclasses
from dataclasses import dataclass

from convoy.model.counts import (
    attention_flops_per_token,
    flops_per_token,
    forward_flops_per_token,
    mfu,
    multiplied_parameters,
)
from convoy.planner.step.hardware import hardware
from convoy.planner.step.step_time import StepTime
from convoy.planner.step.work import Kernels, work
from convoy.planner.workload import Workload


@dataclass(frozen=True)
class Step:
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
    def of(cls, job: Workload, time: StepTime, save_stall_seconds: float | None) -> "Step":
        speed, peak = job.tokens_per_step / time.total, hardware(job.machine, job.train.param_dtype).flops
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
    model, again = job.model, work(job, Kernels()).again
    attention = attention_flops_per_token(model, job.sequence_length)
    head = 2.0 * model.vocab_size * model.d_model
    products = forward_flops_per_token(model, job.sequence_length) - attention - head
    return again.matmul * products + again.attention * attention
