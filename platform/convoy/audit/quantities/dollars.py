"""Text to US dollars: of a whole, an hour, or a token. Pure."""

import re

from convoy.audit.quantities.number import NUMBER, Written, written
from convoy.audit.quantities.prefixes import DEVICE, MACHINE, MULTIPLIER, MULTIPLIERS, ONE_DIGIT, TOKENS, Parsed, scaled
from convoy.audit.quantities.span import Span


def _dollars(text: str) -> tuple[Written, str]:
    plain = re.sub(r"(?:US)?\$\s*|\bUSD\b\s*", "", text, count=1).strip()
    if re.search(r"[€£¥]", text):
        raise ValueError("must be in US dollars, e.g. $0.89")
    found = written(plain)
    unit = re.sub(r"\bper\b|\ban?\b", "/", re.sub(r"\b(?:usd|dollars?)\b", "", found.unit.lower()))
    return found, re.sub(r"/+", "/", re.sub(r"\s+", "", unit))


def money(text: str) -> Parsed:
    found, unit = _dollars(text)
    if unit not in MULTIPLIERS:
        raise ValueError("must be in US dollars, e.g. $140,000 or $1.2M")
    return scaled(found, MULTIPLIERS[unit], 0.0, ONE_DIGIT if unit else 1.0), ""


def price(text: str) -> Parsed:
    found, unit = _dollars(text)
    hour = r"(?:h|hr|hours?)"
    match = re.fullmatch(rf"(?:/(?:{DEVICE}|{MACHINE})?[-/]?{hour}(?:/{DEVICE}|/{MACHINE})?)?", unit)
    if match is None:
        raise ValueError("must be US dollars an hour, e.g. $21.96/h or $2.74 per GPU-hour")
    return found.span, "gpu" if match[1] or match[3] else "node" if match[2] or match[4] else ""


def unit_price(text: str) -> Parsed:
    found, unit = _dollars(text)
    match = re.fullmatch(rf"(?:/({NUMBER})?{MULTIPLIER}{TOKENS})?", unit, re.IGNORECASE)
    if match is None:
        raise ValueError("must be US dollars for tokens, e.g. $0.89 per 1 B tokens")
    number = written(match[1]).span.value if match[1] else 1.0
    tokens = number * MULTIPLIERS[match[2] or ""] if unit else 1e6
    return Span(*(each / tokens for each in found.span)), ""
