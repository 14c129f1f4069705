"""The table and the charts of one group's cases."""

from collections.abc import Sequence

from convoy.benchmark.analysis.report import CaseFigures, GroupFigures, verdict
from convoy.benchmark.pages.charts import COLOURS, Row, bars, ratios, stacked_bars
from convoy.benchmark.pages.headline import hardware_of
from convoy.benchmark.results import values
from convoy.benchmark.results.values import SampleMedian
from convoy.display import formatting
from convoy.display.charts import BLUE, GREY
from convoy.display.page import Block, Chart, Column, Table, Text, columns
from convoy.stats.interval import Interval


def sample_text(sample: SampleMedian, form: formatting.Form = formatting.duration) -> str:
    """`85 ms (80 to 90 ms, n = 12)`: with the interval of the median, or with the range of a few."""
    if sample.n == 1:
        return f"{form(sample.median)}, n = 1"
    bounds = formatting.bounds(Interval(estimate=sample.median, low=sample.low, high=sample.high, n=sample.n), form)
    return f"{form(sample.median)} ({'' if sample.is_interval else 'from '}{bounds}, n = {sample.n})"


def describe_group(group: GroupFigures) -> str:
    """The model that was trained, and the hardware."""
    hardware = group.hardware
    threads = formatting.plural(hardware.threads, "thread")
    on = f" on {hardware.device}" if hardware.instance_type else ""
    tokens = " or ".join(f"{n:,}" for n in group.tokens_per_step)
    return (
        f"{group.model}, {formatting.count(group.parameters)} parameters; {hardware_of(group)} of {threads}{on}; "
        f"{tokens} {group.unit} per step."
    )


def charts(group: GroupFigures) -> Sequence[Chart]:
    """Rates and speedups of two cases or more."""
    measured = [(case, case.tokens_per_second) for case in group.cases if case.tokens_per_second and case.rate > 0]
    if len(measured) < 2:
        return ()
    rows = [
        Row(case.name, rate, formatting.rate(rate.estimate, group.unit), GREY if case.baseline is None else BLUE)
        for case, rate in measured
    ]
    charts = [bars("Throughput", rows, f"{group.unit} per second")]
    compared = [(case, case.speedup) for case in group.cases if case.speedup is not None]
    for base in dict.fromkeys(str(case.baseline) for case, _ in compared):
        rows = [_speedup_row(case.name, speedup) for case, speedup in compared if case.baseline == base]
        charts.append(ratios(f"Speedup over {base}", rows, f"times as fast as {base}"))
    return charts


def _speedup_row(name: str, speedup: Interval) -> Row:
    result = verdict(speedup)
    words = "no difference detected" if result == "no difference" else formatting.ratio(speedup).partition(" ")[0]
    return Row(name, speedup, words, COLOURS[result])


def table(group: GroupFigures) -> Table:
    """A row for each case."""
    several = len({case.baseline for case in group.cases if case.baseline is not None}) > 1
    return columns(
        group.cases,
        Column("Case", lambda c: c.name),
        Column(f"{group.unit.capitalize()} per second", lambda c: _rate(c, group.unit)),
        Column("Blocks", lambda c: c.blocks if c.rate else None),
        Column("Speedup", lambda c: _speedup(c, several)),
        Column(f"CPU time per {group.unit.removesuffix('s')}", lambda c: c.cpu_ratio, formatting.ratio),
        Column("Model FLOP/s", lambda c: c.flops_per_second, formatting.flops),
        Column("MFU", lambda c: c.mfu, formatting.percent),
        Column("Share of matmul rate", lambda c: c.matmul_share if c.mfu is None else None, formatting.percent),
        Column("Memory peak", lambda c: c.memory_peak_bytes, formatting.size),
        value_column("State of a rank", values.STATE_BYTES, formatting.size),
        Column("Largest model", _largest_model_text),
        Column("Warm-up", _warm_up),
        Column("Losses", _losses),
        drop_empty=True,
    )


def value_column(title: str, name: str, form: formatting.Form) -> Column[CaseFigures]:
    return Column(title, lambda case: case.values.get(name), form)


def _rate(case: CaseFigures, unit: str) -> str:
    if case.tokens_per_second is None:
        return case.status if case.status != "measured" else "too few blocks"
    return formatting.estimate(case.tokens_per_second, formatting.rate_of(unit))


