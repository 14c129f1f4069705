"""The keyed permutation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.data.sampler import MAX_LENGTH, epoch_key, permute
from tests.campaign import examples

pytestmark = pytest.mark.campaign

KEYS = st.integers(0, 2**64 - 1)


def _whole(n: int, key: int) -> np.ndarray:
    return permute(n, key, np.arange(n))


@given(st.integers(1, 5000), KEYS)
@examples(150)
def test_every_length_and_key_gives_a_bijection(n: int, key: int) -> None:
    assert np.array_equal(np.sort(_whole(n, key)), np.arange(n))


@pytest.mark.parametrize("n", [*range(1, 70), 255, 256, 257, 4095, 4096, 4097, 65535, 65536, 65537])
def test_lengths_around_powers_of_four_are_bijections(n: int) -> None:
    assert np.array_equal(np.sort(_whole(n, 12345)), np.arange(n))


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


def test_the_shape_of_the_indices_is_kept() -> None:
    assert permute(100, 1, np.arange(12).reshape(3, 4)).shape == (3, 4)
    assert permute(100, 1, np.empty(0, dtype=np.int64)).shape == (0,)


def test_the_order_is_the_same_on_every_machine() -> None:
    # Written down once: a change here makes every running job repeat and lose samples on resume.
    assert _whole(10, epoch_key(0, 0)).tolist() == [9, 8, 3, 5, 2, 7, 4, 6, 0, 1]
    assert permute(MAX_LENGTH, epoch_key(7, 3), np.array([0, 1])).tolist() == [468991648978241737, 3801020441080072659]


def test_keys_of_seeds_and_epochs_differ() -> None:
    keys = {epoch_key(seed, epoch) for seed in range(40) for epoch in range(40)}
    assert len(keys) == 1600
    assert epoch_key(1, 12) != epoch_key(11, 2)


def test_two_epochs_agree_in_about_as_many_places_as_chance_gives() -> None:
    n = 20_000
    same = sum(int((_whole(n, epoch_key(0, e)) == _whole(n, epoch_key(0, e + 1))).sum()) for e in range(20))
    assert 5 <= same <= 45  # Poisson with mean 20


@pytest.mark.parametrize("n", [5, 16, 100])
def test_each_place_is_reached_equally_often_over_keys(n: int) -> None:
    trials = 4000
    counts = np.zeros((n, n))
    for seed in range(trials):
        counts[np.arange(n), _whole(n, epoch_key(seed, 0))] += 1
    expected = trials / n
    chi_squared = ((counts - expected) ** 2 / expected).sum()
    freedom = (n - 1) ** 2
    assert abs(chi_squared - freedom) < 6 * np.sqrt(2 * freedom)


def test_neighbours_are_sent_far_apart() -> None:
    n = 50_000
    order = _whole(n, epoch_key(3, 0)).astype(float)
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.02
    assert abs(np.corrcoef(order, np.arange(n))[0, 1]) < 0.02


@pytest.mark.parametrize("n", [0, -1, MAX_LENGTH + 1])
def test_a_length_out_of_range_is_refused(n: int) -> None:
    with pytest.raises(ValueError, match=f"n = {n}"):
        permute(n, 0, np.array([0]))


@pytest.mark.parametrize("index", [-1, 10])
def test_an_index_out_of_range_is_refused(index: int) -> None:
    with pytest.raises(ValueError, match=r"range\(10\)"):
        permute(10, 0, np.array([index]))
