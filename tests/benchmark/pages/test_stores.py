"""The table of stores on a benchmark's page."""

from convoy.benchmark.page import benchmark_page
from convoy.benchmark.results.case import Case
from convoy.display.page import Table, Text
from tests.benchmark.cases import a_store, replaced, saves
from tests.benchmark.reading import below, headings, row


def _stores() -> list[Case]:
    bad = replaced(a_store("s3://gone/a", "s3"), status="failed", reason="there is no bucket", values={}, samples={})
    return [a_store("local", "folder"), a_store("s3://bucket/a", "s3"), bad]


def test_all_stores_are_in_one_table_with_those_that_failed() -> None:
    (table,) = below(benchmark_page([*saves(), *_stores()]), "Stores", Table)
    assert [line[:2] for line in table.rows] == [
        ("local", "Convoy"), ("local", "gzip + pickle"), ("s3://bucket/a", "Convoy"), ("s3://gone/a", "Convoy"),
    ]  # fmt: skip
    bucket, gone = row(table, "s3://bucket/a"), row(table, "s3://gone/a")
    assert (bucket["Save, GB/s"], bucket["Restore, GB/s"]) == ("2.00", "4.00")
    assert (bucket["Requests of a save"], bucket["Requests of a restore"]) == ("2,200", "3,001")
    assert bucket["Cost (computed)"] == "10.1 USD for 1,000 saves, 0.0460 USD a month"
    assert {title: cell for title, cell in gone.items() if cell} == {
        "Store": "s3://gone/a", "By": "Convoy", "Failed": "there is no bucket",
    }  # fmt: skip


def test_costs_name_their_prices_with_day_and_source() -> None:
    lines = [text.text for text in below(benchmark_page(_stores()), "Stores", Text)]
    (priced,) = [line for line in lines if line.startswith("Cost of s3://bucket/a:")]
    for part in (
        "0.023 USD per GB-month",
        "0.005 USD per 1,000 requests",
        "2026-11-22",
        "AWS S3 pricing page",
        "us-east-1",
    ):
        assert part in priced
    assert any(line.startswith("No cost of local: a folder is paid for") for line in lines)


def test_a_benchmark_without_stores_has_no_such_section() -> None:
    assert "Stores" not in headings(benchmark_page(saves()))
