"""Text with a unit becomes a figure in base units: one table of units, one of kinds of figures, and one grammar.

    figure = [n "×"] number [multiplier] [unit] { "/" [number] [multiplier] unit }

`per` is `/`, and a hyphen below the bar another one (`/GPU-hour`). Base units are tokens, seconds, bytes, bytes per
second, dollars, dollars an hour, shares, FLOP and FLOP/s. Pure.
"""

import math
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from convoy.audit.quantities.number import NUMBER, Figure, Number, Span, exactly, read_number, significant_digits

_MULTIPLIERS = {
    "": 1.0, "k": 1e3, "kilo": 1e3, "thousand": 1e3, "m": 1e6, "mn": 1e6, "mega": 1e6, "million": 1e6, "g": 1e9,
    "giga": 1e9, "b": 1e9, "bn": 1e9, "billion": 1e9, "t": 1e12, "tn": 1e12, "tera": 1e12, "trillion": 1e12, "p": 1e15,
    "peta": 1e15, "e": 1e18, "exa": 1e18, "z": 1e21, "zetta": 1e21, "y": 1e24, "yotta": 1e24,
    "ki": 2.0**10, "mi": 2.0**20, "gi": 2.0**30, "ti": 2.0**40, "pi": 2.0**50,
}  # fmt: skip

_TIMES = {
    "ns": 1e-9, "us|µs|μs|microseconds?": 1e-6, "ms|milliseconds?": 1e-3, "s|secs?|seconds?": 1.0,
    "m|mins?|minutes?": 60.0, "h|hrs?|hours?": 3600.0, "d|days?": 86400.0, "w|weeks?": 604800.0, "months?": 2629746.0,
    "years?": 31556952.0,
}  # fmt: skip

_GPU = r"gpus?|devices?|chips?|accelerators?|[abhv]\d00"

_UNITS = {
    "": {"": 1.0},
    "time": _TIMES,
    "second": {"s|secs?|seconds?": 1.0},
    "gpu": {f"{_GPU}|rank": 1.0},
    "node": {"nodes?|instances?|machines?|hosts?": 1.0},
    "step": {"steps?|iterations?|iters?|its?|updates?|batch": 1.0},
    "token": {"tokens?|toks?|words?": 1.0},
    "sequence": {"samples?|sequences?|seqs?|instances?|examples?|prompts?": 1.0},
    "parameter": {"params?|parameters?|weights?": 1.0},
    "byte": {"b|bytes?": 1.0},
    "bit": {"(?-i:b)|bits?": 1 / 8},
    "usd": {"usd|dollars?": 1.0},
    "flop": {"f|flops?": 1.0, "f(?:lops?)?days?": 86400.0},
    "gpu_hour": {
        rf"(?:{_GPU})?(?:\d+gb)?(?:gpus?|compute|device)?(?:{words})": seconds / 3600
        for words, seconds in _TIMES.items() if seconds >= 3600
    },
}  # fmt: skip
"""By what they are units of: words, and how many base units one of them is."""

ONE_DIGIT = 0.10
"""So far, relative, is a figure with one digit and a multiplier at most from what was meant."""

_COUNTED = 0.03
"""At most so far, relative, is a number of tokens with one digit, such as 1 T, from what was meant."""

_NAMED = 0.08
"""So far, relative, is a model's name from its parameters: a 7B has 6.66 to 7.3 billion."""


class Kind(NamedTuple):
    """A kind of figure: what units it may have."""

    example: str
    """Completes `must be`."""
    above: Sequence[str]
    """The fraction bar, of the table of units; the empty one: a number, with a multiplier or without, is enough."""
    below: Sequence[str] = ()
    of: Sequence[str] = ()
    """`gpu` and `node`, where the text may say that the figure is of one."""
    ignored: Sequence[str] = ()
    """Units below the bar that say what such a figure is of anyway."""
    bare: float = 1.0
    """Factor of a number without a unit."""
    scale: float = 1.0
    """Factor of one with a unit, to the base unit."""
    chosen: float = 1.0
    """At most so far, relative, is a figure with one digit and a multiplier from what was meant."""


