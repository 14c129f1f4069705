"""A line for each model of several benchmarks: speed-up, share of GPU memory, scaling and cost. Pure."""

from collections.abc import Iterator, Mapping

from convoy.benchmark.analysis.cost import preferred_offer
from convoy.benchmark.analysis.report import (
    BenchReport,
    CaseFigures,
    CostFigures,
    GroupFigures,
    ScalingPoint,
    TokenPrice,
    is_valid_training,
)
from convoy.benchmark.results.case import FrozenResult, key_of
from convoy.benchmark.results.values import BASELINES, RANK_MEMORY_BYTES
from convoy.catalog.instances import instance, instance_names
from convoy.stats.interval import Interval

MAIN = ("throughput", "strategies", "memory", "scaling")
"""Suites that the line of a model is taken from, the preferred one first."""


class ModelSummary(FrozenResult):
    """One model on one kind of machine in one benchmark: its main case, or why there is none."""

    folder: str
    model: str
    parameters: int
    machines: str
    """Those of the gang that measured the case."""
    ranks: int
    case: str = ""
    """The fastest valid case of the first of its suites that has one, or `ours` where it was measured."""
    tokens_per_second: Interval | None = None
    flops_per_second: float | None = None
    """Model FLOP/s of the whole gang."""
    mfu: float | None = None
    baseline: str = ""
    """What the speed-up is over; empty: no baseline was measured."""
    speedup: Interval | None = None
    memory_peak_bytes: int | None = None
    memory_share: float | None = None
    """Over the memory of a GPU; None: there are no GPUs, or their memory is not known."""
    scaling: Interval | None = None
    """Weak efficiency on the most ranks."""
    scaled_to: int | None = None
    offer: TokenPrice | None = None
    """In the configured market, or on demand."""
    why: str = ""
    """Why there is no case."""


class Summary(FrozenResult):
    """All models of all benchmarks."""

    models: tuple[ModelSummary, ...]


def summarise(reports: Mapping[str, BenchReport]) -> Summary:
    """reports: by the name of their folder."""
    return Summary(models=tuple(line for name, report in reports.items() for line in _models(name, report)))


def _models(folder: str, report: BenchReport) -> Iterator[ModelSummary]:
    """The largest model comes first. Groups of models that were changed have none of their own. A group whose cases
    were all refused before they started names no machine: it belongs to the model's others."""
    groups = sorted(
        (group for group in report.groups if group.suite in MAIN and not group.lab),
        key=lambda group: (-group.parameters, not group.hardware.machine),
    )
    by_machine: dict[tuple[str, str], list[GroupFigures]] = {}
    for group in groups:
        machine = group.hardware.machine or next((of for model, of in by_machine if model == group.model), "")
        by_machine.setdefault((group.model, machine), []).append(group)
    for own in by_machine.values():
        yield _model(folder, sorted(own, key=lambda each: (MAIN.index(each.suite), -each.hardware.ranks)), report)


def _model(folder: str, own: list[GroupFigures], report: BenchReport) -> ModelSummary:
    """own: its groups on one kind of machine, those of the preferred suite first, and of these the largest gang."""
    found = next(((group, case) for group in own if (case := _main_case(group)) is not None), None)
    group = found[0] if found else own[0]
    line = ModelSummary(
        folder=folder,
        model=group.model,
        parameters=max(each.parameters for each in own),
        machines=group.hardware.machines,
        ranks=group.hardware.ranks,
    )
    if found is None:
        reason = next((case.reason for group in own for case in group.cases if case.reason), "no case was measured")
        return line.model_copy(update={"why": reason})
    group, case = found
    baseline, speedup = _speedup(group, case)
    memory, point = _rank_memory(own), _largest_scaling(report, own)
    return line.model_copy(
        update={
            "case": key_of(group.suite, group.name, case.name),
            "tokens_per_second": case.tokens_per_second,
            "flops_per_second": case.flops_per_second,
            "mfu": case.mfu,
            "baseline": baseline,
            "speedup": speedup,
            "memory_peak_bytes": case.memory_peak_bytes,
            "memory_share": case.memory_peak_bytes / memory if case.memory_peak_bytes and memory else None,
            "scaling": point.efficiency if point else None,
            "scaled_to": point.ranks if point else None,
            "offer": _offer(_cost_of(group, report), case),
        }
    )


def _main_case(group: GroupFigures) -> CaseFigures | None:
    valid = [case for case in group.cases if is_valid_training(case) and case.name not in BASELINES]
    return max(valid, key=lambda case: (case.name == "ours", case.rate), default=None)


def _speedup(group: GroupFigures, case: CaseFigures) -> tuple[str, Interval | None]:
    """Over the baseline that was measured in the same gang."""
    for each in group.cases:
        if each.name not in BASELINES or each.baseline != case.name or each.losses == "differ":
            continue
        if each.speedup is not None and each.speedup.low > 0:
            return each.name, each.speedup.inverse()
    return "", None


def _rank_memory(groups: list[GroupFigures]) -> float | None:
    """Bytes of a GPU: those of its instance type, or those for which cases were planned."""
    for group in groups:
        if group.hardware.instance_type in instance_names():
            machine = instance(group.hardware.instance_type)
            return machine.gpu.memory_mib * 2**20 if machine.gpu else None
    on_gpus = any(group.hardware.peak_tflops is not None for group in groups)
    planned = [case.values[RANK_MEMORY_BYTES] for g in groups for case in g.cases if RANK_MEMORY_BYTES in case.values]
    return planned[0] if planned and on_gpus else None


def _largest_scaling(report: BenchReport, groups: list[GroupFigures]) -> ScalingPoint | None:
    """Of the cases of these groups."""
    cases = {key_of(group.suite, group.name, case.name) for group in groups for case in group.cases}
    points = [p for p in report.scaling if p.case in cases and p.kind == "weak" and p.efficiency is not None]
    return max(points, key=lambda point: point.ranks, default=None)


def _cost_of(group: GroupFigures, report: BenchReport) -> CostFigures | None:
    """Of the machines of the group, which need not be the only ones that the model was measured on."""
    wanted = (group.model, group.hardware.machines, group.region)
    same = (each for each in report.costs if (each.model, each.machines, each.region) == wanted)
    return next((each for each in same if each.offers), None)


def _offer(cost: CostFigures | None, case: CaseFigures) -> TokenPrice | None:
    """At the rate of the case in the line, which need not be the fastest of all suites."""
    if cost is None or case.tokens_per_second is None:
        return None
    offer = preferred_offer(cost)
    usd = case.tokens_per_second.inverse(offer.usd_per_hour / 3600 * 1e6)
    return offer.model_copy(update={"usd_per_million_tokens": usd})
