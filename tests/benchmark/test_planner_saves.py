"""Saves and restarts of a benchmark, for another state on other machines."""

from collections.abc import Sequence

import pytest

from convoy.benchmark.planner_saves import PlannedState, Sourced, measured_costs, save_restart_figures
from convoy.benchmark.results import values
from convoy.benchmark.results.case import Case
from convoy.config.loader import read_overrides, read_run, resolve
from convoy.planner.cost.failures import RESTART_SECONDS, RESTORED_BYTES_PER_SECOND
from convoy.planner.workload import machine_of
from tests.benchmark.cases import HARDWARE, faults, replaced, saves


def planned(words: str = "", state: float = 32 * 1.2e9) -> PlannedState:
    """On 4 p4d with 8 GPUs each: 1.2 GB for each rank, twice what each of the benchmark's two writers had."""
    base = "cluster.backend=batch cluster.instance_type=p4d.24xlarge cluster.nodes=4"
    config = resolve(read_run(""), read_overrides(f"{base} {words}"))
    return PlannedState(config, machine_of(config), state)


def costs(cases: Sequence[Case], name: str, where: PlannedState) -> dict[str, Sourced]:
    return measured_costs(save_restart_figures(cases, name), where)


def test_a_save_takes_what_its_bytes_and_its_pace_take() -> None:
    found = costs(saves(), "results/", planned())
    saving, where = found["saving"]
    once = saving.stall_seconds / 2  # twice the bytes
    # 0.02 s are what was waited for; blocks of five steps say 0.1 s in all, surely more.
    assert once == pytest.approx(0.1, rel=0.3)
    assert saving.durable_seconds == pytest.approx(saving.stall_seconds + 1.2e9 / 100e6)  # the pace of training
    assert where == (
        "a save, scaled from what was measured: results/, 2026-11-22, AMD EPYC 7R13, which is not p4d.24xlarge, "
        "600 MB of each rank"
    )


def test_without_a_pace_the_slowest_of_writers_storage_and_network_decides() -> None:
    def lag(words: str = "checkpoint.write_mb_per_second=null", **told: float) -> float:
        found = costs(saves(values=told), "results/", planned(words))
        return found["saving"][0].lag_seconds

    assert lag() == pytest.approx(1.2)  # 32 writers of 1 GB/s
    assert lag(**{values.STORAGE_BYTES_PER_SECOND: 4e9}) == pytest.approx(9.6)


def test_a_smaller_state_stalls_as_long_as_the_measured_one() -> None:
    found, whole = costs(saves(), "r", planned(state=1.2e6)), costs(saves(), "r", planned(state=32 * 0.6e9))
    assert found["saving"][0].stall_seconds == whole["saving"][0].stall_seconds


def test_a_restart_is_the_loss_of_a_node_and_the_state_that_is_read() -> None:
    found = costs([*saves(), *faults()], "results/", planned())
    restart, where = found["restart"]
    assert restart.seconds == pytest.approx(5.0 + 1.2e9 / 2e9)
    assert where == (
        "a restart: the loss of a node as measured: results/, 2026-11-22, node-kill, n = 3; "
        "reading the state scaled from what was measured: results/, 2026-11-22, 2.00 GB/s of a rank"
    )


def test_half_of_a_restart_may_be_assumed_and_is_said_to_be() -> None:
    drills, read = costs(faults(), "results/", planned()), costs(saves(), "results/", planned())
    assert set(drills) == {"restart"}
    assert drills["restart"][0].seconds == pytest.approx(5.0 + 1.2e9 / RESTORED_BYTES_PER_SECOND.value)
    assert RESTORED_BYTES_PER_SECOND.source in drills["restart"][1]
    assert read["restart"][0].seconds == pytest.approx(4.73 + 0.6)
    assert RESTART_SECONDS.source in read["restart"][1]
    assert "restart, as measured" not in read["restart"][1]


def test_a_machine_writes_what_its_ranks_write_as_far_as_network_and_storage_take_it() -> None:
    def rate(**told: float) -> float:
        found = costs(saves(values=told), "results/", planned())
        return found["node_bytes_per_second"][0]

    assert rate() == pytest.approx(8e9)
    assert rate(**{values.STORAGE_BYTES_PER_SECOND: 4e9}) == pytest.approx(1e9)


def test_the_machine_that_is_planned_is_not_told_apart() -> None:
    own = replaced(HARDWARE, instance_type="p4d.24xlarge")
    found = costs(saves(hardware=own), "results/", planned())
    assert "which is not" not in found["saving"][1]


def test_results_without_saves_and_losses_are_refused() -> None:
    with pytest.raises(ValueError, match="no case that saves, and no drill node-kill"):
        costs(faults()[1:], "results/", planned())
