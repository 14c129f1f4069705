"""Two ranks that train together, and each by itself at the same time, in turns: what a prediction is held against."""

import ctypes
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from convoy.benchmark.analysis.network_for_planner import measured_links
from convoy.benchmark.groups import Ranks as GangRanks
from convoy.benchmark.measure.network import measure_network
from convoy.benchmark.measure.observer import cores_of_rank, pin_threads
from convoy.benchmark.planner_runs import workload_of
from convoy.benchmark.results.case import Case
from convoy.benchmark.rounds import VariantResult, measure
from convoy.benchmark.suites.network import SUITE
from convoy.benchmark.variants.convoy import ConvoyVariant
from convoy.benchmark.variants.ranks import join_world
from convoy.benchmark.variants.variant import Variant
from convoy.catalog.measured_machine import CollectiveTiming, MeasuredLinks, MeasuredMachine
from convoy.config.benchmark import BenchConfig, MeasureConfig
from convoy.config.network import NetworkConfig
from convoy.config.parallel import ParallelConfig
from convoy.config.run import RunConfig
from convoy.data.manifest import data_fingerprint
from convoy.data.prepare import prepare_dataset
from convoy.gang.task import RankPosition
from convoy.parallel.mesh import build_mesh
from convoy.planner.workload import Workload
from convoy.storage import open_store
from convoy.training.batches import RankData
from convoy.training.measure.machine_probe import probe_machine
from convoy.training.process_groups import Ranks

ALONE = "alone"
"""How the names of turns begin in which each rank trains by itself."""

PROBE_SECONDS = 3.0
"""Before the steps and once more after them, each ten times what a job takes: the test is of the prediction, and not of
how well a third of a second tells, nor of whether the machine is a minute later as it was."""

_NEW_NETWORK = 0x40000000  # CLONE_NEWNET of sched.h
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Meeting:
    """Where the ranks meet."""

    address: str
    port: int
    interface: str
    namespaces: tuple[str, ...] = ()
    """Of networks, one for each rank; none: this host's."""


@dataclass(frozen=True)
class Seen:
    """By one rank."""

    machine: MeasuredMachine
    measured: dict[str, VariantResult]
    """By the name of each setting, what the ranks took together; and the turns alone, one before each and one at the
    end."""
    optimizer_seconds: float
    """Of a step alone."""
    links: dict[str, MeasuredLinks]
    """By the name of each setting, what the network suite measures there of the collectives of training; empty where
    the ranks share a network, and on the second rank."""

    def seconds(self, turn: str) -> float:
        """Of a step in these turns, at its quickest: other work on the machine only makes steps longer, sometimes most
        of them."""
        return min(block.seconds for block in self.measured[turn].blocks)

    @property
    def alone_seconds(self) -> float:
        """Of a step alone, at its quickest."""
        return min(self.seconds(turn) for turn in self.measured if turn.startswith(ALONE))


class _In(Variant):
    """Steps of a variant in a setting of the machine."""

    def __init__(self, name: str, variant: ConvoyVariant) -> None:
        super().__init__(name)
        self.variant = variant

    def step(self) -> None:
        self.variant.step()

    def parts(self) -> Mapping[str, float]:
        return self.variant.parts()


def prepared(config: RunConfig) -> tuple[str, str]:
    """The data's id and fingerprint, for ranks that are forked later."""
    manifest = prepare_dataset(config.data, open_store(str(config.root)))
    return manifest.id, data_fingerprint(manifest, config.data)


