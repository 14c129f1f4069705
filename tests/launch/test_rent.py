"""Which machines of a run are paid for, and at what price."""

from convoy.launch.rent import instance_price, machines
from tests.launch.checks.test_compatibility import BATCH, on, run


def test_a_local_trial_of_a_cluster_preset_does_not_cost_what_the_cluster_does() -> None:
    assert instance_price(on(BATCH)) is not None
    assert instance_price(on(BATCH, backend="local")) is None


def test_local_processes_are_one_machine() -> None:
    assert machines(run(cluster={"nodes": 4})) == 1
    assert machines(on(BATCH, nodes=4)) == 4
