"""The page of a benchmark, and the page of several."""

from collections.abc import Sequence
from dataclasses import replace

from convoy.benchmark import common_sections
from convoy.benchmark.analysis import audit
from convoy.benchmark.analysis.history import PastRates
from convoy.benchmark.analysis.report import FORMAT, BenchReport
from convoy.benchmark.fold import fold_cases
from convoy.benchmark.pages import conclusions, cost, facts, headline, history, hosts, predictions, published
from convoy.benchmark.results.case import Case, FrozenResult
from convoy.benchmark.suites import registry
from convoy.catalog.prices import SHIPPED, PriceBook
from convoy.display.page import Block, Callout, Heading, Page, Text, fold_sections


def benchmark_page(
    cases: Sequence[Case], past_rates: PastRates | None = None, prices: PriceBook = SHIPPED, title: str = "Benchmark"
) -> Page:
    """The page of these cases, whatever their order.

    past_rates: runs of earlier benchmarks, as `rates_by_fingerprint` returns them; None: the page has no history.
    """
    return page_of(fold_cases(cases, past_rates, prices), title)


def page_of(report: BenchReport, title: str = "Benchmark") -> Page:
    """All figures, from those that matter most to where they come from."""
    if not report.groups:
        return Page(title, (Heading(title, level=1), Callout("Nothing was measured", "There are no cases.", "warning")))
    return Page(
        title,
        (
            Heading(title, level=1),
            Text(headline.summary_line(report), quiet=True),
            *headline.warnings(report),
            *conclusions.conclusions(report),
            headline.values(report),
            *sections(report, cost.cost_section(report)),
        ),
    )


def sections(report: BenchReport, costs: Sequence[Block]) -> tuple[Block, ...]:
    """Everything below the headline: comparisons and their costs before where the figures come from.

    costs: the section on costs; empty where the page has it elsewhere.
    """
    return (
        *common_sections.group_tables(report),
        *(block for suite in registry.SUITES if suite.comparison for block in suite.comparison(report)),
        *costs,
        *history.history_section(report),
        *fold_sections(
            (
                *common_sections.step_parts_section(report),
                *common_sections.memory_section(report),
                *hosts.hosts_section(report),
                *predictions.predictions_section(report),
                *published.published_section(report),
                *(block for suite in registry.SUITES for block in suite.sections(report)),
                *facts.not_run(report),
                *facts.not_measured(report),
                *facts.further_figures(report),
                *audit.audit_section(report),
                *facts.provenance_section(report),
            )
        ),
    )


_APART = (
    "Each folder is a benchmark by itself: a speedup is over a case of the same gang. Between folders only time and "
    "cost are compared, of the fastest case of each model on each folder's machines. Folders may differ in more than "
    "their machines: the Provenance of each lists versions and commands."
)


class BenchReports(FrozenResult):
    """Benchmarks of several folders, by the folders' names."""

    format: int = FORMAT
    folders: dict[str, BenchReport]


def page_of_several(reports: BenchReports, title: str = "Benchmark") -> Page:
    """Warnings of all folders, their time and cost in one table, then each folder's benchmark under its name. Every
    folder has a case."""
    blocks: list[Block] = [Heading(title, level=1)]
    for folder, report in reports.folders.items():
        blocks.append(Text(f"{folder}: {headline.summary_line(report)}", quiet=True))
        blocks += (_prefix_title(folder, warning) for warning in headline.warnings(report))
    blocks += [*cost.cost_section(combined_cost_report(reports)), Text(_APART, quiet=True)]
    for folder, report in reports.folders.items():
        blocks += [Heading(folder), *conclusions.conclusions(report), headline.values(report)]
        blocks += (_prefix_title(folder, block) for block in sections(report, costs=()))
    return Page(title, tuple(blocks))


def combined_cost_report(reports: BenchReports) -> BenchReport:
    """The costs of all folders, model by model, and nothing else. The folder's name is added to its machines: two
    folders may have the same."""
    costs = [
        each.model_copy(update={"machines": f"{each.machines} ({folder})"})
        for folder, report in reports.folders.items()
        for each in report.costs
    ]
    return fold_cases([]).model_copy(update={"costs": tuple(sorted(costs, key=lambda each: each.model))})


def _prefix_title(folder: str, block: Block) -> Block:
    match block:
        case Heading():
            return replace(block, text=f"{folder}: {block.text}")
        case Callout():
            return replace(block, title=f"{folder}: {block.title}")
        case _:
            return block
