"""Synthetic tokens are as many as asked for, the same for a seed, and can be learned."""

import numpy as np
import pytest

from convoy.data.synthetic import SUCCESSOR_PROBABILITIES, markov_tokens


def _tokens(count: int, vocab_size: int = 50, seed: int = 0, stream: int = 0) -> np.ndarray:
    return np.concatenate(list(markov_tokens(count, vocab_size, seed, stream)))


@pytest.mark.parametrize("count", [1, 1023, 1024, 1025, 5000, 2**20 + 7])
def test_as_many_tokens_as_asked_for_are_made_below_the_vocabulary(count: int) -> None:
    tokens = _tokens(count)
    assert tokens.size == count
    assert tokens.min() >= 0
    assert tokens.max() < 50


def test_the_same_seed_gives_the_same_tokens_and_another_does_not() -> None:
    assert np.array_equal(_tokens(5000, seed=1), _tokens(5000, seed=1))
    assert not np.array_equal(_tokens(5000, seed=1), _tokens(5000, seed=2))
    assert not np.array_equal(_tokens(5000, stream=0), _tokens(5000, stream=1))


def test_both_streams_follow_one_chain_that_can_be_learned() -> None:
    def pairs(tokens: np.ndarray) -> np.ndarray:
        counts = np.zeros((50, 50))
        np.add.at(counts, (tokens[:-1], tokens[1:]), 1)
        return counts

    train, held_out = pairs(_tokens(200_000)), pairs(_tokens(50_000, stream=1))
    model = (train + 0.01) / (train + 0.01).sum(1, keepdims=True)
    bits = -(held_out * np.log2(model)).sum() / held_out.sum()
    entropy = -sum(p * np.log2(p) for p in SUCCESSOR_PROBABILITIES)
    assert bits < entropy + 0.1
    assert bits < np.log2(50) / 2
