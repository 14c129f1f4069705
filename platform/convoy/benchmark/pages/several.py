"""Benchmarks of several folders on one page: each by itself, and time and cost on all their machines in one table."""

from dataclasses import replace

from convoy.benchmark.analysis.fold import fold_cases
from convoy.benchmark.analysis.model import FORMAT, BenchReport
from convoy.benchmark.pages import cost_sections, headline
from convoy.benchmark.pages.page import sections
from convoy.display.page import Block, Callout, Heading, Page, Text
from convoy.report.train_report import Fact

_APART = (
    "Each folder is a benchmark by itself: a speedup is over a case of the same gang. Between folders only time and "
    "cost stand beside each other, of the fastest case of each model on each folder's machines. Folders may differ in "
    "more than their machines: each one's Provenance tells versions and commands."
)


class BenchReports(Fact):
    """Of several folders, by their names."""

    format: int = FORMAT
    folders: dict[str, BenchReport]


def page_of_several(reports: BenchReports, title: str = "Benchmark") -> Page:
    """What must be read first, time and cost, then each folder's benchmark under its name. Each has a case."""
    blocks: list[Block] = [Heading(title, level=1)]
    for folder, report in reports.folders.items():
        blocks.append(Text(f"{folder}: {headline.facts(report)}", quiet=True))
        blocks += (_of(folder, warning) for warning in headline.warnings(report))
    blocks += [*cost_sections.costs(together(reports)), Text(_APART, quiet=True)]
    for folder, report in reports.folders.items():
        blocks += [Heading(folder), headline.values(report)]
        blocks += (_of(folder, block) for block in sections(report, costs=()))
    return Page(title, tuple(blocks))


def together(reports: BenchReports) -> BenchReport:
    """What training costs in all folders, model by model, and nothing else. Machines bear their folder's name: two
    folders may have the same."""
    told = [
        cost.model_copy(update={"machines": f"{cost.machines} ({folder})"})
        for folder, report in reports.folders.items()
        for cost in report.costs
    ]
    return fold_cases([]).model_copy(update={"costs": tuple(sorted(told, key=lambda cost: cost.model))})


def _of(folder: str, block: Block) -> Block:
    """Its title with the folder's name."""
    match block:
        case Heading():
            return replace(block, text=f"{folder}: {block.text}")
        case Callout():
            return replace(block, title=f"{folder}: {block.title}")
        case _:
            return block
