"""Constants are found again, and the shipped ones are those of the shipped measurements."""

from dataclasses import replace
from itertools import product

import pytest

from convoy.planner.step.calibration import Calibration, Prior, prior, shipped_calibration
from convoy.planner.step.step_time import gpu_tokens_per_second, step_time
from convoy.planner.step.work import Kernels
from convoy.planner.validation.fit import fit_calibration, percent_errors
from convoy.planner.validation.published import MeasuredRun, published_runs
from tests.planner.workloads import GPT_7B, LLAMA_8B, P4D, P5, workload


def runs(truth: Calibration) -> list[MeasuredRun]:
    """As a machine with exactly these constants would run them."""
    found = []
    for machine, model, micro, length in product((P4D, P5), (GPT_7B, LLAMA_8B), (1, 4), (1024, 8192)):
        job = workload(2, machine, model, sequence_length=length, micro_batch=micro, global_batch=16 * micro)
        speed = gpu_tokens_per_second(job, step_time(job, truth))
        found.append(MeasuredRun("some", "a test", job, Kernels(), speed))
    return found


def test_constants_are_found_again() -> None:
    changed = {"memory_efficiency": 0.7, "matmul_efficiency": {"A100": 0.7, "H100": 0.6}}
    truth = prior().model_copy(update={"constants": prior().constants.model_copy(update=changed)})
    unsure = dict.fromkeys(("memory_efficiency", "matmul_efficiency.A100", "matmul_efficiency.H100"), 1.0)
    found = fit_calibration(runs(truth), prior().model_copy(update={"spread": unsure})).constants

    assert found.memory_efficiency == pytest.approx(0.7, rel=0.02)
    assert found.matmul_efficiency == pytest.approx({"A100": 0.7, "H100": 0.6}, rel=0.01)


def test_a_run_that_went_wrong_pulls_little() -> None:
    sound = runs(prior())
    wrong = [replace(sound[0], tokens_per_second=sound[0].tokens_per_second / 3), *sound[1:]]
    found = fit_calibration(wrong, prior())

    assert max(map(abs, percent_errors(sound[1:], found))) < 2


def test_without_runs_that_tell_of_it_a_constant_stays_where_physics_has_it() -> None:
    found = fit_calibration([row for row in runs(prior()) if row.workload.machine.gpu == "A100"], prior()).constants

    assert found.matmul_efficiency["H100"] == prior().constants.matmul_efficiency["H100"]


def test_the_shipped_constants_are_those_of_the_shipped_measurements() -> None:
    found = fit_calibration(published_runs(), prior())

    assert shipped_calibration().data == found.data
    assert shipped_calibration().fitted == found.fitted
    for (name, value), (_, again) in zip(shipped_calibration().constants, found.constants, strict=True):
        assert value == pytest.approx(again, rel=0.005), name


def test_a_batch_computes_as_one_plan_does() -> None:
    rows = published_runs()[::16]
    one_by_one = [
        100
        * (gpu_tokens_per_second(row.workload, step_time(row.workload, None, row.kernels)) / row.tokens_per_second - 1)
        for row in rows
    ]

    assert percent_errors(rows, shipped_calibration()) == pytest.approx(one_by_one)


def test_each_fitted_constant_has_a_spread_and_each_a_source() -> None:
    known: Prior = prior()
    fields = set(type(known.constants).model_fields)

    assert {name.partition(".")[0] for name in known.spread} <= fields
    assert set(known.sources) == fields
