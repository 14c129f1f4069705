"""What the utilisation suite measures of each variant besides time: cores, CPU, GPU, and the parts of its steps."""

import math
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist

from convoy.benchmark.groups import Group
from convoy.benchmark.measure.trace import UnreadableTraceError, build_timeline, profile_steps, step_shares
from convoy.benchmark.results import values
from convoy.benchmark.rounds import VariantResult
from convoy.benchmark.variants.convoy import ConvoyVariant
from convoy.benchmark.variants.variant import Variant
from convoy.gang.telemetry.gpus import NvmlUnavailable, gpu_by_uuid
from convoy.network.host_usage import CpuUse, cpu_use
from convoy.training.process_groups import Ranks

PROFILED_STEPS = 3
"""Steps of each variant that are profiled on every rank, after all that is timed."""

Observation = tuple[dict[str, float], dict[str, str]]
"""Values of a case, and what was not measured, with the reasons."""

SAMPLE_SECONDS = 0.1
"""Interval at which a GPU's utilisation is sampled. Its driver's figures cover a sixth of a second, or a second."""

GpuUtilisation = Callable[[], float | None]
"""Returns the share of the driver's last period in which a GPU ran a kernel, from 0 to 1; None: not reported."""

_TASKS = Path("/proc/self/task")


def pin_threads(cores: Collection[int]) -> None:
    """Restrict every thread of this process, and those that it will start, to these cores.

    `sched_setaffinity` of a process applies to its main thread alone: threads that gloo, OpenMP and autograd have
    started keep their cores. A thread that is started meanwhile inherits its parent's, so the last pass finds no new
    thread.
    """
    done: set[int] = set()
    while rest := thread_ids() - done:
        for thread in rest:
            with suppress(ProcessLookupError):  # it ended meanwhile
                os.sched_setaffinity(thread, cores)
        done |= rest


def thread_ids() -> set[int]:
    """Ids of all threads of this process."""
    return {int(task.name) for task in _TASKS.iterdir()}


