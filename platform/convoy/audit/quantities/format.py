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


def _steps(*steps: tuple[float, str]) -> Form:
    """In the largest unit of which there is at least one."""

    def form(value: float) -> str:
        factor, unit = next((step for step in steps if value >= 0.9995 * step[0]), steps[-1])
        return f"{number(value / factor)}{unit}"

    return form


def _unit(factor: float, unit: str) -> Form:
    return lambda value: f"{number(value / factor)}{unit}"


_hours = _steps((3600.0, " h"), (60.0, " min"), (1.0, " s"), (1e-3, " ms"), (1e-6, " us"))


def duration(value: float) -> str:
    """`79.7 days`, `57.1 h`, `23.1 us`."""
    if value >= 2 * YEAR:
        return f"{number(value / YEAR)} years"
    return f"{number(value / DAY)} days" if value >= 3 * DAY else _hours(value)


count = _steps((1e12, " T"), (1e9, " B"), (1e6, " M"), (1.0, ""))
size = _steps((1e12, " TB"), (1e9, " GB"), (1e6, " MB"), (1e3, " kB"), (1.0, " B"))
bandwidth = _steps((1e9, " GB/s"), (1e6, " MB/s"), (1e3, " kB/s"), (1.0, " B/s"))
gigabytes_per_second = _unit(1e9, " GB/s")
percent = _unit(0.01, " %")


def dollars(value: float) -> str:
    return f"${value:,.0f}" if value >= 1000 else f"${value:.2f}" if value >= 1 else f"${number(value)}"


def _per_hour(value: float) -> str:
    return f"{dollars(value)}/h"


FORMS: dict[str, Form] = {
    "parameters": lambda value: f"{count(value)} parameters",
    "flops_per_token": _unit(1e9, " GFLOP per token"),
    "throughput": lambda value: f"{number(value, 6)} tokens/s",
    "throughput_per_gpu": lambda value: f"{number(value, 4)} tokens/s/GPU",
    "throughput_per_node": lambda value: f"{number(value, 4)} tokens/s/node",
    "samples_per_second": lambda value: f"{number(value)} samples/s",
    "tokens": lambda value: f"{count(value)} tokens",
    "batch_tokens": lambda value: f"{count(value)} tokens per step",
    "batch": lambda value: f"{number(value)} sequences",
    "time": duration,
    "lost_time": duration,
    "productive_time": duration,
    "step_time": duration,
    "mtbf": duration,
    "recovery_time": duration,
    "save_time": duration,
    "load_time": duration,
    "stall": duration,
    "interval": duration,
    "gpu_hours": lambda value: f"{number(value / 3600)} GPU-hours",
    "gpus": lambda value: f"{number(value)} GPUs",
    "nodes": lambda value: f"{number(value)} nodes",
    "gpus_per_node": lambda value: f"{number(value)} GPUs per node",
    "peak": _unit(1e12, " TFLOP/s"),
    "tflops_per_gpu": _unit(1e12, " TFLOP/s per GPU"),
    "compute": lambda value: f"{value:.3g} FLOP",
    "price_per_hour": lambda value: f"{_per_hour(value)} per node",
    "price_per_gpu_hour": lambda value: f"{_per_hour(value)} per GPU",
    "total_price_per_hour": _per_hour,
    "spot_price": _per_hour,
    "on_demand_price": _per_hour,
    "cost": dollars,
    "cost_per_token": lambda value: f"{dollars(value * 1e9)} per 1 B tokens",
    "spot_share": lambda value: f"{percent(1 - value)} saved" if value <= 1 else f"{number(value)}x the price",
    "mfu": percent,
    "hfu": percent,
    "scaling_efficiency": percent,
    "goodput": percent,
    "lost_share": percent,
    "recovery_rate": percent,
    "overhead": percent,
    "unproductive": percent,
    "speedup": _unit(1.0, "x"),
    "gpu_memory": size,
    "memory_per_gpu": size,
    "state_per_gpu": size,
    "size": size,
    "bandwidth": gigabytes_per_second,
    "load_bandwidth": gigabytes_per_second,
    "network": gigabytes_per_second,
    "link": gigabytes_per_second,
    "bandwidth_per_node": gigabytes_per_second,
    "bandwidth_per_gpu": gigabytes_per_second,
    "size_per_node": size,
    "size_per_gpu": size,
    "power": _steps((1e6, " MW"), (1e3, " kW"), (1.0, " W")),
    "power_per_gpu": _unit(1.0, " W per GPU"),
    "energy": _steps((3.6e9, " MWh"), (3.6e6, " kWh"), (3600.0, " Wh"), (1.0, " J")),
    "tokens_per_joule": _unit(1.0, " tokens/J"),
}
"""By quantity; what is missing is a plain number."""


def written(quantity: str, span: Span) -> str:
    """The value of any quantity of an audit, whose names end with one of FORMS."""
    return FORMS.get(quantity.rpartition("/")[2], number)(span.value)


def written_range(quantity: str, span: Span) -> str:
    """` (24.97 to 489.54)`, or nothing where the bounds are near."""
    form = FORMS.get(quantity.rpartition("/")[2], number)
    if span.high >= BIG or span.low <= 0 or span.high < _WIDE * span.low:
        return ""
    return f" ({form(span.low)} to {form(span.high)})"
