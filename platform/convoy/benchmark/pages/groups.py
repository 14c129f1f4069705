"""Sections of a benchmark's page that treat every group alike: its cases, where their steps go, and their memory."""

import re
from collections.abc import Sequence

from convoy.benchmark.analysis.model import BenchReport, CaseFigures, GroupFigures
from convoy.benchmark.pages.cases import about, charts, few, largest, table, utilisation
from convoy.benchmark.pages.charts import Row, bars, stacked_bars
from convoy.benchmark.pages.headline import FROZEN, baseline_of
from convoy.benchmark.results.case import CHANGED
from convoy.benchmark.results.values import MEMORY_FRAGMENTATION, MEMORY_HOST_BYTES, MEMORY_PARTS
from convoy.benchmark.suites import registry
from convoy.display import formatting
from convoy.display.page import Block, Chart, Heading, Table, Text
from convoy.stats.interval import Interval

_HOW = (
    "The cases of a table took turns, block by block, in one gang. Rates are medians over blocks with 95 % intervals; "
    "a speedup is the ratio over pairs of blocks that were measured one right after the other."
)


def groups(report: BenchReport) -> tuple[Block, ...]:
    """All but those of suites with a comparison of their own."""
    apart = [suite.name for suite in registry.SUITES if suite.comparison]
    shown = [group for group in report.groups if group.suite not in apart and any(c.rate for c in group.cases)]
    blocks: list[Block] = []
    for i, group in enumerate(shown):
        blocks.append(Heading(title(group, shown)))
        blocks.append(Text(" ".join([about(group), *_frozen(group), *([_HOW] if i == 0 else [])]), quiet=True))
        blocks += [*charts(group), table(group), *(few(group) if i == 0 else ())]
        blocks += [*largest(group), *utilisation(group)]
    return tuple(blocks)


def title(group: GroupFigures, shown: Sequence[GroupFigures]) -> str:
    """Of its suite, with what tells it from others of that suite among `shown`: the model, how it is cut, which of the
    gangs of one comparison. Groups are named `SUITE-MODEL…`; what is named otherwise keeps its name."""
    titles: dict[str, str] = {}
    for suite in registry.SUITES:
        titles |= {suite.name: suite.title, **suite.titles}
    others = [other for other in shown if other.suite == group.suite]
    kind, model, rest = group.name.partition(f"-{_preset(group)}")
    told = re.fullmatch(r"(-model-parallel)?(?:-(\d+))?", rest)
    if not model or told is None:
        named = titles.get(group.suite, group.suite)
        return named if len(others) == 1 else f"{named}: {group.name}"
    cut, number = told.groups()
    words = [
        _preset(group) if len({_preset(other) for other in others}) > 1 else "",
        "tensor and pipeline parallel" if cut else "",
        f"gang {number}" if number else "",
    ]
    named, words = titles.get(kind, kind), [word for word in words if word]
    return f"{named}: {', '.join(words)}" if words else named


def _preset(group: GroupFigures) -> str:
    """The model's name, also of one that stands for it where it is cut."""
    return group.model.removesuffix(CHANGED)


def _frozen(group: GroupFigures) -> list[str]:
    """Who the baseline is, where it is among the cases."""
    there = any(case.name == FROZEN for case in group.cases)
    return [f"{FROZEN}: {baseline_of(group)}, eager, a model of the same shape."] if there else []


def step_parts(report: BenchReport) -> tuple[Block, ...]:
    """A bar for each case that knows its parts."""
    blocks: list[Block] = []
    for group in report.groups:
        if cases := [case for case in group.cases if case.parts]:
            blocks.append(stacked_bars(_title("Step time", group, report), {case.name: case.parts for case in cases}))
            blocks.append(_parts(cases))
    note = "Rank 0's, of the last step of each block; medians over blocks."
    return (Heading("Step time"), Text(note, quiet=True), *blocks) if blocks else ()


