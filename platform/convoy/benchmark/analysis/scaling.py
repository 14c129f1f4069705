"""How throughput grows with the ranks: efficiency, and what of the loss is communication. Pure."""

import statistics
from collections.abc import Sequence

from convoy.benchmark.analysis.report import ScalingKind, ScalingPoint
from convoy.benchmark.results import values
from convoy.benchmark.results.case import Case
from convoy.benchmark.results.figures import (
    NotComparableError,
    block_rates,
    speedup,
    step_seconds,
    sync_share,
    tokens_per_second,
)
from convoy.benchmark.results.fingerprint import differences
from convoy.stats.interval import Interval, unpaired_ratio

SUITE = "scaling"

_MAY_DIFFER = (
    *("case:", "hardware.ranks:", "hardware.jobs:", "hardware.nodes:", "config."),
    *("versions.accelerate:", "versions.deepspeed:"),
)
"""Differences that are allowed between cases of one curve."""


def scaling_points(cases: Sequence[Case], suite: str = SUITE) -> tuple[ScalingPoint, ...]:
    """Each measured case of the suite: weak before strong before independent jobs, from few ranks to many."""
    measured = [c for c in cases if c.suite == suite and c.status == "measured" and c.tokens_per_step]
    points = [point for case in measured for kind in curves_of(case) if (point := _point(case, kind, measured))]
    order = ("weak", "strong", "independent")
    return tuple(sorted(points, key=lambda point: (point.model, order.index(point.kind), point.ranks, point.case)))


def curves_of(case: Case) -> tuple[ScalingKind, ...]:
    """On which curves it lies; the reference lies on two."""
    if case.values.get(values.INDEPENDENT):
        return ("independent",)
    weak = case.values.get(values.WEAK)
    if weak is None:
        return ("weak", "strong")
    return ("weak",) if weak else ("strong",)


def is_reference(case: Case) -> bool:
    """Whether the others of the suite are compared with it."""
    return values.WEAK not in case.values and not case.values.get(values.INDEPENDENT)


def _point(case: Case, kind: ScalingKind, measured: Sequence[Case]) -> ScalingPoint | None:
    rate, step, ranks = tokens_per_second(case), step_seconds(case), case.hardware.ranks
    if rate is None or step is None:
        return None
    reference, why = (None, "") if is_reference(case) else _reference_of(case, measured)
    efficiency, paired = (None, False) if reference is None else _efficiency(case, reference)
    waited = case.values.get(values.COMMUNICATION_SECONDS)
    sent, link = case.values.get(values.NETWORK_BYTES), case.values.get(values.LINK_BYTES_PER_SECOND)
    computed = None if waited is None else step.estimate - waited
    return ScalingPoint(
        case=case.key,
        model=case.model,
        kind=kind,
        ranks=ranks,
        reference=is_reference(case),
        tokens_per_second=rate,
        efficiency=efficiency,
        relative_to=None if reference is None else reference.hardware.ranks,
        overhead=None if efficiency is None else _overhead(efficiency),
        paired=paired,
        of_independent=None if kind == "independent" else _ratio_to_independent(case, measured),
        communication_share=None if waited is None else waited / step.estimate,
        communication_ratio=waited / computed if waited is not None and computed and computed > 0 else None,
        added_share=_added_share(case, measured) if kind == "weak" and not is_reference(case) else None,
        network_bytes=sent,
        link_share=sent / step.estimate / link if sent is not None and link else None,
        node_bytes=_node_bytes(case),
        why=why,
    )


def _reference_of(case: Case, measured: Sequence[Case]) -> tuple[Case | None, str]:
    """The fewest ranks, or why the case cannot be compared with any."""
    fewest = [other for other in measured if is_reference(other)]
    return _comparable_case(case, fewest, "the fewest ranks were not measured")


def _efficiency(case: Case, reference: Case) -> tuple[Interval, bool]:
    """Its rate per rank over the reference's, and whether the two took turns."""
    ratio, paired = _rate_ratio(case, reference)
    times = case.hardware.ranks / reference.hardware.ranks
    scaled = {name: getattr(ratio, name) / times for name in ("estimate", "low", "high")}
    return ratio.model_copy(update=scaled), paired


def _overhead(efficiency: Interval) -> Interval | None:
    """Source: Grama, Gupta, Karypis, Kumar: Introduction to Parallel Computing, 2003, 5.2: total overhead over the time
    of the reference. None: the efficiency may be zero."""
    if efficiency.low <= 0:
        return None
    inverse = efficiency.inverse()
    return inverse.model_copy(update={name: getattr(inverse, name) - 1 for name in ("estimate", "low", "high")})


def _added_share(case: Case, measured: Sequence[Case]) -> Interval | None:
    """By the arithmetic of the share of synchronisation, where independent jobs of several ranks are in its gang."""
    jobs = next((c for c in measured if c.group == case.group and c.values.get(values.INDEPENDENT)), None)
    if jobs is None or jobs.hardware.ranks != case.hardware.ranks or jobs.hardware.jobs == jobs.hardware.ranks:
        return None
    try:
        return sync_share(case, jobs)
    except (NotComparableError, ValueError):
        return None


def _node_bytes(case: Case) -> float | None:
    sent = [host.adapter_bytes for host in case.hosts if host.ranks]
    return statistics.mean(sent) if len(sent) > 1 else None


def _ratio_to_independent(case: Case, measured: Sequence[Case]) -> Interval | None:
    ranks = case.hardware.ranks
    jobs = [c for c in measured if c.values.get(values.INDEPENDENT) and c.hardware.ranks == ranks]
    reference, _ = _comparable_case(case, jobs, "")
    return None if reference is None else _rate_ratio(case, reference)[0]


def _comparable_case(case: Case, others: Sequence[Case], why_none: str) -> tuple[Case | None, str]:
    """The case to compare with, one of the same gang before others; or why there is none."""
    same_model = [other for other in others if other.model == case.model and tokens_per_second(other) is not None]
    why = why_none
    for other in sorted(same_model, key=lambda other: (other.group != case.group, other.key)):
        lines = [line for line in differences(case, other) if not line.startswith(_MAY_DIFFER)]
        if not lines:
            return other, ""
        why = lines[0]
    return None, why


def _rate_ratio(case: Case, other: Case) -> tuple[Interval, bool]:
    """Ratio of their rates, and whether it is one of pairs."""
    try:
        return speedup(case, other), True
    except NotComparableError:  # another gang
        return unpaired_ratio(block_rates(case), block_rates(other)), False
