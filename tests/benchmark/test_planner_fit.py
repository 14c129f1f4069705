"""Constants fitted to a benchmark of one's own."""

from itertools import product
from typing import Any

import pytest

from convoy.benchmark.planner_fit import fit_planner_to
from convoy.benchmark.planner_runs import own_runs, typical_machines
from convoy.benchmark.results.case import Case
from convoy.config.run import TRAIN
from convoy.config.train import TrainConfig
from convoy.planner.step.calibration import Calibration, efficiency_key, shipped_calibration
from convoy.planner.step.step_time import step_time
from convoy.planner.validation.validate import median_abs
from tests.benchmark.cases import MEASURED, a_case, replaced
from tests.planner.own_cases import A100, a_run

SHIPPED = shipped_calibration()
SLOWER = replaced(SHIPPED, constants=replaced(SHIPPED.constants, matmul_efficiency={"A100": 0.6, "H100": 0.729}))
ON_A100 = replaced(MEASURED, device=A100, kind="cuda", dtype="bf16", ranks=8, matmul_flops=2e14, attention_flops=1e14)
P4D = {"instance_type": "p4d.24xlarge", "backend": "batch"}
WIDE = {"n_layers": 12, "d_model": 4096, "n_heads": 32, "vocab_size": 50304}


def on_gpus(truth: Calibration) -> list[Case]:
    """A p4d whose products are slower than others'."""
    return [
        a_run(truth, f"{layers} {micro} {recomputed}", {**WIDE, "n_layers": layers}, P4D, 1, 8, None,
              param_dtype="bf16", micro_batch=micro, global_batch=64, activation_checkpointing=recomputed)
        for layers, micro, recomputed in product((12, 24), (4, 8), ("none", "full"))
    ]  # fmt: skip


def on_this_host(truth: Calibration) -> list[Case]:
    return [
        a_run(truth, f"{layers} {batch}", {"n_layers": layers}, global_batch=batch)
        for layers, batch in product((4, 8, 16), (4, 8))
    ]


def test_what_a_benchmark_shows_of_a_gpu_is_found() -> None:
    found = fit_planner_to(on_gpus(SLOWER))
    before, after = (abs(each.constants.matmul_efficiency["A100"] - 0.6) for each in (SHIPPED, found.calibration))
    assert after < before / 3
    assert found.calibration.constants.matmul_efficiency["H100"] == SHIPPED.constants.matmul_efficiency["H100"]
    assert median_abs(found.after) < 1 < 10 < median_abs(found.before)
    assert median_abs(found.others) < 2
    assert found.calibration.machines == ()


@pytest.mark.processes
def test_one_training_in_several_suites_is_left_out_at_once() -> None:
    cases = on_gpus(SLOWER)
    twice = [replaced(case, suite="sync", group="sync") for case in cases]
    once, both = fit_planner_to(cases), fit_planner_to([*cases, *twice])
    assert (once.trainings, both.trainings) == (8, 8)
    assert (len(once.others), len(both.others)) == (8, 16)
    assert both.others[:8] == pytest.approx(both.others[8:])
    assert fit_planner_to([cases[0], twice[0]]).others == ()  # nothing is left to fit to


def test_a_machine_that_the_catalog_does_not_know_is_kept_with_the_constants() -> None:
    found = fit_planner_to(on_this_host(shipped_calibration("cpu")))
    assert found.calibration.machines == (MEASURED,)
    assert median_abs(found.before) < 1
    assert found.calibration.machine_for("fp32", 2) == MEASURED
    assert shipped_calibration().machine_for("fp32", 2) is None


def test_the_data_are_named_with_machine_day_and_commit() -> None:
    told = fit_planner_to(on_this_host(shipped_calibration("cpu"))).calibration.data
    assert told.startswith("6 runs of a benchmark on AMD EPYC 7R13, 2026-11-22, commit 0123456789ab (results sha256 ")


def test_devices_that_no_plan_can_tell_apart_are_refused_by_name() -> None:
    other = replaced(MEASURED, device="Intel Xeon")
    truth = shipped_calibration("cpu")
    with pytest.raises(ValueError, match="cases of several devices need a calibration each: AMD EPYC 7R13, Intel Xeon"):
        fit_planner_to([*on_this_host(truth), a_run(truth, "elsewhere", machine=other)])
    with pytest.raises(ValueError, match="it has machines of several devices: AMD EPYC 7R13, Intel Xeon"):
        replaced(truth, machines=(MEASURED, other)).machine_for("fp32", 2)


@pytest.mark.parametrize(
    ("ranks", "told"),
    [
        (2, r"by 2 ranks with 1 thread and by 2 ranks with 2 threads: set train\.threads_"),
        (6, "nearest to 4 ranks was measured by 2 ranks with 1 thread and by 6 ranks with"),
    ],
)
def test_threads_tell_machines_of_one_device_apart(ranks: int, told: str) -> None:
    other = replaced(MEASURED, threads=2, ranks=ranks)
    found = replaced(shipped_calibration("cpu"), machines=(MEASURED, other))
    wanted = (2 + ranks) // 2
    assert found.machine_for("fp32", wanted, 2) == other
    with pytest.raises(ValueError, match=told):
        found.machine_for("fp32", wanted)


