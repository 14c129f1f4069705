"""How many tokens a pass needs so that its computation takes as long as what is sent between machines for it.

Both grow with the parameters, so that their ratio does not depend on the model: each pass over a micro batch sends some
bytes per parameter into each machine, and computes 6 operations per parameter and token on each GPU, and those that
are done again. With fewer tokens the network is what a step takes; with more it can be hidden.
"""

from dataclasses import dataclass

from convoy.planner.step.calibration import Calibration, efficiency_key
from convoy.planner.step.fsdp_units import WIDTH
from convoy.planner.step.hardware import peak_rates
from convoy.planner.step.work import Kernels, pass_work
from convoy.planner.workload import Workload

FLOPS_PER_PARAMETER = 6
"""A token's operations: 2 forward, 4 backward."""


@dataclass(frozen=True)
class BreakEven:
    """Where computation and network take equally long: with fewer tokens in a pass the network sets the pace."""

    tokens_per_pass: float
    """Tokens of one rank."""
    bytes_per_parameter: float
    """What enters a machine in a pass."""


def network_bytes_per_parameter(job: Workload) -> float:
    """What enters a machine in a pass, with any strategy but a pipeline, whose stages send activations.

    The machines of a sharding group gather parameters for forward and, where they were freed since, for backward; of
    each message a machine has its own part already. Replicas of what the group holds together all-reduce gradients once
    a step, which is a scatter and a gather.
    """
    parallel, train, passes = job.parallel, job.train, job.passes
    machines = max(1, job.ranks_per_state_copy // job.machine.ranks)
    replicas, lacking = job.nodes // machines, (machines - 1) / machines
    gathers = lacking * (2 if parallel.reshard_after_forward else 1)
    scatters = lacking * (1 if parallel.reduce_every_pass else 1 / passes)
    scatters += 2 / passes * (replicas - 1) / replicas / machines
    return gathers * WIDTH[train.param_dtype] + scatters * WIDTH[train.reduce_dtype]


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
    machine = peak_rates(job.machine, job.train.param_dtype, job.ranks)
    size = network_bytes_per_parameter(job)
    again = 2 * pass_work(job, Kernels()).again.matmul  # a share of forward's operations
    rate = machine.flops * constants.matmul_efficiency[efficiency_key(calibration, machine.chip)] * parallel.tensor
    between = machine.between_bytes_per_second * constants.between_efficiency
    return BreakEven(break_even_tokens(size, between, rate, FLOPS_PER_PARAMETER + again), size)