_GANG = ("gpu", "node")
_BYTES = Kind("a size with its unit, e.g. 84 GB or 40 GiB", ("byte",), of=_GANG, chosen=ONE_DIGIT)
_BANDWIDTH = Kind("a bandwidth with its unit, e.g. 50 GB/s or 400 Gbit/s", ("bit", "byte"), ("time",), _GANG)
_COUNT = Kind("a number with k, M, B or T, e.g. 1 T tokens, or 300e9", ("", "token", "sequence", "step"),
              chosen=_COUNTED)  # fmt: skip
KINDS = {
    "count": _COUNT,
    "batch": _COUNT._replace(ignored=("step",)),
    "size": Kind("a number with k, M, B or T, e.g. 7B, or 6.74 B parameters", ("", "parameter"), ignored=("token",)),
    "gpu_hours": Kind("GPU-hours, e.g. 74,570 or 1.3M GPU-hours", ("", "gpu_hour"), chosen=ONE_DIGIT),
    "rate": Kind("a rate, e.g. 145,267 tokens/s, or 4,540 tokens/s/GPU", ("", "token"), ("time",), _GANG,
                 chosen=ONE_DIGIT),
    "samples": Kind("a rate, e.g. 70.9 samples/s", ("", "sequence"), ("time",), _GANG, chosen=ONE_DIGIT),
    "time": Kind("a time with its unit, e.g. 57 h, 79.7 days, 420 ms, 42,156.7 us", ("time",), ignored=("step",)),
    "bytes": _BYTES,
    "message": _BYTES,
    "bandwidth": _BANDWIDTH,
    "exact_bandwidth": _BANDWIDTH,
    "money": Kind("in US dollars, e.g. $140,000 or $1.2M", ("", "usd"), chosen=ONE_DIGIT),
    "price": Kind("US dollars an hour, e.g. $21.96/h or $2.74 per GPU-hour", ("", "usd"), ("time",), _GANG,
                  scale=3600.0),
    "unit_price": Kind("US dollars for tokens, e.g. $0.89 per 1 B tokens", ("", "usd"), ("token", ""), bare=1e-6),
    "flops": Kind("a rate of operations, e.g. 312 TFLOP/s", ("", "flop"), ignored=("second", "gpu"), bare=1e12),
    "flop": Kind("a number of operations, e.g. 6.3e22 FLOP", ("", "flop"), ignored=("second", "gpu")),
}  # fmt: skip
"""Those that are read by this grammar alone, or with a turn of their own: _READERS."""

_REMARK = re.compile(r"(?<=\S)\s+\([^()]*\)$")
"""`300B tokens (180B unique)`."""

_NOISE = re.compile(
    r"(?<=\S),?\s*\b(?:(?:in )?(?:total|aggregated?|combined|overall|altogether)|unidirectional|one[ -]way"
    r"|(?:per |in (?:one|each) |each )direction|bf16|fp16|fp8|tf32|fp32|dense|model|hardware|achieved|sustained|peak"
    r"|nvidia|non-?embedding|activated|active|trainable)\b",
    re.IGNORECASE,
)
"""What a page says of a figure, and its key says anyway."""

_SPELLINGS = [
    (re.compile(words, re.IGNORECASE), plain)
    for words, plain in ((r"\bper\b", "/"), (r"/\s*an?\b", "/"), (r"\(s\)|\s+", ""), ("tps", "tokens/s"),
                         (r"(b|bits?|bytes?)ps", r"\1/s"), (r"(?:/s|s)-?(?=days?$)", ""))
]  # fmt: skip

Parsed = tuple[Span, str]
"""A figure in base units; and `gpu` or `node` where its text says so, or what a batch is of."""


def parse(kind: str, text: str) -> Figure:
    """Raises ValueError with what would be right. What stands in brackets after the figure is a remark."""
    (low, value, high), per = _READERS.get(kind, _read)(kind, _NOISE.sub("", _REMARK.sub("", text.strip())))
    return Figure(text=text.strip(), low=low, value=value, high=high, per=per)


