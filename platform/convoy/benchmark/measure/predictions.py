"""What the planner predicts of a gang's cases before their first block, and what it needs to know of the machine."""

from collections.abc import Callable, Mapping
from typing import Literal, TypeVar

import torch.distributed as dist

from convoy.benchmark.groups import Group, VariantSpec
from convoy.benchmark.planner_runs import workload_of
from convoy.benchmark.results.case import CasePrediction
from convoy.benchmark.variants.ranks import join_world
from convoy.catalog.gpus import chip_peak
from convoy.catalog.measured_machine import MeasuredMachine
from convoy.config.errors import ConfigError
from convoy.config.model import TransformerConfig
from convoy.config.parallel import ParallelConfig
from convoy.config.run import RunConfig
from convoy.gang.task import RankPosition
from convoy.model.counts import checkpoint_bytes
from convoy.planner.memory.rank import peak_bytes_by_part
from convoy.planner.step.calibration import shipped_calibration
from convoy.planner.step.step_time import step_time, unmodelled
from convoy.planner.workload import machine_of
from convoy.training.measure.machine_probe import probe_machine
from convoy.training.process_groups import Ranks

T = TypeVar("T")


def measure_machine_by_dtype(group: Group, ranks: Ranks, progress: Callable[[], None]) -> dict[str, MeasuredMachine]:
    """What the slowest rank measures of the machine with all ranks at once, by the type of number that variants compute
    in; empty where the catalog has the machines, or no measurement is wanted.

    Gathers and reductions are those of all ranks that share a model. Sums are those of ranks that have a model each, if
    any variant has such. progress: called after each measurement, on each rank. All ranks call it alike.
    """
    if group.environment is not None or not group.measure.machine_seconds or _in_catalog(group.run, ranks):
        return {}
    machines: dict[str, MeasuredMachine] = {}
    configs = [spec.config(group.run) for spec in group.variants if spec.kind == "ours"]
    for dtype in sorted({config.train.param_dtype for config in configs}):
        machine = _probe_machine(group, dtype, "fsdp", ranks)
        progress()
        if machine is None:  # of a custom model
            return {}
        if any(config.parallel.strategy != "fsdp" for config in configs if config.train.param_dtype == dtype):
            copies = _probe_machine(group, dtype, "ddp", ranks)
            machine = machine.model_copy(update={"all_reduce": copies and copies.all_reduce})
            progress()
        machines[str(dtype)] = machine
    return machines


def _in_catalog(run: RunConfig, ranks: Ranks) -> bool:
    """Whether the catalog has what computes. It has not, if a GPU is configured and the ranks have none."""
    try:
        machine = machine_of(run, host_gpus=int(ranks.device.type == "cuda"))
    except ConfigError:  # the predictions of the cases report it, and no benchmark fails for it
        return False
    return ranks.device.type == "cuda" and chip_peak(machine.gpu) is not None


def _probe_machine(group: Group, dtype: str, strategy: Literal["fsdp", "ddp"], ranks: Ranks) -> MeasuredMachine | None:
    parallel = ParallelConfig(strategy=strategy)
    train = group.run.train.model_copy(update={"param_dtype": dtype})
    config = group.run.model_copy(update={"parallel": parallel, "train": train})
    own = probe_machine(config, join_world(ranks, ranks.place.world_size, parallel), group.measure.machine_seconds)
    return gather_slowest_machine(own, ranks)


def gather_slowest_machine(own: MeasuredMachine | None, ranks: Ranks) -> MeasuredMachine | None:
    """The measurement of the slowest of these ranks, since a step is as long as its slowest rank; None if there is
    none. All ranks call it alike, and get the same."""
    machines: list[MeasuredMachine | None] = [None] * ranks.place.world_size
    dist.all_gather_object(machines, own, group=ranks.control)
    return min((each for each in machines if each is not None), key=lambda each: each.matmul_flops, default=None)


def predict_cases(
    group: Group, place: RankPosition, machines: Mapping[str, MeasuredMachine], *, on_gpus: bool
) -> dict[str, CasePrediction]:
    """Predictions for all cases of a gang by their names, with the constants that are shipped.

    place: of any rank. machines: of `measure_machine_by_dtype`. on_gpus: whether it computes on GPUs.
    """
    return {spec.name: _predict_case(spec, group, place, machines, on_gpus) for spec in group.variants}


def _predict_case(
    spec: VariantSpec, group: Group, place: RankPosition, machines: Mapping[str, MeasuredMachine], on_gpus: bool
) -> CasePrediction:
    config, ranks = spec.config(group.run), spec.ranks or place.world_size
    per_node = min(ranks, place.nproc_per_node)
    machine = machines.get(config.train.param_dtype) if spec.kind == "ours" else None

    def step_seconds() -> float:
        _check_step_is_planned(spec, group, config, place.world_size, machine)
        job = workload_of(config, ranks // per_node, per_node, machine, on_gpus=on_gpus)
        if chip_peak(gpu := job.machine.gpu) is not None and not on_gpus:
            raise ValueError(f"{gpu} is configured, and its ranks compute on CPUs")
        return step_time(job).total

    def peak_bytes() -> int:
        if spec.kind not in ("ours", "saving"):
            raise ValueError("not Convoy's own tensors")
        if config.train.compile:
            raise ValueError("compiled blocks keep less, and how much less is not planned")
        job = workload_of(config, ranks // per_node, per_node, machine, on_gpus=on_gpus)
        return sum(peak_bytes_by_part(job, fused=config.optimizer.fused).values())

    seconds, why_no_step = _result_or_reason(step_seconds)
    n_bytes, why_no_peak = _result_or_reason(peak_bytes)
    calibration = shipped_calibration(machine and machine.kind)
    model, saves = config.model, spec.kind == "saving"
    return CasePrediction(
        calibration=f"{calibration.date}: {calibration.data}",
        machine=machine,
        nodes=ranks // per_node,
        ranks_per_node=per_node,
        step_seconds=seconds,
        why_no_step=why_no_step,
        peak_bytes=n_bytes,
        why_no_peak=why_no_peak,
        saved_bytes=float(checkpoint_bytes(model)) if saves and isinstance(model, TransformerConfig) else None,
    )


def _check_step_is_planned(
    spec: VariantSpec, group: Group, config: RunConfig, all_ranks: int, machine: MeasuredMachine | None
) -> None:
    """Raise ValueError where the planner has no formula for its step. What was measured of a machine holds for all
    ranks of the gang at once, each on the cores that `measure.pin` gives it."""
    if spec.kind != "ours":
        raise ValueError("a save is in each block" if spec.kind == "saving" else "not Convoy's own step")
    if group.environment is not None:
        raise ValueError("its environment is not planned")
    if why := unmodelled(config):
        raise ValueError(why)
    if machine is not None and (spec.ranks or all_ranks) < all_ranks and not spec.at_once:
        raise ValueError(f"{spec.ranks} of the {all_ranks} ranks that measured the machine at once are at work")
    if machine is not None and spec.pins_ranks(group.measure) != group.measure.pin:
        raise ValueError("the machine was measured by ranks on other cores")


def _result_or_reason(predict: Callable[[], T]) -> tuple[T | None, str]:
    """A prediction, or why there is none: it must not fail a gang that is paid for."""
    try:
        return predict(), ""
    except ValueError as error:
        return None, str(error)
    except Exception as error:  # a bug in the planner
        return None, f"{type(error).__name__}: {error}"
