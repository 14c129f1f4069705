"""Two runs of the same, one beside the other."""

import numpy as np
import pytest

from convoy.benchmark.results.case import Case
from convoy.benchmark.results.compare import OtherFingerprintError, compare, compare_all
from convoy.benchmark.results.network import seconds_name
from tests.benchmark.cases import HARDWARE, a_case, replaced


def test_the_ratio_is_of_the_second_over_the_first_as_of_two_samples() -> None:
    (found,) = compare(a_case(seconds=0.5, seed=1), a_case(seconds=0.45, seed=2))
    assert found.ratio.low < 0.5 / 0.45 < found.ratio.high
    assert found.ratio.low > 1.08
    assert found.differs
    assert found.first.estimate == pytest.approx(4096, rel=0.02)


def test_two_runs_of_the_same_show_no_difference() -> None:
    (found,) = compare(a_case(seed=1), a_case(seed=2))
    assert not found.differs
    assert found.ratio.estimate == pytest.approx(1.0, abs=0.02)


def test_runs_of_other_fingerprints_are_refused_with_all_that_differs() -> None:
    other = a_case(hardware=replaced(HARDWARE, cores=4), model="gpt-7b")
    with pytest.raises(OtherFingerprintError) as raised:
        compare(a_case(), other)
    assert raised.value.lines == ("model: tiny and gpt-7b", "hardware.cores: 2 and 4")


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"status": "failed", "reason": "no memory", "blocks": ()}, "second: failed: no memory"),
        ({"n": 5}, "second: 5 blocks are too few"),
        ({"tokens_per_step": 0}, "second: no tokens"),
    ],
)
def test_what_has_no_rate_is_told_and_not_compared(changed: dict[str, object], reason: str) -> None:
    (found,) = compare(a_case(), a_case(**changed))  # type: ignore[arg-type]
    assert (found.ratio, found.second, found.reason) == (None, None, reason)
    assert not found.differs


def test_folders_are_matched_by_key_and_what_one_lacks_is_named() -> None:
    found = compare_all([a_case("a"), a_case("b")], [a_case("b"), a_case("c")])
    assert [each.case for each in found.cases] == ["throughput-a1-b"]
    assert (found.only_first, found.only_second) == (("throughput-a1-a",), ("throughput-a1-c",))


def test_a_folder_of_another_machine_is_refused_with_each_difference_once() -> None:
    more = replaced(HARDWARE, cores=4)
    with pytest.raises(OtherFingerprintError) as raised:
        compare_all([a_case("a"), a_case("b")], [a_case("a", hardware=more), a_case("b", hardware=more)])
    assert raised.value.lines == ("hardware.cores: 2 and 4 (2 of 2 cases)",)


def by_size(seconds: float, seed: int, sizes: tuple[int, ...] = (1024, 2**20)) -> Case:
    noise = 1 + 0.02 * np.random.default_rng(seed).standard_normal(20)
    samples = {seconds_name(size): tuple(seconds * size * float(x) for x in noise) for size in sizes}
    return a_case(suite="network", group="network-all_reduce", tokens_per_step=0, blocks=(), samples=samples)


def test_cases_without_tokens_are_compared_by_size() -> None:
    small, large = compare(by_size(1e-9, 1), by_size(5e-10, 2))
    assert (small.size, large.size) == (1024, 2**20)
    assert small.first is not None
    assert small.first.estimate == pytest.approx(1e9, rel=0.02)
    assert small.ratio is not None
    assert small.ratio.low < 2.0 < small.ratio.high
    assert large.differs


def test_a_size_that_only_one_run_has_is_named_and_not_compared() -> None:
    both, more = compare(by_size(1e-9, 1, (1024,)), by_size(1e-9, 2, (1024, 2048)))
    assert not both.differs
    assert (more.size, more.ratio, more.reason) == (2048, None, "first: not measured at this size")
