"""The page of a benchmark."""

from collections.abc import Sequence

from convoy.benchmark.analysis import audit
from convoy.benchmark.analysis.fold import fold_cases
from convoy.benchmark.analysis.history import Earlier
from convoy.benchmark.analysis.model import BenchReport
from convoy.benchmark.pages import (
    cost_sections,
    energy_sections,
    facts,
    groups,
    headline,
    history_sections,
    levers_sections,
    predicted_sections,
)
from convoy.benchmark.results.case import Case
from convoy.benchmark.suites import registry
from convoy.catalog.prices import SHIPPED, PriceBook
from convoy.display.page import Block, Callout, Heading, Page, Text


def benchmark_page(
    cases: Sequence[Case],
    earlier: Earlier | None = None,
    prices: PriceBook = SHIPPED,
    title: str = "Benchmark",
) -> Page:
    """Everything that the cases tell, whatever their order.

    earlier: runs of earlier benchmarks by fingerprint, as `earlier_runs` gives them; None: no history is shown.
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
            Text(headline.facts(report), quiet=True),
            *headline.warnings(report),
            headline.values(report),
            *sections(report, cost_sections.costs(report)),
        ),
    )


def sections(report: BenchReport, costs: Sequence[Block]) -> tuple[Block, ...]:
    """Below the headline, each from its heading on: what is compared and what it costs before where it comes from.

    costs: the section on costs, or nothing where that is elsewhere.
    """
    return (
        *groups.groups(report),
        *(block for suite in registry.SUITES if suite.comparison for block in suite.comparison(report)),
        *costs,
        *levers_sections.levers(report),
        *levers_sections.topology(report),
        *energy_sections.energy(report),
        *groups.step_parts(report),
        *groups.memory(report),
        *predicted_sections.predicted(report),
        *(block for suite in registry.SUITES for block in suite.sections(report)),
        *history_sections.history(report),
        *facts.not_run(report),
        *facts.not_measured(report),
        *facts.further(report),
        *audit.own_figures(report),
        *facts.provenance(report),
    )
