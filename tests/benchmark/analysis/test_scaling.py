"""Efficiency beside curves whose truth is known."""

from typing import Any

import pytest

from convoy.benchmark.analysis.report import ScalingPoint
from convoy.benchmark.analysis.scaling import scaling_points
from convoy.benchmark.results import values
from convoy.benchmark.results.case import Case, HostUse
from tests.benchmark.cases import HARDWARE, a_case, replaced
from tests.benchmark.cases import scaling as cases_of_two

ONE = replaced(HARDWARE, ranks=1)


def _at(cases: list[Case], kind: str, ranks: int) -> ScalingPoint:
    (found,) = [point for point in scaling_points(cases) if (point.kind, point.ranks) == (kind, ranks)]
    return found


def _of(group: str, name: str, seconds: float, ranks: int, tokens: int, **told: float) -> Case:
    changed: dict[str, Any] = {"hardware": replaced(HARDWARE, ranks=ranks), "tokens_per_step": tokens}
    return a_case(name, seconds, seed=ranks, suite="scaling", group=group, baseline=None, values=told, **changed)


@pytest.mark.parametrize(("kind", "truth"), [("weak", 0.9), ("strong", 0.8), ("independent", 0.95)])
def test_efficiency_is_over_as_many_times_one_rank(kind: str, truth: float) -> None:
    found = _at(cases_of_two(), kind, 2)
    assert found.efficiency.low < truth < found.efficiency.high
    assert found.efficiency.high - found.efficiency.low < 0.06
    assert found.paired


def test_one_rank_lies_on_both_curves_and_has_no_efficiency() -> None:
    assert _at(cases_of_two(), "weak", 1).efficiency is None
    assert _at(cases_of_two(), "strong", 1).case == _at(cases_of_two(), "weak", 1).case


def test_what_independent_jobs_lose_is_told_apart() -> None:
    found = _at(cases_of_two(), "weak", 2)
    assert found.of_independent.estimate == pytest.approx(0.9 / 0.95, rel=0.03)
    assert _at(cases_of_two(), "independent", 2).of_independent is None


def test_communication_is_a_share_of_the_step_and_bytes_one_of_the_link() -> None:
    """A step of 0.5 / 0.9 s, 0.05 s of it exposed; 14.4 MB over a link of 1 GB/s."""
    found = _at(cases_of_two(), "weak", 2)
    assert found.communication_share == pytest.approx(0.09, rel=0.03)
    assert found.communication_ratio == pytest.approx(0.09 / 0.91, rel=0.03)
    assert found.link_share == pytest.approx(0.0144 * 0.9 / 0.5, rel=0.03)


def test_gangs_that_were_measured_apart_are_compared_as_two_samples() -> None:
    cases = [_of("n1", "one", 0.5, 1, 512), _of("n4", "weak", 1.0, 4, 2048, **{values.WEAK: 1})]
    found = _at(cases, "weak", 4)
    assert found.efficiency.estimate == pytest.approx(0.5, rel=0.02)
    assert not found.paired


def test_another_machine_is_no_reference() -> None:
    other = _of("n1", "one", 0.5, 1, 512)
    other = replaced(other, hardware=replaced(ONE, device="Xeon"))
    found = _at([other, _of("n4", "weak", 1.0, 4, 2048, **{values.WEAK: 1})], "weak", 4)
    assert found.efficiency is None
    assert found.why == "hardware.device: AMD EPYC 7R13 and Xeon"
    found = _at([_of("n4", "weak", 1.0, 4, 2048, **{values.WEAK: 1})], "weak", 4)
    assert (found.efficiency, found.why) == (None, "the fewest ranks were not measured")


def test_where_one_rank_has_no_room_the_fewest_that_have_are_the_reference() -> None:
    cases = [_of("n8", "8 ranks", 0.5, 8, 4096), _of("n8", "weak", 0.625, 32, 4 * 4096, **{values.WEAK: 1})]
    assert _at(cases, "strong", 8).reference
    found = _at(cases, "weak", 32)
    assert found.efficiency.estimate == pytest.approx(0.8, rel=0.02)


def test_overhead_is_the_additional_time_of_all_ranks_for_the_same_work() -> None:
    """Two ranks at 80 % in strong scaling take 1.25 times one rank's time, both together."""
    found = _at(cases_of_two(), "strong", 2)
    assert found.overhead.low < 0.25 < found.overhead.high
    assert found.relative_to == 1
    assert _at(cases_of_two(), "weak", 1).overhead is None


def of_eight(*, optimizer: float = 0.0) -> list[Case]:
    """8 ranks, two jobs of 8 at once, and 16 ranks, which are 0.125 s behind the jobs."""
    shared = [
        _of("n2", "8 ranks", 0.5, 8, 4096),
        _of("n2", "2 jobs of 8 ranks", 0.5, 16, 8192, **{values.INDEPENDENT: 1}),
        _of("n2", "16 ranks, weak", 0.625, 16, 8192, **{values.WEAK: 1}),
    ]
    jobs = replaced(shared[1], hardware=replaced(shared[1].hardware, jobs=2))
    jobs = replaced(jobs, blocks=tuple(replaced(b, parts={"optimizer": optimizer}) for b in jobs.blocks))
    return [shared[0], jobs, shared[2]]


def test_a_reference_of_several_ranks_has_what_more_ranks_add() -> None:
    found = _at(of_eight(), "weak", 16)
    assert found.overhead.low < 0.25 < found.overhead.high
    assert found.relative_to == 8
    assert found.added_share.low < 0.2 < found.added_share.high
    assert found.communication_share is None
    assert _at(of_eight(optimizer=0.1), "weak", 16).added_share.estimate == pytest.approx(1 - 0.4 / 0.625, rel=0.02)
    assert _at(cases_of_two(), "weak", 2).added_share is None  # its jobs have one rank, so it has all communication


def test_bytes_of_a_node_are_the_mean_over_nodes_at_work() -> None:
    hosts = tuple(
        HostUse(host=n, ranks=8 * (n < 2), sent_bytes=n, received_bytes=0, rdma_sent_bytes=9) for n in range(3)
    )
    cases = [replaced(case, hosts=hosts) for case in cases_of_two()]
    assert _at(cases, "weak", 2).node_bytes == 9.5
    assert _at([replaced(case, hosts=hosts[:1]) for case in cases], "weak", 2).node_bytes is None


def test_what_was_not_measured_or_has_few_blocks_is_on_no_curve() -> None:
    shared: dict[str, Any] = {"suite": "scaling", "hardware": ONE}
    assert scaling_points([a_case("few", n=5, **shared), a_case("no", status="failed", blocks=(), **shared)]) == ()
    assert scaling_points([a_case("none", tokens_per_step=0, **shared)]) == ()
    assert scaling_points([a_case("another suite")]) == ()