class _Unit(NamedTuple):
    factor: float
    multiplier: str
    """As it is written; empty: none."""
    per: str = ""


def _read(name: str, text: str) -> Parsed:
    kind = KINDS[name]
    if "usd" in kind.above:
        if re.search(r"[€£¥]", text):
            raise ValueError("must be in US dollars, e.g. $0.89")
        text = re.sub(r"(?:US)?\$\s*|\b(?:USD|dollars?)\b\s*", "", text, flags=re.IGNORECASE).strip()
    number = read_number(text)
    factor, multiplier, per = _unit(kind, number.unit)
    span = _rounded(number, factor, kind.chosen if multiplier else 1.0)
    if kind is _BYTES and not multiplier.endswith("i"):  # Many write GB for 2**30 bytes.
        span = span._replace(high=span.high * 1.024 ** _thousands(multiplier))
    return span, per


def _unit(kind: Kind, text: str) -> _Unit:
    """Raises ValueError for a unit that such a figure does not have."""
    if not text and "" in kind.above:
        return _Unit(kind.bare, "")
    for words, plain in _SPELLINGS:
        text = words.sub(plain, text)
    above, *parts = text.split("/")
    top, multiplier, factor = _term(above.replace("-", ""), kind.above, kind)
    per, divided = "", not kind.below
    for part in "-".join(parts).split("-") if parts else ():
        number = re.match(NUMBER, part) if kind.below else None
        unit, _, size = _term(part[number.end() :] if number else part, (*kind.below, *kind.of, *kind.ignored), kind)
        if unit in kind.below:
            factor, divided = factor / size / (read_number(number[0]).span.value if number else 1.0), True
        per = unit if unit in kind.of else per
    if not divided and (top not in ("", "usd") or parts or (kind.bare, kind.scale) != (1, 1)):
        raise ValueError(f"must be {kind.example}")
    return _Unit(factor * kind.scale if parts else factor, multiplier, per)


def _term(text: str, units: Sequence[str], kind: Kind) -> tuple[str, str, float]:
    """What it is a unit of, its multiplier, and how many base units it is."""
    for unit in units:
        for words, factor in _UNITS[unit].items():
            match = re.fullmatch(rf"({_PREFIX if unit != 'time' else ''})(?:{words})", text, re.IGNORECASE)
            if match:
                return unit, match[1].lower(), _MULTIPLIERS[match[1].lower()] * factor
    raise ValueError(f"must be {kind.example}")


_PREFIX = "|".join(sorted(_MULTIPLIERS, key=len, reverse=True))


def _rounded(number: Number, factor: float, chosen: float) -> Span:
    """In base units; what has one digit was chosen rather than measured, where the text leaves no end open."""
    low, value, high = number.span.scaled(factor)
    if significant_digits(number.digits) == 1 and "." not in number.digits and not number.approximate:
        low, high = max(low, value * (1 - chosen)), min(high, max(value * (1 + chosen), value))
    return Span(low, value, high)


def _thousands(multiplier: str) -> int:
    """2 of a million."""
    return round(math.log(_MULTIPLIERS[multiplier], 1000))


def _whole_number(_: str, text: str) -> Parsed:
    """16k GPUs are 16,000 or 16,384; about 100 are not exact."""
    number = read_number(text)
    unit = re.sub(r"\s*(?:/|\bper\b)\s*(?:node|machine|instance|host|gpu|step|pass|job|run)$", "", number.unit.lower())
    match = re.fullmatch(r"(?:(k|m)\b)?(?!(?:[bt]|[mbtr]+illion)\b)[a-z ]*", unit)
    if match is None or re.search(r"\bper\b", unit):
        raise ValueError("must be a whole number, e.g. 32")
    power = _thousands(match[1] or "")
    low, value, high = number.span if number.approximate else exactly(number.span.value)
    return Span(low * 1000.0**power, value * 1024.0**power, high * 1024.0**power), ""


