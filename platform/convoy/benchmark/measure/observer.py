"""What the utilisation suite measures of each variant besides time: cores, CPU, power, and the parts of its steps."""

import math
import os
import resource
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist

from convoy.benchmark.groups import Group
from convoy.benchmark.measure.power import Gpu, Meter, Used, nvml_gpu
from convoy.benchmark.measure.trace import UnreadableTraceError, profiled, shares, timeline
from convoy.benchmark.results import values
from convoy.benchmark.rounds import Measured
from convoy.benchmark.variants.convoy import Ours
from convoy.benchmark.variants.variant import Variant
from convoy.training.process_groups import Ranks

PROFILED_STEPS = 3
"""Steps of each variant that are profiled on every rank, after all that is timed."""

Observation = tuple[dict[str, float], dict[str, str]]
"""Values of a case, and what was not measured, with the reasons."""

_TASKS = Path("/proc/self/task")


def keep_to(cores: Collection[int]) -> None:
    """Restrict every thread of this process, and those that it will start, to these cores.

    `sched_setaffinity` of a process applies to its main thread alone: threads that gloo, OpenMP and autograd have
    started keep their cores. A thread that is started meanwhile inherits its parent's, so the last pass finds no new
    thread.
    """
    done: set[int] = set()
    while rest := threads() - done:
        for thread in rest:
            with suppress(ProcessLookupError):  # it ended meanwhile
                os.sched_setaffinity(thread, cores)
        done |= rest


def threads() -> set[int]:
    """Ids of all threads of this process."""
    return {int(task.name) for task in _TASKS.iterdir()}


