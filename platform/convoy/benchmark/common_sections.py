"""Sections of a benchmark's page that treat every group alike: its cases, where their steps go, and their memory."""

import re
from collections.abc import Callable, Sequence

from convoy.benchmark.analysis.report import BenchReport, CaseFigures, GroupFigures
from convoy.benchmark.pages.cases import charts, describe_group, largest_model_note, table, utilisation, value_column
from convoy.benchmark.pages.charts import stacked_bars
from convoy.benchmark.pages.headline import frozen_baseline_text
from convoy.benchmark.results.case import CHANGED
from convoy.benchmark.results.values import BASELINES, MEMORY_FRAGMENTATION, MEMORY_HOST_BYTES, MEMORY_PARTS
from convoy.benchmark.suites import registry
from convoy.display import formatting
from convoy.display.page import Block, Chart, Column, Heading, Table, Text, columns

_HOW = (
    "The cases of a table took turns, block by block, in one gang. Rates are medians over blocks with 95 % intervals; "
    "a speedup is the ratio over pairs of blocks that were measured one right after the other."
)


def group_tables(report: BenchReport) -> tuple[Block, ...]:
    """All groups but those of suites with a comparison of their own."""
    apart = [suite.name for suite in registry.SUITES if suite.comparison]
    measured = [group for group in report.groups if group.suite not in apart and any(c.rate for c in group.cases)]
    blocks: list[Block] = []
    for i, group in enumerate(measured):
        blocks.append(Heading(group_title(group, measured)))
        frozen = [case.name for case in group.cases if case.name in BASELINES and case.rate]
        what = [f"{name}: {frozen_baseline_text(group, name)}, eager, a model of the same shape." for name in frozen]
        blocks.append(Text(" ".join([describe_group(group), *what, *([_HOW] if i == 0 else [])]), quiet=True))
        blocks += [*charts(group), table(group), *largest_model_note(group), *utilisation(group)]
    return tuple(blocks)


def group_title(group: GroupFigures, others: Sequence[GroupFigures]) -> str:
    """The title of its suite, with what distinguishes it from the suite's other groups: the model, how it is cut, its
    number among the gangs of one comparison. Groups are named `SUITE-MODEL…`; a group with another name keeps it."""
    titles: dict[str, str] = {}
    for suite in registry.SUITES:
        titles |= {suite.name: suite.title, **suite.titles}
    others = [other for other in others if other.suite == group.suite]
    kind, model, rest = group.name.partition(f"-{_preset(group)}")
    parts = re.fullmatch(r"(-model-parallel)?(?:-(\d+))?", rest)
    if not model or parts is None:
        suite_title = titles.get(group.suite, group.suite)
        return suite_title if len(others) == 1 else f"{suite_title}: {group.name}"
    cut, number = parts.groups()
    words = [
        _preset(group) if len({_preset(other) for other in others}) > 1 else "",
        "tensor and pipeline parallel" if cut else "",
        f"gang {number}" if number else "",
    ]
    suite_title, words = titles.get(kind, kind), [word for word in words if word]
    return f"{suite_title}: {', '.join(words)}" if words else suite_title


def _preset(group: GroupFigures) -> str:
    """The model's name, also for a model that replaces it where it is cut."""
    return group.model.removesuffix(CHANGED)


def step_parts_section(report: BenchReport) -> tuple[Block, ...]:
    """A bar and a row for each case whose parts are known."""
    blocks: list[Block] = []
    for group in report.groups:
        if cases := [case for case in group.cases if case.parts]:
            by_case = {case.name: case.parts for case in cases}
            blocks.append(stacked_bars(_chart_title("Step time", group, report), by_case))
            names = dict.fromkeys(name for case in cases for name in case.parts)
            parts = [_part_column(name) for name in names]
            blocks.append(columns(cases, Column("Case", lambda c: c.name), *parts))
    note = "Rank 0's, of the last step of each block; medians over blocks."
    return (Heading("Step time"), Text(note, quiet=True), *blocks) if blocks else ()


def _part_column(name: str) -> Column[CaseFigures]:
    """Its seconds, with their share of all parts."""

    def cell(case: CaseFigures) -> str | None:
        seconds, total = case.parts.get(name), sum(case.parts.values())
        if seconds is None:
            return None
        share = f" ({formatting.percent(seconds / total)})" if total else ""
        return f"{formatting.duration(seconds)}{share}"

    return Column(name, cell)


def memory_section(report: BenchReport) -> tuple[Block, ...]:
    """The peaks of groups with several, and what the cases save in suites that compare memory."""
    compared = [suite.name for suite in registry.SUITES if suite.compares_memory]
    blocks: list[Block] = []
    for group in report.groups:
        peaks = [(case, case.memory_peak_bytes) for case in group.cases if case.rate and case.memory_peak_bytes]
        if len(peaks) > 1:
            blocks.append(_peaks_chart(_chart_title("Memory peak", group, report), peaks))
            if group.suite in compared:
                blocks.append(_memory_savings_table([case for case, _ in peaks]))
    note = (
        "Tensors at the peak of a step, on the rank with the highest peak: on the GPU if there is one, else on the "
        "host. Parameters, optimizer state and the buckets of gradients are held between steps; the step adds "
        "activations, gradients, gathered parameters and buffers. Buffers, such as DeepSpeed's buckets, count in full, "
        "though a host allocates only those of their pages that are written."
    )
    return (Heading("Memory"), Text(note, quiet=True), *blocks) if blocks else ()


def _peaks_chart(heading: str, peaks: Sequence[tuple[CaseFigures, int]]) -> Chart:
    """A chart of the peaks by part; older results have no parts."""
    parts = {
        case.name: {part: case.values[name] for part, name in MEMORY_PARTS.items() if case.values.get(name)}
        or {"tensors": float(peak)}
        for case, peak in peaks
    }
    return stacked_bars(heading, parts, "MB", 1e-6)


def _memory_savings_table(cases: Sequence[CaseFigures]) -> Table:
    """What each case takes and saves, and what that costs."""
    return columns(
        cases,
        Column("Case", lambda c: c.name),
        Column("Memory peak", lambda c: c.memory_peak_bytes, formatting.size),
        Column("Saved", lambda c: c.memory_ratio, _saved_text),
        Column("Throughput", lambda c: c.speedup, formatting.ratio, missing="reference"),
        *(Column(part.capitalize(), _nonzero_value(name), formatting.size) for part, name in MEMORY_PARTS.items()),
        Column("In host memory", _nonzero_value(MEMORY_HOST_BYTES), formatting.size),
        value_column("Fragmentation", MEMORY_FRAGMENTATION, formatting.percent),
        drop_empty=True,
    )


def _nonzero_value(name: str) -> Callable[[CaseFigures], float | None]:
    return lambda case: case.values.get(name) or None


def _saved_text(ratio: float) -> str:
    """ratio: of the peak, to the baseline's."""
    return formatting.percent(1 - ratio) if ratio <= 1 else f"{formatting.percent(ratio - 1)} more"


def _chart_title(quantity: str, group: GroupFigures, report: BenchReport) -> str:
    name = group_title(group, report.groups)
    return f"{quantity}, {name[0].lower()}{name[1:]}"
