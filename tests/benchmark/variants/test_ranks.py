"""Which place a rank of a script has, by the environment."""

import os

import pytest

from convoy.benchmark.variants.ranks import place_of_environment
from convoy.config.run import RunConfig
from tests.benchmark.cases import replaced


@pytest.fixture(autouse=True)
def fourth_of_eight(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second rank of the second of four nodes."""
    told = {"RANK": 3, "LOCAL_RANK": 1, "WORLD_SIZE": 8, "LOCAL_WORLD_SIZE": 2, "GROUP_RANK": 1}
    for name, value in told.items():
        monkeypatch.setenv(name, str(value))


def test_the_nodes_of_a_local_run_share_its_host() -> None:
    place = place_of_environment(RunConfig())
    assert (place.rank, place.local_rank, place.node, place.nodes, place.nproc_per_node) == (3, 1, 1, 4, 2)
    assert (place.host_rank, place.host_ranks) == (3, 8)
    assert place.threads == max(1, len(os.sched_getaffinity(0)) // 8)


def test_elsewhere_each_node_has_a_host() -> None:
    run = RunConfig()
    cluster = replaced(run.cluster, backend="batch")
    train = replaced(run.train, threads_per_rank=3)
    place = place_of_environment(replaced(run, cluster=cluster, train=train))
    assert (place.host_rank, place.host_ranks, place.threads) == (1, 2, 3)
