"""Cases of Convoy's own benchmarks as measured runs, as `published.py` has those of others.

Which of them the planner can predict was decided, and recorded in each, before they were measured (`Case.predicted`).
"""

import dataclasses
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from pydantic import ValidationError

from convoy.benchmark.results.case import Case, CasePrediction
from convoy.benchmark.results.figures import step_seconds
from convoy.catalog.gpus import chip_peak, gpu_peak
from convoy.catalog.measured_machine import MeasuredMachine
from convoy.config.errors import ConfigError
from convoy.config.model import TransformerConfig
from convoy.config.run import RunConfig
from convoy.planner.step.step_time import step_time
from convoy.planner.step.work import Kernels
from convoy.planner.validation.published import MeasuredRun
from convoy.planner.workload import Machine, Workload, as_rented, machine_of, with_measured_fallback
from convoy.stats.interval import FEWEST


class LeftOutCase(NamedTuple):
    """A case that no constants can be fitted to."""

    case: str
    """Its key."""
    why: str


class OwnRuns(NamedTuple):
    """Times of steps in a benchmark's cases."""

    rows: tuple[MeasuredRun, ...]
    left_out: tuple[LeftOutCase, ...]
    machines: tuple[MeasuredMachine, ...]
    """Machines of the rows that the catalog does not have."""


class UnfittableCaseError(ValueError):
    """A case is no run to fit to; the text says why."""


def own_runs(cases: Sequence[Case]) -> OwnRuns:
    """The runs among the cases, in their order."""
    rows, left_out = [], []
    for case in cases:
        try:
            rows.append(_measured_run(case))
        except UnfittableCaseError as error:
            left_out.append(LeftOutCase(case.key, str(error)))
    machines = [row.workload.machine.measured for row in rows]
    return OwnRuns(tuple(rows), tuple(left_out), tuple(each for each in machines if each is not None))


def workload_of(
    config: RunConfig, nodes: int, ranks_per_node: int, measured: MeasuredMachine | None, *, on_gpus: bool
) -> Workload:
    """The training of a configuration on so many ranks of its machines, which may be fewer than it has. measured: in
    place of the catalog, where that does not have them. on_gpus: this host has such, where none is rented.
    Raises ConfigError as `machine_of`, and ValueError for ranks that cannot be divided as configured and for a model of
    which nothing is known."""
    if not isinstance(config.model, TransformerConfig):
        raise ValueError(f"model.build = {config.model.build}: nothing is known of it")
    whole = with_measured_fallback(machine_of(config, host_gpus=int(on_gpus)), measured)
    machine = dataclasses.replace(whole, ranks=ranks_per_node)
    return Workload(config.model, config.data.sequence_length, config.train, config.parallel, machine, nodes)


def _measured_run(case: Case) -> MeasuredRun:
    plan = case.predicted
    if case.status != "measured":
        raise UnfittableCaseError(case.status)
    if plan is None:
        raise UnfittableCaseError("nothing was predicted of it before it ran: it is a drill, or of an earlier version")
    if plan.step_seconds is None:
        raise UnfittableCaseError(plan.why_no_step)
    seconds = step_seconds(case)
    if seconds is None:
        raise UnfittableCaseError(f"{len(case.blocks)} blocks: at least {FEWEST} needed")
    try:
        job = _planned_workload(RunConfig.model_validate(case.config), plan)
        step_time(job)  # or why there is none
    except ValidationError:
        raise UnfittableCaseError("its configuration is of another version") from None
    except ValueError as error:
        raise UnfittableCaseError(str(error)) from None
    if not _has_device(job.machine, case.hardware.device):
        raise UnfittableCaseError(f"it ran on {case.hardware.device}, and was planned on {_chip_name(job.machine)}")
    return MeasuredRun(
        name=case.model,
        source=provenance_text(case),
        workload=job,
        kernels=Kernels(),
        tokens_per_second=job.tokens_per_step / job.ranks / seconds.estimate,
    )


def _planned_workload(config: RunConfig, plan: CasePrediction) -> Workload:
    """As it was planned; or on the machine that a local run names, where its ranks found that machine's chip. All nodes
    of such a run are on it, and a plan for machines of that type is made from the same figures."""
    measured = plan.machine
    on_gpus = measured is not None and measured.kind == "cuda"
    job = workload_of(config, plan.nodes, plan.ranks_per_node, measured, on_gpus=on_gpus)
    if measured is None or as_rented(config) == config:
        return job
    parallel = config.parallel
    if parallel.strategy == "hsdp":  # whose groups are a node's ranks, unless the size is configured
        parallel = parallel.model_copy(update={"shard_size": job.ranks_per_state_copy})
    try:
        named = workload_of(
            as_rented(config).model_copy(update={"parallel": parallel}), 1, job.ranks, None, on_gpus=on_gpus
        )
    except ConfigError:  # a label that the catalog does not have
        return job
    return named if _has_device(named.machine, measured.device) else job


def _has_device(machine: Machine, device: str) -> bool:
    """device: as CUDA reports it, or the CPU's model name."""
    if machine.measured is not None:
        return machine.measured.device == device
    ran, planned = gpu_peak(device), chip_peak(machine.gpu)
    return ran is not None and planned is not None and ran.chip == planned.chip


def _chip_name(machine: Machine) -> str:
    return machine.measured.device if machine.measured is not None else machine.gpu


def provenance_text(case: Case) -> str:
    """Machine, day and commit, as a calibration names its data."""
    origin = case.provenance
    commit = f"commit {origin.commit[:12]}{'+changes' * origin.commit.endswith('+changes')}" if origin.commit else ""
    parts = [f"a benchmark on {case.hardware.machines}", str(origin.measured.date()), commit]
    return ", ".join(filter(None, parts))


def typical_machines(machines: Sequence[MeasuredMachine]) -> tuple[MeasuredMachine, ...]:
    """One of each kind: of the same device, type, threads and ranks the one whose matmul rate is the (lower) median of
    theirs, so that its figures were measured together."""
    alike: dict[tuple[object, ...], list[MeasuredMachine]] = {}
    for each in machines:
        key = (each.device, each.kind, each.dtype, each.threads, each.ranks)
        alike.setdefault(key, []).append(each)
    rates = {key: statistics.median_low(each.matmul_flops for each in kind) for key, kind in alike.items()}
    return tuple(next(each for each in alike[key] if each.matmul_flops == rate) for key, rate in rates.items())
