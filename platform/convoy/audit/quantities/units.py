"""Text with a unit becomes a figure in base units: one table of units, one of kinds of figures, and one grammar.

    figure = number [multiplier] [unit] { "/" [number] [multiplier] unit }

`per` is `/`, and a hyphen below the bar another one (`/GPU-hour`). Base units are tokens, seconds, bytes, bytes per
second, dollars, dollars an hour, shares, FLOP and FLOP/s. Pure.
"""

import math
import re
from typing import NamedTuple

from convoy.audit.quantities.number import NUMBER, Figure, Number, Span, exactly, read_number, significant_digits

_MULTIPLIERS = {
    "": 1.0, "k": 1e3, "thousand": 1e3, "m": 1e6, "million": 1e6, "g": 1e9, "b": 1e9, "billion": 1e9, "t": 1e12,
    "trillion": 1e12, "p": 1e15, "e": 1e18, "z": 1e21, "ki": 2.0**10, "mi": 2.0**20, "gi": 2.0**30, "ti": 2.0**40,
}  # fmt: skip

_TIMES = {
    "us|µs|μs": 1e-6, "ms": 1e-3, "s|secs?|seconds?": 1.0, "m|mins?|minutes?": 60.0, "h|hrs?|hours?": 3600.0,
    "d|days?": 86400.0, "w|weeks?": 604800.0, "months?": 2629746.0, "years?": 31556952.0,
}  # fmt: skip

_GPU = r"gpus?|[abhv]\d00(?:-?\d+gb)?"

_UNITS = {
    "": {"": 1.0},
    "time": _TIMES,
    "gpu": {f"{_GPU}|rank": 1.0},
    "node": {"nodes?|instances?|machines?": 1.0},
    "step": {"steps?|iterations?": 1.0},
    "token": {"tokens?|toks?": 1.0},
    "sequence": {"samples?|sequences?|seqs?": 1.0},
    "parameter": {"params?|parameters?": 1.0},
    "byte": {"b|bytes?": 1.0},
    "bit": {"(?-i:b)|bits?": 1 / 8},
    "usd": {"": 1.0},
    "flop": {"flops?": 1.0},
    "gpu_hour": {rf"(?:{_GPU})?-?(?:h|hours?)": 1.0, rf"(?:{_GPU})?-?days?": 24.0},
    "share": {"%": 0.01},
    "ratio": {"x|×": 1.0},
    "item": {r"(?:gpus?|nodes?|machines?|instances?|hosts?|ranks?|layers?|tokens?|sequences?|passes|interruptions?)?"
             r"(?:/(?:node|machine))?": 1.0},
}  # fmt: skip
"""By what they are units of: words, and how many base units one of them is."""

ONE_DIGIT = 0.10
"""So far, relative, is a figure with one digit and a multiplier at most from what was meant."""

_COUNTED = 0.03
"""At most so far, relative, is a number of tokens with one digit, such as 1 T, from what was meant."""

_NAMED = 0.08
"""So far, relative, is a model's name from its parameters: a 7B has 6.66 to 7.3 billion."""

_BATCHES = 1.05
"""4M tokens are often 4 × 2**20."""


class Kind(NamedTuple):
    """A kind of figure: what units it may have."""

    example: str
    """Completes `must be`."""
    above: tuple[str, ...]
    """The fraction bar, of the table of units; the empty one: a number, with a multiplier or without, is enough."""
    below: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    """Units below the bar that say what such a figure is of anyway."""
    bare: float = 1.0
    """Factor of a number without a unit."""
    scale: float = 1.0
    """Factor of one with a unit, to the base unit."""
    chosen: float = 1.0
    """At most so far, relative, is a figure with one digit and a multiplier from what was meant."""
    is_exact: bool = False
    """The digits are all of it, except with a word such as `about`."""


