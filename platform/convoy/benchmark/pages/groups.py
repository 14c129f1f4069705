"""Parts of a benchmark's page on its groups: for each a table and its charts."""

import re
from collections.abc import Sequence

from convoy.benchmark.analysis.levers import THROUGHPUT
from convoy.benchmark.analysis.model import BenchReport, CaseFigures, GroupFigures, verdict
from convoy.benchmark.analysis.scaling import SUITE as SCALING
from convoy.benchmark.analysis.sync import SUITE as SYNC
from convoy.benchmark.pages.charts import COLOURS, Row, bars, ratios
from convoy.benchmark.pages.headline import FROZEN, baseline_of, hardware_of
from convoy.benchmark.pages.utilisation_sections import utilisation
from convoy.benchmark.results.case import CHANGED
from convoy.benchmark.results.values import (
    LARGEST_MODEL_LAYERS,
    LARGEST_MODEL_PARAMETERS,
    RANK_HOST_BYTES,
    RANK_MEMORY_BYTES,
    STATE_BYTES,
)
from convoy.display import formatting
from convoy.display.charts import BLUE, GREY
from convoy.display.page import Block, Chart, Heading, Table, Text
from convoy.stats.interval import Interval

TITLES = {
    "throughput": "Throughput",
    "strategies": "Strategies side by side",
    "memory": "Memory techniques",
    "utilisation": "Utilisation",
    "checkpoint": "Checkpoints",
    "recovery": "Recovery",
    "scaling": "Scaling",
    "sync": "Gradient synchronisation",
    "network": "Environments",
}
"""Of suites, and of the gangs of the sync suite that differ in their environment; others have their name."""

WELL_MEASURED = 20
"""Blocks of a case from which on nothing is said of wide intervals."""

_HOW = (
    "The cases of a table took turns, block by block, in one gang. Rates are medians over blocks with 95 % intervals; "
    "a speedup is the ratio over pairs of blocks that were measured one right after the other."
)


def groups(report: BenchReport) -> tuple[Block, ...]:
    """All but those with a part of their own: scaling, which compares across gangs, and synchronisation."""
    apart = (SCALING, SYNC)
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
    others = [other for other in shown if other.suite == group.suite]
    kind, model, rest = group.name.partition(f"-{_preset(group)}")
    told = re.fullmatch(r"(-model-parallel)?(?:-(\d+))?", rest)
    if not model or told is None:
        named = TITLES.get(group.suite, group.suite)
        return named if len(others) == 1 else f"{named}: {group.name}"
    cut, number = told.groups()
    words = [
        _preset(group) if len({_preset(other) for other in others}) > 1 else "",
        "tensor and pipeline parallel" if cut else "",
        f"gang {number}" if number else "",
    ]
    named, words = TITLES.get(kind, kind), [word for word in words if word]
    return f"{named}: {', '.join(words)}" if words else named


def _preset(group: GroupFigures) -> str:
    """The model's name, also of one that stands for it where it is cut."""
    return group.model.removesuffix(CHANGED)


def _frozen(group: GroupFigures) -> list[str]:
    """Who the baseline is, where it is among the cases."""
    there = group.suite == THROUGHPUT and any(case.name == FROZEN for case in group.cases)
    return [f"{FROZEN}: {baseline_of(group)}, eager, a model of the same shape."] if there else []


def few(group: GroupFigures) -> Sequence[Text]:
    """How intervals become narrower, where few blocks make them wide."""
    n = min((case.blocks for case in group.cases if case.rate), default=WELL_MEASURED)
    if n >= WELL_MEASURED:
        return ()
    return [
        Text(
            f"{n} blocks of each case: intervals are wide. Narrower: measure.rounds of {4 * n} "
            "(they shrink with the square root of the rounds, and time grows with the rounds)."
        )
    ]


def table(group: GroupFigures) -> Table:
    """A row for each case; columns in which nothing is known are left out."""
    several = len({case.baseline for case in group.cases if case.baseline is not None}) > 1
    columns = [
        ("Case", [case.name for case in group.cases]),
        ("Tokens per second", [_rate(case) for case in group.cases]),
        ("Blocks", [str(case.blocks) if case.rate else "" for case in group.cases]),
        ("Speedup", [_speedup(case, several) for case in group.cases]),
        ("CPU time per token", [formatting.ratio(case.cpu_ratio) if case.cpu_ratio else "" for case in group.cases]),
        ("MFU", [_percent(case.mfu) for case in group.cases]),
        ("Of matmul rate", [_percent(case.matmul_share if case.mfu is None else None) for case in group.cases]),
        ("Memory peak", [_size(case.memory_peak_bytes) for case in group.cases]),
        ("State of a rank", [_size(case.values.get(STATE_BYTES)) for case in group.cases]),
        ("Largest model", [_largest(case) for case in group.cases]),
        ("Warm-up", [_warm_up(case) if case.rate else "" for case in group.cases]),
        ("Losses", [losses(case) for case in group.cases]),
    ]
    told = [(header, cells) for header, cells in columns if any(cells)]
    return Table(tuple(header for header, _ in told), tuple(zip(*(cells for _, cells in told), strict=True)))


