"""The share of synchronisation, what follows from it, and verdicts on claims, beside cases whose truth is known."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from convoy.benchmark.analysis.sync import (
    environment_figures,
    split_step_parts,
    supports_rdma_claim,
    sync_figures,
    sync_levels,
)
from convoy.benchmark.page import benchmark_page
from convoy.benchmark.results.case import Block, Case
from convoy.benchmark.results.collectives import timing_values
from convoy.benchmark.results.values import INDEPENDENT, RDMA_CLAIMED, START_UP_SECONDS, SYNC_SECONDS
from convoy.display.page import Callout, Table, Text
from convoy.stats.interval import Interval
from tests.benchmark.cases import HARDWARE, PROVENANCE, a_case, replaced, throughput
from tests.benchmark.reading import headings, of, row
from tests.benchmark.results.test_collectives import a_collective


def between(low: float, high: float) -> Interval:
    return Interval(estimate=(low + high) / 2, low=low, high=high, n=12)


def with_parts(case: Case, **of_step: float) -> Case:
    return replaced(case, blocks=tuple(replaced(b, parts=of_step) for b in case.blocks))


def two(seconds: float, alone: float = 0.5, update: float = 0.02, n: int = 20) -> list[Case]:
    """Training together takes `seconds` for a step and updates in half of the time of training alone."""
    shared: dict[str, Any] = {"suite": "sync", "group": "sync-tiny", "n": n}
    jobs = replaced(HARDWARE, jobs=2)
    reference = a_case("apart", alone, seed=1, baseline=None, hardware=jobs, values={INDEPENDENT: 1.0}, **shared)
    values = timing_values(a_collective("all_reduce", 2**20, 2, 0.01))
    together = a_case("together", seconds, seed=2, baseline="apart", values=values, **shared)
    return [
        with_parts(reference, forward=0.2, exchange=0.01, backward=alone - 0.21 - update, optimizer=update),
        with_parts(together, forward=0.3, exchange=0.02, backward=seconds - 0.32 - update / 2, optimizer=update / 2),
    ]


def pair(faster: float, **changed: Any) -> list[Case]:
    """Gangs in two environments, of which the second is so many times as fast."""
    shared: dict[str, Any] = {"suite": "sync", "group": "network-tiny", "varied": ("NCCL_IB_DISABLE",)}
    off = replaced(PROVENANCE, environment={"NCCL_IB_DISABLE": "1"})
    on = replaced(PROVENANCE, environment={})
    first = a_case("TCP", 0.5, seed=3, baseline=None, provenance=off, **shared)
    return [first, a_case("EFA", 0.5 / faster, seed=4, baseline="TCP", provenance=on, **(shared | changed))]


@pytest.mark.parametrize(
    ("share", "found"),
    [
        (between(-0.05, 0.199), ("low",)),
        (between(0.2, 0.3), ("middle",)),
        (between(0.4, 0.9), ("high",)),
        (between(0.1, 0.5), ("low", "middle", "high")),
    ],
)
def test_an_interval_reaches_into_levels(share: Interval, found: tuple[str, ...]) -> None:
    assert sync_levels(share) == found


def test_the_share_is_of_the_step_with_the_same_update_in_both() -> None:
    """Alone 0.5 s, 0.02 s of them the update; together 0.8 s with an update of 0.01 s: (0.8 - 0.49) / 0.8."""
    (found,) = sync_figures(two(0.8))
    assert found.share.low < 0.31 / 0.8 < found.share.high
    assert found.share.high - found.share.low < 0.03
    assert (found.ranks, found.group, found.share.n) == (2, "sync-tiny", 20)


def test_parts_make_up_the_step_together() -> None:
    (found,) = sync_figures(two(0.8))
    assert found.parts == pytest.approx(
        {
            "data": 0,
            "forward": 0.2,
            "sync in forward": 0.1,
            "backward": 0.27,
            "sync in backward": 0.20,
            "exchange": 0.01,
            "sync in exchange": 0.01,
            "update": 0.01,
        }
    )
    assert sum(found.parts.values()) == pytest.approx(0.8)
    assert split_step_parts({"forward": 1.0}, {"forward": 1.0}) == {}


def test_too_few_blocks_tell_why_there_is_no_share() -> None:
    (found,) = sync_figures(two(0.8, n=5))
    assert (found.share, found.levels) == (None, ())
    assert "5 pairs of blocks" in found.why


def test_without_the_ranks_alone_the_collectives_are_told_and_why_there_is_no_share() -> None:
    alone, together = two(0.8)
    later = replaced(PROVENANCE, measured=PROVENANCE.measured + timedelta(seconds=9))
    reason = "needs at least 89.4 GiB on a rank"
    missing = {"status": "refused", "reason": reason, "blocks": (), "values": {}, "provenance": later}
    page = benchmark_page([alone.model_copy(update=missing), replaced(together, baseline=None)])
    tables = {table.headers[0]: table for table in of(page, Table)}
    assert [row[0] for row in tables["Collective"].rows] == ["all_reduce"]
    assert "Part" not in tables
    (why,) = (text.text for text in of(page, Text) if "share of synchronisation" in text.text)
    assert why.startswith("The share of synchronisation is not known: ")
    assert why.endswith(f"refused: {reason}.")


def test_results_without_the_ranks_alone_say_so() -> None:
    (found,) = sync_figures(two(0.8)[1:])
    assert (found.share, found.parts, found.why) == (None, {}, "the ranks alone are not among the results")
    assert len(found.collectives) == 1


@pytest.mark.parametrize(
    ("seconds", "title", "action", "tone"),
    [
        (0.52, "below 20 %: synchronisation is no bottleneck", "Look for speed elsewhere", "good"),
        (0.7, "20 % to 40 %: synchronisation is worth reducing", "reshard_after_forward: false", "warning"),
        (1.2, "above 40 %: synchronisation is the bottleneck", "hsdp", "bad"),
    ],
)
def test_each_level_has_its_words_and_what_to_do(seconds: float, title: str, action: str, tone: str) -> None:
    (told,) = of(benchmark_page(two(seconds)), Callout)
    assert told.title.endswith(title)
    assert action in told.text
    assert told.tone == tone


def test_nothing_seen_is_no_share_below_zero() -> None:
    (told,) = of(benchmark_page(two(0.5, update=0.0)), Callout)
    assert told.title.startswith("tiny: ")
    assert "(none to " in told.title
    assert "-" not in told.title


def test_both_sections_follow_throughput_and_have_no_further_figures() -> None:
    page = benchmark_page([*throughput(), *two(0.8), *pair(1.1)])
    assert headings(page)[1:4] == ["Throughput", "Gradient synchronisation", "Environments compared"]
    assert "Further figures" not in headings(page)


@pytest.mark.parametrize(
    ("faster", "claimed", "told", "tone"),
    [
        (2.0, True, "a significant speedup", "good"),
        (1.3, True, "not a significant speedup", "bad"),
        (1.3, False, "EFA over TCP: faster, 1.2", "plain"),
        (1.0, False, "no difference detected", "plain"),
        (0.5, False, "SLOWER", "warning"),
    ],
)
def test_a_pair_of_environments_has_a_verdict(faster: float, claimed: bool, told: str, tone: str) -> None:
    (found,) = of(benchmark_page(pair(faster, values={RDMA_CLAIMED: 1.0} if claimed else {})), Callout)
    assert told in found.title
    assert ("not a significant" in found.title) == (claimed and faster < 1.5)
    assert "They differ only in NCCL_IB_DISABLE." in found.text
    assert ("RDMA was claimed" in found.text) == claimed
    assert found.tone == tone


def test_the_lower_bound_decides() -> None:
    assert not supports_rdma_claim(Interval(estimate=1.6, low=1.49, high=1.7, n=6))
    assert supports_rdma_claim(Interval(estimate=1.6, low=1.5, high=1.7, n=6))


def test_gangs_that_differ_in_more_than_was_declared_have_no_speedup() -> None:
    first, second = pair(2.0)
    (found,) = environment_figures([first, replaced(second, varied=())]) or (None,)
    assert found is None
    other = replaced(PROVENANCE, environment={"OMP_NUM_THREADS": "8"})
    (found,) = environment_figures([first, replaced(second, provenance=other)])
    assert found.speedup is None
    assert "OMP_NUM_THREADS: 8 and None, which was not to differ" in found.why


def in_gangs(
    step: float, sync: Sequence[float], start_up: Sequence[float], reduce: Sequence[float], **changed: Any
) -> Case:
    """Of so many gangs, all of whose steps took as long."""
    blocks = tuple(Block(number=n, steps=12, seconds=step, cpu_seconds=1) for n in range(len(sync)))
    samples = {
        SYNC_SECONDS: tuple(sync), START_UP_SECONDS: tuple(start_up), "collective.all_reduce.1048576": tuple(reduce),
    }  # fmt: skip
    shared: dict[str, Any] = {"suite": "sync", "group": "network-tiny", "varied": ("NCCL_IB_DISABLE",)}
    return a_case(**(shared | {"blocks": blocks, "samples": samples} | changed))


def three_ways() -> list[Case]:
    """TCP: a step of 0.5 s, 0.3 s of it synchronisation, after 10 s; EFA: 0.25 s and 0.05 s after 40.25 s. 1 MiB is
    summed over two ranks in 8 and 2 ms."""
    off = replaced(PROVENANCE, environment={"NCCL_IB_DISABLE": "1"})
    on = replaced(PROVENANCE, environment={})
    tcp = in_gangs(0.5, [0.3] * 6, [10.5] * 6, [0.008] * 6, name="TCP", baseline=None, provenance=off)
    return [tcp, in_gangs(0.25, [0.05] * 6, [40.25] * 6, [0.002] * 6, name="EFA", baseline="TCP", provenance=on)]


def test_environments_are_compared_by_throughput_synchronisation_and_total_time() -> None:
    """1,000 steps: 10.5 + 999 × 0.5 = 510 s, and 40.25 + 999 × 0.25 = 290 s."""
    (found,) = environment_figures(three_ways())
    ratios = (found.speedup, found.sync_speedup, found.total_speedup)
    assert [each.estimate for each in ratios if each] == pytest.approx([2.0, 6.0, 510 / 290])
    assert {each.n for each in ratios if each} == {6}
    assert (found.base_seconds.total.estimate, found.seconds.total.estimate) == (510, 290)
    assert (found.base_seconds.sync.estimate, found.seconds.start_up.estimate) == (0.3, 40.25)
    assert found.not_known == {}


def test_a_speedup_of_synchronisation_has_an_interval_over_pairs_of_gangs() -> None:
    tcp, efa = three_ways()
    noisy = replaced(efa, samples={**efa.samples, SYNC_SECONDS: (0.04, 0.045, 0.05, 0.05, 0.055, 0.06)})
    (found,) = environment_figures([tcp, noisy])
    assert found.sync_speedup.estimate == pytest.approx(6.0)
    assert 0.3 / 0.06 <= found.sync_speedup.low < 6 < found.sync_speedup.high <= 0.3 / 0.04


def test_collectives_are_compared_in_each_environment() -> None:
    """1 MiB in 8 ms and 2 ms, of two ranks: a sum's bus bandwidth is that of its bytes."""
    (found,) = environment_figures(three_ways())
    (reduced,) = found.collectives
    assert (reduced.own.operation, reduced.own.bytes, reduced.own.ranks) == ("all_reduce", 2**20, 2)
    assert reduced.speedup.estimate == pytest.approx(4.0)
    assert (reduced.base.busbw, reduced.own.busbw) == pytest.approx((2**20 / 0.008, 2**20 / 0.002))


