"""Text to figures in s, tokens/s, bytes, bytes/s, FLOP, FLOP/s, W and J. Pure."""

import re
from collections.abc import Callable

from convoy.audit.quantities.number import NUMBER, written
from convoy.audit.quantities.prefixes import (
    DEVICE,
    MACHINE,
    MULTIPLIER,
    MULTIPLIERS,
    ONE_DIGIT,
    PREFIXES,
    SECONDS,
    STEP,
    Parsed,
    scaled,
)
from convoy.audit.quantities.span import Span, exactly

_JOULES = {"j": 1.0, "kj": 1e3, "mj": 1e6, "gj": 1e9, "wh": 3600.0, "kwh": 3.6e6, "mwh": 3.6e9, "gwh": 3.6e12}


def rate_of(noun: str, example: str) -> Callable[[str], Parsed]:
    per_time = r"/(s|secs?|seconds?|min|minutes?|h|hrs?|hours?|d|days?)"
    pattern = re.compile(rf"{MULTIPLIER}{noun}(?:(?:/{DEVICE}|/{MACHINE})?(?:{per_time})(?:/{DEVICE}|/{MACHINE})?)?")

    def rate(text: str) -> Parsed:
        found = written(text)
        unit = re.sub(r"\bper\b", "/", found.unit.lower())
        unit = re.sub(r"\s+", "", unit).replace("tps", "tokens/s").replace("tgs", "tokens/gpu/s").replace("(s)", "")
        match = pattern.fullmatch(unit)
        if match is None or (unit and match[4] is None and (match[1] is None or "tok" in unit)):
            raise ValueError(f"must be a rate, e.g. {example}")
        factor = MULTIPLIERS[match[1] or ""] / SECONDS[match[4] or "s"]
        per = "gpu" if match[2] or match[5] else "node" if match[3] or match[6] else ""
        return scaled(found, factor, 0.0, ONE_DIGIT if match[1] else 1.0), per

    return rate


def duration(text: str) -> Parsed:
    text = re.sub(r"^every\s+", "", STEP.sub("", text), flags=re.IGNORECASE)
    parts = re.findall(rf"({NUMBER})\s*([a-zA-Zµμ]+)", text)
    if len(parts) > 1 and not re.search(r"\bto\b|–|-", text):  # noqa: RUF001
        seconds = [float(number.replace(",", "")) * _unit(unit) for number, unit in parts]
        half = 0.5 * _unit(parts[-1][1])
        return Span(sum(seconds) - half, sum(seconds), sum(seconds) + half), ""
    found = written(text)
    return scaled(found, _unit(found.unit)), ""


def _unit(unit: str) -> float:
    # "ms" and "m" are told apart by case nowhere: M for minutes is nobody's.
    if unit.lower() not in SECONDS:
        raise ValueError("must be a time with its unit, e.g. 57 h, 79.7 days, 420 ms, 42,156.7 us")
    return SECONDS[unit.lower()]


def size_in_bytes(text: str) -> Parsed:
    found = written(text)
    unit = re.sub(r"\s+", "", re.sub(r"\bper\b", "/", found.unit.lower()))
    match = re.fullmatch(rf"([kmgtp]?)(i?)(?:b|bytes?)(?:/(?:(rank)|{DEVICE}|{MACHINE}))?", unit)
    if match is None:
        raise ValueError("must be a size with its unit, e.g. 84 GB or 40 GiB")
    power = PREFIXES[match[1]]
    span = scaled(found, 1024.0**power if match[2] else 1000.0**power, 0.0, ONE_DIGIT)
    # Many write GB for 2**30 bytes.
    per = "gpu" if match[3] or match[4] else "node" if match[5] else ""
    return span if match[2] else Span(span.low, span.value, span.high * 1.024**power), per


def message_bytes(text: str) -> Parsed:
    """Of a collective: chosen, not measured, and often a power of two."""
    span, _ = size_in_bytes(text)
    if written(text).approximate:
        return span, ""
    return Span(span.value, span.value, span.value * 1.024 ** _power_of(text)), ""


