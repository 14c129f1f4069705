"""The utilisation suite: its cases, its figures, and what it sees of two real ranks."""

import os
import threading
from contextlib import suppress
from typing import Any

import pytest
import torch
import torch.distributed as dist

from convoy.benchmark.groups import Ranks
from convoy.benchmark.measure.observer import (
    GpuUtilisation,
    Observer,
    add_observations,
    host_values,
    pin_threads,
    thread_ids,
)
from convoy.benchmark.measure.trace import profile_steps
from convoy.benchmark.results.values import SHARES
from convoy.benchmark.rounds import measure
from convoy.benchmark.variants.convoy import ConvoyVariant
from convoy.config.benchmark import BenchConfig, MeasureConfig
from convoy.training.batches import RankData
from convoy.training.process_groups import Ranks as JoinedRanks
from convoy.training.process_groups import connect_ranks
from tests.benchmark.benches import groups_of
from tests.training.job import Job, tiny

QUICK = MeasureConfig(rounds=6, block_steps=2, block_seconds=0.001, warm_up_most=16)
CORES = sorted(os.sched_getaffinity(0))


def test_pinned_and_not_pinned_are_the_same_training() -> None:
    config = BenchConfig(suites=("utilisation",), measure=MeasureConfig(pin=False))
    (group,) = groups_of(config, Ranks(2, 1))
    assert group.baseline == "not pinned"
    pinned = {spec.name: spec.pins_ranks(group.measure) for spec in group.variants}
    assert pinned == {"not pinned": False, "pinned": True}
    assert len({spec.config(group.run).model_dump_json() for spec in group.variants}) == 1


def test_where_a_host_has_one_rank_there_is_nothing_to_pin() -> None:
    config = BenchConfig(suites=("utilisation",), run={"cluster": {"backend": "kubernetes", "nodes": 4}})
    (group,) = groups_of(config, Ranks(4, 1))
    assert [spec.name for spec in group.variants] == ["not pinned"]


def test_host_figures_are_of_one_rank_and_step() -> None:
    """Two ranks on four cores made ten steps in five seconds."""
    found = host_values((8.0, 2.0, 400.0, 60.0), steps=10, seconds=5.0, ranks=2, cores=4)
    assert found == {
        "user_cpu_seconds": 0.4,
        "system_cpu_seconds": 0.1,
        "voluntary_switches": 20.0,
        "involuntary_switches": 3.0,
        "cpu_utilisation": 0.5,
    }


def test_threads_that_were_there_before_move_too() -> None:
    """And those that they make afterwards."""
    born: list[set[int]] = []
    go, made, end = threading.Event(), threading.Event(), threading.Event()

    def old() -> None:
        go.wait(10)
        child = threading.Thread(target=lambda: born.append(os.sched_getaffinity(0)))
        child.start()
        child.join(10)
        made.set()
        end.wait(10)

    thread = threading.Thread(target=old)
    thread.start()
    before = len(thread_ids())
    try:
        pin_threads(CORES[:1])
        assert cores_of_threads() == {frozenset(CORES[:1])}
        assert before >= 2
        go.set()
        assert made.wait(10)
        assert born == [set(CORES[:1])]
    finally:
        pin_threads(CORES)
        end.set()
        thread.join(10)
    assert os.sched_getaffinity(0) == set(CORES)


def cores_of_threads() -> set[frozenset[int]]:
    """On which cores each thread of this process may run."""
    found = set()
    for thread in thread_ids():
        with suppress(ProcessLookupError):  # it ended meanwhile
            found.add(frozenset(os.sched_getaffinity(thread)))
    return found


class Spied(ConvoyVariant):
    """Notes on which cores all threads of the process may run, at each step."""

    def step(self) -> None:
        self.seen = [*getattr(self, "seen", []), cores_of_threads()]
        super().step()


def suite_of(rank: int, assignments: list[Any]) -> dict[str, Any]:
    """Both variants on this rank: what is told, and what happened meanwhile."""
    assignment = assignments[rank]
    ranks = connect_ranks(assignment)
    data = RankData(assignment.config, assignment.root, assignment.data_id, assignment.fingerprint, ranks)
    cores = {"not pinned": CORES, "pinned": [CORES[rank % len(CORES)]]}
    variants = [Spied(name, assignment.config, ranks, data) for name in cores]
    observer = Observer(cores, None, "no GPU")
    found = measure(
        variants,
        QUICK,
        ranks,
        before_turn=lambda variant: pin_threads(observer.cores[variant.name]),
        watch=lambda variant, steps: observer.watch(variant.name, steps),
    )
    timed = {each.name: len(each.losses) for each in variants}
    blocks = {name: len(each.blocks) for name, each in found.items()}
    add_observations(observer, variants, found, ranks, len(CORES))
    told = {name: (each.values, each.not_measured) for name, each in found.items()}
    threads_then = len(thread_ids())
    losses = {each.name: list(each.losses) for each in variants}
    spoiled = spoiled_on_one(rank, observer, variants[0], ranks)
    pin_threads(CORES)
    answer = {
        "told": told,
        "timed": timed,
        "losses": losses,
        "seen": {each.name: each.seen for each in variants},
        "threads": threads_then,
        "spoiled": spoiled,
        "gpus": with_gpu(ranks, lambda: 0.8 - 0.2 * rank),
        "half": with_gpu(ranks, (lambda: 0.8) if rank == 0 else None),
        "blocks": blocks,
        "now": {name: len(each.blocks) for name, each in found.items()},
        "steps": {name: each.warm_up_steps + sum(block.steps for block in each.blocks) for name, each in found.items()},
    }
    for variant in variants:
        variant.close()
    dist.barrier(group=ranks.control)
    return answer


