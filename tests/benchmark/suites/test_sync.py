"""The suite of gradient synchronisation: which groups there are, and what a gang tells."""

from pathlib import Path

import pytest

from convoy.benchmark.groups import Ranks
from convoy.benchmark.results.collectives import OPERATIONS, timings_from_values
from convoy.benchmark.results.figures import sync_share
from convoy.benchmark.results.values import COMMUNICATION_HIDDEN, FIRST_STEP_SECONDS, SHARES, START_UP_SECONDS
from convoy.benchmark.suites.sync import WITH, WITHOUT, variants_of
from convoy.config.benchmark import BenchConfig, EnvironmentConfig, resolve_bench
from tests.benchmark.benches import a_group, cases_of_gang, groups_of, ready
from tests.benchmark.cases import replaced


def test_each_rank_trains_on_as_much_together_as_alone() -> None:
    alone, together = variants_of(8, Ranks(4, 2))
    assert (alone.name, alone.ranks, alone.at_once, alone.values) == (WITHOUT, 1, True, {"independent": 1.0})
    assert (together.name, together.ranks, together.at_once, together.values) == (WITH, 4, False, {})
    assert (alone.changes["train"]["global_batch"], together.changes["train"]["global_batch"]) == (2, 8)


def test_one_rank_has_nothing_to_synchronise() -> None:
    assert groups_of(BenchConfig(suites=("sync",)), Ranks(1, 1)) == []


def test_the_configuration_of_networks_is_a_pair_of_environments() -> None:
    overhead, network = groups_of(ready("sync-environments"), Ranks(16, 8))
    assert (overhead.compared, network.baseline) == (None, "TCP")
    assert [spec.name for spec in network.case_specs] == ["TCP", "EFA"]


def test_a_model_that_no_rank_holds_is_compared_in_its_environments_alone() -> None:
    environments = [{"name": "slow"}, {"name": "fast", "set": {"NCCL_NSOCKS_PERTHREAD": 4}}]
    config = resolve_bench({"suites": ["sync"], "sync": {"share": False, "environments": environments}}, {})
    assert [group.name for group in groups_of(config, Ranks(2, 1))] == ["network-tiny"]


@pytest.mark.slow
def test_a_gang_tells_the_share_and_the_collectives(tmp_path: Path) -> None:
    """And, of a gang in an environment, its start and the share of a step in which collectives were in progress."""
    group = a_group(str(tmp_path / "root"), *variants_of(4, Ranks(2, 2)), suite="sync")
    cases = cases_of_gang(replaced(group, environment=EnvironmentConfig(name="own")))
    share = sync_share(cases[WITH], cases[WITHOUT])
    assert share.n == 6
    assert share.low <= share.estimate <= share.high < 1
    found = timings_from_values(cases[WITH].values, 2)
    assert {each.operation for each in found} == set(OPERATIONS)
    assert {each.bytes for each in found} >= {2**20}
    assert all(0 < each.seconds.low <= each.seconds.high for each in found)
    for case in cases.values():
        assert case.values[START_UP_SECONDS] > case.values[FIRST_STEP_SECONDS] > 0
        assert sum(case.values[name] for name in SHARES.values()) == pytest.approx(1)
    in_progress = {n: c.values[SHARES["communication"]] + c.values[COMMUNICATION_HIDDEN] for n, c in cases.items()}
    assert in_progress[WITHOUT] < in_progress[WITH] < 1
    assert not any(name.startswith("collective.") for name in cases[WITHOUT].values)
