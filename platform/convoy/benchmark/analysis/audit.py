"""A benchmark's own figures as claims, which are audited like those of others (docs/guides/audit.md). Pure.

Rates, costs and efficiencies reach the page in different ways, each with its interval: what they imply of each other is
computed once more from what the page says.
"""

from collections.abc import Iterator

from convoy.audit.audit import audit
from convoy.audit.claims import PageClaims, RunClaims
from convoy.audit.findings import Audit, findings_table
from convoy.audit.quantities.number import Figure
from convoy.benchmark.analysis.cost import TRAINED_TOKENS, seconds_to_train
from convoy.benchmark.analysis.model import BenchReport, CaseFigures, CostFigures, GroupFigures, trains_one_model
from convoy.benchmark.results.case import key_of
from convoy.display import formatting
from convoy.display.page import Block, Heading, Text
from convoy.stats.interval import Interval

_HOUR = 3600.0


def audited(report: BenchReport) -> Audit:
    """Findings on figures that cannot be true."""
    return audit(PageClaims(runs=(*_cases(report), *_costs(report), *_scaling(report))))


def own_figures(report: BenchReport) -> tuple[Block, ...]:
    """A section that says whether they agree; none where nothing was measured."""
    result = audited(report)
    if not result.claims:
        return ()
    figures = formatting.plural(result.claims, "figure")
    checked = f"{figures} of this page, recomputed from each other and held against the hardware's limits"
    heading = Heading("Audit of these figures")
    if not result.findings:
        return (heading, Text(f"{checked} (docs/guides/audit.md), agree."))
    return heading, Text(f"{checked} (docs/guides/audit.md):"), findings_table(result.findings)


def _cases(report: BenchReport) -> Iterator[RunClaims]:
    for group in report.groups:
        for case in group.cases:
            if trains_one_model(case) and case.tokens_per_second and case.step_seconds:
                yield _case(group, case)


def _case(group: GroupFigures, case: CaseFigures) -> RunClaims:
    """With a batch only where all cases of the group have the same."""
    assert case.tokens_per_second is not None
    assert case.step_seconds is not None
    hardware, name = group.hardware, key_of(group.suite, group.name, case.name)
    tokens = group.tokens_per_step
    peak = hardware.peak_tflops
    memory = case.memory_peak_bytes if peak is not None else None  # of a GPU
    return RunClaims(
        id=name,
        variant=name,
        parameters=_exactly(group.parameters, formatting.count),
        gpu=hardware.device if peak is not None else "",
        peak_tflops=_exactly(peak * 1e12, lambda flops: f"{flops / 1e12:g} TFLOP/s") if peak is not None else (),
        gpus=_exactly(hardware.ranks, str),
        offload=True,  # how states are divided is the case's own matter
        throughput=_measured(case.tokens_per_second, formatting.rate),
        step_time=_measured(case.step_seconds, formatting.duration),
        global_batch=_exactly(tokens[0], formatting.count, "tokens") if len(tokens) == 1 else (),
        mfu=_exactly(case.mfu, formatting.percent) if case.mfu is not None else (),
        memory_per_gpu=_exactly(memory, formatting.size) if memory is not None else (),
    )


def _costs(report: BenchReport) -> Iterator[RunClaims]:
    return (_offer(cost, at) for cost in report.costs for at in range(len(cost.offers)))


def _offer(cost: CostFigures, at: int) -> RunClaims:
    """Time and cost of the longest training on the page."""
    offer, rate, tokens = cost.offers[at], cost.tokens_per_second, TRAINED_TOKENS[-1]
    seconds = seconds_to_train(tokens, rate)
    name = f"{cost.case} {cost.model} {offer.market}"
    per_token = offer.usd_per_million_tokens
    return RunClaims(
        id=f"{name} {cost.machines} {cost.region}",
        variant=name,
        throughput=_measured(rate, formatting.rate),
        tokens=_exactly(tokens, formatting.count),
        time=_exactly(seconds, formatting.long_duration),
        total_price_per_hour=_exactly(offer.usd_per_hour, lambda usd: f"${usd:,.2f}/h"),
        cost=_exactly(seconds / _HOUR * offer.usd_per_hour, lambda usd: f"${usd:,.0f}"),
        cost_per_tokens=(
            Figure(
                text=f"${formatting.significant(per_token.estimate)} per 1 M tokens",
                low=per_token.low / 1e6,
                value=per_token.estimate / 1e6,
                high=per_token.high / 1e6,
            ),
        ),
    )


def _scaling(report: BenchReport) -> Iterator[RunClaims]:
    """Each point once, though the reference lies on two curves."""
    references = {point.model: point for point in report.scaling if point.reference}
    claims = {}
    for point in report.scaling:
        base = references.get(point.model)
        if point.kind == "independent" or base is None or not (point.reference or point.efficiency):
            continue
        name = f"{point.model} {point.case}"
        claims[name] = RunClaims(
            id=name,
            variant=name,
            gpus=_exactly(point.ranks, str),
            throughput=_measured(point.tokens_per_second, formatting.rate),
            scaling_efficiency=_measured(point.efficiency, formatting.percent) if point.efficiency else (),
            relative_to=f"{base.model} {base.case}" if point.efficiency else "",
        )
    return iter(claims.values())


def _measured(figure: Interval, form: formatting.Form) -> tuple[Figure, ...]:
    """With its interval."""
    return (Figure(text=form(figure.estimate), low=max(figure.low, 0), value=figure.estimate, high=figure.high),)


def _exactly(value: float, form: formatting.Form, per: str = "") -> tuple[Figure, ...]:
    return (Figure(text=form(value), low=value, value=value, high=value, per=per),)
