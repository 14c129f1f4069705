"""The checkpoint suite on a real gang of two nodes of this host."""

from pathlib import Path

import pytest

from convoy.benchmark.groups import VariantSpec
from convoy.benchmark.results import values
from convoy.benchmark.results.case import Case
from convoy.benchmark.results.figures import losses_agree, speedup
from convoy.benchmark.suites.checkpoint import WITH, WITHOUT, prediction_inputs
from convoy.benchmark.variants.convoy_saving import SAVES_AT_REST
from convoy.config.benchmark import PredictConfig
from tests.benchmark.benches import QUICK, a_group, cases_of_gang
from tests.benchmark.cases import replaced

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("root")


@pytest.fixture(scope="module")
def cases(root: Path) -> dict[str, Case]:
    saving = VariantSpec(name=WITH, kind="saving", values=prediction_inputs(PredictConfig(), 2))
    group = a_group(str(root), VariantSpec(name=WITHOUT), saving, nodes=2, suite="checkpoint")
    return cases_of_gang(replaced(group, predict=PredictConfig(least_mb_per_writer=1)), nodes=2)


def test_saves_do_not_change_what_is_trained(cases: dict[str, Case]) -> None:
    assert cases[WITH].losses == cases[WITHOUT].losses
    assert losses_agree(cases[WITH], cases[WITHOUT], 0)
    assert speedup(cases[WITH], cases[WITHOUT]).n == QUICK.rounds


def test_each_block_has_a_save_and_the_first_save_is_told_apart(cases: dict[str, Case]) -> None:
    told = cases[WITH].samples
    assert {name: len(seconds) for name, seconds in told.items()} == {
        values.STALL: QUICK.rounds, values.DURABLE: QUICK.rounds,
        values.SAVE: SAVES_AT_REST, values.RESTORE: SAVES_AT_REST,
    }  # fmt: skip
    assert all(seconds > 0 for name in (values.STALL, values.SAVE, values.RESTORE) for seconds in told[name])
    assert all(stall < durable for stall, durable in zip(told[values.STALL], told[values.DURABLE], strict=True))
    assert cases[WITHOUT].samples == {}
    figures = cases[WITH].values
    assert {values.FIRST_STALL_SECONDS, values.FIRST_SAVE_SECONDS} < figures.keys()
    assert figures[values.PREDICTED_WRITERS] == 2


def test_the_state_is_the_weights_and_both_moments(cases: dict[str, Case]) -> None:
    parameters = cases[WITH].parameters
    assert 12 * parameters <= cases[WITH].values[values.SAVED_BYTES] < 13 * parameters


def test_a_small_state_is_filled_up_where_rates_are_measured(cases: dict[str, Case]) -> None:
    assert 2e6 <= cases[WITH].values[values.REST_BYTES] < 2.1e6


def test_nothing_stays_of_the_saves(cases: dict[str, Case], root: Path) -> None:
    assert cases
    assert list((root / "benchmarks-checkpoints").iterdir()) == []