@pytest.mark.parametrize(
    ("samples", "why"),
    [((), "it was not measured in each gang"), ((0.1, 0.1, 0.0, 0.1, 0.1, 0.1), "in a gang it took no time")],
)
def test_a_speedup_that_is_not_known_has_a_reason(samples: tuple[float, ...], why: str) -> None:
    tcp, efa = three_ways()
    others = {name: each for name, each in efa.samples.items() if name != SYNC_SECONDS}
    (found,) = environment_figures([tcp, replaced(efa, samples=others | ({SYNC_SECONDS: samples} if samples else {}))])
    assert found.sync_speedup is None
    assert found.not_known["synchronisation"].startswith(why)
    assert found.total_speedup is not None


def test_the_three_speedups_stand_in_one_table_with_what_they_mean() -> None:
    page = benchmark_page(three_ways())
    tables = of(page, Table)
    assert row(next(t for t in tables if "Total time" in t.headers), "EFA over TCP") == {
        "Environment": "EFA over TCP", "Throughput": "2.000× (2.000 to 2.000), n = 6",
        "Synchronisation": "6.000× (6.000 to 6.000), n = 6", "Total time": "1.759× (1.759 to 1.759), n = 6",
    }  # fmt: skip
    times = row(next(t for t in tables if "Start-up" in t.headers), "EFA")
    assert times["Synchronisation of a step"].startswith("50.0 ms")
    collectives = row(next(t for t in tables if "Collective" in t.headers), "all_reduce")
    assert collectives["EFA over TCP"].startswith("4.000×")
    assert collectives["busbw, TCP"] == "131 MB/s"
    assert any("whether computation hid it or not" in text.text for text in of(page, Text))


def test_results_of_earlier_versions_have_throughput_alone() -> None:
    page = benchmark_page(pair(2.0))
    tables = of(page, Table)
    assert row(next(t for t in tables if "Total time" in t.headers), "EFA over TCP")["Synchronisation"] == "not known"
    assert not any("Start-up" in t.headers or "Collective" in t.headers for t in tables)
