"""Efficiency beside curves whose truth is known."""

from typing import Any

import pytest

from convoy.benchmark.analysis.report import ScalingPoint
from convoy.benchmark.analysis.scaling import scaling_points
from convoy.benchmark.results import values
from convoy.benchmark.results.case import Case
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


def test_what_was_not_measured_or_has_few_blocks_is_on_no_curve() -> None:
    shared: dict[str, Any] = {"suite": "scaling", "hardware": ONE}
    assert scaling_points([a_case("few", n=5, **shared), a_case("no", status="failed", blocks=(), **shared)]) == ()
    assert scaling_points([a_case("none", tokens_per_step=0, **shared)]) == ()
    assert scaling_points([a_case("another suite")]) == ()
