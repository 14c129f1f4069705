"""Figures of stores, and their costs against what can be computed by hand."""

from typing import Any, Literal

import pytest

from convoy.benchmark.analysis.checkpoints import checkpoint_figures
from convoy.benchmark.analysis.stores import CONVOY, PICKLED, store_figures
from convoy.benchmark.results import values
from tests.benchmark.cases import a_store, replaced


def test_rates_are_those_of_all_ranks_together() -> None:
    (found,) = store_figures([a_store("s3://bucket/a", "s3")])
    assert (found.save_rate.median, found.restore_rate.median) == (pytest.approx(2e9), pytest.approx(4e9))
    assert (found.save_requests.total, found.restore_requests.total) == (2200, 3001)


def test_a_save_costs_its_requests_and_a_month_of_what_it_wrote() -> None:
    (found,) = store_figures([a_store("s3://bucket/a", "s3", region="us-west-2")])
    assert found.cost.save_usd == pytest.approx(2000 / 1000 * 0.005 + 200 / 1000 * 0.0004)
    assert found.cost.month_usd == pytest.approx(2**31 / 2**30 * 0.023)
    assert (found.cost.region, found.cost.region_is_known) == ("us-west-2", True)
    assert all(price.source and price.date for price in found.cost.prices)


def test_a_bucket_without_a_region_has_the_prices_of_the_machines_region() -> None:
    (found,) = store_figures([a_store("s3://bucket/a", "s3")])
    assert (found.cost.region, found.cost.region_is_known) == ("us-east-1", False)


@pytest.mark.parametrize(
    ("kind", "changed", "reason"),
    [
        ("gs", {}, "no prices of Google's"),
        ("folder", {}, "paid for with its disk"),
        ("s3", {"region": "eu-central-1"}, "no prices of S3 in eu-central-1"),
        ("s3", {"config": {"checkpoint": {"store": {"storage_class": "STANDARD_IA"}}}}, "class STANDARD_IA"),
    ],
)
def test_what_has_no_price_has_no_cost(
    kind: Literal["s3", "gs", "folder"], changed: dict[str, Any], reason: str
) -> None:
    found, *_ = store_figures([a_store("there", kind, **changed)])
    assert found.cost is None
    assert reason in found.why_no_cost


def test_a_folder_has_a_row_for_what_people_write_by_hand() -> None:
    ours, pickled = store_figures([a_store("local", "folder")])
    assert (ours.saver, pickled.saver) == (CONVOY, PICKLED)
    assert (pickled.written_bytes, pickled.save.median, pickled.restore.median) == (1.9e9, 40.0, 8.0)
    assert pickled.save_rate.median == pytest.approx(2**31 / 40)
    assert pickled.durable is None


def test_gzip_that_fails_is_a_row_with_the_reason() -> None:
    case = replaced(a_store("/disk", "folder"), not_measured={PICKLED: "No space left on device"})
    ours, pickled = store_figures([case])
    assert (ours.status, pickled.status, pickled.reason) == ("measured", "failed", "No space left on device")


def test_a_store_that_failed_is_a_row_with_the_reason_and_folders_come_first() -> None:
    bad = replaced(a_store("s3://b/a", "s3"), status="failed", reason="there is no bucket", values={}, samples={})
    told = store_figures([bad, a_store("/a", "folder"), a_store("local", "folder")])
    assert [each.store for each in told] == ["local", "local", "/a", "/a", "s3://b/a"]
    assert (told[-1].status, told[-1].reason, told[-1].save) == ("failed", "there is no bucket", None)


def test_a_store_is_no_training_that_saves() -> None:
    assert checkpoint_figures([a_store("local", "folder")]) == ()
    assert values.SAVED_BYTES in a_store("local", "folder").values
