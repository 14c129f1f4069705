"""Tokens of a synthetic corpus, from a Markov chain that a model can learn."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

SUCCESSOR_PROBABILITIES = (0.5, 0.25, 0.15, 0.1)
"""Of each token's four successors, which are drawn once per seed; two may coincide. Entropy at most 1.74 bits."""

_CHAINS = 1024

_CHAIN_TOKENS = 1024


def markov_tokens(count: int, vocab_size: int, seed: int, stream: int) -> Iterator[npt.NDArray[np.int64]]:
    """`count` ids below `vocab_size`, in blocks of about a million.

    The transition table depends on the seed; the draws on (seed, stream, block). Chains start anew every 1024 tokens.
    """
    successors = np.random.default_rng([seed]).integers(vocab_size, size=(vocab_size, len(SUCCESSOR_PROBABILITIES)))
    thresholds = np.cumsum(SUCCESSOR_PROBABILITIES)[:-1]
    for block, start in enumerate(range(0, count, _CHAINS * _CHAIN_TOKENS)):
        rng = np.random.default_rng([seed, stream, block])
        wanted = min(count - start, _CHAINS * _CHAIN_TOKENS)
        chains = -(-wanted // _CHAIN_TOKENS)
        ids = np.empty((_CHAIN_TOKENS, chains), dtype=np.int64)
        ids[0] = rng.integers(vocab_size, size=chains)
        for i in range(1, _CHAIN_TOKENS):
            ids[i] = successors[ids[i - 1], np.searchsorted(thresholds, rng.random(chains), side="right")]
        yield ids.T.ravel()[:wanted]
