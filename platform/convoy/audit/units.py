"""From text with a unit to a figure in base units: tokens, seconds, bytes, bytes per second, dollars, shares, FLOP, W,
J.

Pure. A number without a unit is in the default one of its key, which docs/audit.md tells.
"""

import re
from collections.abc import Callable
from typing import Literal

from convoy.audit.digits import NUMBER, Written, is_one_digit, written
from convoy.audit.span import Figure, Span, exactly

Dimension = Literal[
    "exact", "message", "exact_bandwidth", "count", "size", "batch", "rate", "samples", "time", "bytes", "bandwidth",
    "money", "price", "unit_price", "share", "ratio", "flops", "flop", "power", "energy", "number", "gpu_hours",
]  # fmt: skip

_MULTIPLIERS = {
    "": 1.0, "k": 1e3, "thousand": 1e3, "m": 1e6, "mn": 1e6, "million": 1e6, "b": 1e9, "bn": 1e9, "g": 1e9,
    "billion": 1e9, "t": 1e12, "tn": 1e12, "trillion": 1e12, "p": 1e15, "e": 1e18, "z": 1e21,
    "ki": 2.0**10, "mi": 2.0**20,
}  # fmt: skip
_MULTIPLIER = r"(ki|k|thousand|mn|million|mi|m|bn|billion|b|g|trillion|tn|t|p|e|z)?"
_TOKENS = r"(?:tokens?|toks?|words?)?"
_SECONDS = {
    "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "secs": 1.0, "second": 1.0,
    "seconds": 1.0, "min": 60.0, "mins": 60.0, "minute": 60.0, "minutes": 60.0, "m": 60.0, "h": 3600.0, "hr": 3600.0,
    "hrs": 3600.0, "hour": 3600.0, "hours": 3600.0, "d": 86400.0, "day": 86400.0, "days": 86400.0, "week": 604800.0,
    "weeks": 604800.0, "w": 604800.0, "month": 2629746.0, "months": 2629746.0, "year": 31556952.0, "years": 31556952.0,
    "microseconds": 1e-6, "milliseconds": 1e-3,
}  # fmt: skip
_JOULES = {"j": 1.0, "kj": 1e3, "mj": 1e6, "gj": 1e9, "wh": 3600.0, "kwh": 3.6e6, "mwh": 3.6e9, "gwh": 3.6e12}
_PREFIXES = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_DEVICE = r"(gpus?|devices?|chips?|accelerators?|[abhv]\d00)"
_MACHINE = r"(nodes?|instances?|machines?|hosts?)"

_COUNTED = 0.03
"""At most so far, relative, is a number of tokens with one digit, such as 1 T, from what was meant."""

_NAMED = 0.08
"""So far, relative, is a model's name from its parameters: a 7B has 6.66 to 7.3 billion."""

_ONE_DIGIT = 0.10


def parse(dimension: Dimension, text: str) -> Figure:
    """Raises ValueError with what would be right."""
    span, per = _PARSERS[dimension](text.strip())
    return Figure(text=text.strip(), low=span.low, value=span.value, high=span.high, per=per)


Parsed = tuple[Span, str]


_STEP = re.compile(r"\s*(?:/|\bper\b)\s*(?:steps?|iterations?|iters?|its?|updates?|batch)$", re.IGNORECASE)
"""What a page says of a key that is of one step anyway."""


def _exact(text: str) -> Parsed:
    """16k GPUs are 16,000 or 16,384; about 100 are not exact."""
    found = written(text)
    match = re.fullmatch(r"(?:(k|m|b|t|million|billion|trillion)\b)?[a-z ]*", found.unit.lower())
    if match is None or match[1] not in (None, "k", "m"):
        raise ValueError("must be a whole number, e.g. 32")
    power = _PREFIXES[match[1] or ""]
    low, value, high = found.span if found.approximate else exactly(found.span.value)
    return Span(low * 1000.0**power, value * 1024.0**power, high * 1024.0**power), ""


def _number(text: str) -> Parsed:
    found = written(text)
    return found.span, ""


