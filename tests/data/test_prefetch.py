"""Building batches ahead."""

import threading

import pytest

from convoy.data.prefetch import Prefetcher

DEADLINE = 10.0


@pytest.mark.parametrize("end", [50, 3], ids=["47 steps", "none"])
def test_results_come_in_order_of_steps(end: int) -> None:
    with Prefetcher(lambda step: step * 10, 3, end) as results:
        assert list(results) == [step * 10 for step in range(3, end)]


def test_at_most_two_results_wait_and_one_is_being_built() -> None:
    built: list[int] = []
    third = threading.Event()

    def build(step: int) -> int:
        built.append(step)
        if len(built) == 3:
            third.set()
        return step

    with Prefetcher(build, 0, 100) as results:
        assert third.wait(DEADLINE)
        assert next(results) == 0
        assert next(results) == 1
    assert built == list(range(len(built)))
    assert len(built) <= 5


def test_building_goes_on_while_the_consumer_works() -> None:
    ahead = threading.Event()
    with Prefetcher(lambda step: ahead.set() if step == 1 else None, 0, 10) as results:
        next(results)
        assert ahead.wait(DEADLINE)


def test_an_exception_is_raised_in_its_place() -> None:
    def build(step: int) -> int:
        if step == 2:
            raise OSError("disk gone")
        return step

    with Prefetcher(build, 0, 10) as results:
        assert [next(results), next(results)] == [0, 1]
        with pytest.raises(OSError, match="disk gone"):
            next(results)


def test_closing_early_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    results = Prefetcher(lambda step: step, 0, 1_000_000)
    next(results)
    results.close()
    results.close()
    assert set(threading.enumerate()) == before
    with pytest.raises(StopIteration):
        next(results)


def test_an_exception_in_the_consumer_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    with pytest.raises(KeyError), Prefetcher(lambda step: step, 0, 1_000_000):
        raise KeyError
    assert set(threading.enumerate()) == before


def test_of_depth_zero_each_is_built_when_it_is_asked_for() -> None:
    built: list[int] = []
    with Prefetcher(lambda step: built.append(step) or step, 3, 6, depth=0) as results:  # type: ignore[func-returns-value]
        assert next(results) == 3
        assert built == [3]
        assert list(results) == [4, 5]
    with pytest.raises(StopIteration):
        next(results)