def memory(report: BenchReport) -> tuple[Block, ...]:
    """A bar for each measured case whose peak was measured for it alone, where there are several, and what the memory
    suite's cases save."""
    compared = [suite.name for suite in registry.SUITES if suite.compares_memory]
    blocks: list[Block] = []
    for group in report.groups:
        peaks = [(case, case.memory_peak_bytes) for case in group.cases if case.rate and case.memory_peak_bytes]
        if len(peaks) > 1:
            blocks.append(_peaks(_title("Memory peak", group, report), peaks))
            if group.suite in compared:
                blocks.append(_saved([case for case, _ in peaks]))
    note = (
        "Tensors at the peak of a step, of the rank that took most: on the GPU where there is one, else on the host. "
        "Parameters, optimizer state and the buckets of gradients are held between steps; the step is what comes on "
        "top: activations, gradients, gathered parameters, buffers. Buffers count whole, such as DeepSpeed's buckets, "
        "though a host gives memory only to what is written of them."
    )
    return (Heading("Memory"), Text(note, quiet=True), *blocks) if blocks else ()


def _peaks(named: str, peaks: Sequence[tuple[CaseFigures, int]]) -> Chart:
    """By part, where all cases tell of them."""
    parts = {case.name: _memory_parts(case) for case, _ in peaks}
    if all(parts.values()):
        return stacked_bars(named, parts, "MB", 1e-6)
    rows = [Row(case.name, _exact(peak / 1e9), _peak(case, peak)) for case, peak in peaks]
    return bars(named, rows, "GB")


def _memory_parts(case: CaseFigures) -> dict[str, float]:
    return {part: case.values[name] for part, name in MEMORY_PARTS.items() if case.values.get(name)}


def _saved(cases: Sequence[CaseFigures]) -> Table:
    """What each takes and saves, and what that costs; columns in which nothing is known are left out."""
    columns = [
        ("Case", [case.name for case in cases]),
        ("Memory peak", [formatting.size(case.memory_peak_bytes or 0) for case in cases]),
        ("Saved", ["" if case.memory_ratio is None else _less(case.memory_ratio) for case in cases]),
        ("Throughput", [formatting.ratio(case.speedup) if case.speedup else "reference" for case in cases]),
        *((part.capitalize(), [_size(case.values.get(name)) for case in cases]) for part, name in MEMORY_PARTS.items()),
        ("Beside the GPU", [_size(case.values.get(MEMORY_HOST_BYTES)) for case in cases]),
        ("Fragmentation", [_percent(case.values.get(MEMORY_FRAGMENTATION)) for case in cases]),
    ]
    told = [(header, cells) for header, cells in columns if any(cells)]
    return Table(tuple(header for header, _ in told), tuple(zip(*(cells for _, cells in told), strict=True)))


def _less(ratio: float) -> str:
    """Of the baseline's peak."""
    return formatting.percent(1 - ratio) if ratio <= 1 else f"{formatting.percent(ratio - 1)} more"


def _size(n_bytes: float | None) -> str:
    return formatting.size(n_bytes) if n_bytes else ""


def _percent(share: float | None) -> str:
    return "" if share is None else formatting.percent(share)


def _parts(cases: Sequence[CaseFigures]) -> Table:
    names = list(dict.fromkeys(name for case in cases for name in case.parts))
    rows = [(case.name, *(_part(case, name) for name in names)) for case in cases]
    return Table(("Case", *names), tuple(rows))


def _part(case: CaseFigures, name: str) -> str:
    """With its share of all parts."""
    seconds, total = case.parts.get(name), sum(case.parts.values())
    if seconds is None:
        return ""
    return (
        f"{formatting.duration(seconds)} ({formatting.percent(seconds / total)})"
        if total
        else formatting.duration(seconds)
    )


def _title(what: str, group: GroupFigures, report: BenchReport) -> str:
    named = title(group, report.groups)
    return f"{what}, {named[0].lower()}{named[1:]}"


def _exact(value: float) -> Interval:
    return Interval(estimate=value, low=value, high=value, n=1)


def _peak(case: CaseFigures, peak: int) -> str:
    ratio = "" if case.memory_ratio is None else f", {formatting.percent(case.memory_ratio)}"
    return f"{formatting.size(peak)}{ratio}"
