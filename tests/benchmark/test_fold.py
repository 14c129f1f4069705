"""What is known of a benchmark, beside figures that were reckoned by hand."""

import math

import pytest

from convoy.benchmark.analysis.report import CaseFigures, verdict
from convoy.benchmark.fold import fold_cases
from convoy.benchmark.results.case import Case
from convoy.stats.interval import Interval
from tests.benchmark.cases import a_case, replaced, strategies, throughput, whole


def _case(cases: list[Case], name: str) -> CaseFigures:
    return next(c for group in fold_cases(cases).groups for c in group.cases if c.name == name)


def test_a_case_has_its_rate_and_what_it_is_beside_its_baseline() -> None:
    slow = _case(throughput(), "baseline")
    assert slow.tokens_per_second.estimate == pytest.approx(2048, rel=0.02)
    assert slow.speedup.low < 0.5 < slow.speedup.high
    assert slow.cpu_ratio.estimate == pytest.approx(2.0, rel=0.02)
    assert slow.memory_ratio == 2.0
    assert slow.blocks == 20


def test_what_differs_by_less_than_its_noise_is_no_difference() -> None:
    told = {name: _case(throughput(), name).speedup for name in ("fused AdamW", "eager", "baseline")}
    assert {name: found and verdict(found) for name, found in told.items()} == {
        "fused AdamW": "no difference",
        "eager": "less",
        "baseline": "less",
    }
    assert verdict(Interval(estimate=1.1, low=1.01, high=1.2, n=9)) == "more"
    assert verdict(Interval(estimate=1.1, low=1.0, high=1.2, n=9)) == "no difference"


def test_the_baseline_stands_first_and_then_the_fastest() -> None:
    (group,) = fold_cases(throughput()).groups
    names = [case.name for case in group.cases]
    assert names[0] == "ours"
    assert names[-2:] == ["eager", "baseline"]


def test_the_suites_have_an_order_of_their_own() -> None:
    suites = [group.suite for group in fold_cases([a_case(suite="zzz"), *whole()]).groups]
    assert suites == ["throughput", "strategies", "scaling", "zzz"]


def test_losses_are_compared_with_those_of_the_baseline() -> None:
    assert _case(strategies(), "fsdp").losses == "agree"
    other = _case(strategies(), "zero-3")
    assert other.losses == "differ"
    assert other.loss_difference == pytest.approx(0.5 / 7.9)
    assert _case(strategies(), "ddp").losses is None
    silent = [a_case("baseline"), a_case("ours", losses=())]
    assert _case(silent, "ours").losses == "not compared"


def test_the_coarser_type_tells_how_far_losses_may_be_apart() -> None:
    fp32, bf16 = {"train": {"param_dtype": "fp32"}}, {"train": {"param_dtype": "bf16"}}
    near = (8.3 * 1.005, 8.1, 7.9)
    assert _case([a_case("baseline", config=fp32), a_case("ours", config=fp32, losses=near)], "ours").losses == "differ"
    assert _case([a_case("baseline", config=fp32), a_case("ours", config=bf16, losses=near)], "ours").losses == "agree"
    assert _case([a_case("baseline", config={}), a_case("ours", config={}, losses=near)], "ours").losses == "differ"


def test_a_configuration_of_another_shape_is_no_error() -> None:
    shaped: list[dict[str, object]] = [{}, {"train": None, "cluster": 3}, {"train": [1]}]
    for config in shaped:
        (group,) = fold_cases([a_case("baseline", config=config), a_case("ours", config=config)]).groups
        assert group.region is None
        assert group.cases[1].losses == "agree"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"train": {"global_batch": 8}}, {"train": {"global_batch": 4}}),
        ({"data": {"packing": True}}, {"data": {"packing": False}}),
        ({"data": {"respect_documents": False}}, {"data": {"respect_documents": True}}),
    ],
)
def test_losses_of_other_samples_are_not_compared(one: dict[str, object], other: dict[str, object]) -> None:
    apart = (4.0, 3.9, 3.8)
    found = _case([a_case("baseline", config=one), a_case("ours", config=other, losses=apart)], "ours")
    assert found.losses == "not compared"


def test_losses_that_are_not_finite_differ() -> None:
    found = _case([a_case("baseline"), a_case("ours", losses=(8.3, math.nan, 7.9))], "ours")
    assert found.losses == "differ"
    assert found.loss_difference is None


@pytest.mark.parametrize(
    ("cases", "why"),
    [
        ([a_case("ours")], "baseline is not among the results"),
        ([a_case("ours"), a_case("baseline", status="failed", reason="no memory", blocks=())], "failed: no memory"),
        ([a_case("ours", n=5), a_case("baseline")], "5 pairs of blocks"),
        ([a_case("ours"), a_case("baseline", tokens_per_step=0)], "has no tokens"),
    ],
)
def test_why_there_is_no_speedup_is_told(cases: list[Case], why: str) -> None:
    found = _case(cases, "ours")
    assert found.speedup is None
    assert why in found.not_compared


def test_a_case_that_was_not_measured_has_no_figures() -> None:
    found = _case(strategies(), "pipeline")
    assert (found.status, found.reason) == ("refused", "needs 80 GB, has 40 GB")
    assert (found.tokens_per_second, found.speedup, found.mfu, found.losses) == (None, None, None, None)


def test_parts_are_medians_over_blocks() -> None:
    blocks = a_case(n=7).blocks
    told = [replaced(b, parts={"forward": 0.1 * i}) for i, b in enumerate(blocks)]
    assert _case([a_case(blocks=tuple(told))], "ours").parts == {"forward": pytest.approx(0.3)}