def _power_of(text: str) -> int:
    """Of 1024 over 1000, which the unit may be off by."""
    unit = re.sub(r"[^a-z]", "", text.lower())
    return 0 if "i" in unit.replace("bits", "") else PREFIXES.get(unit[:1], 0) if unit != "b" else 0


_ONE_WAY = re.compile(
    r",?\s*(?:per|in (?:one|each)|each) direction$|,?\s*unidirectional$|,?\s*one[ -]way$", re.IGNORECASE
)
"""What a bandwidth is anyway."""


def bandwidth(text: str) -> Parsed:
    found = written(_ONE_WAY.sub("", text))
    unit = re.sub(r"\bper\b", "/", found.unit)
    unit = re.sub(r"\s+", "", unit)
    # GPU and Node in any case, the B of bytes not.
    unit = (
        re.sub(r"/([^/]*)$", lambda last: "/" + last[1].lower(), unit) if unit.count("/") > 1 or "ps/" in unit else unit
    )
    match = re.fullmatch(
        rf"([kKmMgGtT]?)(i?)(B|b|[bB]ytes?|[bB]its?)(?:ps|/s|/sec|/second)(?:/{DEVICE}|/{MACHINE})?", unit
    )
    if match is None:
        raise ValueError("must be a bandwidth with its unit, e.g. 50 GB/s or 400 Gbit/s")
    power = PREFIXES[match[1].lower()]
    bits = match[3] == "b" or "bit" in match[3].lower()
    factor = (1024.0 if match[2] else 1000.0) ** power / (8 if bits else 1)
    return scaled(found, factor), "gpu" if match[4] else "node" if match[5] else ""


_UP_TO = re.compile(r"^(?:up to|at most|max(?:imum)?)\s*", re.IGNORECASE)
"""What every peak is."""


def exact_bandwidth(text: str) -> Parsed:
    """Of a link's data sheet: 400 Gbps are 400, and so are up to 400; about 400 are not."""
    text = _UP_TO.sub("", text)
    span, per = bandwidth(text)
    return span if written(text).approximate else exactly(span.value), per


_QUALITY = re.compile(r"\s+|\b(?:bf16|fp16|fp8|tf32|fp32|dense|model|hardware|achieved|sustained|peak)\b")
"""That a page says of operations, and other keys tell."""


def flops(default: str, example: str) -> Callable[[str], Parsed]:
    def read(text: str) -> Parsed:
        found = written(text)
        unit = _QUALITY.sub("", re.sub(r"\bper\b", "/", found.unit.lower()))
        unit = re.sub(r"^(tera|peta|exa|zetta|yotta)-?(?=f)", lambda word: word[1][0], unit)
        days = re.fullmatch(r"(.*?)(?:/s|s)?-?days?", unit)
        if days and not default:  # a day of so many operations a second
            found, unit = found._replace(span=found.span.times(exactly(SECONDS["day"]))), days[1]
            unit = unit if unit.endswith("flop") else f"{unit.removesuffix('f')}flop"
        match = re.fullmatch(rf"{MULTIPLIER}(?:flops?)?(?:/s|ps|/sec|/second)?(?:/{DEVICE})?", unit)
        if match is None:
            raise ValueError(f"must be {example}")
        return scaled(found, MULTIPLIERS[match[1] or ("" if unit else default)]), ""

    return read


def power(text: str) -> Parsed:
    found = written(text)
    match = re.fullmatch(
        rf"(k|m)?w(?:atts?)?(?:/{DEVICE})?", re.sub(r"\s+", "", re.sub(r"\bper\b", "/", found.unit.lower()))
    )
    if match is None:
        raise ValueError("must be a power, e.g. 400 W or 12.8 kW")
    return scaled(found, MULTIPLIERS[match[1] or ""]), "gpu" if match[2] else ""


def energy(text: str) -> Parsed:
    found = written(text)
    if found.unit.lower() not in _JOULES:
        raise ValueError("must be an energy, e.g. 24 MWh")
    return scaled(found, _JOULES[found.unit.lower()]), ""
