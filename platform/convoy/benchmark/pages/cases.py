"""The table and the charts of one group's cases."""

from collections.abc import Sequence

from convoy.benchmark.analysis.model import CaseFigures, GroupFigures, verdict
from convoy.benchmark.pages.charts import COLOURS, Row, bars, ratios, stacked_bars
from convoy.benchmark.pages.headline import hardware_of
from convoy.benchmark.results import values
from convoy.benchmark.results.values import (
    LARGEST_MODEL_LAYERS,
    LARGEST_MODEL_PARAMETERS,
    RANK_HOST_BYTES,
    RANK_MEMORY_BYTES,
    STATE_BYTES,
)
from convoy.display import formatting
from convoy.display.charts import BLUE, GREY
from convoy.display.page import Block, Chart, Table, Text
from convoy.stats.interval import Interval

WELL_MEASURED = 20
"""Blocks of a case from which on nothing is said of wide intervals."""

_SHARES = (
    "From a trace of some steps after all that was timed, the mean over ranks. What computes, operators or a GPU's "
    "kernels, counts for the part that started it; communication is what nothing that computes hides; idle is what is "
    "left: Python between operators, and waiting. A trace slows what computes nothing: without it idle is less."
)
_HOST = "CPU time and switches are of one rank's process in one step; CPU utilisation is of all cores of the hosts."


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


def utilisation(group: GroupFigures) -> tuple[Block, ...]:
    """Nothing for a group whose cases tell nothing of it."""
    return (*_shares(group.cases), *_host(group.cases))


def _shares(cases: Sequence[CaseFigures]) -> list[Block]:
    """A bar for each case, and a table."""
    told = {case.name: _parts(case) for case in cases if all(name in case.values for name in values.SHARES.values())}
    if not told:
        return []
    hidden = {case.name: case.values.get(values.COMMUNICATION_HIDDEN) for case in cases}
    headers = ("Case", *values.SHARES, "Communication hidden")
    rows = [
        (name, *(formatting.percent(share) for share in parts.values()), _percent(hidden[name]))
        for name, parts in told.items()
    ]
    chart = stacked_bars("Shares of the step", told, unit="%", factor=100)
    return [chart, Table(headers, tuple(rows)), Text(_SHARES, quiet=True)]


def _parts(case: CaseFigures) -> dict[str, float]:
    return {part: case.values[name] for part, name in values.SHARES.items()}


def _host(cases: Sequence[CaseFigures]) -> list[Block]:
    """Columns in which nothing is known are left out."""
    columns = [
        ("User CPU", [_seconds(case, values.USER_CPU_SECONDS) for case in cases]),
        ("System CPU", [_seconds(case, values.SYSTEM_CPU_SECONDS) for case in cases]),
        ("Voluntary switches", [_count(case, values.VOLUNTARY_SWITCHES) for case in cases]),
        ("Involuntary switches", [_count(case, values.INVOLUNTARY_SWITCHES) for case in cases]),
        ("CPU utilisation", [_percent(case.values.get(values.CPU_UTILISATION)) for case in cases]),
        ("GPU utilisation", [_percent(case.values.get(values.GPU_UTILISATION)) for case in cases]),
        ("GPU power", [_unit(case, values.POWER_WATTS, "W") for case in cases]),
        ("Energy of a step", [_unit(case, values.ENERGY_JOULES_PER_STEP, "J") for case in cases]),
    ]
    told = [(header, cells) for header, cells in columns if any(cells)]
    if not told:
        return []
    rows = tuple(zip([case.name for case in cases], *(cells for _, cells in told), strict=True))
    return [Table(("Case", *(header for header, _ in told)), rows), Text(_HOST, quiet=True)]


def _seconds(case: CaseFigures, name: str) -> str:
    return formatting.duration(case.values[name]) if name in case.values else ""


def _count(case: CaseFigures, name: str) -> str:
    return formatting.significant(case.values[name]) if name in case.values else ""


def _unit(case: CaseFigures, name: str, unit: str) -> str:
    return f"{formatting.significant(case.values[name])} {unit}" if name in case.values else ""