_OF = ("gpu", "node")
_BYTES = Kind("a size with its unit, e.g. 84 GB or 40 GiB", ("byte",), chosen=ONE_DIGIT)
_BANDWIDTH = Kind("a bandwidth with its unit, e.g. 50 GB/s or 400 Gbit/s", ("bit", "byte"), ("time",))
KINDS = {
    "exact": Kind("a whole number, e.g. 32", ("", "item"), is_exact=True),
    "number": Kind("a number, e.g. 16", ("",)),
    "count": Kind("a number with k, M, B or T, e.g. 1 T tokens, or 300e9", ("", "token", "step"), chosen=_COUNTED),
    "batch": Kind("a number of sequences or tokens, e.g. 512 or 4M tokens", ("", "token", "sequence"), chosen=_COUNTED),
    "size": Kind("a number with k, M, B or T, e.g. 7B, or 6.74 B parameters", ("", "parameter")),
    "gpu_hours": Kind("GPU-hours, e.g. 74,570 or 1.3M GPU-hours", ("", "gpu_hour"), chosen=ONE_DIGIT),
    "rate": Kind("a rate, e.g. 145,267 tokens/s, or 4,540 tokens/s/GPU", ("", "token"), ("time",), chosen=ONE_DIGIT),
    "samples": Kind("a rate, e.g. 70.9 samples/s", ("", "sequence"), ("time",), chosen=ONE_DIGIT),
    "time": Kind("a time with its unit, e.g. 57 h, 79.7 days, 420 ms, 42,156.7 us", ("time",), ignored=("step",)),
    "bytes": _BYTES,
    "message": _BYTES._replace(is_exact=True),
    "bandwidth": _BANDWIDTH,
    "exact_bandwidth": _BANDWIDTH._replace(is_exact=True),
    "money": Kind("in US dollars, e.g. $140,000 or $1.2M", ("usd",), chosen=ONE_DIGIT),
    "price": Kind("US dollars an hour, e.g. $21.96/h or $2.74 per GPU-hour", ("usd",), ("time",), scale=3600.0),
    "unit_price": Kind("US dollars for tokens, e.g. $0.89 per 1 B tokens", ("usd",), ("token", ""), bare=1e-6),
    "flops": Kind("a rate of operations, e.g. 312 TFLOP/s", ("", "flop"), ignored=("time", "gpu"), bare=1e12),
    "flop": Kind("a number of operations, e.g. 6.3e22 FLOP", ("", "flop")),
    "share": Kind("a share, e.g. 45 % or 0.45", ("", "share")),
    "ratio": Kind("a ratio, e.g. 3.6x", ("", "ratio")),
}  # fmt: skip

_REMARK = re.compile(r"(?<=\S)\s+\([^()]*\)$")
"""`300B tokens (180B unique)`."""

_NOISE = re.compile(
    r"(?<=\S)\s*\b(?:(?:in )?total|aggregate|bf16|dense|model|peak|activated|active|speedup|mfu|hfu|efficiency)\b", re.I
)
"""What a page says of a figure, and its key says anyway."""

_SPELLINGS = [
    (re.compile(words, re.IGNORECASE), plain)
    for words, plain in ((r"\bper\b", "/"), (r"/\s*an?\b", "/"), (r"\s+", ""), ("percent", "%"),
                         (r"(b|bits?|bytes?)ps\b", r"\1/s"))
]  # fmt: skip

_PREFIX = "|".join(sorted(_MULTIPLIERS, key=len, reverse=True))


def parse_figure(kind_name: str, text: str) -> Figure:
    """Raises ValueError with what would be right. Brackets after the figure hold a remark."""
    kind, plain = KINDS[kind_name], _NOISE.sub("", _REMARK.sub("", text.strip()))
    if "usd" in kind.above:
        if re.search(r"[€£¥]", plain):
            raise ValueError("must be in US dollars, e.g. $0.89")
        plain = re.sub(r"\$\s*|\bUSD\b\s*", "", plain).strip()
    if kind.is_exact:  # up to 400 are 400, which every peak is
        plain = re.sub(r"^up to\s*", "", plain)
    if kind_name == "time":
        plain = re.sub(r"^every\s+", "", plain, flags=re.IGNORECASE)
    number = read_number(plain)
    unit = _parse_unit(kind, number.unit)
    (low, value, high), per = _figure_span(kind_name, kind, number, unit), unit.per
    if kind_name == "batch":
        # Nobody has millions of sequences in a step.
        per = "tokens" if unit.top == "token" or unit.multiplier in ("m", "mi", "million") else "sequences"
    return Figure(text=text.strip(), low=low, value=value, high=high, per=per)


