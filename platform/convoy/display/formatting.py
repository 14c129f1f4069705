"""Numbers as people read them: three significant digits and a unit."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING

from convoy.stats.spread import Spread

if TYPE_CHECKING:  # brings numpy, which an agent's process, and `convoy run`, have no other need of
    from convoy.stats.interval import Interval

Form = Callable[[float], str]

DAY = 86400.0
YEAR = 365.25 * DAY

_BARS = "▁▂▃▄▅▆▇█"


def significant(value: float, digits: int = 3) -> str:
    """`digits` significant digits without an exponent between 1e-3 and 1e6."""
    if not math.isfinite(value):
        return "not finite"
    if value and not 1e-3 <= abs(value) < 1e6:
        return f"{value:.{digits - 1}e}"
    rounded = float(f"{value:.{digits - 1}e}")  # 999.9 has four digits before the point once it is rounded
    decimals = digits - 1 - (math.floor(math.log10(abs(rounded))) if rounded else 0)
    return f"{value:.{max(decimals, 0)}f}"


def integer(value: int) -> str:
    """Every digit: `1,234,567`."""
    return f"{value:,}"


def in_unit(name: str) -> Form:
    """A formatter of three digits and this unit, e.g. `312 TFLOP/s`."""
    return lambda value: f"{significant(value)} {name}"


def count(value: float) -> str:
    """1234567 as `1.23 M`; below ten thousand every digit is shown."""
    if abs(value) < 10_000:
        return f"{value:,.0f}"
    return _in_largest_unit(value, {" T": 1e12, " B": 1e9, " M": 1e6, " k": 1e3}) or f"{value:,.0f}"


def _in_largest_unit(value: float, units: Mapping[str, float]) -> str:
    """In the first unit of which there is at least one; empty: there is none."""
    unit = next((unit for unit, factor in units.items() if abs(value) >= 0.9995 * factor), None)
    return "" if unit is None else f"{significant(value / units[unit])}{unit}"


def rate(per_second: float, unit: str = "tokens") -> str:
    """Tokens per second, e.g. `12.3k tok/s`, or what else a model is trained on, e.g. `12.3k images/s`."""
    name = unit_name(unit)
    units = {f"M {name}/s": 1e6, f"k {name}/s": 1e3}
    return _in_largest_unit(per_second, units) or f"{significant(per_second)} {name}/s"


def unit_name(unit: str) -> str:
    """As it is written with a number."""
    return "tok" if unit == "tokens" else unit


def rate_of(unit: str) -> Form:
    """As `rate`, of this unit."""
    return lambda per_second: rate(per_second, unit)


def duration(seconds: float) -> str:
    """Seconds as `85 ms`, `3.2 s`, `4 m 12 s`, `2 h 05 m` or `3 d 04 h`, with a sign if less than zero."""
    if seconds < 0:
        return f"-{duration(-seconds)}"
    if seconds < 0.9995:
        return f"{significant(seconds * 1000)} ms" if seconds else "0 s"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} m {whole % 60:02d} s"
    minutes = round(seconds / 60)
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} m"
    hours = round(seconds / 3600)
    return f"{hours // 24} d {hours % 24:02d} h"


def long_duration(seconds: float) -> str:
    """The same, but `12.3 days` from two days on, and `4.56 years` from two years on."""
    if seconds < 2 * DAY:
        return duration(seconds)
    if seconds < 2 * YEAR:
        return f"{significant(seconds / DAY)} days"
    return f"{significant(seconds / YEAR) if seconds < 1e4 * YEAR else count(seconds / YEAR)} years"


def work_progress(done: int, total: int, seconds: float) -> str:
    """How much of a row of equal pieces of work is done, for example `3 of 9 done in 2 m 05 s, about 4 m 10 s left`."""
    if done == 0:
        return f"0 of {total} done"
    left = f", about {duration(seconds / done * (total - done))} left" if done < total else ""
    return f"{done} of {total} done in {duration(seconds)}{left}"


def clock(unix: float) -> str:
    """A time of day, for example 14:03:21 UTC."""
    return time.strftime("%H:%M:%S UTC", time.gmtime(unix))


def size(n_bytes: float) -> str:
    """Bytes in decimal units, e.g. `43.2 MB`."""
    return _in_largest_unit(n_bytes, {" TB": 1e12, " GB": 1e9, " MB": 1e6, " kB": 1e3}) or f"{n_bytes:.0f} B"


def buffer_size(n_bytes: float) -> str:
    """Bytes of a buffer in powers of 1,024, as benchmarks of collectives choose them: `8 B`, `64 KiB`, `16 MiB`."""
    unit, power = next(((u, p) for u, p in ((" GiB", 30), (" MiB", 20), (" KiB", 10)) if n_bytes >= 2**p), (" B", 0))
    number = n_bytes / 2**power
    return f"{number:.{4 if number >= 999.5 else 3}g}{unit}"


def flops(per_second: float) -> str:
    """`4.31 PFLOP/s`."""
    units = {"P": 1e15, "T": 1e12, "G": 1e9}
    unit = next((name for name, scale in units.items() if per_second >= scale), "M")
    return f"{significant(per_second / units.get(unit, 1e6))} {unit}FLOP/s"


def bandwidth(bytes_per_second: float) -> str:
    """Bytes per second, e.g. `43.2 MB/s`."""
    return f"{size(bytes_per_second)}/s"


def gib(n_bytes: float) -> str:
    """Memory, in the units of data sheets: `38.6 GiB`, `73.6 MiB`."""
    if abs(n_bytes) >= 0.1 * 2**30 or not n_bytes:
        return f"{n_bytes / 2**30:,.1f} GiB"
    return f"{n_bytes / 2**20:,.1f} MiB"


def percent(share: float) -> str:
    """0.4567 as `45.7 %`, and what is left of nearly nothing as `< 0.001 %`."""
    return "< 0.001 %" if 0 < abs(share) < 1e-5 else f"{significant(100 * share)} %"


def signed_percent(percentage: float) -> str:
    """A difference given in percent: -1.26 as `-1.3 %`, 0.0 as `+0.0 %`."""
    return f"{percentage:+z.1f} %"


def usd(amount: float | Decimal) -> str:
    """`1,234.56 USD`."""
    return f"{amount:,.2f} USD"


def whole_usd(amount: float) -> str:
    """`1,235 USD`, for estimates."""
    return f"{amount:,.0f} USD"


def plural(n: int, noun: str) -> str:
    """`1 rank`, `2 ranks`."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def ratio(figure: "Interval") -> str:
    """`1.52× (1.49 to 1.55)`, with a third decimal where the interval is narrow."""
    narrow = figure.high - figure.low < 0.04
    middle, low, high = (
        f"{value:.{3 if narrow else 2}f}" if 0.1 <= value < 10 else significant(value)
        for value in (figure.estimate, figure.low, figure.high)
    )
    return f"{middle}× ({low} to {high})"


