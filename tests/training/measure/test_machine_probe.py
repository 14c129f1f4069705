"""What ranks measure once they are warm."""

import time
from typing import Any, Literal

from convoy.catalog.measured_machine import MeasuredMachine
from convoy.config.cluster import ClusterConfig
from convoy.config.run import RunConfig
from convoy.gang.task import Assignment
from convoy.training.measure.machine_probe import probe
from convoy.training.process_groups import connect
from tests.training.job import Job, tiny

SECONDS = 0.02


def _probed(rank: int, assignments: list[Assignment], config: RunConfig) -> tuple[MeasuredMachine | None, float]:
    ranks = connect(assignments[rank])
    began = time.perf_counter()
    return probe(config, ranks, SECONDS), time.perf_counter() - began


def probed(tmp_path: Any, world: int, **sections: Any) -> list[MeasuredMachine]:
    config = tiny(**sections)
    found = Job(str(tmp_path), config).on_gang(world, _probed, config, config=config)
    assert max(seconds for _, seconds in found) < 5
    return [machine for machine, _ in found]


def test_two_ranks_measure_what_they_compute_and_send(tmp_path: Any) -> None:
    for found in probed(tmp_path, 2):
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


def test_ranks_agree_on_what_they_measured_together(tmp_path: Any) -> None:
    one, other = probed(tmp_path, 2)
    assert (one.gather, one.reduce) == (other.gather, other.reduce)


def test_copies_measure_their_sums(tmp_path: Any) -> None:
    for found in probed(tmp_path, 2, parallel={"strategy": "ddp"}):
        assert (found.gather, found.reduce) == (None, None)
        assert found.all_reduce is not None
        assert found.all_reduce.ranks == 2


def test_a_rank_alone_has_nobody_to_send_to_and_plain_attention_is_not_measured(tmp_path: Any) -> None:
    (found,) = probed(tmp_path, 1, train={"attention": "plain"})
    assert (found.gather, found.reduce, found.all_reduce, found.attention_flops) == (None, None, None, None)


def test_what_the_catalog_has_is_not_measured(tmp_path: Any) -> None:
    config = tiny()

    def on(backend: Literal["batch", "local"], instance_type: str) -> MeasuredMachine | None:
        cluster = ClusterConfig(backend=backend, instance_type=instance_type)
        own = config.model_copy(update={"cluster": cluster})
        return Job(str(tmp_path), config).on_gang(1, _probed, own, config=config)[0][0]

    assert on("batch", "p4d.24xlarge") is None
    assert on("batch", "c7i.48xlarge") is not None
    assert on("local", "p4d.24xlarge") is not None  # this host, whatever it is called


def test_of_a_model_of_one_s_own_no_sizes_are_known(tmp_path: Any) -> None:
    config = tiny()
    sizes = {"vocab_size": 257, "max_sequence_length": 32}
    custom = tiny(model={"build": "tests.model.user_module:build", "args": {"vocabulary": 257, "width": 16}, **sizes})
    assert Job(str(tmp_path), config).on_gang(1, _probed, custom, config=config)[0][0] is None