def _gpu_hours(text: str) -> Parsed:
    found = written(text)
    unit = re.sub(r"[\s-]+", "", found.unit.lower())
    match = re.fullmatch(rf"(k|thousand|m|million)?(?:{_DEVICE}?(h|hrs?|hours?|days?|months?|years?))?", unit)
    if match is None:
        raise ValueError("must be GPU-hours, e.g. 74,570 or 1.3M GPU-hours")
    return _scaled(found, _MULTIPLIERS[match[1] or ""] * _SECONDS[match[3] or "h"] / 3600, 0.0, _ONE_DIGIT), ""


def _scaled(found: Written, factor: float, least: float = 0.0, most: float = 1.0) -> Span:
    """In base units; `least` and `most` bound how far from it, relative, the true value may lie, where the text leaves
    no end open."""
    low, value, high = (each * factor for each in found.span)
    if is_one_digit(found.digits) and not found.approximate:
        low, high = max(low, value * (1 - most)), min(high, max(value * (1 + most), value))
    return Span(min(low, value * (1 - least)), value, max(high, value * (1 + least)))


def _count(text: str) -> Parsed:
    found = written(text)
    factor = _multiplier(
        found.unit, r"(?:tokens?|toks?|samples?|sequences?|seqs?|steps?|iterations?)?", "1 T tokens, or 300e9"
    )
    most = _COUNTED if factor > 1 else 1.0
    return _scaled(found, factor, 0.0, most), ""


def _size(text: str) -> Parsed:
    found = written(text)
    factor = _multiplier(found.unit, r"(?:params?|parameters?)?", "7B, or 6.74 B parameters")
    digits = len(re.sub(r"[^\d]", "", found.digits).strip("0"))
    return _scaled(found, factor, _NAMED if digits < 3 else 0.0), ""


def _batch(text: str) -> Parsed:
    text = _STEP.sub("", text)
    found = written(text)
    # Nobody has millions of sequences in a step.
    tokens = bool(re.search(r"tok|mi?\b|million", found.unit, re.IGNORECASE))
    span, _ = _count(text)
    if not tokens and not re.search(r"k\b", found.unit, re.IGNORECASE):
        return exactly(span.value), "sequences"
    # 4M tokens are often 4 × 2**20.
    return Span(span.low, span.value, max(span.high, span.value * 1.05)), "tokens" if tokens else "sequences"


def _multiplier(unit: str, noun: str, example: str) -> float:
    found = re.fullmatch(rf"{_MULTIPLIER}{noun}", re.sub(r"[\s-]+", "", unit).lower())
    if found is None:
        raise ValueError(f"must be a number with k, M, B or T, e.g. {example}")
    return _MULTIPLIERS[found[1] or ""]


def _rate_of(noun: str, example: str) -> Callable[[str], Parsed]:
    per_time = r"/(s|secs?|seconds?|min|minutes?|h|hrs?|hours?|d|days?)"
    pattern = re.compile(
        rf"{_MULTIPLIER}{noun}(?:(?:/{_DEVICE}|/{_MACHINE})?(?:{per_time})(?:/{_DEVICE}|/{_MACHINE})?)?"
    )

    def rate(text: str) -> Parsed:
        found = written(text)
        unit = re.sub(r"\bper\b", "/", found.unit.lower())
        unit = re.sub(r"\s+", "", unit).replace("tps", "tokens/s").replace("tgs", "tokens/gpu/s").replace("(s)", "")
        match = pattern.fullmatch(unit)
        if match is None or (unit and match[4] is None and (match[1] is None or "tok" in unit)):
            raise ValueError(f"must be a rate, e.g. {example}")
        factor = _MULTIPLIERS[match[1] or ""] / _SECONDS[match[4] or "s"]
        per = "gpu" if match[2] or match[5] else "node" if match[3] or match[6] else ""
        return _scaled(found, factor, 0.0, _ONE_DIGIT if match[1] else 1.0), per

    return rate


def _time(text: str) -> Parsed:
    text = re.sub(r"^every\s+", "", _STEP.sub("", text), flags=re.IGNORECASE)
    parts = re.findall(rf"({NUMBER})\s*([a-zA-Zµμ]+)", text)
    if len(parts) > 1 and not re.search(r"\bto\b|–|-", text):  # noqa: RUF001
        seconds = [float(number.replace(",", "")) * _unit(unit) for number, unit in parts]
        half = 0.5 * _unit(parts[-1][1])
        return Span(sum(seconds) - half, sum(seconds), sum(seconds) + half), ""
    found = written(text)
    return _scaled(found, _unit(found.unit)), ""


