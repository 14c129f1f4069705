"""Benchmarks that take seconds: a model of a few thousand parameters on synthetic data."""

from typing import Any

from convoy.benchmark.groups import Group, Ranks, VariantSpec
from convoy.benchmark.memory_estimate import memories
from convoy.benchmark.suites.registry import SUITES
from convoy.config.benchmark import MeasureConfig
from convoy.config.run import RunConfig
from tests.benchmark.cases import replaced
from tests.training.job import tiny

QUICK = MeasureConfig(rounds=6, block_steps=1, block_seconds=0.001, warm_up_most=16, machine_seconds=0.02)


def a_group(root: str, *variants: VariantSpec, nodes: int = 1, suite: str = "throughput", **sections: Any) -> Group:
    """Compared with the first of its variants."""
    run = replaced(tiny(cluster={"nodes": nodes}, **sections), root=root)
    train = replaced(run.train, steps=10**6, threads_per_rank=1)
    return Group(
        name=f"{suite}-tiny",
        suite=suite,
        measures=next(each.measures for each in SUITES if each.name == suite),
        baseline=variants[0].name,
        variants=variants,
        run=replaced(run, train=train),
        measure=QUICK,
    )


def state_bytes(spec: VariantSpec, run: RunConfig, ranks: Ranks) -> int:
    """That a case takes on the device that computes while it trains."""
    return memories(spec, run, ranks).device.states
