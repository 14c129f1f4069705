"""The exact sampler and its keyed permutation: nothing lost, nothing repeated, on any number of ranks."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.config.errors import ConfigError
from convoy.data.sampler import (
    MAX_LENGTH,
    PADDING,
    MicroBatch,
    SamplerState,
    check_resume,
    epochs_and_samples,
    order_key,
    permute,
    plan_step,
    rows_of_rank,
)
from tests.campaign import examples

pytestmark = pytest.mark.campaign

WORLDS = st.integers(1, 16)
SEEDS = st.integers(0, 2**63 - 1)


def _all_ranks(step: int, world: int, batch: int, micro: int, n: int, seed: int) -> list[list[MicroBatch]]:
    return [plan_step(step, rank, world, batch, micro, n, seed) for rank in range(world)]


def _consumed(plans: list[list[MicroBatch]]) -> list[tuple[int, int]]:
    return [
        (int(epoch), int(sample))
        for plan in plans
        for micro_batch in plan
        for epoch, sample in zip(micro_batch.epochs, micro_batch.samples, strict=True)
        if sample != PADDING
    ]


def _expected(first: int, count: int, n: int, seed: int) -> list[tuple[int, int]]:
    """The definition, one sample at a time."""
    order = {}
    for k in range(first, first + count):
        epoch = k // n
        if epoch not in order:
            order[epoch] = permute(n, order_key(seed, epoch), np.arange(n))
    return [(k // n, int(order[k // n][k % n])) for k in range(first, first + count)]


@pytest.mark.processes
@given(WORLDS, st.integers(0, 40), st.integers(1, 24), st.integers(1, 9), st.integers(1, 500), SEEDS)
@examples(300)
def test_a_step_consumes_exactly_its_global_samples_on_any_world_size(
    world: int, step: int, extra: int, micro: int, n: int, seed: int
) -> None:
    batch = world + extra - 1
    consumed = _consumed(_all_ranks(step, world, batch, micro, n, seed))
    assert Counter(consumed) == Counter(_expected(step * batch, batch, n, seed))


@given(WORLDS, st.integers(0, 10**12), st.integers(1, 64), st.integers(1, 9), st.integers(1, 2**40), SEEDS)
@examples(300)
def test_every_rank_makes_equally_many_passes_of_one_shape(
    world: int, step: int, extra: int, micro: int, n: int, seed: int
) -> None:
    batch = world + extra - 1
    plans = _all_ranks(step, world, batch, micro, n, seed)
    local = math.ceil(batch / world)
    passes = math.ceil(local / micro)
    assert {len(plan) for plan in plans} == {passes}
    shapes = {micro_batch.samples.shape for plan in plans for micro_batch in plan}
    assert shapes == {(math.ceil(local / passes),)}
    assert all(rows <= micro for (rows,) in shapes)
    assert all(m.epochs.shape == m.samples.shape for plan in plans for m in plan)


@pytest.mark.processes
@given(
    st.lists(st.tuples(WORLDS, st.integers(1, 5), st.integers(1, 6)), min_size=1, max_size=6),
    st.integers(16, 40),
    st.integers(1, 300),
    SEEDS,
)
@examples(80)
def test_a_job_whose_world_size_changes_at_every_resume_consumes_the_exact_permutation(
    generations: list[tuple[int, int, int]], batch: int, n: int, seed: int
) -> None:
    consumed: list[tuple[int, int]] = []
    step = 0
    for world, steps, micro in generations:
        check_resume(SamplerState(seed, step * batch, "f"), step, batch, seed, "f")
        for here in range(step, step + steps):
            consumed += _consumed(_all_ranks(here, world, batch, micro, n, seed))
        step += steps
    assert Counter(consumed) == Counter(_expected(0, step * batch, n, seed))


@pytest.mark.parametrize("world", range(1, 17))
@pytest.mark.parametrize(("n", "batch"), [(97, 16), (96, 16), (50, 23), (7, 17)])
def test_each_epoch_holds_every_sample_exactly_once(world: int, n: int, batch: int) -> None:
    epochs = 3
    steps = math.ceil(epochs * n / batch)
    consumed = [pair for step in range(steps) for pair in _consumed(_all_ranks(step, world, batch, 4, n, seed=11))]
    for epoch in range(epochs):
        assert sorted(sample for e, sample in consumed if e == epoch) == list(range(n))


@pytest.mark.processes
@given(WORLDS, WORLDS, st.integers(0, 30), st.integers(16, 64), st.integers(1, 400))
@examples(150)
def test_the_set_of_a_step_does_not_depend_on_world_size_or_micro_batch(
    one: int, other: int, step: int, batch: int, n: int
) -> None:
    assert Counter(_consumed(_all_ranks(step, one, batch, 8, n, 5))) == Counter(
        _consumed(_all_ranks(step, other, batch, 3, n, 5))
    )


@given(WORLDS, st.integers(1, 64), st.integers(1, 9))
@examples(200)
def test_shares_differ_by_at_most_one_and_cover_everything(world: int, count: int, micro: int) -> None:
    shares = [rows_of_rank(rank, world, count, micro) for rank in range(world)]
    real = [int((s != PADDING).sum()) for s in shares]
    assert max(real) - min(real) <= 1
    assert sorted(int(i) for s in shares for i in s.ravel() if i != PADDING) == list(range(count))


@given(WORLDS, st.integers(16, 64), st.integers(1, 9))
@examples(50)
def test_micro_batch_indices_are_unique_over_all_ranks(world: int, batch: int, micro: int) -> None:
    indices = [m.index for plan in _all_ranks(3, world, batch, micro, 1000, 0) for m in plan]
    assert sorted(indices) == list(range(len(indices)))


def test_padding_has_neither_epoch_nor_sample() -> None:
    plans = _all_ranks(0, 4, 5, 2, 100, 0)
    rows = [(int(e), int(s)) for plan in plans for m in plan for e, s in zip(m.epochs, m.samples, strict=True)]
    assert len(rows) == 8
    assert rows.count((PADDING, PADDING)) == 3
    assert all((e == PADDING) == (s == PADDING) for e, s in rows)


def test_seeds_and_epochs_have_different_orders() -> None:
    n = 200
    orders = [tuple(epochs_and_samples(epoch * n, n, n, seed)[1].tolist()) for seed in range(5) for epoch in range(5)]
    assert len(set(orders)) == 25


def test_more_ranks_than_samples_in_a_step_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^train.global_batch = 4: must be at least the number of ranks, 8$"):
        plan_step(0, 0, 8, 4, 1, 100, 0)


def test_resuming_with_another_seed_fingerprint_or_batch_is_refused() -> None:
    state = SamplerState(seed=3, next_sample=160, fingerprint="abc")
    check_resume(state, 10, 16, 3, "abc")
    with pytest.raises(ConfigError, match=r"^train.seed = 4: .* started with 3"):
        check_resume(state, 10, 16, 4, "abc")
    with pytest.raises(ConfigError, match=r"^data: its fingerprint is xyz, .* started with abc"):
        check_resume(state, 10, 16, 3, "xyz")
    with pytest.raises(ConfigError, match=r"^train.global_batch = 32: .*it was 16,"):
        check_resume(state, 10, 32, 3, "abc")


KEYS = st.integers(0, 2**64 - 1)


def _whole(n: int, key: int) -> np.ndarray:
    return permute(n, key, np.arange(n))


@given(st.integers(1, 5000) | st.sampled_from([255, 256, 257, 4095, 4096, 4097, 65535, 65536, 65537]), KEYS)
@examples(150)
def test_every_length_and_key_gives_a_bijection(n: int, key: int) -> None:
    assert np.array_equal(np.sort(_whole(n, key)), np.arange(n))


@given(st.integers(1, MAX_LENGTH), KEYS, st.data())
@examples(150)
def test_results_stay_in_range_and_distinct_for_huge_lengths(n: int, key: int, data: st.DataObject) -> None:
    some = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=40, unique=True))
    sent = permute(n, key, np.array(some, dtype=np.int64))
    assert len(set(sent.tolist())) == len(some)
    assert sent.min() >= 0
    assert sent.max() < n


@given(st.integers(2, 3000), KEYS, st.data())
@examples(60)
def test_an_index_is_sent_to_one_place_whatever_it_is_asked_with(n: int, key: int, data: st.DataObject) -> None:
    some = np.array(data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=20)), dtype=np.int64)
    assert np.array_equal(permute(n, key, some), _whole(n, key)[some])


def test_the_order_is_the_same_on_every_machine() -> None:
    # Written down once: a change here makes every running job repeat and lose samples on resume.
    assert _whole(10, order_key(0, 0)).tolist() == [9, 8, 3, 5, 2, 7, 4, 6, 0, 1]
    assert permute(MAX_LENGTH, order_key(7, 3), np.array([0, 1])).tolist() == [468991648978241737, 3801020441080072659]


def test_two_epochs_agree_in_about_as_many_places_as_chance_gives() -> None:
    n = 20_000
    same = sum(int((_whole(n, order_key(0, e)) == _whole(n, order_key(0, e + 1))).sum()) for e in range(20))
    assert 5 <= same <= 45  # Poisson with mean 20


@pytest.mark.processes
@pytest.mark.parametrize("n", [5, 16, 100])
def test_each_place_is_reached_equally_often_over_keys(n: int) -> None:
    trials = 4000
    counts = np.zeros((n, n))
    for seed in range(trials):
        counts[np.arange(n), _whole(n, order_key(seed, 0))] += 1
    expected = trials / n
    chi_squared = ((counts - expected) ** 2 / expected).sum()
    freedom = (n - 1) ** 2
    assert abs(chi_squared - freedom) < 6 * np.sqrt(2 * freedom)


def test_neighbours_are_sent_far_apart() -> None:
    n = 50_000
    order = _whole(n, order_key(3, 0)).astype(float)
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.02
    assert abs(np.corrcoef(order, np.arange(n))[0, 1]) < 0.02


@pytest.mark.parametrize(
    ("n", "index", "reason"),
    [(0, 0, "n = 0"), (MAX_LENGTH + 1, 0, f"n = {MAX_LENGTH + 1}"), (10, -1, r"range\(10\)"), (10, 10, r"range\(10\)")],
)
def test_a_length_or_an_index_out_of_range_is_refused(n: int, index: int, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        permute(n, 0, np.array([index]))
