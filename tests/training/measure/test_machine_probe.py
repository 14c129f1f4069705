"""What ranks measure once they are warm."""

import time
from typing import Any, Literal

from convoy.catalog.measured_machine import MeasuredMachine
from convoy.config.cluster import ClusterConfig
from convoy.config.run import RunConfig
from convoy.gang.task import Assignment
from convoy.training.measure.machine_probe import probe_machine
from convoy.training.process_groups import connect_ranks
from tests.training.job import Job, tiny

SECONDS = 0.02


def _probed(rank: int, assignments: list[Assignment], configs: list[RunConfig]) -> list[MeasuredMachine | None]:
    ranks, found = connect_ranks(assignments[rank]), []
    for config in configs:
        began = time.perf_counter()
        found.append(probe_machine(config, ranks, SECONDS))
        assert time.perf_counter() - began < 5
    return found


def probed(tmp_path: Any, world: int, **sections: Any) -> list[MeasuredMachine]:
    config = tiny(**sections)
    return [machine for (machine,) in Job(str(tmp_path), config).on_gang(world, _probed, [config], config=config)]


def test_two_ranks_measure_what_they_compute_and_send_and_agree_on_that(tmp_path: Any) -> None:
    one, other = probed(tmp_path, 2)
    assert (one.gather, one.reduce) == (other.gather, other.reduce)
    for found in (one, other):
        assert (found.kind, found.dtype, found.ranks, found.threads) == ("cpu", "fp32", 2, 1)
        assert 1e7 < found.matmul_flops < 1e13
        assert found.attention_flops is not None
        assert 1e5 < found.attention_flops < 1e13
        assert 1e6 < found.memory_bytes_per_second < 1e12
        assert 1e-7 < found.operation_seconds < 1e-2
        assert found.all_reduce is None
        for line in (found.gather, found.reduce):
            assert line is not None
            assert 0 < line.seconds(2**16) < 1
            assert line.ranks == 2
            assert line.bytes_per_second < 1e12


def test_copies_measure_their_sums(tmp_path: Any) -> None:
    for found in probed(tmp_path, 2, parallel={"strategy": "ddp"}):
        assert (found.gather, found.reduce) == (None, None)
        assert found.all_reduce is not None
        assert found.all_reduce.ranks == 2


def test_a_rank_alone_has_nobody_to_send_to_and_plain_attention_is_not_measured(tmp_path: Any) -> None:
    (found,) = probed(tmp_path, 1, train={"attention": "plain"})
    assert (found.gather, found.reduce, found.all_reduce, found.attention_flops) == (None, None, None, None)


def test_neither_what_the_catalog_has_nor_a_model_of_one_s_own_is_measured(tmp_path: Any) -> None:
    config, sizes = tiny(), {"vocab_size": 257, "max_sequence_length": 32}

    def on(backend: Literal["batch", "local"], instance_type: str) -> RunConfig:
        return config.model_copy(update={"cluster": ClusterConfig(backend=backend, instance_type=instance_type)})

    configs = [
        on("batch", "p4d.24xlarge"),
        tiny(model={"build": "tests.model.user_module:build", "args": {"vocabulary": 257, "width": 16}, **sizes}),
        on("batch", "c7i.48xlarge"),
        on("local", "p4d.24xlarge"),  # this host, whatever it is called
    ]
    (found,) = Job(str(tmp_path), config).on_gang(1, _probed, configs, config=config)
    assert [machine is None for machine in found] == [True, True, False, False]
