"""Speed and memory: what the steps took, what each rank did, and what share of the machine that was."""

from collections.abc import Collection, Sequence
from itertools import pairwise

from convoy.catalog.measured_machine import MeasuredMachine
from convoy.job.events.registry import (
    Environment,
    Evaluated,
    Event,
    GenerationStarted,
    MemoryPeak,
    RankThroughput,
    StepDone,
)
from convoy.model.counts import mfu
from convoy.report.analysis.lineage import by_generation, generation_starts
from convoy.report.train_report import Hardware, RankRow, StepTime, TrainedStretch
from convoy.stats.spread import Spread, spread

WARMUP_STEPS = 5
"""Steps left out at the start of each generation: allocators, caches and compilers settle in them."""

MAX_PIECES = 500
"""A long generation is represented by so many pieces of equal length."""

_PARTS = ("data", "forward", "backward", "optimizer", "exchange")


def comparable_generations(
    events: Sequence[Event], branch: Sequence[Event]
) -> tuple[frozenset[int], GenerationStarted | None]:
    """The generations that trained as the branch's newest one does, with its ranks and configuration, and the start of
    that one; None: no step is done. Steps and saves of others say nothing of its own. What a log lacks is taken to be
    alike."""
    newest = max((e.generation for e in branch if isinstance(e, StepDone)), default=None)
    if newest is None:
        return frozenset(), None
    logged = generation_starts(events)
    trained = {e.generation for e in events if isinstance(e, StepDone)}
    started = {g: logged.get(g, GenerationStarted(generation=g)) for g in trained}
    last = started[newest]
    return frozenset(g for g, e in started.items() if e.world_size == last.world_size and _same_config(e, last)), last


def _same_config(one: GenerationStarted, other: GenerationStarted) -> bool:
    return one.training == other.training or "" in (one.training, other.training)


def measured_steps(branch: Sequence[Event], generations: Collection[int]) -> list[StepDone]:
    """Steps of these generations, each after its warm-up, that were not skipped."""
    measured: list[StepDone] = []
    for own in by_generation(e for e in branch if e.generation in generations).values():
        steps = [e for e in own if isinstance(e, StepDone)]
        first = min((s.step for s in steps), default=0)
        measured += [s for s in steps if s.step >= first + WARMUP_STEPS and not s.skipped]
    return measured


def step_time(steps: Sequence[StepDone]) -> StepTime | None:
    """Medians of the steps' seconds and of each part."""
    total = spread(s.seconds for s in steps)
    if total is None:
        return None
    parts = {part: spread(getattr(s, f"{part}_seconds") for s in steps) for part in _PARTS}
    parts["other"] = spread(max(s.seconds - sum(getattr(s, f"{p}_seconds") for p in _PARTS), 0.0) for s in steps)
    return StepTime(total=total, parts={name: figure for name, figure in parts.items() if figure is not None})


def trained_stretch(events: Sequence[Event], generations: Collection[int]) -> TrainedStretch | None:
    """The stretch of these generations, from the end of each one's first logged step, after which it measures."""
    done, seconds = 0, 0.0
    for own in by_generation(e for e in events if e.generation in generations).values():
        steps = [e for e in own if isinstance(e, StepDone)]
        if steps:
            first, last = (steps[1:] or steps)[0], steps[-1]
            began = first.t - first.seconds
            evaluations = sum(e.seconds for e in own if isinstance(e, Evaluated) and began < e.t <= last.t)
            done += last.step - first.step + 1
            seconds += last.t - began - evaluations
    return TrainedStretch(steps=done, seconds=seconds) if done else None


def gang_rate(steps: Sequence[StepDone]) -> Spread | None:
    """Tokens per second of the whole gang while stepping."""
    return spread(s.tokens / s.seconds for s in steps if s.seconds > 0)


def utilisation(
    tflops: float | None, flops_per_token: float | None, rate: Spread | None, ranks: int | None
) -> float | None:
    """Model FLOP/s of a rank, at the median rate, over `tflops`: MFU where that is its peak. None where any of them is
    not known."""
    if not tflops or not flops_per_token or rate is None or not ranks:
        return None
    return mfu(rate.median, flops_per_token, tflops * 1e12, ranks)


def rank_rows(newest: Sequence[Event]) -> tuple[RankRow, ...]:
    """One row for each rank in the newest generation's events."""
    ranks = {e.rank: e.node for e in newest if e.rank is not None}
    return tuple(_rank_row(rank, node, newest) for rank, node in sorted(ranks.items()))


def hardware(events: Sequence[Event], newest: Sequence[Event]) -> Hardware | None:
    """The hardware of the newest generation, whose events are `newest`, by its lowest rank that reported it."""
    reports = sorted((e for e in newest if isinstance(e, Environment)), key=lambda e: e.rank or 0)
    if not reports:
        return None
    first = reports[0]
    return Hardware(
        device=first.device,
        threads=first.threads,
        matmul_tflops=spread(e.matmul_tflops for e in reports if e.matmul_tflops is not None),
        peak_tflops=first.peak_tflops,
        versions=first.versions,
        machine=_measured_machine(events),
    )


def _measured_machine(events: Sequence[Event]) -> MeasuredMachine | None:
    """What the slowest rank of the newest generation that measured it found: a step is as long as its slowest rank."""
    measured = [(e.generation, e.machine) for e in events if isinstance(e, Environment) and e.machine is not None]
    newest = max((generation for generation, _ in measured), default=0)
    machines = [machine for generation, machine in measured if generation == newest]
    return min(machines, key=lambda machine: machine.matmul_flops, default=None)


def _step_weighted_rates(intervals: Sequence[RankThroughput]) -> list[float]:
    """Tokens per second of all but the first one; later ones are of more steps, and count as often."""
    if len(intervals) < 2:
        return []
    shortest = intervals[1].step - intervals[0].step
    unit = max(1, shortest, (intervals[-1].step - intervals[0].step) / MAX_PIECES)
    rates = ((e.tokens / e.seconds, round((e.step - before.step) / unit)) for before, e in pairwise(intervals))
    return [rate for rate, count in rates for _ in range(max(1, count))]


def _rank_row(rank: int, node: int, newest: Sequence[Event]) -> RankRow:
    own = [e for e in newest if e.rank == rank]
    intervals = [e for e in own if isinstance(e, RankThroughput) and e.seconds > 0]
    peaks = [e for e in own if isinstance(e, MemoryPeak)]
    highest = max(peaks, key=lambda e: e.bytes, default=None)
    return RankRow(
        rank=rank,
        node=node,
        tokens_per_second=spread(_step_weighted_rates(intervals) or [e.tokens / e.seconds for e in intervals]),
        memory_peak_bytes=highest.bytes if highest else None,
        memory_device=highest.device if highest else None,
        matmul_tflops=next(
            (e.matmul_tflops for e in reversed(own) if isinstance(e, Environment) and e.matmul_tflops), None
        ),
    )