def _unit(unit: str) -> float:
    # "ms" and "m" are told apart by case nowhere: M for minutes is nobody's.
    if unit.lower() not in _SECONDS:
        raise ValueError("must be a time with its unit, e.g. 57 h, 79.7 days, 420 ms, 42,156.7 us")
    return _SECONDS[unit.lower()]


def _bytes(text: str) -> Parsed:
    found = written(text)
    unit = re.sub(r"\s+", "", re.sub(r"\bper\b", "/", found.unit.lower()))
    match = re.fullmatch(rf"([kmgtp]?)(i?)(?:b|bytes?)(?:/(?:(rank)|{_DEVICE}|{_MACHINE}))?", unit)
    if match is None:
        raise ValueError("must be a size with its unit, e.g. 84 GB or 40 GiB")
    power = _PREFIXES[match[1]]
    span = _scaled(found, 1024.0**power if match[2] else 1000.0**power, 0.0, _ONE_DIGIT)
    # Many write GB for 2**30 bytes.
    per = "gpu" if match[3] or match[4] else "node" if match[5] else ""
    return span if match[2] else Span(span.low, span.value, span.high * 1.024**power), per


def _message(text: str) -> Parsed:
    """Of a collective: chosen, not measured, and often a power of two."""
    span, _ = _bytes(text)
    if written(text).approximate:
        return span, ""
    return Span(span.value, span.value, span.value * 1.024 ** _power_of(text)), ""


def _power_of(text: str) -> int:
    """Of 1024 over 1000, which the unit may be off by."""
    unit = re.sub(r"[^a-z]", "", text.lower())
    return 0 if "i" in unit.replace("bits", "") else _PREFIXES.get(unit[:1], 0) if unit != "b" else 0


def _bandwidth(text: str) -> Parsed:
    found = written(text)
    unit = re.sub(r"\bper\b", "/", found.unit)
    unit = re.sub(r"\s+", "", unit)
    # GPU and Node in any case, the B of bytes not.
    unit = (
        re.sub(r"/([^/]*)$", lambda last: "/" + last[1].lower(), unit) if unit.count("/") > 1 or "ps/" in unit else unit
    )
    match = re.fullmatch(
        rf"([kKmMgGtT]?)(i?)(B|b|[bB]ytes?|[bB]its?)(?:ps|/s|/sec|/second)(?:/{_DEVICE}|/{_MACHINE})?", unit
    )
    if match is None:
        raise ValueError("must be a bandwidth with its unit, e.g. 50 GB/s or 400 Gbit/s")
    power = _PREFIXES[match[1].lower()]
    bits = match[3] == "b" or "bit" in match[3].lower()
    factor = (1024.0 if match[2] else 1000.0) ** power / (8 if bits else 1)
    return _scaled(found, factor), "gpu" if match[4] else "node" if match[5] else ""


_UP_TO = re.compile(r"^(?:up to|at most|max(?:imum)?)\s*", re.IGNORECASE)
"""What every peak is."""


def _exact_bandwidth(text: str) -> Parsed:
    """Of a link's data sheet: 400 Gbps are 400, and so are up to 400; about 400 are not."""
    text = _UP_TO.sub("", text)
    span, per = _bandwidth(text)
    return span if written(text).approximate else exactly(span.value), per


def _dollars(text: str) -> tuple[Written, str]:
    plain = re.sub(r"(?:US)?\$\s*|\bUSD\b\s*", "", text, count=1).strip()
    if re.search(r"[€£¥]", text):
        raise ValueError("must be in US dollars, e.g. $0.89")
    found = written(plain)
    unit = re.sub(r"\bper\b|\ban?\b", "/", re.sub(r"\b(?:usd|dollars?)\b", "", found.unit.lower()))
    return found, re.sub(r"/+", "/", re.sub(r"\s+", "", unit))


def _money(text: str) -> Parsed:
    found, unit = _dollars(text)
    if unit not in _MULTIPLIERS:
        raise ValueError("must be in US dollars, e.g. $140,000 or $1.2M")
    return _scaled(found, _MULTIPLIERS[unit], 0.0, _ONE_DIGIT if unit else 1.0), ""


