"""Prefixes, multipliers and units that kinds of figures share, and how far a scaled one may be off. Pure."""

import re

from convoy.audit.quantities.number import Written, is_one_digit
from convoy.audit.quantities.span import Span

Parsed = tuple[Span, str]
"""A figure in base units; and `gpu` or `node` where its text says so, or what a batch is of."""

MULTIPLIERS = {
    "": 1.0, "k": 1e3, "thousand": 1e3, "m": 1e6, "mn": 1e6, "million": 1e6, "b": 1e9, "bn": 1e9, "g": 1e9,
    "billion": 1e9, "t": 1e12, "tn": 1e12, "trillion": 1e12, "p": 1e15, "e": 1e18, "z": 1e21, "y": 1e24,
    "ki": 2.0**10, "mi": 2.0**20,
}  # fmt: skip
MULTIPLIER = r"(ki|k|thousand|mn|million|mi|m|bn|billion|b|g|trillion|tn|t|p|e|z|y)?"
TOKENS = r"(?:tokens?|toks?|words?)?"
SECONDS = {
    "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "secs": 1.0, "second": 1.0,
    "seconds": 1.0, "min": 60.0, "mins": 60.0, "minute": 60.0, "minutes": 60.0, "m": 60.0, "h": 3600.0, "hr": 3600.0,
    "hrs": 3600.0, "hour": 3600.0, "hours": 3600.0, "d": 86400.0, "day": 86400.0, "days": 86400.0, "week": 604800.0,
    "weeks": 604800.0, "w": 604800.0, "month": 2629746.0, "months": 2629746.0, "year": 31556952.0, "years": 31556952.0,
    "microseconds": 1e-6, "milliseconds": 1e-3,
}  # fmt: skip
PREFIXES = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
DEVICE = r"(gpus?|devices?|chips?|accelerators?|[abhv]\d00)"
MACHINE = r"(nodes?|instances?|machines?|hosts?)"

ONE_DIGIT = 0.10
"""So far, relative, is a figure with one digit and a multiplier at most from what was meant."""

STEP = re.compile(r"\s*(?:/|\bper\b)\s*(?:steps?|iterations?|iters?|its?|updates?|batch)$", re.IGNORECASE)
"""What a page says of a key that is of one step anyway."""


def scaled(found: Written, factor: float, least: float = 0.0, most: float = 1.0) -> Span:
    """In base units; `least` and `most` bound how far from it, relative, the true value may lie, where the text leaves
    no end open."""
    low, value, high = (each * factor for each in found.span)
    if is_one_digit(found.digits) and not found.approximate:
        low, high = max(low, value * (1 - most)), min(high, max(value * (1 + most), value))
    return Span(min(low, value * (1 - least)), value, max(high, value * (1 + least)))


def multiplier(unit: str, noun: str, example: str) -> float:
    found = re.fullmatch(rf"{MULTIPLIER}{noun}", re.sub(r"[\s-]+", "", unit).lower())
    if found is None:
        raise ValueError(f"must be a number with k, M, B or T, e.g. {example}")
    return MULTIPLIERS[found[1] or ""]
