"""Prices of storage, requests and transfer."""

from datetime import date
from typing import get_args

import pytest

from convoy.catalog.services import Service, service_price, transfer_price


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


def test_neighbours_send_to_each_other_for_less_than_other_regions() -> None:
    near, far = transfer_price("us-east-1", "us-east-2"), transfer_price("us-east-1", "us-west-2")
    assert near is not None
    assert far is not None
    assert (near.usd, far.usd, far.unit) == (0.01, 0.02, "GB")
    assert service_price("transfer_between_regions", "us-east-1") == far
    assert transfer_price("eu-west-1", "us-east-1") is None
