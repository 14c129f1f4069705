"""Results in a folder and below a root: what is read back, and which of several results of a case counts."""

import json
import math
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from convoy.benchmark.results.case import SCHEMA, Case, key_of
from convoy.benchmark.results.files import (
    ResultUnreadableError,
    read_case,
    read_cases,
    read_earlier_cases,
    read_saved_cases,
    save_case,
    write_case,
)
from convoy.storage import Store, open_store
from tests.benchmark.cases import HARDWARE, a_case, replaced


def test_a_case_comes_back_as_it_was(tmp_path: Path) -> None:
    case = a_case()
    path = write_case(tmp_path / "new" / "folder", case)
    assert path.name == "throughput-a1-ours.json"
    assert read_case(path) == case
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_power_and_energy_of_an_earlier_version_are_left_out(tmp_path: Path) -> None:
    case = a_case(values={"cpu_utilisation": 0.5})
    data = case.model_dump(mode="json")
    data["values"] |= {"power_watts": 612.0, "energy_joules_per_step": 306.0}
    data["not_measured"] |= {"power": "no GPU"}
    (tmp_path / "old.json").write_text(json.dumps(data))
    assert read_case(tmp_path / "old.json") == case


def test_losses_that_are_not_finite_come_back_too(tmp_path: Path) -> None:
    case = read_case(write_case(tmp_path, a_case(losses=(8.3, math.nan, math.inf))))
    assert math.isnan(case.losses[1])
    assert case.losses[2] == math.inf


def test_names_that_are_no_file_names_are_made_ones(tmp_path: Path) -> None:
    path = write_case(tmp_path, a_case("fsdp + tensor / 2"))
    assert path.name == "throughput-a1-fsdp-tensor-2.json"


def test_a_group_that_bears_its_suite_s_name_has_it_once() -> None:
    assert key_of("throughput", "throughput-tiny", "ours") == "throughput-tiny-ours"
    assert key_of("recovery", "recovery", "node-kill") == "recovery-node-kill"
    assert key_of("scaling", "scalings", "1 rank") == "scaling-scalings-1 rank"


def test_a_folder_is_read_in_order(tmp_path: Path) -> None:
    with pytest.raises(ResultUnreadableError, match="no results"):
        read_cases(tmp_path)
    for name in ("ours", "baseline", "bf16"):
        write_case(tmp_path, a_case(name))
    assert [case.name for case in read_cases(tmp_path)] == ["baseline", "bf16", "ours"]


def test_two_files_of_one_case_are_told(tmp_path: Path) -> None:
    path = write_case(tmp_path, a_case())
    (tmp_path / "as-it-was-called.json").write_bytes(path.read_bytes())
    with pytest.raises(ResultUnreadableError, match=r"ours\.json: the same case is in as-it-was-called\.json"):
        read_cases(tmp_path)


def test_a_flow_s_folder_is_read_with_fingerprints_in_its_names_and_failed_attempts_beside(tmp_path: Path) -> None:
    """As the root keeps it; an attempt that failed knew no device, so its case has another fingerprint."""
    store = open_store(str(tmp_path))
    measured, unknown = a_case(), replaced(HARDWARE, device="")
    for i, status in enumerate(("failed", "refused")):
        before = measured.provenance.measured - timedelta(hours=2 - i)
        origin = replaced(measured.provenance, measured=before)
        lost = a_case(status=status, blocks=(), hardware=unknown, provenance=origin, config={"attempt": i})
        save_case(store, "BenchmarkFlow-7", lost)
        save_case(store, "BenchmarkFlow-7", replaced(lost, name="other"))
    save_case(store, "BenchmarkFlow-7", measured)
    folder = tmp_path / "benchmarks" / "BenchmarkFlow-7"
    assert len(list(folder.glob("*.json"))) == 5
    other, ours = read_cases(folder)
    assert ours == measured
    assert (other.name, other.status) == ("other", "refused")


