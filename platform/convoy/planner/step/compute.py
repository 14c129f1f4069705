"""Seconds that a GPU computes, from counts and constants. docs/explanation/step-time.md#compute derives each formula.

Only sums, products and absolute values: the arguments may be numbers or arrays of them.
"""

from dataclasses import dataclass

from convoy.planner.step.calibration import Constants
from convoy.planner.step.work import Work


@dataclass(frozen=True)
class Rates:
    """What a rank reaches: operations/s; bytes/s of memory; seconds from one kernel to the next."""

    matmul: float
    head: float
    """Never fp8."""
    attention: float
    memory: float
    gap: float


@dataclass(frozen=True)
class Seconds:
    """Time of some work, by what bounds it, as in `StepTime`."""

    matmul: float
    attention: float
    memory: float
    kernels: float

    @property
    def total(self) -> float:
        return self.matmul + self.attention + self.memory + self.kernels

    def __add__(self, other: "Seconds") -> "Seconds":
        return Seconds(
            self.matmul + other.matmul,
            self.attention + other.attention,
            self.memory + other.memory,
            self.kernels + other.kernels,
        )

    def times(self, factor: float) -> "Seconds":
        return Seconds(self.matmul * factor, self.attention * factor, self.memory * factor, self.kernels * factor)


def larger(a: float, b: float) -> float:
    """Elementwise where they are arrays."""
    return (a + b + abs(a - b)) / 2


def forward(work: Work, rates: Rates, k: Constants) -> Seconds:
    """Of one block."""
    return Seconds(
        matmul=work.matmul_flops / rates.matmul + k.matmul_traffic * work.matmul_bytes / rates.memory,
        attention=work.attention_flops / rates.attention * (1 + k.narrow_head / work.head_width),
        memory=k.elementwise_traffic * work.memory_bytes / rates.memory,
        kernels=work.kernels * rates.gap,
    )


def backward(work: Work, ahead: Seconds) -> Seconds:
    """One block, and what of its forward pass is computed again. ahead: its forward pass."""
    return Seconds(
        matmul=ahead.matmul * (2 + work.again.matmul),
        attention=ahead.attention * (work.attention_backward + work.again.attention),
        memory=ahead.memory * (2 + work.again.rest),
        kernels=ahead.kernels * (2 + work.again.rest),
    )


def head(work: Work, rates: Rates, k: Constants) -> Seconds:
    """Logits, loss, and their backward pass."""
    return Seconds(
        matmul=3 * (work.head_flops / rates.head + k.matmul_traffic * work.head_bytes / rates.memory),
        attention=0.0,
        memory=k.logit_bytes * work.logits / rates.memory,
        kernels=0.0,
    )


def host(work: Work, k: Constants) -> float:
    """Of a pass: what the CPU needs to start its kernels."""
    return work.blocks * work.kernels * (3 + work.again.rest) * k.host_seconds
