"""A keyed random order of n samples that needs no index array."""

import hashlib
import math

import numpy as np
import numpy.typing as npt

MAX_LENGTH = 2**62

_ROUNDS = 8
_MASK_64 = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15
_HIGH = np.uint64(8)  # the sum of 56 bits and a half below 2^31 never overflows


def epoch_key(seed: int, epoch: int) -> int:
    """The 64-bit key of one epoch's order: BLAKE2b of both numbers."""
    digest = hashlib.blake2b(f"order {seed} {epoch}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def permute(n: int, key: int, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Where a permutation of range(n) chosen by `key` sends each index; same shape as `indices`.

    A Feistel network on pairs (left, right) below a and b, a*b the least product of two near-equal factors that
    reaches n (the generalised Feistel of Black and Rogaway 2002, over Luby and Rackoff 1988). The few results
    outside range(n) are sent through again until they fall inside (cycle walking, same source): still a bijection.

    n: 1 to 2^62. indices: each in range(n). Raises ValueError for others.
    """
    if not 1 <= n <= MAX_LENGTH:
        raise ValueError(f"n = {n}: must be from 1 to {MAX_LENGTH}")
    if indices.size and not (int(indices.min()) >= 0 and int(indices.max()) < n):
        raise ValueError(f"indices from {indices.min()} to {indices.max()}: must be in range({n})")
    a = math.isqrt(n - 1) + 1
    b = -(-n // a)
    round_keys = _round_keys(key)
    values = _feistel(indices.astype(np.uint64).ravel(), a, b, round_keys)
    outside = np.flatnonzero(values >= np.uint64(n))
    while outside.size:
        walked = _feistel(values[outside], a, b, round_keys)
        values[outside] = walked
        outside = outside[walked >= np.uint64(n)]
    return values.astype(np.int64).reshape(indices.shape)


def _round_keys(key: int) -> list[np.uint64]:
    return [np.uint64((key + (i + 1) * _GOLDEN) & _MASK_64) for i in range(_ROUNDS)]


def _feistel(values: npt.NDArray[np.uint64], a: int, b: int, round_keys: list[np.uint64]) -> npt.NDArray[np.uint64]:
    below_a, below_b = np.uint64(a), np.uint64(b)
    left, right = np.divmod(values, below_b)
    for even, odd in zip(round_keys[::2], round_keys[1::2], strict=True):
        left = (left + (_mix(right, even) >> _HIGH)) % below_a
        right = (right + (_mix(left, odd) >> _HIGH)) % below_b
    return left * below_b + right


def _mix(values: npt.NDArray[np.uint64], round_key: np.uint64) -> npt.NDArray[np.uint64]:
    """The finaliser of SplitMix64 (Steele, Lea, Flood 2014), keyed."""
    # The key is added twice: xor alone would send two keys that differ in `values` to the same function shifted.
    z = (values + round_key) ^ (round_key >> np.uint64(32))
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
