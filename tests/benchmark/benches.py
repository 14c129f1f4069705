"""Benchmarks that take seconds: a model of a few thousand parameters on synthetic data."""

from typing import Any

import torch
import torch.distributed as dist

from convoy.benchmark.groups import Group, Ranks, VariantSpec
from convoy.benchmark.memory_estimate import estimate_memory
from convoy.benchmark.plan import plan_groups, run_of
from convoy.benchmark.results.case import Case
from convoy.benchmark.suites.registry import SUITES
from convoy.config.benchmark import BenchConfig, MeasureConfig, read_bench, resolve_bench
from convoy.config.loader import configs_folder
from convoy.config.parallel import ParallelConfig
from convoy.config.run import RunConfig
from convoy.launch.benchmark.groups import local_gang_runner, run_groups
from convoy.parallel.mesh import build_mesh
from convoy.training.process_groups import Ranks as JoinedRanks
from tests.benchmark.cases import replaced
from tests.training.job import place, tiny

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


def cases_of_gang(group: Group, nodes: int = 1) -> dict[str, Case]:
    """By name. Of two ranks of this host, on so many nodes: a node takes seconds to start."""
    (result,) = run_groups([group], local_gang_runner("bench", nodes, 2 // nodes), print)
    assert result.failure == ""
    return {case.name: case for case in result.cases}


def one_of_two(rank: int) -> JoinedRanks:
    """A rank of torch's default process group, on one host."""
    group = dist.group.WORLD
    return JoinedRanks(place(rank, 2), torch.device("cpu"), build_mesh(ParallelConfig(), "cpu", 2, 2), group, group)


def groups_of(config: BenchConfig, ranks: Ranks) -> list[Group]:
    return plan_groups(config, {model: run_of(config, model) for model in config.models}, ranks)


def ready(name: str) -> BenchConfig:
    """A configuration of `configs/bench/`."""
    return resolve_bench(read_bench((configs_folder() / "bench" / f"{name}.yaml").read_text()), {})


def state_bytes(spec: VariantSpec, run: RunConfig, ranks: Ranks) -> int:
    """That a case takes on the device that computes while it trains."""
    return estimate_memory(spec, run, ranks).device.states
