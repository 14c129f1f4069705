"""What ranks measure once they are warm."""

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Literal, cast

import pytest
import torch
import torch.distributed as dist

from convoy.catalog.measured import MeasuredMachine
from convoy.config.cluster import ClusterConfig
from convoy.config.run import RunConfig
from convoy.gang.assignment import Assignment
from convoy.training.probe import TIMES, _largest, _random, _together, probe
from convoy.training.ranks import Ranks, connect
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


def test_a_collective_that_disturbances_hide_takes_what_it_does_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Computation that was faster with it than without: it is not infinitely fast for that."""
    alone = SimpleNamespace(device=torch.device("cpu"), control=None)
    took = iter([1.0, 1.0, 1.0] + [2.0, 1.0] * TIMES + [0.5] * 3)
    monkeypatch.setattr("convoy.training.probe._timed", lambda call, ranks: next(took))
    monkeypatch.setattr("convoy.training.probe._most", lambda value, ranks: value)
    monkeypatch.setattr("convoy.training.probe._work", lambda ranks: lambda: None)
    monkeypatch.setattr(dist, "all_reduce", lambda *_, **__: None)
    assert _together(lambda: None, cast("Ranks", alone), SECONDS) == pytest.approx(0.5 / TIMES)


@pytest.mark.parametrize(("rate", "largest"), [(1e12, 1e6), (1e5, 1e3)])
def test_messages_are_as_large_as_a_block_where_there_is_time(
    monkeypatch: pytest.MonkeyPatch, rate: float, largest: float
) -> None:
    """A link of 100 kB/s has time for 10 ms of it."""
    asked: list[float] = []

    def made(size: float) -> Callable[[], object]:
        asked.append(size)
        return lambda: None

    monkeypatch.setattr("convoy.training.probe._once", lambda call, ranks: asked[-1] / rate)
    found = _largest(100.0, 1e6, made, cast("Ranks", None), 0.01)
    assert largest / 5 < found <= largest


def test_numbers_are_made_in_the_type_in_which_they_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a wider one they would take more of a GPU's memory than is free beside training."""
    made: list[torch.dtype] = []
    randn = torch.randn

    def seen(*args: Any, **kwargs: Any) -> torch.Tensor:
        x = randn(*args, **kwargs)
        made.append(x.dtype)
        return x

    monkeypatch.setattr(torch, "randn", seen)
    assert _random(cast("Ranks", SimpleNamespace(device=torch.device("cpu"))), torch.bfloat16, 4).dtype == made[0]
    assert made == [torch.bfloat16]


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
    custom = tiny(model={"build": "tests.gang.models:Tiny", "args": {"vocabulary": 257, "width": 16}, **sizes})
    assert Job(str(tmp_path), config).on_gang(1, _probed, custom, config=config)[0][0] is None
