"""Predictions of runs that were not fitted to: held-out rows, held-out models, other clusters.

CI divides the rows once; with CONVOY_CAMPAIGN=full it is repeated ten times.
"""

import random

import pytest

from convoy.planner.step.calibration import prior, shipped_calibration
from convoy.planner.validation.fit import fit_calibration, percent_errors
from convoy.planner.validation.published import published_runs, read_measured
from convoy.planner.validation.validate import baseline_errors, median_abs, p90_abs
from tests.campaign import times
from tests.planner.validation.test_published import OTHERS

pytestmark = [pytest.mark.campaign, pytest.mark.processes]

FOLDS = 10
MODELS = sorted({row.name for row in published_runs()})


def held_out(seed: int) -> tuple[list[float], list[float]]:
    """Errors of all rows, each predicted from the nine tenths that it is not in: ours, and of the constant HFU."""
    rows = published_runs()
    random.Random(seed).shuffle(rows)
    ours, constant = [], []
    for fold in range(FOLDS):
        known, left = [row for i, row in enumerate(rows) if i % FOLDS != fold], rows[fold::FOLDS]
        ours += percent_errors(left, fit_calibration(known, prior()))
        constant += baseline_errors(known, left)
    return ours, constant


@pytest.mark.parametrize("seed", range(times(1)))
def test_rows_left_out_by_tenths(seed: int) -> None:
    ours, constant = held_out(seed)

    assert median_abs(ours) <= 3
    assert p90_abs(ours) <= 9
    assert median_abs(ours) < median_abs(constant)
    assert p90_abs(ours) < p90_abs(constant)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("model", MODELS)
def test_a_model_size_left_out(model: str) -> None:
    known = [row for row in published_runs() if row.name != model]
    left = [row for row in published_runs() if row.name == model]
    ours = median_abs(percent_errors(left, fit_calibration(known, prior())))

    assert ours <= 4.5
    assert ours < median_abs(baseline_errors(known, left))


def test_other_clusters_with_what_no_fitted_row_has() -> None:
    """Compiled, hybrid sharding, selective recomputation, gated MLP, grouped queries, other networks."""
    wrong = percent_errors(read_measured(OTHERS), shipped_calibration())

    assert median_abs(wrong) <= 9
    assert max(map(abs, wrong)) <= 18
