"""A benchmark's measured cases as claims, which are audited like those of others (docs/guides/audit.md). Pure.

Rates, step times and utilisation reach the page in different ways: what they imply of each other, and of the hardware's
limits, is computed once more from what the page says.
"""

from collections.abc import Iterator

from convoy.audit.audit import audit
from convoy.audit.claims import Claims, Entry, PageClaims
from convoy.audit.findings import Audit, findings_table
from convoy.audit.quantities.number import Figure
from convoy.benchmark.analysis.report import BenchReport, CaseFigures, GroupFigures, is_valid_training
from convoy.benchmark.results.case import key_of
from convoy.display import formatting
from convoy.display.page import Block, Heading, Text
from convoy.stats.interval import Interval


def audit_report(report: BenchReport) -> Audit:
    """Findings on figures that cannot be true."""
    return audit(PageClaims(runs=tuple(_claims_of_cases(report))))


def audit_section(report: BenchReport) -> tuple[Block, ...]:
    """A section that says whether they agree; none where nothing was measured."""
    result = audit_report(report)
    if not result.claims:
        return ()
    figures = formatting.plural(result.claims, "figure")
    checked = f"{figures} of this page, recomputed from each other and held against the hardware's limits"
    heading = Heading("Audit of these figures")
    if not result.findings:
        return (heading, Text(f"{checked} (docs/guides/audit.md), agree."))
    return heading, Text(f"{checked} (docs/guides/audit.md):"), findings_table(result.findings)


def _claims_of_cases(report: BenchReport) -> Iterator[Claims]:
    for group, case in report.cases:
        if is_valid_training(case) and case.tokens_per_second and case.step_seconds:
            yield _claims_of_case(group, case)


def _claims_of_case(group: GroupFigures, case: CaseFigures) -> Claims:
    """With a batch only where all cases of the group have the same."""
    assert case.tokens_per_second is not None
    assert case.step_seconds is not None
    hardware, name = group.hardware, key_of(group.suite, group.name, case.name)
    tokens = group.tokens_per_step
    peak = hardware.peak_tflops
    memory = case.memory_peak_bytes if peak is not None else None  # of a GPU
    entries: dict[str, Entry] = {
        "id": name,
        "variant": name,
        "parameters": _exact_figure(group.parameters, formatting.count),
        "gpus": _exact_figure(hardware.ranks, str),
        "offload": "true",  # how states are divided is the case's own matter
        "throughput": _interval_figure(case.tokens_per_second, formatting.rate),
        "step_time": _interval_figure(case.step_seconds, formatting.duration),
    }
    if len(tokens) == 1:
        entries["global_batch"] = _exact_figure(tokens[0], formatting.count, "tokens")
    if case.mfu is not None:
        entries["mfu"] = _exact_figure(case.mfu, formatting.percent)
    if memory is not None:
        entries["memory_per_gpu"] = _exact_figure(memory, formatting.size)
    if peak is not None:
        entries["gpu"] = hardware.device
        entries["peak_tflops"] = _exact_figure(peak * 1e12, lambda flops: f"{flops / 1e12:g} TFLOP/s")
    return Claims("runs", entries)


def _interval_figure(figure: Interval, form: formatting.Form) -> tuple[Figure, ...]:
    """With its interval."""
    return (Figure(text=form(figure.estimate), low=max(figure.low, 0), value=figure.estimate, high=figure.high),)


def _exact_figure(value: float, form: formatting.Form, per: str = "") -> tuple[Figure, ...]:
    return (Figure(text=form(value), low=value, value=value, high=value, per=per),)