def spoiled_on_one(rank: int, observer: Observer, variant: ConvoyVariant, ranks: JoinedRanks) -> Any:
    """What is told where the trace of rank 1 is empty."""

    def empty(*asked: Any) -> list[dict[str, Any]]:
        profile_steps(*asked)
        return []

    with pytest.MonkeyPatch.context() as patch:
        if rank == 1:
            patch.setattr("convoy.benchmark.measure.observer.profile_steps", empty)
        return observer.profile(variant, ranks)


def with_gpu(ranks: JoinedRanks, gpu: GpuUtilisation | None) -> Any:
    """Values of a block of four steps."""
    observer = Observer({"x": CORES}, gpu, "" if gpu else "NVML: gone")
    with observer.watch("x", 4):
        pass
    return observer.block_values("x", len(CORES), ranks)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Of two ranks."""
    job = Job(str(tmp_path_factory.mktemp("utilisation")), tiny(train={"steps": 10**6}))
    found: list[dict[str, Any]] = job.on_gang(2, suite_of)
    return found


def test_parts_of_real_steps_make_up_all_of_them(ran: list[dict[str, Any]]) -> None:
    assert [rank["told"] for rank in ran] == [ran[0]["told"]] * 2
    for values, _ in ran[0]["told"].values():
        parts = {part: values[name] for part, name in SHARES.items()}
        assert sum(parts.values()) == pytest.approx(1.0)
        for part in ("forward", "backward", "optimizer", "communication", "idle"):
            assert 0.001 < parts[part] < 1, part  # weights are gathered and gradients reduced in every step
        assert 0 <= values["communication_hidden"] < 1


def test_a_trace_that_one_rank_cannot_read_leaves_shares_untold_on_all(ran: list[dict[str, Any]]) -> None:
    (values, first), (others, second) = (rank["spoiled"] for rank in ran)
    assert values == others == {}
    assert "another rank" in first["shares of the step"]
    assert "convoy:begin" in second["shares of the step"]


def test_what_the_processes_used_is_told_and_what_nothing_tells_is_not_made_up(ran: list[dict[str, Any]]) -> None:
    for values, missing in ran[0]["told"].values():
        assert values["user_cpu_seconds"] > 0
        assert values["system_cpu_seconds"] >= 0
        assert values["voluntary_switches"] > 0
        assert values["involuntary_switches"] >= 0
        assert 0 < values["cpu_utilisation"] <= 1.05
        assert missing == {"GPU utilisation": "no GPU"}
        assert "gpu_utilisation" not in values


def test_utilisation_is_of_all_gpus_or_of_none(ran: list[dict[str, Any]]) -> None:
    for values, missing in (rank["gpus"] for rank in ran):
        assert values["gpu_utilisation"] == pytest.approx(0.7)
        assert missing == {}
    assert ["gpu_utilisation" in rank["half"][0] for rank in ran] == [False, False]
    first, second = (rank["half"][1] for rank in ran)
    assert first == {"GPU utilisation": "another rank's GPU does not report it"}
    assert second == {"GPU utilisation": "NVML: gone"}


def test_every_thread_moves_at_each_turn(ran: list[dict[str, Any]]) -> None:
    for i, rank in enumerate(ran):
        assert rank["threads"] > 2  # gloo's, and those that prefetch
        assert set().union(*rank["seen"]["not pinned"]) == {frozenset(CORES)}
        assert set().union(*rank["seen"]["pinned"]) == {frozenset(CORES[i % len(CORES) : i % len(CORES) + 1])}


def test_steps_are_profiled_after_all_that_is_timed_and_as_many_on_all_ranks(ran: list[dict[str, Any]]) -> None:
    for rank in ran:
        assert rank["timed"] == rank["steps"]
        assert rank["blocks"] == rank["now"] == {"not pinned": 6, "pinned": 6}
    after = [{name: len(losses) - rank["timed"][name] for name, losses in rank["losses"].items()} for rank in ran]
    assert after == [{"not pinned": 4, "pinned": 4}] * 2  # one more than is told of


def test_neither_cores_nor_the_profiler_change_what_is_computed(ran: list[dict[str, Any]]) -> None:
    first, second = ran[0]["losses"]["not pinned"], ran[0]["losses"]["pinned"]
    both = min(len(first), len(second))
    assert first[:both] == second[:both]
    assert ran[1]["losses"] == ran[0]["losses"]
    assert torch.tensor(first).isfinite().all()
    assert first[-1] < first[0]
