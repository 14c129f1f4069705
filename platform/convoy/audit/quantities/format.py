"""How computed figures are written: three significant digits and the unit of the quantity. Pure."""

import math
from collections.abc import Callable

from convoy.audit.quantities.number import BIG, Span

Form = Callable[[float], str]

_WIDE = 1.15
"""High over low bound, from which both are written."""

DAY = 86400.0
YEAR = 365.2425 * DAY


def number(value: float, digits: int = 3) -> str:
    """`79.7`, `145,000`, `4.4e-06`."""
    if value == 0:
        return "0"
    if not 1e-3 <= abs(value) < 1e15:
        return f"{value:.{digits - 1}e}"
    decimals = max(digits - 1 - math.floor(math.log10(abs(float(f"{value:.{digits - 1}e}")))), 0)
    if float(value).is_integer() and value < 10_000:
        return f"{value:,.0f}"
    return f"{round(value, digits - 1 - math.floor(math.log10(abs(value)))):,.{decimals}f}"


def _in_largest_unit(*units: tuple[float, str]) -> Form:
    """In the largest unit of which there is at least one."""

    def form(value: float) -> str:
        factor, unit = next((each for each in units if value >= 0.9995 * each[0]), units[-1])
        return f"{number(value / factor)}{unit}"

    return form


def _in_unit(factor: float, unit: str) -> Form:
    return lambda value: f"{number(value / factor)}{unit}"


_hours = _in_largest_unit((3600.0, " h"), (60.0, " min"), (1.0, " s"), (1e-3, " ms"), (1e-6, " us"))


def duration(value: float) -> str:
    """`79.7 days`, `57.1 h`, `23.1 us`."""
    if value >= 2 * YEAR:
        return f"{number(value / YEAR)} years"
    return f"{number(value / DAY)} days" if value >= 3 * DAY else _hours(value)


count = _in_largest_unit((1e12, " T"), (1e9, " B"), (1e6, " M"), (1.0, ""))
size = _in_largest_unit((1e12, " TB"), (1e9, " GB"), (1e6, " MB"), (1e3, " kB"), (1.0, " B"))
gigabytes_per_second = _in_unit(1e9, " GB/s")
percent = _in_unit(0.01, " %")


def dollars(value: float) -> str:
    return f"${value:,.0f}" if value >= 1000 else f"${value:.2f}" if value >= 1 else f"${number(value)}"


def _with_suffix(form: Form, suffix: str) -> Form:
    return lambda value: f"{form(value)}{suffix}"


_FORMS: dict[str, Form] = {
    "time lost_time step_time mtbf recovery_time save_time load_time stall interval": duration,
    "mfu hfu scaling_efficiency goodput not_good lost_share recovery_rate overhead savings utilisation": percent,
    "gpu_memory memory_per_gpu state_per_gpu size size_per_node size_per_gpu": size,
    "bandwidth load_bandwidth algorithm_bandwidth bus_bandwidth bandwidth_per_node bandwidth_per_gpu peak_per_gpu most "
    "most_per_node most_algorithm": gigabytes_per_second,
    "total_price_per_hour spot_price on_demand_price": _with_suffix(dollars, "/h"),
    "price_per_hour list_price": _with_suffix(dollars, "/h per node"),
    "price_per_gpu_hour": _with_suffix(dollars, "/h per GPU"),
    "cost": dollars,
    "cost_per_token": lambda value: f"{dollars(value * 1e9)} per 1 B tokens",
    "spot_share": lambda value: f"{percent(1 - value)} saved" if value <= 1 else f"{number(value)}x the price",
    "parameters": _with_suffix(count, " parameters"),
    "tokens": _with_suffix(count, " tokens"),
    "batch_tokens": _with_suffix(count, " tokens per step"),
    "throughput": lambda value: f"{number(value, 6)} tokens/s",
    "throughput_per_gpu": lambda value: f"{number(value, 4)} tokens/s/GPU",
    "throughput_per_node": lambda value: f"{number(value, 4)} tokens/s/node",
    "flops_per_token": _in_unit(1e9, " GFLOP per token"),
    "peak": _in_unit(1e12, " TFLOP/s"),
    "tflops_per_gpu": _in_unit(1e12, " TFLOP/s per GPU"),
    "compute": lambda value: f"{value:.3g} FLOP",
    "samples_per_second": _in_unit(1.0, " samples/s"),
    "batch": _in_unit(1.0, " sequences"),
    "gpu_hours": _in_unit(3600.0, " GPU-hours"),
    "gpus": _in_unit(1.0, " GPUs"),
    "nodes": _in_unit(1.0, " nodes"),
    "gpus_per_node": _in_unit(1.0, " GPUs per node"),
    "speedup": _in_unit(1.0, "x"),
}

FORMS = {quantity: form for quantities, form in _FORMS.items() for quantity in quantities.split()}
"""By quantity; what is missing is a plain number."""


def value_text(quantity: str, span: Span) -> str:
    """The value of any quantity of an audit, whose names end with one of FORMS."""
    return FORMS.get(quantity.rpartition("/")[2], number)(span.value)


def range_text(quantity: str, span: Span) -> str:
    """` (24.97 to 489.54)`, or nothing where the bounds are near."""
    form = FORMS.get(quantity.rpartition("/")[2], number)
    if span.high >= BIG or span.low <= 0 or span.high < _WIDE * span.low:
        return ""
    return f" ({form(span.low)} to {form(span.high)})"