def run(
    rank: int,
    meeting: Meeting,
    config: RunConfig,
    data: tuple[str, str],
    settings: Mapping[str, Callable[[], object]],
    rounds: int,
) -> Seen:
    """As one of two ranks. settings: by name, what brings the machine into each, at least one; each rank calls it. The
    machine is probed in the first, which is how it is found."""
    ranks = meet(rank, meeting)
    each = RunConfig.model_validate(
        config.model_dump(mode="json")
        | {"train": config.train.model_dump() | {"global_batch": config.train.global_batch // 2}}
    )
    own = join_world(ranks, 1, each.parallel)
    with ExitStack() as stack:

        def made(name: str, run: RunConfig, world: Ranks) -> ConvoyVariant:
            return stack.enter_context(
                closing(ConvoyVariant(name, run, world, RankData(run, str(run.root), *data, world)))
            )

        alone, together = made(ALONE, each, own), made("together", config, ranks)
        turns: list[Variant] = []
        for name in settings:
            turns += [_In(f"{ALONE} before {name}", alone), _In(name, together)]
        turns.append(_In(f"{ALONE} at the end", alone))
        for _ in range(5):
            alone.step()
            together.step()
        first = probe_machine(config, ranks, PROBE_SECONDS)
        optimizer: list[float] = []

        def before(turn: Variant) -> None:
            optimizer.append(alone.parts()["optimizer"])
            settings.get(turn.name, lambda: None)()

        amount = MeasureConfig.model_construct(rounds=rounds, block_steps=2, block_seconds=0.3, warm_up_most=2)
        found = measure(turns, amount, ranks, before_turn=before)
        next(iter(settings.values()))()
        last = probe_machine(config, ranks, PROBE_SECONDS)
    links = dict[str, MeasuredLinks]()
    for name, bring in settings.items() if meeting.namespaces else ():
        bring()
        cases = measured_collectives(config, ranks)
        links |= {name: measured_links(cases)[0]} if cases else {}
    assert first is not None
    assert last is not None
    lines = {name: _between(getattr(first, name), getattr(last, name)) for name in ("gather", "reduce")}
    machine = first.model_copy(update=lines)
    return Seen(machine, found, sorted(optimizer)[len(optimizer) // 2], links)


def measured_collectives(config: RunConfig, ranks: Ranks) -> list[Case]:
    """The gathers and reductions of training as `convoy net bench` measures them, on the first rank."""
    network = NetworkConfig(operations=("all_gather", "reduce_scatter"), links=(), sizes="64K:1M:4")
    bench = BenchConfig(suites=("network",), measure=MeasureConfig(rounds=6), network=network)
    cases = list[Case]()
    for group in SUITE.groups(bench, {"pair": config}, GangRanks(2, 1)):
        of_training = tuple(spec for spec in group.variants if spec.name == "direct exchange")
        cases += measure_network(group.model_copy(update={"variants": of_training}), ranks, 1)
    return cases


def _between(first: CollectiveTiming, last: CollectiveTiming) -> CollectiveTiming:
    """Each size takes the mean of both times."""
    return CollectiveTiming(
        latency_seconds=(first.latency_seconds + last.latency_seconds) / 2,
        bytes_per_second=2 / (1 / first.bytes_per_second + 1 / last.bytes_per_second),
        ranks=first.ranks,
    )


def meet(rank: int, meeting: Meeting) -> Ranks:
    """Of two; this process is one of them, on cores of its own, from now on."""
    if meeting.namespaces:
        enter(meeting.namespaces[rank])
    cores = sorted(os.sched_getaffinity(0))
    pin_threads(cores_of_rank(cores, rank, 2))
    os.environ["GLOO_SOCKET_IFNAME"] = meeting.interface
    store = dist.TCPStore(meeting.address, meeting.port, 2, is_master=rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    hosted = 1 if meeting.namespaces else 2
    place = RankPosition(
        rank=rank, local_rank=rank, node=0, nodes=1, nproc_per_node=2, host_rank=rank, host_ranks=hosted, threads=1
    )
    control = dist.new_group(backend="gloo")
    return Ranks(place, torch.device("cpu"), build_mesh(ParallelConfig(), "cpu", 2, 2), control, control)


def enter(namespace: str) -> None:
    """This thread, and those that it makes, are in the network namespace of that name from now on."""
    with Path("/var/run/netns", namespace).open() as file:
        if _LIBC.setns(file.fileno(), _NEW_NETWORK):
            raise OSError(ctypes.get_errno(), f"setns {namespace}")


def job_config(root: Path, **sections: Any) -> RunConfig:
    base: dict[str, Any] = {
        "root": str(root),
        "model": {"vocab_size": 4096, "n_layers": 4, "d_model": 192, "n_heads": 3, "max_sequence_length": 256},
        "data": {
            "corpus": {"kind": "synthetic", "tokens": 200_000, "vocab_size": 4096},
            "sequence_length": 256,
        },
        "train": {"steps": 100_000, "global_batch": 8, "micro_batch": 8, "param_dtype": "bf16"},
    }
    return RunConfig.model_validate(base | {name: base.get(name, {}) | keys for name, keys in sections.items()})


def workload(config: RunConfig, nodes: int) -> Workload:
    """Of the two ranks, on one machine or on two."""
    return workload_of(config, nodes, 2 // nodes, None, on_gpus=False)
