"""Figures of cases with their intervals, computed from blocks. Pure."""

import statistics
from collections.abc import Callable, Sequence

from convoy.benchmark.results.case import Block, Case
from convoy.benchmark.results.fingerprint import undeclared_differences
from convoy.benchmark.results.network import measured_sizes, seconds_name
from convoy.model import counts
from convoy.stats.interval import FEWEST, Interval, interval, paired_ratio

SIGNIFICANT_SPEEDUP = 1.5
"""RDMA is claimed to be at least so many times as fast: a speedup whose lower bound is less is not significant."""


class NotComparableError(Exception):
    """Two cases were not measured so that they can be compared; the text is one line."""


def tokens_per_second(case: Case) -> Interval | None:
    """Rate of the whole gang, over blocks; None: there are too few."""
    return _interval_over_blocks(case, lambda block: case.tokens_per_step / block.seconds)


def block_rates(case: Case) -> list[float]:
    """Tokens per second of each block."""
    return [case.tokens_per_step / block.seconds for block in case.blocks]


def rates_by_size(case: Case) -> dict[int | None, list[float]]:
    """Rates of each block: tokens per second, under None; of a case without tokens that was measured by size, bytes per
    second by size in bytes. Empty: it has no rate."""
    if case.tokens_per_step:
        return {None: block_rates(case)}
    return {size: [size / each for each in case.samples[seconds_name(size)]] for size in measured_sizes(case.samples)}


def rate_intervals(case: Case) -> dict[int | None, Interval]:
    """Medians of the rates of `rates_by_size`, of those that have enough blocks, if the case was measured."""
    if case.status != "measured":
        return {}
    return {size: interval(rates) for size, rates in rates_by_size(case).items() if len(rates) >= FEWEST}


def median_parts(case: Case) -> dict[str, float]:
    """Seconds of each part of a step, over blocks."""
    names = dict.fromkeys(name for block in case.blocks for name in block.parts)
    return {name: statistics.median(block.parts.get(name, 0.0) for block in case.blocks) for name in names}


def step_seconds(case: Case) -> Interval | None:
    return _interval_over_blocks(case, lambda block: block.seconds)


def mfu(case: Case) -> float | None:
    """Share of the dense peak, by the median rate; None where that is not known."""
    return _share_of_peak(case.hardware.peak_tflops, case)


def share_of_matmul(case: Case) -> float | None:
    """Share of the rate that a plain matmul reached on the same ranks."""
    return _share_of_peak(case.hardware.matmul_tflops, case)


def flops_per_second(case: Case) -> float | None:
    """Model FLOP/s of all ranks of the case together: forward and backward without recomputation, by the same count as
    MFU (`model/counts.py`, after PaLM, appendix B); None where the rate or the model's count is not known."""
    rate = tokens_per_second(case)
    return None if rate is None or case.flops_per_token is None else rate.estimate * case.flops_per_token


def _share_of_peak(tflops: float | None, case: Case) -> float | None:
    rate = tokens_per_second(case)
    if rate is None or case.flops_per_token is None or not tflops:
        return None
    return counts.mfu(rate.estimate, case.flops_per_token, tflops * 1e12, case.hardware.ranks)


def speedup(case: Case, base: Case) -> Interval:
    """How many times as many tokens per second as `base`, over pairs of blocks. Raises NotComparableError."""
    pairs = _comparable_pairs(case, base)
    rates = [(case.tokens_per_step / own.seconds, base.tokens_per_step / other.seconds) for own, other in pairs]
    return paired_ratio(rates)


def cpu_ratio(case: Case, base: Case) -> Interval:
    """CPU time for a token over that of `base`, over pairs of blocks. Raises NotComparableError."""
    if any(block.cpu_seconds <= 0 for block in base.blocks):
        raise NotComparableError(f"{base.key}: its CPU time was not measured")
    costs = [
        (own.cpu_seconds / case.tokens_per_step, other.cpu_seconds / base.tokens_per_step)
        for own, other in _comparable_pairs(case, base)
    ]
    return paired_ratio(costs, of="mean")


def exposed_seconds(pairs: Sequence[tuple[Block, Block]]) -> float:
    """What a step of training together takes longer than the same work does with nobody to wait for; below zero where
    nothing was seen. pairs: of blocks of training together, and of the same ranks alone at once. Raises
    StatisticsError for none.

    It is what of synchronisation no computation hides: gathers, sums, and waiting for ranks that are behind. That ranks
    share a host's memory bandwidth, caches and clock rate is in both.
    """
    together = statistics.median(own.seconds for own, _ in pairs)
    return together - statistics.median(_unsynced_seconds(own, alone) for own, alone in pairs)


def sync_share(together: Case, alone: Case) -> Interval:
    """`exposed_seconds` over the step of training together. Raises NotComparableError, and ValueError for what is not
    finite."""
    pairs = _comparable_pairs(together, alone)
    rest = paired_ratio([(_unsynced_seconds(own, other), own.seconds) for own, other in pairs])
    return Interval(estimate=1 - rest.estimate, low=1 - rest.high, high=1 - rest.low, n=rest.n)


def _unsynced_seconds(own: Block, alone: Block) -> float:
    """Seconds of a step of the work of `own` with nobody to wait for: that of `alone`, with the other's update, since
    each rank of a sharded training updates its share of the weights. No part `optimizer` has any waiting in it."""
    return alone.seconds - alone.parts.get("optimizer", 0.0) + own.parts.get("optimizer", 0.0)


def losses_agree(case: Case, base: Case, tolerance: float) -> bool:
    """Whether both computed the same, to `tolerance` of each loss, over the steps that both recorded.

    Raises NotComparableError if one recorded none.
    """
    both = list(zip(case.losses, base.losses, strict=False))
    if not both:
        raise NotComparableError(f"{case.key} and {base.key}: one of them has no losses")
    return all(abs(own - other) <= tolerance * abs(other) for own, other in both)


def _comparable_pairs(case: Case, base: Case) -> Sequence[tuple[Block, Block]]:
    for each in (case, base):
        if each.status != "measured":
            raise NotComparableError(f"{each.key}: {each.status}: {each.reason}")
        if not each.tokens_per_step:
            raise NotComparableError(f"{each.key}: it has no tokens")
    gangs = [(each.suite, each.group, each.provenance.measured) for each in (case, base)]
    if gangs[0] != gangs[1]:
        raise NotComparableError(f"{case.key} and {base.key}: measured in different gangs")
    if case.varied or base.varied:
        for line in undeclared_differences(case, base):
            raise NotComparableError(f"{case.key} and {base.key}: {line}, which was not to differ")
    others = {block.number: block for block in base.blocks}
    pairs = [(block, others[block.number]) for block in case.blocks if block.number in others]
    if len(pairs) < FEWEST:
        raise NotComparableError(f"{case.key} and {base.key}: {len(pairs)} pairs of blocks, at least {FEWEST} needed")
    return pairs


def _interval_over_blocks(case: Case, of: Callable[[Block], float]) -> Interval | None:
    if case.status != "measured" or len(case.blocks) < FEWEST:
        return None
    return interval([of(block) for block in case.blocks])
