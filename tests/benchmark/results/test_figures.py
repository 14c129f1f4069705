"""Figures of cases whose truth is known."""

from datetime import timedelta

import pytest

from convoy.benchmark.results.case import Block, Case
from convoy.benchmark.results.figures import (
    NotComparableError,
    cpu_ratio,
    exposed_seconds,
    losses_agree,
    mfu,
    share_of_matmul,
    speedup,
    step_seconds,
    sync_share,
    tokens_per_second,
)
from tests.benchmark.cases import HARDWARE, PROVENANCE, a_case, replaced


def test_a_rate_is_tokens_over_seconds_of_blocks() -> None:
    case = a_case(seconds=0.5)
    rate, step = tokens_per_second(case), step_seconds(case)
    assert rate.estimate == pytest.approx(4096, rel=0.02)
    assert rate.low < 4096 < rate.high
    assert step.estimate == pytest.approx(0.5, rel=0.02)
    assert rate.n == 20


def test_few_blocks_and_cases_that_failed_have_no_rate() -> None:
    assert tokens_per_second(a_case(status="failed")) is None
    assert tokens_per_second(a_case(n=5)) is None
    assert share_of_matmul(a_case(n=5)) is None


def test_shares_of_the_machine() -> None:
    case = a_case(seconds=0.5)
    model_tflops = 4096 * 2e7 / case.hardware.ranks / 1e12
    assert share_of_matmul(case) == pytest.approx(model_tflops / case.hardware.matmul_tflops, rel=0.02)
    assert share_of_matmul(case) == pytest.approx(0.41, rel=0.02)
    assert mfu(case) is None
    known = a_case(hardware=replaced(HARDWARE, peak_tflops=0.2))
    assert mfu(known) == pytest.approx(0.205, rel=0.02)
    assert share_of_matmul(a_case(flops_per_token=None)) is None


def test_a_speedup_is_of_pairs_and_holds_what_both_share() -> None:
    """The noise of both is the same: the ratio has none."""
    found = speedup(a_case("ours", 0.5, seed=1), a_case("baseline", 1.0, seed=1))
    assert (found.low, found.estimate, found.high) == pytest.approx((2.0, 2.0, 2.0))
    apart = speedup(a_case("ours", 0.5, seed=1), a_case("baseline", 1.0, seed=2))
    assert apart.low < 2.0 < apart.high
    assert apart.high - apart.low < 0.1


def test_cpu_time_is_compared_by_token() -> None:
    twice = a_case("ours", 1.0, seed=1, tokens_per_step=4096)
    assert cpu_ratio(twice, a_case("baseline", 0.5, seed=1)).estimate == pytest.approx(1.0)


def test_blocks_of_one_number_are_pairs() -> None:
    case = a_case("ours", 0.5, seed=1)
    shifted = replaced(case, blocks=tuple(replaced(b, number=b.number + 10) for b in case.blocks))
    assert speedup(shifted, a_case("baseline", 1.0)).n == 10


def test_what_was_not_measured_together_is_not_compared() -> None:
    base = a_case("baseline")
    with pytest.raises(NotComparableError, match="different gangs"):
        speedup(a_case(group="b2"), base)
    with pytest.raises(NotComparableError, match="5 pairs"):
        speedup(a_case(n=5), base)
    with pytest.raises(NotComparableError, match="refused: needs 80 GB"):
        speedup(a_case(status="refused", reason="needs 80 GB", blocks=()), base)


def test_losses_tell_whether_the_same_was_computed() -> None:
    base = a_case("baseline")
    assert losses_agree(a_case(losses=(8.3, 8.1, 7.90001)), base, 1e-5)
    assert not losses_agree(a_case(losses=(8.3, 8.2, 7.9)), base, 1e-5)
    assert losses_agree(a_case(losses=(8.3,)), base, 1e-5)
    with pytest.raises(NotComparableError, match="no losses"):
        losses_agree(a_case(losses=()), base, 1e-5)


def test_what_has_no_tokens_or_no_cpu_time_is_not_compared() -> None:
    with pytest.raises(NotComparableError, match="has no tokens"):
        speedup(a_case(), a_case("other", tokens_per_step=0))
    idle = a_case("idle")
    idle = replaced(idle, blocks=tuple(replaced(b, cpu_seconds=0.0) for b in idle.blocks))
    with pytest.raises(NotComparableError, match="CPU time was not measured"):
        cpu_ratio(a_case(), idle)


def test_blocks_of_two_gangs_are_no_pairs_though_these_have_one_name() -> None:
    later = replaced(PROVENANCE, measured=PROVENANCE.measured + timedelta(seconds=1))
    with pytest.raises(NotComparableError, match="measured in different gangs"):
        speedup(a_case(), a_case("baseline", provenance=later))


def in_pairs(together: list[tuple[float, float]], alone: list[tuple[float, float]]) -> tuple[Case, Case]:
    """Training together, and the same ranks alone at once. Blocks: seconds of a step, and of its update."""

    def blocks(told: list[tuple[float, float]]) -> tuple[Block, ...]:
        return tuple(
            Block(number=i, steps=5, seconds=seconds, cpu_seconds=seconds, parts={"optimizer": update})
            for i, (seconds, update) in enumerate(told)
        )

    return (
        a_case("together", baseline="alone", blocks=blocks(together)),
        a_case("alone", baseline=None, blocks=blocks(alone)),
    )


@pytest.mark.parametrize(
    ("together", "alone", "exposed", "share"),
    [
        # Each updates all weights, as ddp does: 0.8 - 0.5.
        ((0.8, 0.04), (0.5, 0.04), 0.3, 0.375),
        # Four ranks share the update: alone it would be 0.47 s with a fourth of it.
        ((0.8, 0.01), (0.5, 0.04), 0.33, 0.4125),
        # What sharding saves is no gain of synchronisation: as long together as alone, and still 0.03 s of waiting.
        ((0.5, 0.01), (0.5, 0.04), 0.03, 0.06),
        ((0.4, 0.04), (0.5, 0.04), -0.1, -0.25),
    ],
)
def test_what_is_exposed_is_beside_the_same_work_with_nobody_to_wait_for(
    together: tuple[float, float], alone: tuple[float, float], exposed: float, share: float
) -> None:
    own, reference = in_pairs([together] * 6, [alone] * 6)
    found = sync_share(own, reference)
    assert (found.low, found.estimate, found.high) == pytest.approx((share, share, share))
    assert exposed_seconds(list(zip(own.blocks, reference.blocks, strict=True))) == pytest.approx(exposed)
