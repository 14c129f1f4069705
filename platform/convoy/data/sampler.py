"""Which samples each rank takes in each step: exact on any number of ranks.

Sample order is f(seed, epoch, position). Global sample k is position k % n of epoch k // n, and step s consumes
the global samples [s*B, (s+1)*B), whatever the world size.
"""

import hashlib
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from convoy.config.errors import ConfigError
from convoy.config.train import split_batch

PADDING = -1
"""Sample id of a row that exists only so that all ranks run equal shapes; its weight is zero."""

MAX_LENGTH = 2**62

_ROUNDS = 8

_MASK_64 = 2**64 - 1

_GOLDEN = 0x9E3779B97F4A7C15

_HIGH = np.uint64(8)  # the sum of 56 bits and a half below 2^31 never overflows


@dataclass(frozen=True, eq=False)
class MicroBatch:
    """The rows of one forward and backward pass of one rank."""

    index: int
    """Place among all micro batches of the step over all ranks: keys model randomness."""
    epochs: npt.NDArray[np.int64]
    """[rows] Epoch of each sample; -1 for padding. With the sample it keys data randomness."""
    samples: npt.NDArray[np.int64]
    """[rows] Sample ids in range(n); -1 for padding."""


@dataclass(frozen=True)
class SamplerState:
    """All that a checkpoint keeps of the sampler: two integers and what they count in."""

    seed: int
    next_sample: int
    """Global samples consumed so far."""
    fingerprint: str
    """Of the data: see `manifest.fingerprint`."""


def check_resume(state: SamplerState, step: int, global_batch: int, seed: int, fingerprint: str) -> None:
    """Raise ConfigError unless a job may go on from `state`, saved when `step` steps were done."""
    if seed != state.seed:
        raise ConfigError(f"train.seed = {seed}: the job was started with {state.seed}, and it is fixed for a job")
    if fingerprint != state.fingerprint:
        raise ConfigError(
            f"data: its fingerprint is {fingerprint}, the job was started with {state.fingerprint}; corpus, tokenizer,"
            " sequence length and packing are fixed for a job"
        )
    if step * global_batch != state.next_sample:
        raise ConfigError(
            f"train.global_batch = {global_batch}: the job consumed {state.next_sample} samples in {step} steps,"
            f" so it was {state.next_sample // step if step else 0}, and it is fixed for a job"
        )


def epochs_and_samples(first: int, count: int, n_samples: int, seed: int) -> tuple[npt.NDArray[np.int64], ...]:
    """Epochs and sample ids, both [count], of the global samples from `first` on."""
    epochs, positions = np.divmod(np.arange(first, first + count, dtype=np.int64), n_samples)
    samples = np.empty(count, dtype=np.int64)
    for epoch in np.unique(epochs):
        here = epochs == epoch
        samples[here] = permute(n_samples, order_key(seed, int(epoch)), positions[here])
    return epochs, samples


def plan_step(
    step: int, rank: int, world_size: int, global_batch: int, micro_batch: int, n_samples: int, seed: int
) -> list[MicroBatch]:
    """The micro batches of `rank` in `step` (counted from 0): as many and as large on every rank.

    Raises ConfigError when there are more ranks than samples in a step.
    """
    if world_size > global_batch:
        raise ConfigError(f"train.global_batch = {global_batch}: must be at least the number of ranks, {world_size}")
    rows = rows_of_rank(rank, world_size, global_batch, micro_batch)
    epochs, samples = epochs_and_samples(step * global_batch, global_batch, n_samples, seed)
    epochs, samples = np.append(epochs, PADDING), np.append(samples, PADDING)  # so that row -1 takes padding
    return [MicroBatch(i * world_size + rank, epochs[row], samples[row]) for i, row in enumerate(rows)]


def rows_of_rank(rank: int, world_size: int, count: int, micro_batch: int) -> npt.NDArray[np.int64]:
    """[passes, rows] Which of `count` (at least 1) items `rank` takes in each pass; -1 where it has none.

    Passes and rows are those of `split_batch`, alike on all ranks. The ranks' shares differ by at most one.
    """
    passes, rows = split_batch(count, world_size, micro_batch)
    items = rank + world_size * np.arange(passes * rows, dtype=np.int64)
    items[items >= count] = PADDING
    return items.reshape(passes, -1)


def order_key(seed: int, epoch: int) -> int:
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
    round_keys = [np.uint64((key + (i + 1) * _GOLDEN) & _MASK_64) for i in range(_ROUNDS)]
    values = _feistel(indices.astype(np.uint64).ravel(), a, b, round_keys)
    outside = np.flatnonzero(values >= np.uint64(n))
    while outside.size:
        walked = _feistel(values[outside], a, b, round_keys)
        values[outside] = walked
        outside = outside[walked >= np.uint64(n)]
    return values.astype(np.int64).reshape(indices.shape)


def _feistel(values: npt.NDArray[np.uint64], a: int, b: int, round_keys: list[np.uint64]) -> npt.NDArray[np.uint64]:
    below_a, below_b = np.uint64(a), np.uint64(b)
    left, right = np.divmod(values, below_b)
    for even, odd in zip(round_keys[::2], round_keys[1::2], strict=True):
        left = (left + (_mix_bits(right, even) >> _HIGH)) % below_a
        right = (right + (_mix_bits(left, odd) >> _HIGH)) % below_b
    return left * below_b + right


def _mix_bits(values: npt.NDArray[np.uint64], round_key: np.uint64) -> npt.NDArray[np.uint64]:
    """The finaliser of SplitMix64 (Steele, Lea, Flood 2014), keyed."""
    # The key is added twice: xor alone would send two keys that differ in `values` to the same function shifted.
    z = (values + round_key) ^ (round_key >> np.uint64(32))
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
