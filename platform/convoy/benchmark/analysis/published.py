"""Runs that others published, next to the models and machines of a benchmark. Pure.

The runs are those that the planner is validated against (`planner/validation/published.csv`). There are none on CPUs.
"""

import math
import re
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from pydantic import ValidationError

from convoy.benchmark.analysis.report import GroupFigures, PublishedFigures, PublishedRun, is_valid_training
from convoy.benchmark.results.case import CHANGED, Case, Hardware, key_of
from convoy.catalog.gpus import GpuPeak, chip_peak, gpu_peak
from convoy.catalog.instances import instance, instance_names
from convoy.config.model import TransformerConfig
from convoy.model.counts import parameter_count
from convoy.planner.validation.published import MeasuredRun, published_runs

SAME_SIZE = 1.25
"""Models whose numbers of parameters differ by at most this factor are of about the same size."""

GIB = 2**30


class _Gpu(NamedTuple):
    peak: GpuPeak
    memory_gib: float | None
    """None: not known."""


def published_figures(groups: Sequence[GroupFigures], cases: Sequence[Case]) -> tuple[PublishedFigures, ...]:
    """One for each model on each kind of machine for which there are published runs, also where none of the model's
    cases could be measured.

    groups: of the cases. None for a model that was changed so that it can be cut, or whose samples are no tokens.
    """
    first = {(case.suite, case.group): case for case in reversed(cases)}
    found: dict[tuple[str, str], PublishedFigures] = {}
    for group in groups:
        if group.model.endswith(CHANGED) or group.unit != "tokens":
            continue
        key = group.model, group.hardware.machine
        figures = found.get(key) or _without_case(group, first[group.suite, group.name])
        if figures is not None:
            found[key] = _with_fastest_case(figures, group)
    return tuple(found.values())


def comparable_runs(gpu: GpuPeak, memory_gib: float | None, parameters: int, length: int) -> list[MeasuredRun]:
    """Runs in bf16 of models of about the same size on the same chip: of those, the ones whose GPU has as much memory,
    if any, and then those of the sequence length that is nearest to `length`, from few GPUs to many.

    memory_gib: None: not known.
    """
    runs = [
        run
        for run in _runs()
        if run.kernels.matmul == "bf16"
        and chip_peak(run.workload.machine.gpu or "") == gpu
        and max(parameters, _size(run)) <= SAME_SIZE * min(parameters, _size(run))
    ]
    if memory_gib is not None:
        runs = [run for run in runs if abs(_memory_gib(run) - memory_gib) < 1] or runs
    distance = min((_apart(run, length) for run in runs), default=0.0)
    nearest = [run for run in runs if _apart(run, length) == distance]
    return sorted(nearest, key=lambda run: (run.workload.ranks, run.tokens_per_second))


def _without_case(group: GroupFigures, case: Case) -> PublishedFigures | None:
    """case: any of the group. None: there are no published runs."""
    gpu, parameters, length = _gpu_of(group.hardware), group.parameters or _parameters(case), _sequence_length(case)
    runs = [] if gpu is None or length is None else comparable_runs(*gpu, parameters, length)
    if not runs:
        return None
    machines = group.hardware.machine
    return PublishedFigures(
        model=group.model, parameters=parameters, machines=machines, runs=tuple(map(_published_run, runs))
    )


def _with_fastest_case(figures: PublishedFigures, group: GroupFigures) -> PublishedFigures:
    """With the group's fastest valid case, if it is faster for each rank than the one before. Fewer ranks than the
    gang's train in some cases of the scaling suite, which are left out."""
    whole = [case for case in group.cases if is_valid_training(case) and group.suite != "scaling"]
    case = max(whole, key=lambda case: case.rate, default=None)
    if case is None:
        return figures
    rate = case.rate / group.hardware.ranks
    if rate <= (figures.tokens_per_second_of_rank or 0.0):
        return figures
    name = key_of(group.suite, group.name, case.name)
    return figures.model_copy(update={"case": name, "tokens_per_second_of_rank": rate, "mfu": case.mfu})


def _published_run(run: MeasuredRun) -> PublishedRun:
    job, publication = run.workload, run.publication
    assert publication is not None, "each shipped run has one"
    return PublishedRun(
        model=run.name,
        parameters=_size(run),
        gpu=job.machine.gpu or "",
        gpu_memory_bytes=round(job.machine.memory_bytes),
        gpus=job.ranks,
        sequence_length=job.sequence_length,
        sharding=job.parallel.strategy,
        recomputation=job.train.activation_checkpointing,
        tokens_per_second_of_gpu=run.tokens_per_second,
        mfu=run.mfu,
        source=run.source,
        published=publication.date,
        url=publication.url,
    )


@cache
def _runs() -> tuple[MeasuredRun, ...]:
    return tuple(published_runs())


def _size(run: MeasuredRun) -> int:
    return parameter_count(run.workload.model)


def _memory_gib(run: MeasuredRun) -> float:
    return run.workload.machine.memory_bytes / GIB


def _apart(run: MeasuredRun, length: int) -> float:
    return abs(math.log(run.workload.sequence_length / length))


def _gpu_of(hardware: Hardware) -> _Gpu | None:
    """By the name that CUDA reports, which may have the memory, else by the configured machine, as of cases that were
    not measured; None: no GPU of the catalog."""
    configured = instance(hardware.instance_type).gpu if hardware.instance_type in instance_names() else None
    peak = gpu_peak(hardware.device)
    if peak is None and (hardware.device or configured is None):
        return None
    peak = peak or chip_peak(configured.name if configured else "")
    if peak is None:
        return None
    named = re.search(r"(\d+)\s?GB", hardware.device)
    if named:
        return _Gpu(peak, float(named[1]))
    return _Gpu(peak, configured.memory_mib / 1024 if configured else None)


def _parameters(case: Case) -> int:
    """By its configuration; 0: not known, as for a model of one's own."""
    try:
        return parameter_count(TransformerConfig.model_validate(case.config.get("model")))
    except ValidationError:
        return 0


def _sequence_length(case: Case) -> int | None:
    data = case.config.get("data")
    length = data.get("sequence_length") if isinstance(data, dict) else None
    return length if isinstance(length, int) else None
