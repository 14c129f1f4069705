"""Variants that take turns: in which order, for how long, and what is told of them."""

import os
import time
from collections.abc import Mapping

import pytest

from convoy.benchmark import rounds
from convoy.benchmark.rounds import VariantResult, cpu_seconds, measure
from convoy.benchmark.variants.variant import Variant
from convoy.config.benchmark import MeasureConfig
from tests.benchmark.benches import one_of_two
from tests.benchmark.cases import replaced
from tests.ranks import in_a_group

Turns = list[tuple[dict[str, VariantResult], list[str]]]
"""Of each rank: what was measured of each variant, and in which order they made steps."""


class Sleeper(Variant):
    """Takes so long for a step, on one rank longer; notes each step."""

    def __init__(self, name: str, seconds: float, log: list[str], first_steps: float = 0.0) -> None:
        super().__init__(name)
        self.steps = 0
        self._seconds = seconds
        self._log = log
        self._first_steps = first_steps

    def step(self) -> None:
        self.steps += 1
        self._log.append(self.name)
        time.sleep(self._seconds + (self._first_steps if self.steps <= 5 else 0.0))

    def parts(self) -> Mapping[str, float]:
        return {"asleep": self._seconds}


def turns(rank: int, amount: MeasureConfig) -> tuple[dict[str, VariantResult], list[str]]:
    """Two variants on two ranks; b is slower on rank 1, and in its first steps."""
    log: list[str] = []
    variants = [Sleeper("a", 0.002, log), Sleeper("b", 0.004 + 0.004 * rank, log, first_steps=0.05)]
    return measure(variants, amount, one_of_two(rank)), log


@pytest.fixture(scope="module")
def measured() -> Turns:
    amount = MeasureConfig(rounds=6, block_steps=3, block_seconds=0.03, warm_up_most=200)
    return in_a_group(2, turns, amount)


def test_the_order_turns_round_with_each_round(measured: Turns) -> None:
    found, log = measured[0]
    warm = sum(each.warm_up_steps for each in found.values())
    blocks = [name for name, following in zip(log[warm:], [*log[warm + 1 :], ""], strict=True) if name != following]
    assert blocks == ["a", "b", "a", "b", "a", "b", "a"]  # a b, b a, a b, ...: neighbours of one variant run together
    assert log.count("a") == found["a"].warm_up_steps + sum(block.steps for block in found["a"].blocks)


def test_all_ranks_tell_the_same_but_for_their_own_parts(measured: Turns) -> None:
    first, second = measured[0], measured[1]
    assert first[1] == second[1]
    for name in ("a", "b"):
        for one, other in zip(first[0][name].blocks, second[0][name].blocks, strict=True):
            assert replaced(one, parts={}) == replaced(other, parts={})
        assert first[0][name].warm_up_steps == second[0][name].warm_up_steps


def test_a_block_tells_of_the_slowest_rank_and_is_long_enough(measured: Turns) -> None:
    found, _ = measured[0]
    assert [block.number for block in found["b"].blocks] == list(range(6))
    for name, least in (("a", 0.002), ("b", 0.008)):
        for block in found[name].blocks:
            assert block.seconds >= least
            assert block.steps * 2.5 * least >= 0.02  # as many as fill it, had each taken so much longer in warm-up
            assert block.steps >= 3
    assert found["a"].blocks[0].parts == {"asleep": 0.002}


def test_warm_up_lasts_until_the_times_do_not_drift(measured: Turns) -> None:
    found, _ = measured[0]
    assert found["b"].warm_up_steps > 16
    assert found["b"].steady


def test_cpu_time_holds_that_of_processes_that_were_started() -> None:
    before = cpu_seconds()
    child = os.fork()
    if child == 0:
        while True:
            pass
    try:
        given_up = time.monotonic() + 20.0  # a core may have others to serve
        while cpu_seconds() - before < 0.1:
            assert time.monotonic() < given_up
            time.sleep(0.01)
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


def test_no_block_is_longer_than_others_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "MAX_BLOCK_SECONDS", 0.05)
    amount = MeasureConfig(rounds=6, block_steps=1000, block_seconds=0.5, warm_up_most=200)
    found, _ = in_a_group(2, turns, amount)[0]
    assert all(block.steps <= 25 for block in found["a"].blocks)
    assert all(block.steps >= 1 for block in found["b"].blocks)