def _speedup(case: CaseFigures, name_baseline: bool) -> str:
    """name_baseline: the cases of the table have different baselines."""
    if case.baseline is None:
        return "reference"
    if case.speedup is None:
        return case.not_compared
    text = f"{formatting.ratio(case.speedup)}{f', over {case.baseline}' if name_baseline else ''}"
    return f"no difference detected: {text}" if verdict(case.speedup) == "no difference" else text


def _largest_model_text(case: CaseFigures) -> str | None:
    parameters, layers = (
        case.values.get(name) for name in (values.LARGEST_MODEL_PARAMETERS, values.LARGEST_MODEL_LAYERS)
    )
    if parameters is None:
        return None
    return formatting.count(parameters) + ("" if layers is None else f", {formatting.plural(round(layers), 'layer')}")


def _warm_up(case: CaseFigures) -> str | None:
    if not case.rate:
        return None
    return f"{formatting.plural(case.warm_up_steps, 'step')}{'' if case.steady else ', still drifting'}"


def _losses(case: CaseFigures) -> str | None:
    """Whether it computed the same as its baseline."""
    difference = "" if case.loss_difference is None else formatting.percent(case.loss_difference)
    match case.losses:
        case "agree":
            return f"agree to {difference}" if case.loss_difference else "agree"
        case "differ":
            return f"DIFFER BY {difference}" if difference else "DIFFER"
    return case.losses


def largest_model_note(group: GroupFigures) -> Sequence[Text]:
    """The assumptions of the column of the largest model."""
    figures = next((case.values for case in group.cases if case.values.get(values.LARGEST_MODEL_PARAMETERS)), {})
    memory, host = figures.get(values.RANK_MEMORY_BYTES), figures.get(values.RANK_HOST_BYTES)
    if memory is None:
        return ()
    on_host = "" if host is None else f", and {formatting.size(host)} of its host's"
    return [
        Text(
            f"Largest model: computed, not measured. {group.model} with as many layers as fit in "
            f"{formatting.size(memory)} of memory of a rank{on_host}, counting weights, gradients and moments only; "
            "activations come on top. Memory that a case needs while it is built, for which it may be refused, is not "
            "included.",
            quiet=True,
        )
    ]


_SHARES = (
    "From a trace of some steps after everything that was timed; means over ranks. Computation, by operators or a "
    "GPU's kernels, counts for the part that started it; communication is the time that no computation hides; idle is "
    "the rest: Python between operators, and waiting. A trace slows Python: without it there is less idle time."
)
_HOST = (
    "CPU time and switches are those of one rank's process in one step; CPU utilisation is that of all hosts' cores."
)


def utilisation(group: GroupFigures) -> tuple[Block, ...]:
    """Where each case's step, cores and GPUs go, as far as its cases have such values."""
    case_column = Column[CaseFigures]("Case", lambda c: c.name)
    blocks: list[Block] = []
    if traced := [case for case in group.cases if case.values.keys() >= {*values.SHARES.values()}]:
        shares: dict[str, str] = dict(values.SHARES.items())
        parts = {case.name: {part: case.values[name] for part, name in shares.items()} for case in traced}
        shares["Communication hidden"] = values.COMMUNICATION_HIDDEN
        cells = [value_column(title, name, formatting.percent) for title, name in shares.items()]
        blocks += [stacked_bars("Shares of the step", parts, unit="%", factor=100)]
        blocks += [columns(traced, case_column, *cells), Text(_SHARES, quiet=True)]
    cells = [value_column(*each) for each in _HOST_VALUES]
    if any(column.cell(case) for column in cells for case in group.cases):
        blocks += [columns(group.cases, case_column, *cells, drop_empty=True), Text(_HOST, quiet=True)]
    return tuple(blocks)


_HOST_VALUES = (
    ("User CPU", values.USER_CPU_SECONDS, formatting.duration),
    ("System CPU", values.SYSTEM_CPU_SECONDS, formatting.duration),
    ("Voluntary switches", values.VOLUNTARY_SWITCHES, formatting.significant),
    ("Involuntary switches", values.INVOLUNTARY_SWITCHES, formatting.significant),
    ("CPU utilisation", values.CPU_UTILISATION, formatting.percent),
    ("GPU utilisation", values.GPU_UTILISATION, formatting.percent),
)