class _ParsedUnit(NamedTuple):
    factor: float
    top: str
    multiplier: str
    """As it is written; empty: none."""
    per: str = ""


def _parse_unit(kind: Kind, text: str) -> _ParsedUnit:
    """Raises ValueError for a unit that such a figure does not have."""
    if not text and ("" in kind.above or "usd" in kind.above):
        return _ParsedUnit(kind.bare, "", "")
    for words, plain in _SPELLINGS:
        text = words.sub(plain, text)
    above, *parts = [text] if "item" in kind.above else text.split("/")
    top, multiplier, factor = _parse_term(above, kind.above, kind)
    per, is_divided = "", not kind.below
    for part in "-".join(parts).split("-") if parts else ():
        number = re.match(NUMBER, part) if kind.below else None
        unit, _, size = _parse_term(part[number.end() :] if number else part, (*kind.below, *_OF, *kind.ignored), kind)
        if unit in kind.below:
            factor, is_divided = factor / size / (read_number(number[0]).span.value if number else 1.0), True
        per = unit if unit in _OF and unit not in kind.ignored else per
    if not is_divided and (top not in ("", "usd") or parts or (kind.bare, kind.scale) != (1, 1)):
        raise ValueError(f"must be {kind.example}")
    return _ParsedUnit(factor * kind.scale if parts else factor, top, multiplier, per)


def _parse_term(text: str, units: tuple[str, ...], kind: Kind) -> tuple[str, str, float]:
    """What it is a unit of, its multiplier, and how many base units it is."""
    for unit in units:
        prefix = "" if unit == "time" else "k|m|" if "item" in kind.above else _PREFIX
        for words, factor in _UNITS[unit].items():
            match = re.fullmatch(rf"({prefix})-?(?:{words})", text, re.IGNORECASE)
            if match:
                return unit, match[1].lower(), _MULTIPLIERS[match[1].lower()] * factor
    raise ValueError(f"must be {kind.example}")


def _figure_span(kind_name: str, kind: Kind, number: Number, unit: _ParsedUnit) -> Span:
    """In base units. What has one digit was chosen rather than measured, where the text leaves no end open."""
    span = number.span if number.approximate or not kind.is_exact else exactly(number.span.value)
    low, value, high = span.scaled(unit.factor)
    digits = significant_digits(number.digits)
    if digits == 1 and unit.multiplier and "." not in number.digits and not number.approximate:
        low, high = max(low, value * (1 - kind.chosen)), min(high, max(value * (1 + kind.chosen), value))
    binary = 1.024 ** _powers_of_1000(unit.multiplier)
    if kind_name == "exact" and unit.multiplier:  # 16k GPUs are 16,000 or 16,384
        value, high = value * binary, high * binary
    elif kind.above == ("byte",) and not unit.multiplier.endswith("i"):  # many write GB for 2**30 bytes
        high *= binary
    elif kind_name == "size" and digits < 3:
        low, high = min(low, value * (1 - _NAMED)), max(high, value * (1 + _NAMED))
    elif kind_name == "batch":
        return exactly(value) if not unit.multiplier else Span(low, value, max(high, value * _BATCHES))
    elif kind_name == "share" and not unit.top and value > 1.5:
        return Span(low / 100, value / 100, high / 100)
    return Span(low, value, high)


def _powers_of_1000(multiplier: str) -> int:
    """2 of a million."""
    return round(math.log(_MULTIPLIERS[multiplier], 1000))