def test_steps_and_seeds_make_no_other_training() -> None:
    truth = shipped_calibration("cpu")
    cases = on_this_host(truth)
    again = [
        a_run(truth, "again", {"n_layers": 4, "name": "other"}, global_batch=4, steps=9, seed=3, log_every_steps=2)
    ]
    assert fit_planner_to(cases).trainings == fit_planner_to([*cases, *again]).trainings == 6


def test_no_key_that_makes_no_other_training_changes_the_time_of_a_step() -> None:
    others: dict[str, Any] = {
        "steps": 9, "seed": 3, "clip_norm": None, "max_nonfinite_steps": 9, "prefetch_steps": 4, "log_every_steps": 2,
        "node_check_seconds": 0.0, "matmul_peak_seconds": 0.0,
    }  # fmt: skip
    assert set(others) | set(TRAIN) == set(TrainConfig.model_fields)
    truth = shipped_calibration("cpu")
    plain, changed = (own_runs([a_run(truth, "a", **train)]).rows[0].workload for train in ({}, others))
    assert plain.train != changed.train
    assert step_time(plain).total == step_time(changed).total


def test_why_a_case_is_left_out_is_told() -> None:
    good = on_this_host(shipped_calibration("cpu"))[0]
    unplanned = replaced(good.predicted, step_seconds=None, why_no_step="padding is not planned")
    found = own_runs([
        good,
        replaced(good, name="padded", predicted=unplanned),
        replaced(good, name="old", predicted=None),
        replaced(good, name="short", blocks=good.blocks[:3]),
        a_case("broken", status="failed", blocks=()),
    ])  # fmt: skip
    assert [row.name for row in found.rows] == ["tiny"]
    told = {each.case.split("-")[-1]: each.why for each in found.left_out}
    assert told["padded"] == "padding is not planned"
    assert "earlier version" in told["old"]
    assert told["short"] == "3 blocks: at least 6 needed"
    assert told["broken"] == "failed"


def test_a_case_that_ran_on_another_device_than_is_planned_is_left_out() -> None:
    rented, here = on_gpus(shipped_calibration())[0], on_this_host(shipped_calibration("cpu"))[0]
    on_cpus = replaced(rented, hardware=replaced(rented.hardware, device="AMD EPYC 7R13"))
    moved = replaced(here, hardware=replaced(here.hardware, device="Intel Xeon"))
    found = own_runs([rented, on_cpus, here, moved])
    assert len(found.rows) == 2
    assert [each.why for each in found.left_out] == [
        "it ran on AMD EPYC 7R13, and was planned on A100",
        "it ran on Intel Xeon, and was planned on AMD EPYC 7R13",
    ]


def test_without_a_case_that_can_be_fitted_to_there_is_no_calibration() -> None:
    with pytest.raises(ValueError, match="no case can be fitted to: 2 of 2: nothing was predicted of it"):
        fit_planner_to([a_case("ours"), a_case("baseline")])


def test_of_several_measurements_of_a_machine_a_middle_one_stands_for_it() -> None:
    fast, slow = (replaced(MEASURED, matmul_flops=rate) for rate in (7e10, 5e10))
    half = replaced(MEASURED, dtype="bf16")
    assert typical_machines([fast, MEASURED, half, slow]) == (MEASURED, half)


def local(cluster: dict[str, Any], nodes: int = 1, **train: Any) -> Case:
    """Eight ranks on the machine itself, which all of them measured."""
    return a_run(shipped_calibration("cuda"), f"{nodes} {cluster} {train}", WIDE, cluster, nodes, 8 // nodes, ON_A100,
                 param_dtype="bf16", micro_batch=4, global_batch=64, **train)  # fmt: skip


def test_a_local_benchmark_that_names_its_machine_serves_plans_of_such() -> None:
    found = fit_planner_to([local({"instance_type": "p4d.24xlarge"}, nodes) for nodes in (1, 2)])
    machine = found.rows[0].workload.machine
    assert (machine.gpu, machine.ranks, machine.measured) == ("A100", 8, None)
    assert found.trainings == 1  # nodes of a local run are processes on one machine
    assert (efficiency_key(found.calibration, "A100"), found.calibration.machines) == ("A100", ())


@pytest.mark.parametrize("cluster", [{}, {"instance_type": "p9.huge"}])
def test_a_local_benchmark_on_what_it_does_not_name_is_of_what_its_ranks_measured(cluster: dict[str, Any]) -> None:
    calibration = fit_planner_to([local(cluster)]).calibration
    assert calibration.machines == (ON_A100,)
    with pytest.raises(ValueError, match=rf"A100: .* no efficiencies of it; it is of {A100}, measured where the bench"):
        efficiency_key(calibration, "A100")


def test_groups_of_a_local_gang_stay_what_they_were_on_the_machine_that_it_names() -> None:
    case = local({"instance_type": "p4d.24xlarge"}, 2)
    case = replaced(case, config={**case.config, "parallel": {"strategy": "hsdp"}})
    job = own_runs([case]).rows[0].workload
    assert (job.ranks, job.shards, job.replicas, job.nodes) == (8, 4, 2, 1)
