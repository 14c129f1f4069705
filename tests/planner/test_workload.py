"""How a job is divided over ranks."""

from typing import Any

import pytest

from tests.planner.workloads import workload


@pytest.mark.parametrize(
    ("parallel", "sharing", "shards", "replicas", "data_ranks"),
    [
        ({}, 32, 32, 1, 32),
        ({"strategy": "hsdp"}, 8, 8, 4, 32),
        ({"strategy": "hsdp", "shard_size": 16}, 16, 16, 2, 32),
        ({"strategy": "ddp"}, 1, 1, 32, 32),
        ({"tensor": 4}, 32, 8, 1, 8),
        ({"tensor": 2, "pipeline": 4}, 32, 4, 1, 4),
    ],
)
def test_ranks_are_divided_as_training_divides_them(
    parallel: dict[str, Any], sharing: int, shards: int, replicas: int, data_ranks: int
) -> None:
    job = workload(4, **parallel)

    assert (job.ranks, job.ranks_per_state_copy, job.shards) == (32, sharing, shards)
    assert (job.replicas, job.data_ranks) == (replicas, data_ranks)


@pytest.mark.parametrize(
    ("batch", "micro", "passes", "each"), [(32, 8, 1, 1), (96, 2, 2, 2), (160, 3, 2, 3), (33, 8, 1, 2)]
)
def test_passes_are_evened_out(batch: int, micro: int, passes: int, each: int) -> None:
    job = workload(4, sequence_length=256, global_batch=batch, micro_batch=micro)

    assert (job.passes, job.sequences_per_pass, job.tokens_per_pass) == (passes, each, each * 256)
