"""The report of a benchmark, folded from its cases. Pure."""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from convoy.benchmark.analysis.cost import cost_figures
from convoy.benchmark.analysis.history import PastRates, history_figures
from convoy.benchmark.analysis.predictions import prediction_figures
from convoy.benchmark.analysis.published import published_figures
from convoy.benchmark.analysis.report import BenchReport, CaseFigures, GroupFigures, Losses
from convoy.benchmark.results.case import Case, Provenance
from convoy.benchmark.results.figures import (
    NotComparableError,
    cpu_ratio,
    flops_per_second,
    losses_agree,
    median_parts,
    mfu,
    share_of_matmul,
    speedup,
    step_seconds,
    tokens_per_second,
)
from convoy.benchmark.suites import registry
from convoy.catalog.prices import SHIPPED, PriceBook
from convoy.stats.interval import Interval

LOSS_TOLERANCE = {"fp32": 1e-3, "bf16": 1e-2}
"""By which losses of the same steps may differ, relative to the loss: by the coarser type of the two cases. bf16 keeps
8 bits, TF32 11, and ten steps of an optimizer add up what they round."""


_SAMPLES = (("train", "global_batch"), ("data", "packing"), ("data", "respect_documents"))
"""Keys that decide which tokens a step consists of."""


def fold_cases(cases: Sequence[Case], past_rates: PastRates | None = None, prices: PriceBook = SHIPPED) -> BenchReport:
    """All that is known of a benchmark, whatever the order of its cases.

    past_rates: of earlier runs, by fingerprint; None: no history is shown.
    """
    ordered = sorted(cases, key=lambda case: case.key)
    groups = _groups(ordered)
    figures: dict[str, Any] = {}
    for suite in registry.SUITES:
        figures |= suite.figures(ordered, prices)
    return BenchReport(
        groups=groups,
        costs=cost_figures(groups, prices),
        predicted=prediction_figures(ordered),
        published=published_figures(groups, ordered),
        history=None if past_rates is None else history_figures(ordered, past_rates),
        provenance=_distinct_origins(case.provenance for case in ordered),
        commands=tuple(dict.fromkeys(case.provenance.command for case in ordered if case.provenance.command)),
        **figures,
    )


def _groups(cases: Sequence[Case]) -> tuple[GroupFigures, ...]:
    by_group: dict[tuple[str, str], list[Case]] = {}
    for case in cases:
        by_group.setdefault((case.suite, case.group), []).append(case)
    order = {suite.name: i for i, suite in enumerate(registry.SUITES)}  # others follow by name
    keys = sorted(by_group, key=lambda key: (order.get(key[0], len(order)), key))
    return tuple(_group(by_group[key]) for key in keys)


def _group(cases: Sequence[Case]) -> GroupFigures:
    first = next((case for case in cases if case.status == "measured"), cases[0])
    named = {case.name: case for case in cases}
    figures = [_figures(case, named) for case in cases]
    return GroupFigures(
        suite=first.suite,
        name=first.group,
        model=first.model,
        parameters=first.parameters,
        unit=first.unit,
        tokens_per_step=tuple(sorted({case.tokens_per_step for case in cases})),
        hardware=max((case.hardware for case in cases), key=lambda each: (each.machine != "", each.ranks)),
        lab=first.lab,
        matmul_tflops=_matmul_tflops(cases),
        carried_by=tuple(dict.fromkeys(use for case in cases for use in case.carried_by)),
        region=first.cluster_setting("region"),
        market=first.cluster_setting("market"),
        prices=first.own_prices,
        cases=tuple(sorted(figures, key=_sort_key)),
    )


def _matmul_tflops(cases: Sequence[Case]) -> dict[str, float]:
    """The median over all cases, by type of number."""
    rates: dict[str, list[float]] = {}
    for case in cases:
        if case.hardware.matmul_tflops is not None:
            rates.setdefault(str(_config_value(case, "train", "param_dtype")), []).append(case.hardware.matmul_tflops)
    return {dtype: statistics.median(rates[dtype]) for dtype in sorted(rates, reverse=True)}


def _sort_key(figures: CaseFigures) -> tuple[bool, float, str]:
    rate = figures.tokens_per_second
    return figures.baseline is not None, -rate.estimate if rate else 0.0, figures.name


def _figures(case: Case, group: Mapping[str, Case]) -> CaseFigures:
    """A case's own figures, and those against its baseline where the group has that."""
    measured = case.status == "measured"
    base = group.get(case.baseline or "")
    comparison: dict[str, Any] = {}
    if measured and case.baseline is not None:
        missing = {"not_compared": f"{case.baseline} is not among the results"}
        comparison = missing if base is None else _comparison_fields(case, base)
    return CaseFigures(
        name=case.name,
        baseline=case.baseline,
        status=case.status,
        reason=case.reason,
        tokens_per_second=tokens_per_second(case) if measured else None,
        step_seconds=step_seconds(case) if measured else None,
        blocks=len(case.blocks),
        mfu=mfu(case) if measured else None,
        matmul_share=share_of_matmul(case) if measured else None,
        flops_per_second=flops_per_second(case) if measured else None,
        memory_peak_bytes=case.memory_peak_bytes,
        warm_up_steps=case.warm_up_steps,
        steady=case.steady,
        parts=median_parts(case),
        values=case.values,
        not_measured=case.not_measured,
        hosts=case.hosts,
        **comparison,
    )


def _comparison_fields(case: Case, base: Case) -> dict[str, Any]:
    faster, why = figure_or_reason(speedup, case, base)
    losses, difference = _compare_losses(case, base)
    peak, other = case.memory_peak_bytes, base.memory_peak_bytes
    return {
        "speedup": faster,
        "cpu_ratio": figure_or_reason(cpu_ratio, case, base)[0],
        "not_compared": why,
        "memory_ratio": peak / other if peak is not None and other else None,
        "losses": losses,
        "loss_difference": difference,
    }


def figure_or_reason(of: Callable[[Case, Case], Interval], case: Case, base: Case) -> tuple[Interval | None, str]:
    """The figure, or why there is none."""
    try:
        return of(case, base), ""
    except (NotComparableError, ValueError, ZeroDivisionError) as error:  # a rate of zero has no ratio
        return None, str(error)


def _compare_losses(case: Case, base: Case) -> tuple[Losses, float | None]:
    if any(_config_value(case, *keys) != _config_value(base, *keys) for keys in _SAMPLES):
        return "not compared", None  # each saw other data
    tolerance = max(_loss_tolerance(case), _loss_tolerance(base))
    try:
        agree = losses_agree(case, base, tolerance)
    except NotComparableError:
        return "not compared", None
    both = zip(case.losses, base.losses, strict=False)
    apart = [abs(own - other) / abs(other) if other else abs(own) for own, other in both]
    return ("agree" if agree else "differ"), max(apart) if all(map(math.isfinite, apart)) else None


def _loss_tolerance(case: Case) -> float:
    return LOSS_TOLERANCE.get(str(_config_value(case, "train", "param_dtype")), min(LOSS_TOLERANCE.values()))


def _config_value(case: Case, *keys: str) -> object:
    """A value of its configuration, which another suite may have shaped otherwise; None: it has none."""
    value: object = case.config
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _distinct_origins(origins: Iterable[Provenance]) -> tuple[Provenance, ...]:
    distinct: dict[str, Provenance] = {}
    for each in sorted(origins, key=lambda each: each.measured):
        distinct.setdefault(each.model_copy(update={"measured": datetime.min, "command": ""}).model_dump_json(), each)
    return tuple(distinct.values())
