"""On how many machines a configuration has room."""

from dataclasses import replace

import pytest

from convoy.planner.memory.capacity import least_nodes, room
from convoy.planner.workload import Workload
from tests.planner.grid import GIB, GPT, P4D, workload
from tests.planner.test_plan import planned


def one_by_one(job: Workload, most: int) -> int | None:
    return next(
        (n for n in range(job.nodes + 1, most) if room(replace(job, nodes=n), fused=True).enough),
        None,
    )


@pytest.mark.parametrize("gib", [3, 4, 6, 8, 12])
@pytest.mark.parametrize("micro_batch", [1, 5, 7])
def test_it_is_what_looking_at_each_number_finds(gib: int, micro_batch: int) -> None:
    """Passes are evened out, so that memory goes up and down with the number of machines."""
    job = workload(GPT, replace(P4D, memory_bytes=gib * GIB), 1, micro_batch)
    job = replace(job, train=job.train.model_copy(update={"global_batch": 300}))

    assert least_nodes(job, fused=True) == one_by_one(job, 300 // 8 + 1)


def test_the_host_counts_too() -> None:
    job = workload(GPT, P4D, 1, 1)
    job = replace(job, train=job.train.model_copy(update={"global_batch": 256}))
    host = room(job, fused=True).host
    assert host is not None
    small = replace(job, machine=replace(P4D, host_bytes=(host.processes_bytes + 0.2 * host.staged_bytes) / 0.85))

    assert room(small, fused=True).memory.reliable
    assert not room(small, fused=True).enough
    assert least_nodes(small, fused=True) in (5, 6)


def test_a_plan_without_room_says_on_how_many_machines_there_is() -> None:
    plan = planned("gpt-175b-p4d", "cluster.nodes=2")
    assert plan.least_nodes is not None
    assert planned("gpt-175b-p4d", f"cluster.nodes={plan.least_nodes}").recommended
    assert not planned("gpt-175b-p4d", f"cluster.nodes={plan.least_nodes - 1}").recommended
    change = plan.changes[-1]
    assert change.keys == {"cluster.nodes": plan.least_nodes}
    assert "of its own memory than a machine has" in plan.limits[0].text


def test_where_more_machines_do_not_help_none_are_named() -> None:
    assert planned("gpt-7b-p4d", "train.micro_batch=8").memory is not None
    assert planned("gpt-7b-p4d", "parallel.strategy=ddp parallel.shard_size=null").least_nodes is None
    assert planned("gpt-7b-p4d").least_nodes is None
