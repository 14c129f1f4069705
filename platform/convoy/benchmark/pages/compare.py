"""Two runs of a benchmark, one beside the other."""

from convoy.benchmark.results.compare import Comparison, Comparisons
from convoy.display import formatting
from convoy.display.page import Block, Heading, Page, Table, Text
from convoy.stats.interval import Interval

_HEADERS = ("Case", "First", "Second", "Second over first", "")


def compare_page(found: Comparisons) -> Page:
    """A row for each case that both have, and the names of those that one lacks."""
    blocks: list[Block] = [Heading("Second run beside the first", level=1)]
    if found.cases:
        blocks.append(Table(_HEADERS, tuple(_row(each) for each in found.cases)))
        blocks.append(
            Text(
                "Intervals are of 95 %, ratios of two samples, as the runs were measured apart. What differs from run "
                "to run, such as clock rates and neighbours, is not in them: several runs of each side tell more.",
                quiet=True,
            )
        )
    else:
        blocks.append(Text("No case is in both."))
    blocks += [Text(f"Only in the first: {key}") for key in found.only_first]
    blocks += [Text(f"Only in the second: {key}") for key in found.only_second]
    return Page("Comparison", tuple(blocks))


def _row(each: Comparison) -> tuple[str, ...]:
    if each.ratio is None:
        return each.case, _rate(each.first), _rate(each.second), "", f"not compared: {each.reason}"
    return each.case, _rate(each.first), _rate(each.second), formatting.ratio(each.ratio), _told(each, each.ratio)


def _told(each: Comparison, ratio: Interval) -> str:
    if not each.differs:
        return "no difference seen"
    return "faster in this run" if ratio.estimate > 1 else "SLOWER in this run"


def _rate(rate: Interval | None) -> str:
    return "" if rate is None else formatting.estimate(rate, formatting.rate)
