"""How often to save, worked out by hand."""

import json
import math
import statistics
from pathlib import Path

import pytest

from convoy.catalog.instances import mtbf_seconds
from convoy.model.counts import SAVED_BYTES
from convoy.planner.cost.failures import (
    NOTICED_SECONDS,
    RESTART_SECONDS,
    RESTORED_BYTES_PER_SECOND,
    SAVED_BYTES_PER_STALL_SECOND,
    Drain,
    FailureModel,
    InterruptionRate,
    SaveCost,
    assumed_restart,
    assumed_save,
    best_save_interval,
    expected_drain,
    hardware_failures,
    interval_in_steps,
    spot_failures,
)

RESULTS = Path("benchmarks/results")
QUICK = Drain(5.0, 20.0)


def every_hour(**changed: float) -> FailureModel:
    return FailureModel(4, reclaim_seconds=3600.0, drain=QUICK, **changed)  # type: ignore[arg-type]


def test_three_of_four_notices_used_double_the_interval() -> None:
    """C = 60 s, M = 1 h: Daly's 617.88 s without notice; with M / (1 - 0.75) = 4 h
    1314.53 (1 + 0.0456 / 3 + 0.0002) - 60."""
    saving = SaveCost(60.0, 60.0)
    assert best_save_interval(every_hour(announced=0.0), saving) == pytest.approx(617.88, abs=0.05)
    assert best_save_interval(every_hour(announced=0.75), saving) == pytest.approx(1274.84, abs=0.05)


def test_a_notice_that_is_too_short_changes_nothing() -> None:
    saving = SaveCost(1.0, 30.0)
    assert every_hour(announced=0.9, notice_seconds=25.0).highest_rate == InterruptionRate(3600.0, 0.9)
    short = every_hour(announced=0.9, notice_seconds=24.9)
    assert short.highest_rate == InterruptionRate(3600.0, 0.0)
    assert best_save_interval(short, saving) == best_save_interval(every_hour(announced=0.0), saving)


def test_nobody_relies_on_notices_alone() -> None:
    assert best_save_interval(every_hour(announced=1.0), SaveCost(1.0, 30.0)) == 3600.0


def test_no_save_begins_before_the_one_before_it_is_durable() -> None:
    assert best_save_interval(every_hour(announced=0.0), SaveCost(1.0, 300.0)) == 299.0


def test_what_breaks_has_no_notice() -> None:
    """As many machines break as are reclaimed: of all interruptions, half as far apart, 0.8 / 2 are announced."""
    told = every_hour(announced=0.8, faults_seconds=3600.0)
    assert told.highest_rate == pytest.approx((1800.0, 0.4))
    assert told.rate_if_reclaimed_every(math.inf) == InterruptionRate(3600.0, 0.0)


def test_the_interval_is_chosen_for_the_upper_end_of_the_band() -> None:
    found = spot_failures("p4d.24xlarge", 4)
    assert found is not None
    assert (found.low, found.high) == (0.05, 0.10)
    taken, faults = mtbf_seconds(0.10, 4), 54 * 86400 * 16384 / 419 / 32
    assert found.faults_seconds == pytest.approx(faults)
    assert found.highest_rate.mtbf_seconds == pytest.approx(1 / (1 / taken + 1 / faults))
    assert spot_failures("g5.xlarge", 4) is None


def test_machines_without_gpus_and_without_a_band_are_not_interrupted() -> None:
    assert hardware_failures("c7i.4xlarge", 2).highest_rate == InterruptionRate(math.inf, 0.0)
    assert best_save_interval(FailureModel(2), SaveCost(1.0, 1.0)) == math.inf


def test_an_interval_in_steps_is_at_least_one() -> None:
    assert (interval_in_steps(100.0, 12.0), interval_in_steps(5.0, 12.0)) == (8, 1)


def test_a_drain_writes_the_state_from_all_machines_at_once() -> None:
    """7B on 4 machines at 1 GB/s: 80.4 GB in 20.1 s, after 1.02 s to see the notice and 3 s to end the step."""
    found = expected_drain(SAVED_BYTES * 6.7e9, 4, 1e9, 3.0)
    assert (found.before_seconds, found.write_seconds) == pytest.approx((4.02, 20.1))
    assert found.spare_seconds(120.0) == pytest.approx(95.88)


def test_assumed_saves_keep_the_pace_that_training_keeps() -> None:
    """8 GB over 8 ranks at 100 MB/s: 10 s; a part of 6 GB takes no more than 30 s; a slow store takes what it takes."""
    stall = 1e9 / SAVED_BYTES_PER_STALL_SECOND.value
    assert assumed_save(8e9, 8, 100e6).durable_seconds == pytest.approx(10 + stall)
    assert assumed_save(48e9, 8, 100e6).lag_seconds == pytest.approx(30.0)
    assert assumed_save(48e9, 8, 100e6, root_rate=1e9).lag_seconds == pytest.approx(48.0)
    assert assumed_save(8e9, 8, None).lag_seconds == 0.0
    rate = RESTORED_BYTES_PER_SECOND.value
    assert assumed_restart(8 * rate, 8).seconds == pytest.approx(RESTART_SECONDS.value + 1.0)
    assert assumed_restart(8 * rate, 8, root_rate=rate).seconds == pytest.approx(RESTART_SECONDS.value + 8.0)


def test_what_is_assumed_is_what_was_measured() -> None:
    case = json.loads((RESULTS / "checkpoint.json").read_text())["cases"][0]
    seconds, part = case["savers"]["convoy"]["seconds"], case["state_bytes"] / case["case"]["ranks"]
    assert SAVED_BYTES_PER_STALL_SECOND.value == pytest.approx(part / seconds["extra_window"]["p50"], rel=0.002)
    assert RESTORED_BYTES_PER_SECOND.value == pytest.approx(part / seconds["restore"]["p50"], rel=0.002)
    drills = {each["drill"]: each["trials"] for each in json.loads((RESULTS / "drills.json").read_text())["counts"]}
    lost = statistics.median_low(trial["recovered_s"] for trial in drills["node-kill"])
    assert RESTART_SECONDS.value == pytest.approx(lost, abs=0.01)
    assert NOTICED_SECONDS.value == pytest.approx(max(trial["detected_s"] for trial in drills["spot-notice"]), abs=0.01)


@pytest.mark.parametrize(
    "wrong", [{"low": 0.2, "high": 0.1}, {"announced": 1.1}, {"faults_seconds": 0.0}, {"reclaim_seconds": 0.0}]
)
def test_what_means_nothing_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        FailureModel(4, **wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="must be more than 0"):
        SaveCost(0.0, 1.0)
