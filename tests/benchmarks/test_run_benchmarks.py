"""What the plain command says before it measures."""

from collections.abc import Callable
from pathlib import Path

import pytest
import run_benchmarks
from click.testing import CliRunner

from convoy.config.benchmark import BenchConfig, resolve_bench
from convoy.config.loader import read_overrides
from convoy.launch.benchmark import groups, split


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


def test_the_sizes_are_those_of_what_is_measured_after_a_model_was_refused(
    monkeypatch: pytest.MonkeyPatch, on_gpus: Callable[[int], None], tmp_path: Path
) -> None:
    """No model that was named has room: the default benchmark is measured, at its own sizes."""
    on_gpus(0)
    monkeypatch.setattr(split, "host_memory_mib", lambda: 16 * 1024)
    monkeypatch.setattr(groups, "run_here", lambda *_: [])
    words = ("--suite", "throughput", "--model", "gpt-7b", "--batch-size", "16", "--output-dir", str(tmp_path))
    lines = CliRunner().invoke(run_benchmarks.main, words).stderr.splitlines()
    starts = [line.split(":")[0] for line in lines if not line.startswith("  ")]
    assert starts == [
        "not measured here", "on 2 × p4d.24xlarge (predicted)", "on 2 × p5.48xlarge (predicted)", "measured instead",
        "a step",
    ]  # fmt: skip
    assert lines[-1].startswith("a step: 4 sequences of ")
