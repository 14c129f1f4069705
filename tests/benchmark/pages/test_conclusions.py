"""The sentences at the top of a benchmark's page."""

import numpy as np
import pytest

from convoy.benchmark.fold import fold_cases
from convoy.benchmark.page import benchmark_page
from convoy.benchmark.pages.conclusions import conclusions, rounds_to_decide
from convoy.benchmark.results.case import Case
from convoy.display.page import Text
from convoy.stats.interval import Interval
from convoy.stats.interval import interval as interval_of
from tests.benchmark.cases import a_case, strategies, throughput


def text_of(*cases: Case) -> str:
    return " ".join(text.text for text in conclusions(fold_cases(cases)))


def test_they_name_what_is_faster_slower_undecided_and_refused() -> None:
    assert text_of(*throughput(), a_case("bf16", 0.25, seed=9, baseline="ours"), *strategies()) == (
        "For tiny on AMD EPYC 7R13, 2 ranks, bf16 (2.00×) is faster than ours beyond doubt. "
        "Slower beyond doubt: eager (0.908×) and baseline (0.504×). "
        "Undecided after 20 blocks: fused AdamW, all within 1 % of ours. "
        "Among the strategies, fsdp (1.085×) is faster than ddp beyond doubt. "
        "Refused or failed: pipeline (strategies): needs 80 GB, has 40 GB; tensor (strategies): rank 3: CUDA error."
    )


def test_they_stand_at_the_top_of_the_page() -> None:
    first = benchmark_page(throughput()).blocks[2]
    assert isinstance(first, Text)
    assert "no other case is faster than ours beyond doubt" in first.text


def test_a_case_that_computes_something_else_is_not_named() -> None:
    wrong = a_case("wrong", 0.25, seed=9, baseline="ours", losses=(9.0, 9.0))
    assert "wrong" not in text_of(*throughput(), wrong)


def test_nothing_is_concluded_from_one_case() -> None:
    assert text_of(a_case("ours", baseline=None)) == ""


def test_many_names_are_cut() -> None:
    slow = [a_case(f"slow {i}", 0.6 + i / 10, seed=i, baseline="ours") for i in range(7)]
    assert "and 3 more." in text_of(a_case("ours", baseline=None), *slow)


@pytest.mark.processes
@pytest.mark.parametrize("difference", [-0.05, 0.05])
def test_the_rounds_that_would_decide_do_so(difference: float) -> None:
    """Samples of an interval's own kind: with the rounds named, about half of the intervals exclude 1."""
    rng = np.random.default_rng(0)

    def interval(n: int) -> Interval:
        return interval_of(list(1 + difference + 0.1 * rng.standard_normal(n)))

    needed = [n for _ in range(200) if (n := rounds_to_decide(interval(16))) is not None]
    rounds = round(float(np.median(needed)))
    decided = np.mean([not each.low <= 1 <= each.high for each in (interval(rounds) for _ in range(200))])
    assert 0.3 < decided < 0.9


def test_differences_that_do_not_matter_need_no_rounds() -> None:
    assert rounds_to_decide(Interval(estimate=1.004, low=0.99, high=1.02, n=8)) is None