def largest(group: GroupFigures) -> Sequence[Text]:
    """What is meant by the largest model, with what it was reckoned for; none where no case tells of it."""
    told = next((case.values for case in group.cases if case.values.get(LARGEST_MODEL_PARAMETERS)), {})
    memory, host = told.get(RANK_MEMORY_BYTES), told.get(RANK_HOST_BYTES)
    if memory is None:
        return ()
    beside = "" if host is None else f", and {formatting.size(host)} of its host's"
    return [
        Text(
            f"Largest model: computed, not measured. {group.model} with as many layers as have room in "
            f"{formatting.size(memory)} of memory of a rank{beside}, by weights, gradients and moments alone; "
            "activations come on top. What a case takes while it is built, by which it may be refused, is not in it.",
            quiet=True,
        )
    ]


def losses(case: CaseFigures) -> str:
    """Whether it computed the same."""
    match case.losses:
        case "agree":
            return "agree" if not case.loss_difference else f"agree to {_percent(case.loss_difference)}"
        case "differ":
            by = "" if case.loss_difference is None else f" BY {_percent(case.loss_difference)}"
            return f"DIFFER{by}"
        case "not told":
            return "not told"
    return ""


def about(group: GroupFigures) -> str:
    """What was trained, and on what."""
    hardware = group.hardware
    threads = formatting.plural(hardware.threads, "thread")
    on = f" on {hardware.device}" if hardware.instance_type else ""
    tokens = " or ".join(f"{n:,}" for n in group.tokens_per_step)
    return (
        f"{group.model}, {formatting.count(group.parameters)} parameters; {hardware_of(group)} of {threads}{on}; "
        f"{tokens} tokens per step."
    )


def charts(group: GroupFigures) -> Sequence[Chart]:
    """Rates and speedups; one case alone needs none."""
    measured = [(case, case.tokens_per_second) for case in group.cases if case.tokens_per_second and case.rate > 0]
    if len(measured) < 2:
        return ()
    rows = [
        Row(case.name, rate, formatting.rate(rate.estimate), GREY if case.baseline is None else BLUE)
        for case, rate in measured
    ]
    charts = [bars("Throughput", rows, "tokens per second")]
    against = [(case, case.speedup) for case in group.cases if case.speedup is not None]
    for over in dict.fromkeys(str(case.baseline) for case, _ in against):
        beside = [_beside(case.name, found) for case, found in against if case.baseline == over]
        charts.append(ratios(f"Speedup over {over}", beside, f"times as fast as {over}"))
    return charts


def _beside(name: str, found: Interval) -> Row:
    told = verdict(found)
    words = "no difference seen" if told == "no difference" else formatting.ratio(found).partition(" ")[0]
    return Row(name, found, words, COLOURS[told])


def _rate(case: CaseFigures) -> str:
    if case.tokens_per_second is None:
        return case.status if case.status != "measured" else "too few blocks"
    return formatting.estimate(case.tokens_per_second, formatting.rate)


def _speedup(case: CaseFigures, several: bool) -> str:
    """several: cases of the table are compared with different ones."""
    if case.baseline is None:
        return "reference"
    if case.speedup is None:
        return case.not_compared
    told = f"{formatting.ratio(case.speedup)}{f', over {case.baseline}' if several else ''}"
    return f"no difference seen: {told}" if verdict(case.speedup) == "no difference" else told


def _warm_up(case: CaseFigures) -> str:
    return f"{formatting.plural(case.warm_up_steps, 'step')}{'' if case.steady else ', still drifting'}"


def _percent(share: float | None) -> str:
    return "" if share is None else formatting.percent(share)


def _size(n_bytes: float | None) -> str:
    return "" if n_bytes is None else formatting.size(n_bytes)


def _largest(case: CaseFigures) -> str:
    parameters, layers = case.values.get(LARGEST_MODEL_PARAMETERS), case.values.get(LARGEST_MODEL_LAYERS)
    if parameters is None:
        return ""
    return formatting.count(parameters) + ("" if layers is None else f", {formatting.plural(round(layers), 'layer')}")
