"""How many tokens a pass needs so that its computation takes as long as what is sent between machines for it.

Both grow with the parameters, so that their ratio does not depend on the model: each pass over a micro batch sends some
bytes per parameter into each machine, and computes 6 operations per parameter and token on each GPU, and those that
are done again. With fewer tokens the network is what a step takes; with more it can be hidden.
"""

from dataclasses import dataclass

from convoy.planner.step.calibration import Calibration, chip_of
from convoy.planner.step.fsdp_units import WIDTH
from convoy.planner.step.hardware import hardware
from convoy.planner.step.work import Kernels, work
from convoy.planner.workload import Workload

FLOPS_PER_PARAMETER = 6
"""A token's operations: 2 forward, 4 backward."""

FORWARD_FLOPS_PER_PARAMETER = 2
"""Recomputation repeats a share of these."""


@dataclass(frozen=True)
class BreakEven:
    """Where computation and network take equally long: with fewer tokens in a pass the network sets the pace."""

    tokens_per_pass: float
    """Tokens of one rank."""
    bytes_per_parameter: float
    """What enters a machine in a pass."""


@dataclass(frozen=True)
class TrafficPerParameter:
    """What enters a machine in a pass: parameters that are gathered and gradients that are scattered, as shares of the
    whole model."""

    gathers: float
    scatters: float
    """The scatter and the gather of an all-reduce are two."""

    def bytes_per_parameter(self, param_dtype: str = "bf16", reduce_dtype: str = "fp32") -> float:
        return self.gathers * WIDTH[param_dtype] + self.scatters * WIDTH[reduce_dtype]

    def __add__(self, other: "TrafficPerParameter") -> "TrafficPerParameter":
        return TrafficPerParameter(self.gathers + other.gathers, self.scatters + other.scatters)


def sharded(
    machines: int, passes: int = 1, reshard: bool = True, reduce_every_pass: bool = True
) -> TrafficPerParameter:
    """FSDP over the ranks of so many machines: gathered for forward and, where it was freed since, for backward. Of
    each message a machine has its own part already."""
    lacking = (machines - 1) / machines
    return TrafficPerParameter(lacking * (2 if reshard else 1), lacking * (1 if reduce_every_pass else 1 / passes))


def replicated(copies: int, passes: int = 1, machines: int = 1) -> TrafficPerParameter:
    """HSDP or DDP: gradients alone, all-reduced once a step over copies that so many machines hold together."""
    return TrafficPerParameter(0, 2 / passes * (copies - 1) / copies / machines)


def traffic_per_parameter(job: Workload) -> TrafficPerParameter:
    """Any strategy but a pipeline, whose stages send activations."""
    machines = max(1, job.sharing // job.machine.ranks)
    parallel, passes = job.parallel, job.passes
    within = sharded(machines, passes, parallel.reshard_after_forward, parallel.reduce_every_pass)
    return within + replicated(job.nodes // machines, passes, machines)


def break_even_tokens(
    bytes_per_parameter: float,
    bytes_per_second: float,
    flops_per_second: float,
    flops_per_parameter: float = FLOPS_PER_PARAMETER,
) -> float:
    """Tokens of a GPU and pass, t = (bytes / BW) / (FLOPs / rate).

    bytes_per_second: into a machine, of all its GPUs together. flops_per_second: of one GPU, as matrix products reach
    it: its peak times their efficiency.
    """
    return bytes_per_parameter / bytes_per_second / (flops_per_parameter / flops_per_second)


def break_even(job: Workload, calibration: Calibration) -> BreakEven:
    """Raises ValueError where nothing of the kind crosses the network."""
    parallel, constants = job.parallel, calibration.constants
    if job.nodes == 1:
        raise ValueError("one machine: nothing crosses the network")
    if parallel.pipeline > 1:
        raise ValueError("pipeline: what a pass sends does not grow with the parameters")
    machine = hardware(job.machine, job.train.param_dtype, job.ranks)
    size = traffic_per_parameter(job).bytes_per_parameter(job.train.param_dtype, job.train.reduce_dtype)
    again = FORWARD_FLOPS_PER_PARAMETER * work(job, Kernels()).again.matmul
    rate = machine.flops * constants.matmul_efficiency[chip_of(calibration, machine.chip)] * parallel.tensor
    between = machine.between_bytes_per_second * constants.between_efficiency
    return BreakEven(break_even_tokens(size, between, rate, FLOPS_PER_PARAMETER + again), size)
