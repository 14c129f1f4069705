"""What a plan assumes is said, with its value, its day and where it is from."""

import dataclasses
import re

import pytest

from convoy.catalog.gpus import chip_peak
from convoy.planner.cost.failures import RestartCost
from convoy.planner.measurements import Measurements
from convoy.planner.plan import plan
from convoy.planner.step.calibration import shipped_calibration
from tests.planner.test_plan import planned, preset
from tests.planner.workloads import P5


def assumed(words: str = "", name: str = "gpt-7b-p4d", **given: object) -> str:
    return "\n".join(planned(name, words, **given).assumed)


def test_a_figure_that_nobody_measured_has_its_value_its_day_and_its_source() -> None:
    text = assumed()
    for value, day, source in (
        ("at 4.91 GB/s", "2026-11-26", "benchmarks/results/checkpoint.json"),
        ("takes 4.7 s", "2026-11-22", "docs/guides/drills.md"),
        ("10 m 00 s after one is gone", "2026-11-23", "recovery.campaign"),
        ("once in 5.78 years", "2024-07-31", "Llama 3 405B"),
        ("5 to 10 % are reclaimed a month", "2026-02-24", "Spot Instance Advisor"),
    ):
        line = next(line for line in text.splitlines() if value in line)
        assert day in line
        assert source in line


def test_storage_of_unknown_speed_is_assumed_not_to_be_a_bottleneck() -> None:
    assert "storage is not a bottleneck" in assumed()
    told = assumed(node_bytes_per_second=1e9)
    assert "storage" not in told
    assert "100% of machines that are reclaimed have notice, 2 m 00 s ahead" in told


def test_a_measured_restart_leaves_the_wait_for_another_machine() -> None:
    """They are two things: the recovery suite measures one of them alone."""
    measured, both = (
        Measurements(restart=RestartCost(30.0)),
        Measurements(restart=RestartCost(30.0), replacement_seconds=60.0),
    )
    slow, quick = (plan(preset("gpt-7b-p4d"), given) for given in (measured, both))
    assert "another machine is there" in str(slow.assumed)
    assert "another machine is there" not in str(quick.assumed)
    assert slow.budget is not None
    assert quick.budget is not None
    waits = [found.budget.steady[0].parts["waiting"] for found in (slow, quick) if found.budget]
    assert waits[0] == pytest.approx(10 * waits[1], rel=0.01)


@pytest.mark.parametrize("chip", sorted(shipped_calibration().stands_for))
def test_a_gpu_without_measurements_is_told(chip: str) -> None:
    gpu = chip_peak(chip)
    assert gpu is not None
    size = next(iter(gpu.memory_gb_per_second)) * 2.0**30
    found = plan(preset("gpt-7b-p5"), machine=dataclasses.replace(P5, gpu=chip, memory_bytes=size))
    assert found.step is not None
    assert re.match(rf"a {chip} reaches as much of its peak as an [AH]100 does", found.assumed[0])
    assert "reaches as much" not in assumed()


def test_spot_without_a_band_is_refused_and_never_planned_as_if_nothing_were_taken() -> None:
    words = "cluster.instance_type=p4de.24xlarge cluster.market=spot"
    found = planned("gpt-7b-p4d", words)
    assert found.saves is None
    assert {each.part: each.why for each in found.missing} == {
        "saves": "spot: how often p4de.24xlarge is reclaimed is not known"
    }
    assert found.budget is not None
    assert found.budget.spot is None
    assert found.budget.steady[0].cost is not None
