"""Variants take turns, block by block, in one process group.

A round is one block of each variant; the order is reversed with each round (ABC CBA ABC ...), so that a machine that
becomes slower or faster does so for all alike. The blocks of two variants in one round are a pair.
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from convoy.benchmark.results.case import Block, CasePrediction, HostUse
from convoy.benchmark.results.values import FIRST_STEP_SECONDS
from convoy.benchmark.variants.variant import Variant
from convoy.config.benchmark import MeasureConfig
from convoy.network.host_usage import child_pids, cpu_seconds_of
from convoy.stats.changepoint import WINDOW, is_steady
from convoy.training.measure.machine import max_over_ranks, synchronize
from convoy.training.process_groups import Ranks

MAX_BLOCK_SECONDS = 120.0
"""Ranks that have no part in a block wait for its end, and a rank that waits too long gives up."""


@dataclass
class VariantResult:
    """Figures of one variant, the same on all ranks. `measure` fills in the first three."""

    warm_up_steps: int = 0
    steady: bool = True
    blocks: list[Block] = field(default_factory=list)
    memory_peak_bytes: int | None = None
    hosts: tuple[HostUse, ...] = ()
    values: dict[str, float] = field(default_factory=dict)
    """By the names of `Case.values`."""
    samples: dict[str, list[float]] = field(default_factory=dict)
    not_measured: dict[str, str] = field(default_factory=dict)
    """What could not be measured, and why."""
    matmul_tflops: float | None = None
    """Rate of a plain matmul in its type of number, on this rank."""
    predicted: CasePrediction | None = None
    """Made before the first block."""


def measure(
    variants: Sequence[Variant],
    amount: MeasureConfig,
    ranks: Ranks,
    *,
    progress: Callable[[], None] = lambda: None,
    report: Callable[[str], None] = lambda _: None,
    sent_bytes: Callable[[], float] | None = None,
    before_turn: Callable[[Variant], None] = lambda _: None,
    watch: Callable[[Variant, int], AbstractContextManager[None]] = lambda *_: nullcontext(),
    meter: Callable[[Variant, int], AbstractContextManager[None]] = lambda *_: nullcontext(),
) -> dict[str, VariantResult]:
    """Warm each variant up, then let them take turns.

    progress: called after each step of warm-up and after each block, on each rank. report: receives a line on each
    stage. sent_bytes: a counter of sent bytes, 0 on all but one rank of a host; None: not measured. before_turn: called
    on each rank, before anything is timed. watch: surrounds each block that counts, with the number of its steps.
    meter: surrounds it with the barriers before and after.
    """
    counter = sent_bytes or (lambda: 0.0)
    results = {variant.name: VariantResult() for variant in variants}
    steps = {}
    for variant in variants:
        before_turn(variant)
        warm = results[variant.name]
        times: list[float] = []
        while not is_steady(times) and len(times) < amount.warm_up_most:
            # The same on all ranks: they end at one step.
            times.append(_run_block(variant, 0, 1, ranks, counter).seconds)
            progress()
        warm.values[FIRST_STEP_SECONDS] = times[0]
        warm.warm_up_steps, warm.steady = len(times), is_steady(times)
        steps[variant.name] = _steps_of_block(statistics.median(times[-WINDOW:]), amount)
        report(f"{variant.name}: {len(times)} steps of warm-up, {'steady' if warm.steady else 'not steady yet'}")
    for number in range(amount.rounds):
        report(f"round {number + 1} of {amount.rounds}")
        for variant in variants if number % 2 == 0 else reversed(variants):
            before_turn(variant)
            n = steps[variant.name]
            with meter(variant, n):
                block = _run_block(variant, number, n, ranks, counter, watch(variant, n))
            if sent_bytes is None:
                block = block.model_copy(update={"network_bytes": None})
            results[variant.name].blocks.append(block)
            progress()
    return results


def _steps_of_block(seconds: float, amount: MeasureConfig) -> int:
    """seconds: that a step usually takes."""
    wanted = max(amount.block_steps, math.ceil(amount.block_seconds / seconds))
    return max(1, min(wanted, int(MAX_BLOCK_SECONDS / seconds)))


def _run_block(
    variant: Variant,
    number: int,
    steps: int,
    ranks: Ranks,
    sent_bytes: Callable[[], float],
    watch: AbstractContextManager[None] | None = None,
) -> Block:
    """The gang's block: the slowest rank's time, all ranks' CPU time and bytes, rank 0's parts."""
    synchronize(ranks.device)
    sent = sent_bytes()
    with watch or nullcontext():
        dist.barrier(group=ranks.control)
        wall, cpu = time.perf_counter(), cpu_seconds()
        for _ in range(steps):
            variant.step()
        synchronize(ranks.device)
        seconds, spent = time.perf_counter() - wall, max(0.0, cpu_seconds() - cpu)
    dist.barrier(group=ranks.control)  # what others send belongs to the block too
    sums = torch.tensor([spent, sent_bytes() - sent], dtype=torch.float64) / steps
    dist.all_reduce(sums, group=ranks.control)
    return Block(
        number=number,
        steps=steps,
        seconds=max_over_ranks(seconds / steps, ranks),
        cpu_seconds=float(sums[0]),
        parts=dict(variant.parts()),
        network_bytes=float(sums[1]),
    )


def cpu_seconds() -> float:
    """CPU time of this process and of its running children, such as loader workers."""
    return time.process_time() + sum(cpu_seconds_of(pid) for pid in child_pids())
