"""Predictions of runs that were not fitted to: held-out rows, held-out models, other clusters.

CI divides the rows once; with CONVOY_CAMPAIGN=full it is repeated ten times.
"""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from convoy.planner.step.calibration import prior, shipped
from convoy.planner.validation.fit import fit, percent_errors
from convoy.planner.validation.published import MeasuredRun, published, read_measured
from convoy.planner.validation.validate import constant_hfu, median_abs, nearest, p90_abs
from tests.campaign import times

pytestmark = pytest.mark.campaign

FOLDS = 10
OTHERS = Path(__file__).with_name("other_clusters.csv")
MODELS = sorted({row.name for row in published()})


def naive(known: Sequence[MeasuredRun], rows: Sequence[MeasuredRun]) -> tuple[list[float], list[float]]:
    """Errors in percent of the constant HFU and of the nearest neighbour."""
    found = []
    for predictor in (constant_hfu, nearest):
        speeds = [(predictor(known, row.workload), row.tokens_per_second) for row in rows]
        found.append([100 * (speed / measured - 1) for speed, measured in speeds if speed])
    return found[0], found[1]


def held_out(seed: int) -> tuple[list[float], list[float], list[float]]:
    """Errors of all rows, each predicted from the nine tenths that it is not in: ours, constant HFU, nearest."""
    rows = published()
    random.Random(seed).shuffle(rows)
    ours, constant, lookup = [], [], []
    for fold in range(FOLDS):
        known, left = [row for i, row in enumerate(rows) if i % FOLDS != fold], rows[fold::FOLDS]
        ours += percent_errors(left, fit(known, prior()))
        others = naive(known, left)
        constant += others[0]
        lookup += others[1]
    return ours, constant, lookup


@pytest.mark.parametrize("seed", range(times(1)))
def test_rows_left_out_by_tenths(seed: int) -> None:
    ours, constant, lookup = held_out(seed)

    assert median_abs(ours) <= 3
    assert p90_abs(ours) <= 9
    for other in (constant, lookup):
        assert median_abs(ours) < median_abs(other)
        assert p90_abs(ours) < p90_abs(other)


@pytest.mark.parametrize("model", MODELS)
def test_a_model_size_left_out(model: str) -> None:
    known = [row for row in published() if row.name != model]
    left = [row for row in published() if row.name == model]
    ours = median_abs(percent_errors(left, fit(known, prior())))

    assert ours <= 4.5
    assert all(ours < median_abs(other) for other in naive(known, left))


def test_other_clusters_with_what_no_fitted_row_has() -> None:
    """Compiled, hybrid sharding, selective recomputation, gated MLP, grouped queries, other networks."""
    wrong = percent_errors(read_measured(OTHERS), shipped())

    assert median_abs(wrong) <= 9
    assert max(map(abs, wrong)) <= 18
