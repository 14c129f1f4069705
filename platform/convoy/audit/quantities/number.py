"""Numbers as people write them, and the bounds between which the true value may lie. Pure."""

import math
import re
from typing import NamedTuple

from pydantic import Field

from convoy.config.base import FrozenConfig

BIG = math.inf
"""No upper bound: one over it is nothing, and no unit makes a number of it."""

TOLERANCE = 0.01
"""By which bounds of two figures may miss each other: each may come from figures that were rounded before."""

_ZEROS = 0.05
"""At most so far, relative, is a whole number with zeros at its end from the truth: 140,000 may be 139,876."""

_VAGUE = 0.10
"""So far, relative, is the truth from a figure with a word such as `about`."""

_MAX_DIGITS = 40
"""Before and behind the point: what is computed of the largest must still be a number."""

_SIGMAS = 2.0
"""The figure after ± is mostly one standard deviation."""


class Span(NamedTuple):
    """A value that is not negative, and its bounds: low <= value <= high."""

    low: float
    value: float
    high: float

    def scaled(self, factor: float) -> "Span":
        return Span(*(each * factor for each in self))

    def times(self, other: "Span") -> "Span":
        high = self.high * other.high if self.high and other.high else 0.0  # nothing, however often, is nothing
        return Span(self.low * other.low, self.value * other.value, high)

    def power(self, exponent: float) -> "Span":
        """Raises ZeroDivisionError for what may be nothing, below a fraction bar."""
        if exponent >= 0:
            return Span(*(each**exponent for each in self))
        if self.value <= 0:
            raise ZeroDivisionError
        low = self.low**exponent if self.low > 0 else BIG
        return Span(self.high**exponent, self.value**exponent, low)

    def complement(self) -> "Span":
        """1 minus it, and never less than nothing."""
        return Span(*(max(1 - each, 0.0) for each in (self.high, self.value, self.low)))

    def above(self, other: "Span", tolerance: float = TOLERANCE) -> bool:
        """Whether it is more, wherever both lie within their bounds."""
        return self.low > other.high * (1 + tolerance)

    def apart(self, other: "Span", tolerance: float = TOLERANCE) -> bool:
        """Whether the two cannot be the same figure."""
        return self.above(other, tolerance) or other.above(self, tolerance)


class Figure(FrozenConfig):
    """What a page says, with what its digits leave open."""

    text: str
    """As it is written."""
    low: float
    value: float
    high: float = Field(allow_inf_nan=True)
    per: str = ""
    """`gpu` or `node` where the text says so; of a batch `tokens` or `sequences`; else empty."""

    @property
    def span(self) -> Span:
        return Span(self.low, self.value, self.high)


def exactly(value: float) -> Span:
    return Span(value, value, value)


ONE = exactly(1.0)


def hull(*spans: Span) -> Span:
    """All of them, with the first one's value."""
    return Span(min(s.low for s in spans), spans[0].value, max(s.high for s in spans))


class Number(NamedTuple):
    """A number at the beginning of a text."""

    span: Span
    unit: str
    """The rest of the text."""
    digits: str
    """The first number, as it is written."""
    approximate: bool
    """With words such as `about` and `over`, or a range."""


NUMBER = r"(?:\d[\d,_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?:\s*[x×*]\s*10\s*(?:\^|\*\*)?\s*[+-]?\d+)?"
"""`145,267`, `1e12`, `1.4 × 10^12`."""

_QUALIFIERS = [
    re.compile(rf"^(?:{words})\s*", re.IGNORECASE)
    for words in (
        r"~|≈|≃|about|around|approx(?:imately|\.)?|roughly|circa|nearly|almost",
        r"<=?|≤|up to|at most|below|under|less than|max(?:imum)?",
        r">=?|≥|at least|above|over|more than|min(?:imum)?",
    )
]
_PARTS = re.compile(rf"^(?P<first>{NUMBER})(?:\s*(?:-|–|to)\s*(?P<last>{NUMBER}))?"
                    rf"(?:\s*(?:±|\+/-)\s*(?P<error>{NUMBER}))?\s*(?P<unit>.*)$", re.DOTALL)  # fmt: skip


def read_number(text: str) -> Number:
    """Raises ValueError for text that does not begin with a number, after words such as `about` and `up to`."""
    text, qualified = text.strip(), []
    for words in _QUALIFIERS:
        qualified.append(words.match(text) is not None)
        text = words.sub("", text)
    about, most, least = qualified
    parts = _PARTS.match(text)
    if parts is None:
        raise ValueError("must begin with a number")
    unit = parts["unit"].strip()
    if "+" in (unit[:1], unit[-1:]):  # 15+ T, and 15T+
        least, unit = True, unit.strip("+").strip()
    span = rounding_span(parts["first"])
    if parts["last"]:
        last = rounding_span(parts["last"])
        span = Span(min(span.low, last.low), (span.value + last.value) / 2, max(span.high, last.high))
    slack = _SIGMAS * rounding_span(parts["error"]).value if parts["error"] else _VAGUE * span.value if about else 0.0
    span = Span(max(min(span.low, span.value - slack), 0.0), span.value, max(span.high, span.value + slack))
    span = Span(0.0 if most else span.low, span.value, BIG if least else span.high)
    return Number(span, unit, parts["first"], any((*qualified, least, parts["last"], parts["error"])))


def rounding_span(digits: str) -> Span:
    """Half a unit of the last digit to either side; zeros at the end of a whole number do not count as digits."""
    plain = re.sub(r"[x×*]10(?:\^|\*\*)?", "e", re.sub(r"[,_\s]", "", digits)).lower()
    mantissa, _, exponent = plain.partition("e")
    if len(mantissa) > _MAX_DIGITS or abs(int(exponent or 0)) > _MAX_DIGITS:
        raise ValueError("must be a number of this world, e.g. 3.8e25")
    value, scale = float(plain), 10.0 ** int(exponent or 0)
    whole, point, decimals = mantissa.partition(".")
    half = 0.5 * 10.0 ** -len(decimals) * scale
    if value == 0:
        half = 0.0
    elif not point:
        zeros = len(whole) - len(whole.rstrip("0"))
        half = max(half, min(half * 10.0**zeros, _ZEROS * value)) if zeros else half
    return Span(max(value - half, 0.0), value, value + half)


def significant_digits(digits: str) -> int:
    """Without the zeros at either end."""
    return len(re.sub(r"\D", "", digits).strip("0"))