def estimate(figure: "Interval", form: Form = significant) -> str:
    """`12.3k tok/s (12.1k to 12.5k)`, each written by `form`."""
    return f"{form(figure.estimate)} ({bounds(figure, form)})"


def bounds(figure: "Interval", form: Form = significant) -> str:
    """`12.1k to 12.5k`, without the unit that `form` writes after each."""
    low, high = form(figure.low), form(figure.high)
    number, unit = _split_shared_unit(low, high)
    return f"{number} to {high.removesuffix(unit)}"


def quartiles(figure: "Spread", form: Form = significant) -> str:
    """`IQR 1.2 to 1.4, n = 30`, each bound written by `form`; the unit is written once."""
    low, high = form(figure.q1), form(figure.q3)
    return f"IQR {_split_shared_unit(low, high)[0]} to {high}, n = {figure.n:,}"


def _split_shared_unit(low: str, high: str) -> tuple[str, str]:
    """The number of `low` and the unit that it shares with `high`; all of it, and no unit, if theirs differ."""
    number, space, unit = low.partition(" ")
    return (number, space + unit) if unit and high.endswith(f" {unit}") else (low, "")


def sparkline(values: Sequence[float], width: int) -> str:
    """The values as a line of at most `width` bars; each is the mean of its share of them."""
    if not values:
        return ""
    n = min(width, len(values))
    means = []
    for i in range(n):
        share = values[i * len(values) // n : (i + 1) * len(values) // n]
        means.append(sum(share) / len(share))
    low, high = min(means), max(means)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((m - low) * scale)] for m in means)
