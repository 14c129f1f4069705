"""Variants take turns, block by block, in one process group.

A round is one block of each variant; the order turns round with each round (ABC CBA ABC ...), so that a machine that
grows slower or faster is so for all alike. What a round's blocks tell of two variants is one pair.
"""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch
import torch.distributed as dist

from convoy.benchmark.results.case import Block
from convoy.stats.steady_state import WINDOW, is_steady


class Variant(Protocol):
    """Something that makes steps. All ranks make the same calls in the same order."""

    name: str

    def step(self) -> None:
        """One optimizer step, enqueued at least: the device is waited for around a block, not in it."""

    def parts(self) -> Mapping[str, float]:
        """Seconds of the last step by part, if the variant knows; may wait for the device."""


class Watch(Protocol):
    """Somebody who looks on, on each rank."""

    def turn(self, name: str) -> None:
        """Steps of this variant are next; not timed."""

    def begin(self) -> None:
        """The ranks are about to meet before a block."""

    def end(self, name: str, steps: int) -> None:
        """The block's clock has stopped."""


LONGEST_BLOCK_SECONDS = 120.0
"""Ranks that have no part in a block wait for its end, and who waits too long gives up."""


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    rounds: int = 20
    block_steps: int = 5
    """At least so many steps are in a block,"""
    block_seconds: float = 0.5
    """and as many more as fill so much time: a step's time follows that of the step before it, a block's hardly does
    (docs/explanation/measurement.md)."""
    warm_up_most: int = 200
    """Steps after which warm-up ends though the times still drift."""


@dataclass
class Measured:
    """Of one variant, the same on all ranks."""

    warm_up_steps: int = 0
    steady: bool = True
    blocks: list[Block] = field(default_factory=list)


@dataclass(frozen=True)
class _Cost:
    """Of one block on this rank."""

    seconds: float
    cpu_seconds: float
    network_bytes: float


def measure(
    variants: Sequence[Variant],
    plan: Plan,
    device: torch.device,
    control: dist.ProcessGroup,
    passed: Callable[[], None] = lambda: None,
    sent_bytes: Callable[[], float] | None = None,
    tell: Callable[[str], None] = lambda _: None,
    watch: Watch | None = None,
    before_block: Callable[[Variant], None] = lambda _: None,
) -> dict[str, Measured]:
    """Warm each variant up, then let them take turns.

    control: gloo, over all ranks. passed: called after each step of warm-up and each block, on each rank: it goes on.
    sent_bytes: what has been sent so far, as this rank is to tell it: 0 where another one of its host does; None: not
    measured. tell: is told in a line how far it is. watch: sees every turn, and the blocks that count. before_block:
    called with the variant whose turn comes, on each rank, before what is timed.
    """
    count = sent_bytes or _nothing
    found = {variant.name: Measured() for variant in variants}
    steps = {}
    for variant in variants:
        warm = found[variant.name]
        steps[variant.name] = _warm_up(variant, warm, plan, device, control, passed, count, watch)
        tell(f"{variant.name}: {warm.warm_up_steps} steps of warm-up, {'steady' if warm.steady else 'not steady yet'}")
    for number in range(plan.rounds):
        tell(f"round {number + 1} of {plan.rounds}")
        for variant in variants if number % 2 == 0 else reversed(variants):
            n = steps[variant.name]
            if watch is not None:
                watch.turn(variant.name)
            before_block(variant)
            block = _together(_block(variant, n, device, control, count, watch), number, n, variant.parts(), control)
            sent = None if sent_bytes is None else block.network_bytes
            found[variant.name].blocks.append(block.model_copy(update={"network_bytes": sent}))
            passed()
    return found


def _warm_up(
    variant: Variant,
    found: Measured,
    plan: Plan,
    device: torch.device,
    control: dist.ProcessGroup,
    passed: Callable[[], None],
    count: Callable[[], float],
    watch: Watch | None,
) -> int:
    """Steps until their times do not drift; how many of them make a block."""
    if watch is not None:
        watch.turn(variant.name)
    times: list[float] = []
    while not is_steady(times) and len(times) < plan.warm_up_most:
        # The slowest rank's time, on all ranks: they end at the same step.
        slowest = torch.tensor(_block(variant, 1, device, control, count).seconds, dtype=torch.float64)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX, group=control)
        times.append(float(slowest))
        passed()
    found.warm_up_steps, found.steady = len(times), is_steady(times)
    usual = statistics.median(times[-WINDOW:])
    wanted = max(plan.block_steps, math.ceil(plan.block_seconds / usual))
    return max(1, min(wanted, int(LONGEST_BLOCK_SECONDS / usual)))


def _block(
    variant: Variant,
    steps: int,
    device: torch.device,
    control: dist.ProcessGroup,
    count: Callable[[], float],
    watch: Watch | None = None,
) -> _Cost:
    _synchronize(device)
    sent = count()
    if watch is not None:
        watch.begin()
    dist.barrier(group=control)
    wall, cpu = time.perf_counter(), cpu_seconds()
    for _ in range(steps):
        variant.step()
    _synchronize(device)
    seconds, spent = time.perf_counter() - wall, max(0.0, cpu_seconds() - cpu)
    if watch is not None:
        watch.end(variant.name, steps)
    dist.barrier(group=control)  # what others send belongs to the block too
    return _Cost(seconds / steps, spent / steps, (count() - sent) / steps)


def _together(cost: _Cost, number: int, steps: int, parts: Mapping[str, float], control: dist.ProcessGroup) -> Block:
    """The gang's block: the slowest rank's time, all ranks' CPU time, rank 0's parts."""
    slowest = torch.tensor(cost.seconds, dtype=torch.float64)
    sums = torch.tensor([cost.cpu_seconds, cost.network_bytes], dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX, group=control)
    dist.all_reduce(sums, group=control)
    return Block(
        number=number,
        steps=steps,
        seconds=float(slowest),
        cpu_seconds=float(sums[0]),
        parts=dict(parts),
        network_bytes=float(sums[1]),
    )


def cpu_seconds() -> float:
    """CPU time of this process and of those that it started and that still run, such as loader workers."""
    own = time.process_time()
    return own + sum(_of_process(pid) for pid in _children())


def _children() -> list[int]:
    found = []
    for task in Path("/proc/self/task").iterdir():
        try:
            found += [int(pid) for pid in (task / "children").read_text().split()]
        except OSError:  # the thread ended meanwhile
            continue
    return found


def _of_process(pid: int) -> float:
    # The clock of another process, as pthread_getcpuclockid makes it: /proc/<pid>/stat tells ticks of 10 ms only.
    try:
        return time.clock_gettime(~pid << 3 | 2)
    except OSError:
        return 0.0


def host_sent_bytes(counters: Path = Path("/proc/net/dev")) -> float:
    """What this host's interfaces have sent, the loopback's bytes included. Raises OSError where none are told."""
    lines = [line.partition(":") for line in counters.read_text().splitlines()]
    return float(sum(int(told.split()[8]) for _, colon, told in lines if colon))  # see proc(5): 8 columns are received


def _nothing() -> float:
    return 0.0


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
