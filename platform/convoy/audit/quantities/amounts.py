"""Text to figures without a physical unit: numbers of things, sizes of models and batches, shares and ratios. Pure."""

import re

from convoy.audit.quantities.number import written
from convoy.audit.quantities.prefixes import (
    DEVICE,
    MULTIPLIERS,
    ONE_DIGIT,
    PREFIXES,
    SECONDS,
    STEP,
    Parsed,
    multiplier,
    scaled,
)
from convoy.audit.quantities.span import Span, exactly

_COUNTED = 0.03
"""At most so far, relative, is a number of tokens with one digit, such as 1 T, from what was meant."""

_PARAMETERS = (
    r"(?:total|activated|active|trainable|nonembedding|dense)?(?:params?|parameters?|weights?)?"
    r"(?:intotal|total|activated|active|pertoken)*"
)
_NAMED = 0.08
"""So far, relative, is a model's name from its parameters: a 7B has 6.66 to 7.3 billion."""


def whole_number(text: str) -> Parsed:
    """16k GPUs are 16,000 or 16,384; about 100 are not exact."""
    found = written(text)
    unit = re.sub(r"\s*(?:/|\bper\b)\s*(?:node|machine|instance|host|gpu|step|pass|job|run)$", "", found.unit.lower())
    match = re.fullmatch(r"(?:(k|m|b|t|million|billion|trillion)\b)?[a-z ]*", unit)
    if match is None or match[1] not in (None, "k", "m") or re.search(r"\bper\b", unit):
        raise ValueError("must be a whole number, e.g. 32")
    power = PREFIXES[match[1] or ""]
    low, value, high = found.span if found.approximate else exactly(found.span.value)
    return Span(low * 1000.0**power, value * 1024.0**power, high * 1024.0**power), ""


def plain_number(text: str) -> Parsed:
    found = written(text)
    return found.span, ""


def gpu_hours(text: str) -> Parsed:
    found = written(text)
    unit = re.sub(r"[\s-]+", "", found.unit.lower())
    match = re.fullmatch(
        rf"(k|thousand|m|million)?(?:(?:nvidia)?{DEVICE}?(?:\d+gb)?(?:gpus?|compute|device)?(h|hrs?|hours?|days?|months?|years?))?",
        unit,
    )
    if match is None:
        raise ValueError("must be GPU-hours, e.g. 74,570 or 1.3M GPU-hours")
    return scaled(found, MULTIPLIERS[match[1] or ""] * SECONDS[match[3] or "h"] / 3600, 0.0, ONE_DIGIT), ""


def count(text: str) -> Parsed:
    found = written(text)
    factor = multiplier(
        found.unit,
        r"(?:tokens?|toks?|samples?|sequences?|seqs?|instances?|examples?|prompts?|steps?|iterations?)?",
        "1 T tokens, or 300e9",
    )
    most = _COUNTED if factor > 1 else 1.0
    return scaled(found, factor, 0.0, most), ""


def model_parameters(text: str) -> Parsed:
    found = written(text)
    factor = multiplier(found.unit, _PARAMETERS, "7B, or 6.74 B parameters")
    digits = len(re.sub(r"[^\d]", "", found.digits).strip("0"))
    return scaled(found, factor, _NAMED if digits < 3 else 0.0), ""


def batch(text: str) -> Parsed:
    text = STEP.sub("", text)
    found = written(text)
    # Nobody has millions of sequences in a step.
    tokens = bool(re.search(r"tok|mi?\b|million", found.unit, re.IGNORECASE))
    span, _ = count(text)
    if not tokens and not re.search(r"k\b", found.unit, re.IGNORECASE):
        return exactly(span.value), "sequences"
    # 4M tokens are often 4 × 2**20.
    return Span(span.low, span.value, max(span.high, span.value * 1.05)), "tokens" if tokens else "sequences"


def share(text: str) -> Parsed:
    fraction = re.fullmatch(r"(\d+)\s*(?:/|of|out of)\s*(\d+)", text)
    if fraction and int(fraction[2]):
        return exactly(int(fraction[1]) / int(fraction[2])), ""
    found = written(text)
    if found.unit not in ("", "%", "percent"):
        raise ValueError("must be a share, e.g. 45 % or 0.45")
    percent = bool(found.unit) or found.span.value > 1.5
    span = found.span
    return Span(*(each / 100 for each in span)) if percent else span, ""


def ratio(text: str) -> Parsed:
    """`3.6x`; a gain such as `+15.7 %` is 1.157x."""
    more = re.fullmatch(r"\+\s*(.*%)|(.*%)\s*(?:faster|higher|more|speed-?up)", text)
    if more:
        return Span(*(1 + each for each in share(more[1] or more[2])[0])), ""
    found = written(text)
    if found.unit.lower() not in ("", "x", "×", "times", "fold", "-fold", "x faster", "times faster"):
        raise ValueError("must be a ratio, e.g. 3.6x or +15.7 %")
    return found.span, ""
