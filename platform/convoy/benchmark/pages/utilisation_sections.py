"""Parts of a benchmark's page on where each case's step, cores and GPUs go, below the cases themselves."""

from collections.abc import Sequence

from convoy.benchmark.analysis.model import CaseFigures, GroupFigures
from convoy.benchmark.pages.charts import stacked_bars
from convoy.benchmark.results import values
from convoy.display import formatting
from convoy.display.page import Block, Table, Text

_SHARES = (
    "From a trace of some steps after all that was timed, the mean over ranks. What computes, operators or a GPU's "
    "kernels, counts for the part that started it; communication is what nothing that computes hides; idle is what is "
    "left: Python between operators, and waiting. A trace slows what computes nothing: without it idle is less."
)
_HOST = "CPU time and switches are of one rank's process in one step; CPU utilisation is of all cores of the hosts."


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


def _percent(share: float | None) -> str:
    return "" if share is None else formatting.percent(share)
