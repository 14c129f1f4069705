"""The page of a benchmark."""

from collections.abc import Sequence

from convoy.catalog.observed import PriceList
from convoy.report import (
    bench_audit,
    bench_checkpoint_sections,
    bench_cost_sections,
    bench_energy_sections,
    bench_facts,
    bench_groups,
    bench_headline,
    bench_history_sections,
    bench_levers_sections,
    bench_parts,
    bench_predicted_sections,
    bench_recovery_sections,
    bench_scaling_sections,
    bench_sync_sections,
)
from convoy.report.bench_fold import fold_cases
from convoy.report.bench_history import Earlier
from convoy.report.bench_report import BenchReport
from convoy.report.page import Block, Callout, Heading, Page, Text
from convoy.results.case import Case


def benchmark_page(
    cases: Sequence[Case],
    earlier: Earlier | None = None,
    prices: PriceList | None = None,
    title: str = "Benchmark",
) -> Page:
    """Everything that the cases tell, whatever their order.

    earlier: runs of earlier benchmarks by fingerprint, as `earlier_runs` gives them; None: no history is shown.
    prices: those that were refreshed, beside the catalog's.
    """
    return page_of(fold_cases(cases, earlier, prices), title)


def page_of(report: BenchReport, title: str = "Benchmark") -> Page:
    """What is known, from the figures that matter most to where they come from."""
    if not report.groups:
        return Page(title, (Heading(title, level=1), Callout("Nothing was measured", "There are no cases.", "warning")))
    return Page(
        title,
        (
            Heading(title, level=1),
            Text(bench_headline.facts(report), quiet=True),
            *bench_headline.warnings(report),
            bench_headline.values(report),
            *sections(report, bench_cost_sections.costs(report)),
        ),
    )


def sections(report: BenchReport, costs: Sequence[Block]) -> tuple[Block, ...]:
    """Below the headline, each from its heading on: what is compared and what it costs before where it comes from.

    costs: the section on costs, or nothing where that is elsewhere.
    """
    return (
        *bench_groups.groups(report),
        *bench_sync_sections.sync(report),
        *bench_scaling_sections.scaling(report),
        *costs,
        *bench_levers_sections.levers(report),
        *bench_levers_sections.topology(report),
        *bench_energy_sections.energy(report),
        *bench_parts.step_parts(report),
        *bench_parts.memory(report),
        *bench_predicted_sections.predicted(report),
        *bench_checkpoint_sections.checkpoints(report),
        *bench_recovery_sections.recovery(report),
        *bench_recovery_sections.campaign(report),
        *bench_history_sections.history(report),
        *bench_facts.not_run(report),
        *bench_facts.not_measured(report),
        *bench_facts.further(report),
        *bench_audit.own_figures(report),
        *bench_facts.provenance(report),
    )