def share(cores: Sequence[int], rank: int, ranks: int) -> Sequence[int]:
    """The cores of one of a host's ranks: neighbouring cores, the same number for each rank, at least one."""
    each = max(1, len(cores) // ranks)
    first = rank * each % len(cores)
    return cores[first : first + each]


@dataclass
class _Sum:
    """Totals over the blocks of a variant, on this rank."""

    seconds: float = 0.0
    steps: int = 0
    counts: list[float] = field(default_factory=lambda: [0.0] * len(_counts()))
    gpu: Used = field(default_factory=Used)


class Observer:
    """Watches the blocks of `benchmark/rounds.py`, on each rank, and profiles some more steps after them."""

    def __init__(self, cores: Mapping[str, Sequence[int]], gpu: Gpu | None, why: str = "") -> None:
        """cores: of this rank in each variant's turns. gpu: of this rank; None for the reason in `why`."""
        self.cores = cores
        self._meter = None if gpu is None else Meter(gpu)
        self._why = why
        self._sums: dict[str, _Sum] = defaultdict(_Sum)

    @contextmanager
    def watch(self, name: str, steps: int) -> Iterator[None]:
        """Add what a block of this variant uses to its totals."""
        if self._meter is not None:
            self._meter.begin()
        began, before = time.perf_counter(), _counts()
        yield
        own = self._sums[name]
        own.counts = [total + now - then for total, now, then in zip(own.counts, _counts(), before, strict=True)]
        own.seconds += time.perf_counter() - began
        own.steps += steps
        if self._meter is not None:
            self._meter.end(own.gpu)

    def profile(self, variant: Ours, ranks: Ranks) -> Observation:
        """Shares of some further steps, the mean over ranks. All ranks call it alike."""
        keep_to(self.cores[variant.name])
        dist.barrier(group=ranks.control)
        events = profiled(variant.step, variant.clock, PROFILED_STEPS, ranks.device)
        try:
            own = shares(timeline(events, on_gpu=ranks.device.type == "cuda"))
            figures, why = [*own.parts.values(), own.hidden], ""
        except UnreadableTraceError as error:
            figures, why = [math.nan] * (len(values.SHARES) + 1), str(error)
        means = [each / ranks.place.world_size for each in _sums(figures, ranks)]
        if math.isnan(means[-1]):
            return {}, {"shares of the step": why or "the trace of another rank cannot be read"}
        return dict(zip((*values.SHARES.values(), values.COMMUNICATION_HIDDEN), means, strict=True)), {}

    def values(self, name: str, step_seconds: float, cores: int, ranks: Ranks) -> Observation:
        """Values of a variant's blocks. All ranks call it alike, and get the same but for the reasons.

        step_seconds: of its blocks. cores: of all hosts of the gang together.
        """
        own, n = self._sums[name], ranks.place.world_size
        watts, busy = None if self._meter is None else own.gpu.watts, own.gpu.utilisation
        figures = [
            *own.counts,
            own.seconds,
            math.nan if watts is None else watts,
            sum(busy) / len(busy) if busy else math.nan,
        ]
        *host, seconds, all_watts, all_busy = _sums(figures, ranks)
        used = host_values(Host(*host), own.steps, seconds / n, n, cores)
        power = gpu_values(all_watts, all_busy / n, step_seconds)
        why = self._why or own.gpu.why or "another rank's GPU reports none"
        return used | power, {} if values.POWER_WATTS in power else {"power": why}


def observer_of(group: Group, cores: Sequence[int], own: Sequence[int], ranks: Ranks) -> Observer | None:
    """The observer of a group whose utilisation is measured; None for other groups. own: of the host's cores, this
    rank's."""
    if "utilisation" not in group.measures:
        return None
    cuda = ranks.device.type == "cuda"
    gpu, why = nvml_gpu(str(torch.cuda.get_device_properties(ranks.device).uuid) if cuda else None)
    return Observer({spec.name: own if spec.pinned(group.measure) else cores for spec in group.variants}, gpu, why)


def observations_of(
    observer: Observer, variants: Sequence[Variant], measured: Mapping[str, Measured], ranks: Ranks, cores: int
) -> dict[str, Observation]:
    """For each variant by name: what its blocks used, and the parts of some steps that are profiled after all blocks.

    All ranks call it alike. cores: of a host.
    """
    observations: dict[str, Observation] = {}
    hosts = ranks.place.world_size // ranks.place.host_ranks
    for variant in variants:
        blocks = measured[variant.name].blocks
        seconds = sum(block.seconds * block.steps for block in blocks) / sum(block.steps for block in blocks)
        used, missing = observer.values(variant.name, seconds, cores * hosts, ranks)
        parts, missing_parts = observer.profile(variant, ranks) if isinstance(variant, Ours) else ({}, {})
        observations[variant.name] = used | parts, missing | missing_parts
    return observations


class Host(NamedTuple):
    """What the processes of all ranks used together, over all blocks of a case."""

    user_seconds: float
    system_seconds: float
    voluntary: float
    """Context switches, as `involuntary`."""
    involuntary: float


def host_values(host: Host, steps: int, seconds: float, ranks: int, cores: int) -> dict[str, float]:
    """A rank's part of a step, and the share of the cores' time. seconds: of wall time, in which the steps were made.
    cores: of all hosts."""
    each = steps * ranks
    return {
        values.USER_CPU_SECONDS: host.user_seconds / each,
        values.SYSTEM_CPU_SECONDS: host.system_seconds / each,
        values.VOLUNTARY_SWITCHES: host.voluntary / each,
        values.INVOLUNTARY_SWITCHES: host.involuntary / each,
        values.CPU_UTILISATION: (host.user_seconds + host.system_seconds) / (seconds * cores),
    }


def gpu_values(watts: float, busy: float, step_seconds: float) -> dict[str, float]:
    """watts: of all GPUs together. busy: share of the time. A figure that is not a number gives no value."""
    power = {values.POWER_WATTS: watts, values.ENERGY_JOULES_PER_STEP: watts * step_seconds}
    return ({} if math.isnan(watts) else power) | ({} if math.isnan(busy) else {values.GPU_UTILISATION: busy})


def _counts() -> list[float]:
    """User and system CPU seconds, voluntary and involuntary context switches of all threads of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return [used.ru_utime, used.ru_stime, float(used.ru_nvcsw), float(used.ru_nivcsw)]


def _sums(figures: Sequence[float], ranks: Ranks) -> list[float]:
    """Sums over all ranks; a figure that a rank does not have is not a number."""
    sums = torch.tensor(figures, dtype=torch.float64)
    dist.all_reduce(sums, group=ranks.control)
    return [float(each) for each in sums]
