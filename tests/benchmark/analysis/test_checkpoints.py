"""Figures of saves and restores, and predictions from them, against what can be computed by hand."""

import pytest

from convoy.benchmark.analysis.checkpoints import checkpoint_figures, predict
from convoy.benchmark.pages.cases import sample_text
from convoy.benchmark.results import values
from convoy.benchmark.results.values import sample_median
from tests.benchmark.cases import HARDWARE, replaced, saves

RATE = sample_median((0.9e9, 1e9, 1.1e9))
assert RATE is not None


def test_rates_are_those_of_one_writer() -> None:
    (found,) = checkpoint_figures(saves())
    assert (found.save_rate.median, found.restore_rate.median) == (pytest.approx(1e9), pytest.approx(2e9))
    assert (found.writers, found.state_bytes) == (2, 1.2e9)


def test_what_a_save_costs_is_its_block_less_the_block_beside_it() -> None:
    (found,) = checkpoint_figures(saves())
    assert found.extra.estimate == pytest.approx(5 * (0.52 - 0.5), rel=0.3)  # five steps in a block
    assert found.extra.low <= 5 * 0.02 <= found.extra.high


@pytest.mark.parametrize(
    ("state", "writers", "storage", "network", "seconds", "limit"),
    [
        (28e9, 4, None, None, 7.0, "the writers"),
        (28e9, 4, 3.5e9, None, 8.0, "the storage that was bought"),
        (28e9, 4, 3.5e9, 2e9, 14.0, "the network of the machines"),
    ],
)
def test_the_slowest_decides(
    state: float, writers: int, storage: float | None, network: float | None, seconds: float, limit: str
) -> None:
    found = predict("save", state, writers, RATE, storage, network)
    assert (found.seconds, found.limit) == (pytest.approx(seconds), limit)
    assert found.low <= found.seconds <= found.high
    if limit == "the writers":
        assert found.high == pytest.approx(seconds / 0.9)


def test_predictions_are_for_the_job_that_was_asked_about() -> None:
    asked = {values.PREDICTED_WRITERS: 32.0, values.STORAGE_BYTES_PER_SECOND: 4e9}
    (found,) = checkpoint_figures(saves(values=asked))
    told = {(p.what, p.state_bytes): (p.writers, p.limit, round(p.seconds, 3)) for p in found.predictions}
    assert set(told) == {(what, size) for what in ("save", "load") for size in (28e9, 52e9, 120e9)}
    assert told["save", 28e9] == (32, "the storage that was bought", 7.0)


def test_machines_of_the_catalog_have_a_network() -> None:
    hardware = replaced(HARDWARE, instance_type="p4d.24xlarge", ranks=16, nodes=2)
    (found,) = checkpoint_figures(saves(hardware=hardware, values={values.PREDICTED_WRITERS: 32.0}))
    assert found.network_bytes_per_second == 4 * 400e9 / 8
    (alone,) = checkpoint_figures(saves())
    assert alone.network_bytes_per_second is None


def test_a_training_that_failed_tells_nothing() -> None:
    assert checkpoint_figures([replaced(case, values={}, samples={}) for case in saves()]) == ()


def test_few_samples_have_their_least_and_most_and_more_an_interval() -> None:
    assert sample_text(sample_median((0.2,))) == "200 ms, n = 1"
    assert sample_text(sample_median((0.2, 0.4))) == "300 ms (from 200 to 400, n = 2)"
    assert sample_text(sample_median((1.0,) * 6)).startswith("1.0 s (1.0 to 1.0, n = 6")
