"""A figure as far as it is known: what was written, and between what bounds the true value may lie."""

import math
from typing import NamedTuple

from pydantic import Field

from convoy.config.base import Frozen

BIG = math.inf
"""No upper bound: one over it is nothing, and no unit makes a number of it."""

TOLERANCE = 0.01
"""By which bounds of two figures may miss each other: each may come from figures that were rounded before."""


class Span(NamedTuple):
    """Of a figure that is not negative: low <= value <= high."""

    low: float
    value: float
    high: float

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

    def above(self, other: "Span", tolerance: float = TOLERANCE) -> bool:
        """Whether it is more, wherever both lie within their bounds."""
        return self.low > other.high * (1 + tolerance)

    def apart(self, other: "Span", tolerance: float = TOLERANCE) -> bool:
        """Whether the two cannot be the same figure."""
        return self.above(other, tolerance) or other.above(self, tolerance)


class Figure(Frozen):
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


def within(low: float, high: float) -> Span:
    """Anything between, the geometric mean as its value."""
    return Span(low, math.sqrt(low * high), high)


def hull(*spans: Span) -> Span:
    """All of them, with the first one's value."""
    return Span(min(s.low for s in spans), spans[0].value, max(s.high for s in spans))
