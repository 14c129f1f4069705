"""A gang's machines, where the catalog does not have them: what its ranks measure of them before the first block."""

from collections.abc import Callable
from typing import Literal

import torch.distributed as dist

from convoy.benchmark.groups import Group
from convoy.benchmark.variants.worlds import world_of
from convoy.catalog.gpus import rented_gpu
from convoy.catalog.measured_machine import MeasuredMachine
from convoy.config.errors import ConfigError
from convoy.config.parallel import ParallelConfig
from convoy.config.run import RunConfig
from convoy.planner.workload import machine_of
from convoy.training.measure.machine_probe import probe
from convoy.training.process_groups import Ranks


def measured_machines(group: Group, ranks: Ranks, passed: Callable[[], None]) -> dict[str, MeasuredMachine]:
    """By the type of number that variants compute in, what the slowest rank found with all ranks at once; none where
    the catalog has the machines, or nobody wants to know.

    Gathers and reductions are those of all ranks that share a model; sums those of all ranks that each have one, where
    a variant has such. passed: called after each measurement, on each rank: it goes on. All ranks call it alike.
    """
    if group.environment is not None or not group.measure.machine_seconds or _known(group.run, ranks):
        return {}
    found = {}
    configs = [spec.config(group.run) for spec in group.variants if spec.kind == "ours"]
    for dtype in sorted({config.train.param_dtype for config in configs}):
        machine = _measured(group, dtype, "fsdp", ranks)
        passed()
        if machine is None:  # of a custom model
            return {}
        if any(config.parallel.strategy != "fsdp" for config in configs if config.train.param_dtype == dtype):
            beside = _measured(group, dtype, "ddp", ranks)
            machine = machine.model_copy(update={"all_reduce": beside and beside.all_reduce})
            passed()
        found[str(dtype)] = machine
    return found


def _known(run: RunConfig, ranks: Ranks) -> bool:
    """Whether the catalog has what computes: not where a GPU is configured and the ranks have none."""
    try:
        machine = machine_of(run, host_gpus=int(ranks.device.type == "cuda"))
    except ConfigError:  # which is told where the cases are predicted, and no benchmark ends for it
        return False
    return ranks.device.type == "cuda" and rented_gpu(machine.gpu) is not None


def _measured(group: Group, dtype: str, strategy: Literal["fsdp", "ddp"], ranks: Ranks) -> MeasuredMachine | None:
    parallel = ParallelConfig(strategy=strategy)
    train = group.run.train.model_copy(update={"param_dtype": dtype})
    config = group.run.model_copy(update={"parallel": parallel, "train": train})
    own = probe(config, world_of(ranks, ranks.place.world_size, parallel), group.measure.machine_seconds)
    return slowest(own, ranks)


def slowest(own: MeasuredMachine | None, ranks: Ranks) -> MeasuredMachine | None:
    """What the slowest of these ranks measured, as a step is as long as its slowest rank; None: nobody did. All ranks
    call it alike, and are told the same."""
    told: list[MeasuredMachine | None] = [None] * ranks.place.world_size
    dist.all_gather_object(told, own, group=ranks.control)
    return min((each for each in told if each is not None), key=lambda each: each.matmul_flops, default=None)
