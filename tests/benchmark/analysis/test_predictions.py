"""Predictions beside measurements on a benchmark's page."""

import pytest

from convoy.benchmark.analysis.predictions import prediction_figures
from convoy.benchmark.page import benchmark_page
from convoy.benchmark.results.case import Case, CasePrediction
from convoy.display.markdown import to_markdown
from tests.benchmark.cases import MEASURED, a_case, replaced, saves


def said(case: Case, **told: object) -> Case:
    """The case with a prediction."""
    return replaced(case, predicted=CasePrediction(calibration="2026-11-23: 127 runs", machine=MEASURED, **told))


def cases() -> list[Case]:
    """Steps of half a second: one predicted 10 % too long, one 5 % too short, and one not at all; tensors of 800 MB."""
    return [
        said(a_case("ours"), step_seconds=0.55, peak_bytes=800_000_000),
        said(a_case("bf16", seed=1), step_seconds=0.475, why_no_peak="compiled"),
        said(a_case("baseline", seed=2), why_no_step="not Convoy's own step", why_no_peak="not Convoy's own tensors"),
        said(saves()[1], why_no_step="a save is in each block", why_no_peak="why", saved_bytes=1.2e9),
        a_case("drill", seed=3),
    ]


def test_errors_are_of_the_prediction_over_what_was_measured() -> None:
    found = prediction_figures(cases())
    errors = {(pair.what, pair.case): round(pair.error, 2) for pair in found.pairs}
    assert errors == {
        ("step time", "ours"): 0.1, ("step time", "bf16"): -0.05, ("memory peak", "ours"): 0.0,
        ("checkpoint", "a save in each block"): 0.0,
    }  # fmt: skip
    steps, memory, checkpoint = found.summaries
    assert (steps.what, steps.n, round(steps.worst, 2)) == ("step time", 2, 0.1)
    assert steps.median == pytest.approx(0.075, abs=0.01)  # blocks have noise
    assert (memory.n, checkpoint.n, checkpoint.worst) == (1, 1, 0.0)


def test_what_was_not_predicted_is_told_once_with_the_reason() -> None:
    found = prediction_figures(cases())
    told = {(each.what, each.why): each.cases for each in found.not_predicted}
    assert told["step time", "not Convoy's own step"] == ("baseline (throughput)",)
    assert told["memory peak", "compiled"] == ("bf16 (throughput)",)
    assert not any("drill" in name for names in told.values() for name in names)


def test_results_that_predicted_nothing_have_no_such_section() -> None:
    old = [a_case("ours"), a_case("baseline", seed=1)]
    assert prediction_figures(old) is None
    assert "Predicted and measured" not in to_markdown(benchmark_page(old))


def test_constants_are_told_of_times_alone() -> None:
    found = prediction_figures([said(a_case("ours"), why_no_step="nobody knows", peak_bytes=800_000_000)])
    assert (found.calibrations, found.machines) == ((), ())


def test_a_case_that_was_not_measured_has_no_error() -> None:
    failed = said(a_case("ours", status="failed", blocks=()), step_seconds=0.5)
    few = said(a_case("few", n=3), step_seconds=0.5, why_no_peak="x")
    assert prediction_figures([failed, few]) is None
