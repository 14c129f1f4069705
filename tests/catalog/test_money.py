"""Money in whole cents."""

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.catalog.services import cents
from tests.campaign import examples

pytestmark = pytest.mark.campaign


@given(st.lists(st.fractions(0, 10**6, max_denominator=10**6), min_size=1, max_size=12))
@examples(300)
def test_parts_in_whole_cents_are_the_whole_in_cents(parts: list[Fraction]) -> None:
    found = cents(parts)
    exact = sum(parts, start=Fraction(0)) * 100
    assert abs(Fraction(sum(found)) * 100 - exact) <= Fraction(1, 2)
    assert all(abs(Fraction(cent) - part) < Fraction(1, 100) for cent, part in zip(found, parts, strict=True))


def test_what_rounding_leaves_goes_to_the_parts_that_lost_most() -> None:
    third = Fraction(1, 3)
    assert cents([third, third, third]) == [Decimal("0.34"), Decimal("0.33"), Decimal("0.33")]
    assert cents([Fraction("0.004"), Fraction("0.009"), Fraction("0.007")]) == [0, Decimal("0.01"), Decimal("0.01")]