def cores_of_rank(cores: Sequence[int], rank: int, ranks: int) -> Sequence[int]:
    """The cores of one of a host's ranks: neighbouring cores, the same number for each rank, at least one."""
    each = max(1, len(cores) // ranks)
    first = rank * each % len(cores)
    return cores[first : first + each]


@dataclass
class _BlockTotals:
    """Totals over the blocks of a variant, on this rank."""

    seconds: float = 0.0
    steps: int = 0
    counts: list[float] = field(default_factory=lambda: [0.0] * len(CpuUse._fields))
    gpu_utilisation: list[float] = field(default_factory=list)


class Observer:
    """Watches the blocks of `benchmark/rounds.py`, on each rank, and profiles some more steps after them."""

    def __init__(self, cores: Mapping[str, Sequence[int]], gpu: GpuUtilisation | None, why: str = "") -> None:
        """cores: of this rank in each variant's turns. gpu: of this rank; None for the reason in `why`."""
        self.cores = cores
        self._gpu = gpu
        self._why = why
        self._sums: dict[str, _BlockTotals] = defaultdict(_BlockTotals)

    @contextmanager
    def watch(self, name: str, steps: int) -> Iterator[None]:
        """Add what a block of this variant uses to its totals."""
        own = self._sums[name]
        with nullcontext() if self._gpu is None else gpu_sampling(self._gpu, own.gpu_utilisation):
            began, before = time.perf_counter(), cpu_use()
            yield
            own.counts = [total + now - then for total, now, then in zip(own.counts, cpu_use(), before, strict=True)]
            own.seconds += time.perf_counter() - began
            own.steps += steps

    def profile(self, variant: ConvoyVariant, ranks: Ranks) -> Observation:
        """Shares of some further steps, the mean over ranks. All ranks call it alike."""
        pin_threads(self.cores[variant.name])
        return profile_shares(variant, ranks)

    def block_values(self, name: str, cores: int, ranks: Ranks) -> Observation:
        """Values of a variant's blocks. All ranks call it alike, and get the same but for the reasons.

        cores: of all hosts of the gang together.
        """
        own, n = self._sums[name], ranks.place.world_size
        samples = own.gpu_utilisation
        mean = sum(samples) / len(samples) if samples else math.nan
        *host, seconds, gpu_utilisation = _sum_over_ranks([*own.counts, own.seconds, mean], ranks)
        used = host_values(host, own.steps, seconds / n, n, cores)
        if math.isnan(gpu_utilisation):
            not_reported = "another rank's GPU does not report it" if samples else "the GPU does not report it"
            return used, {"GPU utilisation": self._why or not_reported}
        return used | {values.GPU_UTILISATION: gpu_utilisation / n}, {}


def profile_shares(variant: ConvoyVariant, ranks: Ranks) -> Observation:
    """Shares of some further steps, the mean over ranks. All ranks call it alike."""
    dist.barrier(group=ranks.control)
    events = profile_steps(variant.step, variant.clock, PROFILED_STEPS, ranks.device)
    try:
        own = step_shares(build_timeline(events, on_gpu=ranks.device.type == "cuda"))
        figures, why = [*own.parts.values(), own.hidden], ""
    except UnreadableTraceError as error:
        figures, why = [math.nan] * (len(values.SHARES) + 1), str(error)
    means = [each / ranks.place.world_size for each in _sum_over_ranks(figures, ranks)]
    if math.isnan(means[-1]):
        return {}, {"shares of the step": why or "the trace of another rank cannot be read"}
    return dict(zip((*values.SHARES.values(), values.COMMUNICATION_HIDDEN), means, strict=True)), {}


def add_shares(variants: Sequence[Variant], measured: Mapping[str, VariantResult], ranks: Ranks) -> None:
    """Add the shares of a step to the figures of Convoy's variants. All ranks call it alike."""
    for variant in variants:
        if isinstance(variant, ConvoyVariant):
            used, missing = profile_shares(variant, ranks)
            measured[variant.name].values |= used
            measured[variant.name].not_measured |= missing


def observer_of(group: Group, cores: Sequence[int], own_cores: Sequence[int], ranks: Ranks) -> Observer | None:
    """The observer of a group whose utilisation is measured; None for other groups. own_cores: this rank's, of the
    host's."""
    if "utilisation" not in group.measures:
        return None
    cuda = ranks.device.type == "cuda"
    gpu, why = nvml_utilisation_reader(str(torch.cuda.get_device_properties(ranks.device).uuid) if cuda else None)
    return Observer({s.name: own_cores if s.pins_ranks(group.measure) else cores for s in group.variants}, gpu, why)


def add_observations(
    observer: Observer, variants: Sequence[Variant], measured: Mapping[str, VariantResult], ranks: Ranks, cores: int
) -> None:
    """Add to each variant's figures what its blocks used, and the parts of some steps that are profiled after all
    blocks. All ranks call it alike. cores: of a host."""
    hosts = ranks.place.world_size // ranks.place.host_ranks
    for variant in variants:
        for used, missing in (
            observer.block_values(variant.name, cores * hosts, ranks),
            observer.profile(variant, ranks) if isinstance(variant, ConvoyVariant) else ({}, {}),
        ):
            measured[variant.name].values |= used
            measured[variant.name].not_measured |= missing


def host_values(counts: Sequence[float], steps: int, seconds: float, ranks: int, cores: int) -> dict[str, float]:
    """A rank's part of a step, and the share of the cores' time. counts: as `CpuUse`, of all ranks. seconds:
    of wall time, in which the steps were made. cores: of all hosts."""
    user, system, voluntary, involuntary = counts
    each = steps * ranks
    return {
        values.USER_CPU_SECONDS: user / each,
        values.SYSTEM_CPU_SECONDS: system / each,
        values.VOLUNTARY_SWITCHES: voluntary / each,
        values.INVOLUNTARY_SWITCHES: involuntary / each,
        values.CPU_UTILISATION: (user + system) / (seconds * cores),
    }


@contextmanager
def gpu_sampling(gpu: GpuUtilisation, samples: list[float]) -> Iterator[None]:
    """Add to the samples in a thread: one at once, then one each `SAMPLE_SECONDS`."""
    stop = threading.Event()

    def sample() -> None:
        while True:
            utilisation = gpu()
            if utilisation is not None:
                samples.append(utilisation)
            if stop.wait(SAMPLE_SECONDS):
                return

    thread = threading.Thread(target=sample, name="gpu-utilisation", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def nvml_utilisation_reader(uuid: str | None) -> tuple[GpuUtilisation | None, str]:
    """The utilisation of a GPU as NVML reports it, or why it cannot be measured. uuid: as CUDA reports it, with or
    without `GPU-`; None: this rank has no GPU."""
    if uuid is None:
        return None, "no GPU"
    try:
        return gpu_by_uuid(uuid).utilisation, ""
    except NvmlUnavailable as error:
        return None, str(error)


def _sum_over_ranks(figures: Sequence[float], ranks: Ranks) -> list[float]:
    """Sums over all ranks; a figure that a rank does not have is not a number."""
    sums = torch.tensor(figures, dtype=torch.float64)
    dist.all_reduce(sums, group=ranks.control)
    return [float(each) for each in sums]
