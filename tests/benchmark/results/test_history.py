"""What a root keeps of the runs of a benchmark."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from convoy.benchmark.results.case import Case
from convoy.benchmark.results.history import earlier, keep, saved_cases
from convoy.storage import Store, open_store
from tests.benchmark.results.cases import a_case


@pytest.fixture
def store(store_uri: str) -> Store:
    return open_store(store_uri)


def on(day: int, **changes: object) -> Case:
    case = a_case()
    measured = datetime(2026, 11, 1, tzinfo=UTC) + timedelta(days=day)
    return case.model_copy(update={"provenance": case.provenance.model_copy(update={"measured": measured}), **changes})


def test_a_run_s_cases_come_back(store: Store) -> None:
    cases = [on(0, name="b"), on(0, name="a, with signs / and: more")]
    for case in cases:
        keep(store, "Flow-7", case)
    keep(store, "Flow-8", on(1))
    assert saved_cases(store, "Flow-7") == sorted(cases, key=lambda case: case.key)
    assert saved_cases(store, "Flow-9") == []


def test_a_case_that_was_measured_again_replaces_the_first(store: Store) -> None:
    keep(store, "run", on(0))
    keep(store, "run", on(1))
    assert saved_cases(store, "run") == [on(1)]


def test_history_is_of_the_same_fingerprint_and_before(store: Store) -> None:
    newest = on(5)
    hardware = newest.hardware.model_copy(update={"cores": 96})
    for number, case in enumerate([on(3), on(1), on(2, hardware=hardware), on(4, status="failed"), on(6), newest]):
        keep(store, f"run-{number}", case)
    assert earlier(store, newest) == [on(1), on(3)]


def test_history_reaches_back_to_files_that_were_called_otherwise(store: Store) -> None:
    keep(store, "run-0", on(0))
    (name,) = store.sizes("benchmarks/")
    store.write(name.replace("throughput-a1", "throughput-throughput-a1"), store.read(name))
    store.delete(name)
    keep(store, "run-0", on(0, name="another"))
    assert earlier(store, on(1)) == [on(0)]


def test_what_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    keep(store, "run-0", on(0))
    keep(store, "run-1", on(1))
    (name,) = store.sizes("benchmarks/run-0/")
    store.write(name, b"{")
    assert earlier(store, on(2)) == [on(1)]
    assert saved_cases(store, "run-0") == []


def test_of_a_case_that_failed_and_was_tried_again_what_was_measured_counts(store: Store) -> None:
    broken = on(2).model_copy(update={"status": "failed", "hardware": on(0).hardware.model_copy(update={"cores": 1})})
    for case in (on(0), on(1), broken):
        keep(store, "run", case)
    assert saved_cases(store, "run") == [on(1)]
