"""Numbers as people write them, and how far their last digit lets the true value lie from them. Pure."""

import re
from typing import NamedTuple

from convoy.audit.quantities.span import BIG, Span

_DIGITS = r"(?:\d[\d,_]*\.?\d*|\.\d+)"
NUMBER = rf"{_DIGITS}(?:[eE][+-]?\d+)?(?:\s*[x×*]\s*10\s*(?:\^|\*\*)?\s*[+-]?\d+)?"
"""`145,267`, `1e12`, `1.4 × 10^12`."""

_ABOUT = re.compile(r"^(?:~|≈|≃|about|around|approx(?:imately|\.)?|roughly|circa|nearly|almost)\s*", re.IGNORECASE)
_AT_MOST = re.compile(r"^(?:<=?|≤|up to|at most|below|under|less than|max(?:imum)?)\s*", re.IGNORECASE)
_AT_LEAST = re.compile(r"^(?:>=?|≥|at least|above|over|more than|min(?:imum)?)\s*", re.IGNORECASE)
_PARTS = re.compile(rf"^(?P<first>{NUMBER})(?:\s*(?:-|–|to)\s*(?P<last>{NUMBER}))?"  # noqa: RUF001
                    rf"(?:\s*(?:±|\+/-)\s*(?P<error>{NUMBER}))?\s*(?P<unit>.*)$", re.DOTALL)  # fmt: skip

_ZEROS = 0.05
"""At most so far, relative, is a whole number with zeros at its end from the truth: 140,000 may be 139,876."""

_VAGUE = 0.10

_MOST_DIGITS = 40
"""Before and behind the point: what is computed of the largest must still be a number."""

_SIGMAS = 2.0
"""What stands behind ± is mostly one standard deviation."""


class Written(NamedTuple):
    """A number and the rest of the text."""

    span: Span
    unit: str
    digits: str
    """The first number, as it is written."""
    approximate: bool
    """With words such as `about` and `over`, or a range."""


def written(text: str) -> Written:
    """Raises ValueError for text that does not begin with a number, after words such as `about` and `up to`."""
    text = text.strip()
    about, text = _ABOUT.match(text), _ABOUT.sub("", text)
    most, text = _AT_MOST.match(text), _AT_MOST.sub("", text)
    least, text = _AT_LEAST.match(text), _AT_LEAST.sub("", text)
    found = _PARTS.match(text)
    if found is None:
        raise ValueError("must begin with a number")
    unit = found["unit"].strip()
    if "+" in (unit[:1], unit[-1:]):  # 15+ T, and 15T+
        least, unit = _AT_LEAST.match(">"), unit.strip("+").strip()
    span = rounded(found["first"])
    if found["last"]:
        last = rounded(found["last"])
        span = Span(min(span.low, last.low), (span.value + last.value) / 2, max(span.high, last.high))
    if found["error"]:
        around = _SIGMAS * rounded(found["error"]).value
        span = Span(max(min(span.low, span.value - around), 0.0), span.value, max(span.high, span.value + around))
    if about:
        span = Span(min(span.low, span.value * (1 - _VAGUE)), span.value, max(span.high, span.value * (1 + _VAGUE)))
    span = Span(0.0 if most else span.low, span.value, BIG if least else span.high)
    return Written(span, unit, found["first"], any((about, most, least, found["last"], found["error"])))


def rounded(digits: str) -> Span:
    """Half a unit of the last digit to either side; zeros at the end of a whole number do not count as digits."""
    plain = re.sub(r"[,_\s]", "", digits)
    plain = re.sub(r"[x×*]10(?:\^|\*\*)?", "e", plain).lower()
    mantissa, _, exponent = plain.partition("e")
    if len(mantissa) > _MOST_DIGITS or abs(int(exponent or 0)) > _MOST_DIGITS:
        raise ValueError("must be a number of this world, e.g. 3.8e25")
    value, scale = float(plain), 10.0 ** int(exponent or 0)
    whole, point, decimals = mantissa.partition(".")
    if point or value == 0:
        half = 0.5 * 10.0 ** -len(decimals) * scale if value else 0.0
    else:
        zeros = len(whole) - len(whole.rstrip("0"))
        half = max(0.5 * scale, min(0.5 * 10.0**zeros * scale, _ZEROS * value)) if zeros else 0.5 * scale
    return Span(max(value - half, 0.0), value, value + half)


def last_place(digits: str) -> float:
    """What one more in the last digit is: 0.1 of `98.5`, 1 of `90`."""
    return 10.0 ** -len(digits.partition(".")[2])


def is_one_digit(digits: str) -> bool:
    """`1` and `300`, which with a multiplier were chosen rather than measured: 1 T, 300B."""
    return len(re.sub(r"[^\d]", "", digits).rstrip("0")) == 1 and "." not in digits
