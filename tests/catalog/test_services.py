"""Prices of storage and requests."""

from datetime import date
from decimal import Decimal
from fractions import Fraction
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.catalog.services import Service, round_to_cents, service_price
from tests.campaign import examples


@pytest.mark.parametrize("name", get_args(Service))
def test_every_service_has_a_dated_price_with_its_source(name: Service) -> None:
    found = service_price(name, "us-east-1")
    assert found is not None
    assert found.usd > 0
    assert date(2026, 1, 1) <= found.date <= date.today()
    assert found.source
    assert found.unit


def test_a_region_that_is_not_known_has_none() -> None:
    assert service_price("s3_storage", "eu-west-1") is None
    found = service_price("s3_storage", "us-west-2")
    assert found is not None
    assert (found.region, found.usd, found.unit) == ("us-west-2", 0.023, "GB-month")


pytestmark = pytest.mark.campaign


@pytest.mark.processes
@given(st.lists(st.fractions(0, 10**6, max_denominator=10**6), min_size=1, max_size=12))
@examples(300)
def test_parts_in_whole_cents_are_the_whole_in_cents(parts: list[Fraction]) -> None:
    found = round_to_cents(parts)
    exact = sum(parts, start=Fraction(0)) * 100
    assert abs(Fraction(sum(found)) * 100 - exact) <= Fraction(1, 2)
    assert all(abs(Fraction(cent) - part) < Fraction(1, 100) for cent, part in zip(found, parts, strict=True))


def test_what_rounding_leaves_goes_to_the_parts_that_lost_most() -> None:
    third = Fraction(1, 3)
    assert round_to_cents([third, third, third]) == [Decimal("0.34"), Decimal("0.33"), Decimal("0.33")]
    parts = [Fraction("0.004"), Fraction("0.009"), Fraction("0.007")]
    assert round_to_cents(parts) == [0, Decimal("0.01"), Decimal("0.01")]
