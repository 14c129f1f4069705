"""Pairs of blocks of steps: what a block costs, and two kinds of blocks that alternate inside one process group."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.distributed as dist

import gang
from convoy.training.loop import Training
from convoy.training.process_groups import Ranks

WARMUP_PAIRS = 2


@dataclass(frozen=True)
class Block:
    """Cost of one block of steps on one rank, or of the gang, per step."""

    cpu_seconds: float
    wall_seconds: float


@dataclass(frozen=True)
class RankResult:
    pairs: list[tuple[Block, Block]]
    agent: Sequence[float] = ()
    """CPU seconds per step of this rank's agent, by pair."""
    apart: Mapping[str, float] = field(default_factory=dict)
    """What is not of the pairs: figures that add up over ranks."""


def begun(t: Training) -> Callable[[], None]:
    """The loop's step, of which the first one and what follows on it are done."""
    step = partial(gang.one_step_of, t)
    step()
    t.updated = True
    t.after_first_step()
    return step


def block(step: Callable[[], None], steps: int, ranks: Ranks) -> Block:
    """Cost of `steps` steps on this rank."""
    dist.barrier(group=ranks.control)
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(steps):
        step()
    if ranks.device.type == "cuda":
        torch.cuda.synchronize()
    return Block((time.process_time() - cpu) / steps, (time.perf_counter() - wall) / steps)


def alternate(first: Callable[[], Block], second: Callable[[], Block], pairs: int) -> list[tuple[Block, Block]]:
    """A block of each per pair, the second one before the first in every other pair, after some that warm up."""
    blocks = []
    for number in range(WARMUP_PAIRS + pairs):
        if number % 2:
            later = second()
            blocks.append((first(), later))
        else:
            blocks.append((first(), second()))
    return blocks[WARMUP_PAIRS:]


def of_gang(ranks: Sequence[Sequence[tuple[Block, Block]]]) -> list[tuple[Block, Block]]:
    """The gang's pairs: its CPU seconds are the sum over ranks, its wall seconds the slowest rank's."""

    def together(blocks: Sequence[Block]) -> Block:
        return Block(sum(b.cpu_seconds for b in blocks), max(b.wall_seconds for b in blocks))

    pairs = zip(*ranks, strict=True)
    return [(together([a for a, _ in blocks]), together([b for _, b in blocks])) for blocks in pairs]