def _size(kind: str, text: str) -> Parsed:
    span, _ = _read(kind, text)
    slack = _NAMED if significant_digits(read_number(text).digits) < 3 else 0.0
    return Span(min(span.low, span.value * (1 - slack)), span.value, max(span.high, span.value * (1 + slack))), ""


def _batch(kind: str, text: str) -> Parsed:
    span, _ = _read(kind, text)
    unit = read_number(text).unit
    # Nobody has millions of sequences in a step.
    tokens = bool(re.search(r"tok|^mi?\b|million", unit, re.IGNORECASE))
    if not tokens and not re.match(r"k\b", unit, re.IGNORECASE):
        return exactly(span.value), "sequences"
    # 4M tokens are often 4 × 2**20.
    return span._replace(high=max(span.high, span.value * 1.05)), "tokens" if tokens else "sequences"


def _time(kind: str, text: str) -> Parsed:
    """`2 d 9 h` too."""
    text = re.sub(r"^every\s+", "", text, flags=re.IGNORECASE)
    parts = re.findall(rf"({NUMBER})\s*([a-zA-Zµμ]+)", text)
    if len(parts) < 2 or re.search(r"\bto\b|–|-", text):  # noqa: RUF001
        return _read(kind, text)
    units = [_unit(KINDS[kind], unit).factor for _, unit in parts]
    seconds = sum(read_number(number).span.value * unit for (number, _), unit in zip(parts, units, strict=True))
    return Span(seconds - 0.5 * units[-1], seconds, seconds + 0.5 * units[-1]), ""


def _message(kind: str, text: str) -> Parsed:
    """Of a collective: chosen, not measured, and often a power of two."""
    span, _ = _read(kind, text)
    number = read_number(text)
    if number.approximate:
        return span, ""
    _, multiplier, _ = _unit(KINDS[kind], number.unit)
    binary = 1.0 if multiplier.endswith("i") else 1.024 ** _thousands(multiplier)
    return Span(span.value, span.value, span.value * binary), ""


def _exact_bandwidth(kind: str, text: str) -> Parsed:
    """Of a link's data sheet: 400 Gbps are 400, and so are up to 400, which every peak is; about 400 are not."""
    text = re.sub(r"^(?:up to|at most|max(?:imum)?)\s*", "", text, flags=re.IGNORECASE)
    span, per = _read(kind, text)
    return span if read_number(text).approximate else exactly(span.value), per


def _share(_: str, text: str) -> Parsed:
    fraction = re.fullmatch(r"(\d+)\s*(?:/|of|out of)\s*(\d+)", text)
    if fraction and int(fraction[2]):
        return exactly(int(fraction[1]) / int(fraction[2])), ""
    number = read_number(text)
    if number.unit not in ("", "%", "percent"):
        raise ValueError("must be a share, e.g. 45 % or 0.45")
    return number.span.scaled(1 / 100) if number.unit or number.span.value > 1.5 else number.span, ""


def _ratio(kind: str, text: str) -> Parsed:
    """`3.6x`; a gain such as `+15.7 %` is 1.157x."""
    more = re.fullmatch(r"\+\s*(.*%)|(.*%)\s*(?:faster|higher|more|speed-?up)", text)
    if more:
        return Span(*(1 + each for each in _share(kind, more[1] or more[2])[0])), ""
    number = read_number(text)
    if not re.fullmatch(r"(?:(?:x|×|times)(?: faster)?|-?fold)?", number.unit.lower()):
        raise ValueError("must be a ratio, e.g. 3.6x or +15.7 %")
    return number.span, ""


_READERS: dict[str, Callable[[str, str], Parsed]] = {
    "exact": _whole_number,
    "number": lambda _, text: (read_number(text).span, ""),
    "size": _size,
    "batch": _batch,
    "time": _time,
    "message": _message,
    "exact_bandwidth": _exact_bandwidth,
    "share": _share,
    "ratio": _ratio,
}