def test_what_was_measured_before_the_same_case_failed_is_not_shown_as_if_it_were_new(tmp_path: Path) -> None:
    measured = a_case()
    later = measured.provenance.measured + timedelta(days=1)
    lost = a_case(status="failed", blocks=(), provenance=replaced(measured.provenance, measured=later))
    for name, case in (("a.json", measured), ("b.json", lost)):
        (tmp_path / name).write_text(case.model_dump_json())
    with pytest.raises(ResultUnreadableError, match=r"b\.json: the same case is in a\.json"):
        read_cases(tmp_path)


def test_what_is_no_result_is_told_with_its_file(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("{}")
    with pytest.raises(ResultUnreadableError, match=r"x\.json: suite: Field required"):
        read_case(path)
    path.write_text("{")
    with pytest.raises(ResultUnreadableError, match=r"x\.json: the file: Invalid JSON"):
        read_case(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ResultUnreadableError, match="cannot be read"):
        read_case(path)
    with pytest.raises(ResultUnreadableError, match="cannot be read"):
        read_case(tmp_path / "nowhere.json")


def test_a_time_without_its_zone_is_refused(tmp_path: Path) -> None:
    """It could not be put in order with others."""
    path = write_case(tmp_path, a_case())
    path.write_text(path.read_text().replace("2026-11-22T12:00:00Z", "2026-11-22T12:00:00"))
    with pytest.raises(ResultUnreadableError, match=r"provenance\.measured: Input should have timezone info"):
        read_case(path)


def test_a_file_of_a_later_version_is_refused_and_its_new_keys_alone_are_not(tmp_path: Path) -> None:
    path = write_case(tmp_path, a_case())
    data = json.loads(path.read_text())
    path.write_text(json.dumps(data | {"something_new": 1}))
    assert read_case(path) == a_case()
    path.write_text(json.dumps(data | {"schema_version": SCHEMA + 1}))
    with pytest.raises(ResultUnreadableError, match="newer than"):
        read_case(path)


def on(day: int, **changes: object) -> Case:
    case = a_case()
    measured = datetime(2026, 11, 1, tzinfo=UTC) + timedelta(days=day)
    return replaced(case, provenance=replaced(case.provenance, measured=measured), **changes)


def test_a_run_s_cases_come_back(store: Store) -> None:
    cases = [on(0, name="b"), on(0, name="a, with signs / and: more")]
    for case in cases:
        save_case(store, "Flow-7", case)
    save_case(store, "Flow-8", on(1))
    assert read_saved_cases(store, "Flow-7") == sorted(cases, key=lambda case: case.key)
    assert read_saved_cases(store, "Flow-9") == []


def test_a_case_that_was_measured_again_replaces_the_first(store: Store) -> None:
    save_case(store, "run", on(0))
    save_case(store, "run", on(1))
    assert read_saved_cases(store, "run") == [on(1)]


def test_history_is_of_the_same_fingerprint_and_before(store: Store) -> None:
    newest = on(5)
    hardware = replaced(newest.hardware, cores=96)
    for number, case in enumerate([on(3), on(1), on(2, hardware=hardware), on(4, status="failed"), on(6), newest]):
        save_case(store, f"run-{number}", case)
    assert read_earlier_cases(store, newest) == [on(1), on(3)]


def test_history_reaches_back_to_files_that_were_called_otherwise(store: Store) -> None:
    save_case(store, "run-0", on(0))
    (name,) = store.sizes("benchmarks/")
    store.write(name.replace("throughput-a1", "throughput-throughput-a1"), store.read(name))
    store.delete(name)
    save_case(store, "run-0", on(0, name="another"))
    assert read_earlier_cases(store, on(1)) == [on(0)]


def test_what_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    save_case(store, "run-0", on(0))
    save_case(store, "run-1", on(1))
    (name,) = store.sizes("benchmarks/run-0/")
    store.write(name, b"{")
    assert read_earlier_cases(store, on(2)) == [on(1)]
    assert read_saved_cases(store, "run-0") == []


def test_of_a_case_that_failed_and_was_tried_again_what_was_measured_counts(store: Store) -> None:
    broken = replaced(on(2), status="failed", hardware=replaced(on(0).hardware, cores=1))
    for case in (on(0), on(1), broken):
        save_case(store, "run", case)
    assert read_saved_cases(store, "run") == [on(1)]