def _price(text: str) -> Parsed:
    found, unit = _dollars(text)
    hour = r"(?:h|hr|hours?)"
    match = re.fullmatch(rf"(?:/(?:{_DEVICE}|{_MACHINE})?[-/]?{hour}(?:/{_DEVICE}|/{_MACHINE})?)?", unit)
    if match is None:
        raise ValueError("must be US dollars an hour, e.g. $21.96/h or $2.74 per GPU-hour")
    return found.span, "gpu" if match[1] or match[3] else "node" if match[2] or match[4] else ""


def _unit_price(text: str) -> Parsed:
    found, unit = _dollars(text)
    match = re.fullmatch(rf"(?:/({NUMBER})?{_MULTIPLIER}{_TOKENS})?", unit, re.IGNORECASE)
    if match is None:
        raise ValueError("must be US dollars for tokens, e.g. $0.89 per 1 B tokens")
    number = written(match[1]).span.value if match[1] else 1.0
    tokens = number * _MULTIPLIERS[match[2] or ""] if unit else 1e6
    return Span(*(each / tokens for each in found.span)), ""


def _share(text: str) -> Parsed:
    fraction = re.fullmatch(r"(\d+)\s*(?:/|of|out of)\s*(\d+)", text)
    if fraction and int(fraction[2]):
        return exactly(int(fraction[1]) / int(fraction[2])), ""
    found = written(text)
    if found.unit not in ("", "%", "percent"):
        raise ValueError("must be a share, e.g. 45 % or 0.45")
    percent = bool(found.unit) or found.span.value > 1.5
    span = found.span
    return Span(*(each / 100 for each in span)) if percent else span, ""


def _ratio(text: str) -> Parsed:
    found = written(text)
    if found.unit.lower() not in ("", "x", "×", "times", "fold", "-fold"):
        raise ValueError("must be a ratio, e.g. 3.6x")
    return found.span, ""


def _flops(default: str, example: str) -> Callable[[str], Parsed]:
    def flops(text: str) -> Parsed:
        found = written(text)
        unit = re.sub(r"\s+", "", re.sub(r"\bper\b", "/", found.unit.lower()))
        match = re.fullmatch(rf"{_MULTIPLIER}(?:flops?)?(?:/s|ps|/sec|/second)?(?:/{_DEVICE})?", unit)
        if match is None:
            raise ValueError(f"must be {example}")
        return _scaled(found, _MULTIPLIERS[match[1] or ("" if unit else default)]), ""

    return flops


def _power(text: str) -> Parsed:
    found = written(text)
    match = re.fullmatch(
        rf"(k|m)?w(?:atts?)?(?:/{_DEVICE})?", re.sub(r"\s+", "", re.sub(r"\bper\b", "/", found.unit.lower()))
    )
    if match is None:
        raise ValueError("must be a power, e.g. 400 W or 12.8 kW")
    return _scaled(found, _MULTIPLIERS[match[1] or ""]), "gpu" if match[2] else ""


def _energy(text: str) -> Parsed:
    found = written(text)
    if found.unit.lower() not in _JOULES:
        raise ValueError("must be an energy, e.g. 24 MWh")
    return _scaled(found, _JOULES[found.unit.lower()]), ""


_PARSERS: dict[Dimension, Callable[[str], Parsed]] = {
    "exact": _exact,
    "number": _number,
    "gpu_hours": _gpu_hours,
    "count": _count,
    "size": _size,
    "batch": _batch,
    "rate": _rate_of(_TOKENS, "145,267 tokens/s, or 4,540 tokens/s/GPU"),
    "samples": _rate_of(r"(?:samples?|sequences?|seqs?)?", "70.9 samples/s"),
    "time": _time,
    "bytes": _bytes,
    "message": _message,
    "bandwidth": _bandwidth,
    "exact_bandwidth": _exact_bandwidth,
    "money": _money,
    "price": _price,
    "unit_price": _unit_price,
    "share": _share,
    "ratio": _ratio,
    "flops": _flops("t", "a rate of operations, e.g. 312 TFLOP/s"),
    "flop": _flops("", "a number of operations, e.g. 6.3e22 FLOP"),
    "power": _power,
    "energy": _energy,
}
