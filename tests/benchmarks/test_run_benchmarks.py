"""What the plain command says before it measures."""

from collections.abc import Callable

import pytest
import run_benchmarks

from convoy.config.benchmark import BenchConfig, resolve_bench
from convoy.config.loader import read_overrides
from convoy.launch.benchmark import split


@pytest.fixture
def on_gpus(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets how many GPUs this host has."""
    return lambda gpus: monkeypatch.setattr(split, "local_gpus", lambda: gpus)


def benchmark(words: str) -> BenchConfig:
    return resolve_bench({}, read_overrides(f"run.train.global_batch=4 run.data.sequence_length=64 {words}"))


@pytest.mark.parametrize(
    ("gpus", "words", "expected"),
    [
        (0, "", "over 2 ranks of 2 nodes, 2 per rank"),
        (1, "", "over 1 rank of 1 node, 4 per rank"),  # two ranks of the default gang cannot share it
        (4, "", "over 4 ranks of 2 nodes, 1 per rank"),
        (0, "run.cluster.nodes=4", "over 4 ranks of 4 nodes, 1 per rank"),
    ],
)
def test_sizes_are_those_of_the_gang_that_this_host_forms(
    on_gpus: Callable[[int], None], gpus: int, words: str, expected: str
) -> None:
    on_gpus(gpus)
    assert f"a step: 4 sequences of 64 tokens {expected} " in run_benchmarks.meaning_of_sizes(benchmark(words))
