"""What the utilisation suite sees of each variant besides its time: cores, CPU, power, and the parts of its steps."""

import math
import resource
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.distributed as dist

from convoy.benchmark.groups import Group
from convoy.benchmark.measure.pinning import keep_to
from convoy.benchmark.measure.power import Gpu, Meter, Used, nvml_gpu
from convoy.benchmark.measure.profiled import profiled
from convoy.benchmark.measure.step_shares import Shares, shares
from convoy.benchmark.measure.trace import UnreadableTraceError, timeline
from convoy.benchmark.results import values
from convoy.benchmark.results.values import POWER_WATTS, SHARES
from convoy.benchmark.rounds import Measured, Variant
from convoy.benchmark.variants.convoy import Ours
from convoy.training.process_groups import Ranks

PROFILED_STEPS = 3
"""Of each variant, on every rank, when all that is timed is over."""

Seen = tuple[dict[str, float], dict[str, str]]
"""Values of a case, and what was not measured."""


@dataclass
class _Sum:
    """Of a variant's blocks, on this rank."""

    seconds: float = 0.0
    steps: int = 0
    counts: list[float] = field(default_factory=lambda: [0.0] * len(_counts()))
    gpu: Used = field(default_factory=Used)


class Observer:
    """Watches the turns of `benchmark/rounds.py`, on each rank, and looks at some more steps when they are over."""

    def __init__(self, cores: Mapping[str, Sequence[int]], gpu: Gpu | None, why: str = "") -> None:
        """cores: of this rank in each variant's turns. gpu: of this rank; None: `why` tells."""
        self._cores = cores
        self._meter = None if gpu is None else Meter(gpu)
        self._why = why
        self._sums: dict[str, _Sum] = defaultdict(_Sum)

    def turn(self, name: str) -> None:
        """Steps of this variant are next; not timed."""
        keep_to(self._cores[name])

    def begin(self) -> None:
        """The ranks are about to meet before a block."""
        if self._meter is not None:
            self._meter.begin()
        self._began, self._before = time.perf_counter(), _counts()

    def end(self, name: str, steps: int) -> None:
        """The block's clock has stopped."""
        own = self._sums[name]
        own.counts = [
            total + now - before for total, now, before in zip(own.counts, _counts(), self._before, strict=True)
        ]
        own.seconds += time.perf_counter() - self._began
        own.steps += steps
        if self._meter is not None:
            self._meter.end(own.gpu)

    def profile(self, variant: Ours, device: torch.device, control: dist.ProcessGroup) -> Seen:
        """Shares of some further steps, the mean over ranks. All ranks call it alike."""
        self.turn(variant.name)
        dist.barrier(group=control)
        events = profiled(variant.step, variant.clock, PROFILED_STEPS, device)
        try:
            found = shares(timeline(events, on_gpu=device.type == "cuda"))
            own, why = [*found.parts.values(), found.hidden], ""
        except UnreadableTraceError as error:
            own, why = [math.nan] * (len(SHARES) + 1), str(error)
        ranks = dist.get_world_size(control)
        *parts, hidden = (each / ranks for each in _together(own, control))
        if math.isnan(hidden):
            return {}, {"shares of the step": why or "the trace of another rank cannot be read"}
        return share_values(Shares(dict(zip(SHARES, parts, strict=True)), hidden)), {}

    def values(self, name: str, step_seconds: float, cores: int, control: dist.ProcessGroup) -> Seen:
        """Of a variant's blocks. All ranks call it alike, and are told the same but for the reasons.

        step_seconds: of its blocks. cores: of all hosts of the gang together.
        """
        own, ranks = self._sums[name], dist.get_world_size(control)
        watts = None if self._meter is None else own.gpu.watts
        busy = own.gpu.utilisation
        user, system, voluntary, involuntary, seconds, all_watts, all_busy = _together(
            [
                *own.counts,
                own.seconds,
                math.nan if watts is None else watts,
                sum(busy) / len(busy) if busy else math.nan,
            ],
            control,
        )
        host = Host(user, system, voluntary, involuntary)
        found = host_values(host, own.steps, seconds / ranks, ranks, cores)
        power = gpu_values(all_watts, all_busy / ranks, step_seconds)
        missing = {} if POWER_WATTS in power else {"power": self._why or own.gpu.why or "another rank's GPU tells none"}
        return found | power, missing


def observer_of(group: Group, cores: Sequence[int], own: Sequence[int], ranks: Ranks) -> Observer | None:
    """Who watches the turns of a utilisation group; None for other suites. own: of the host's cores, this rank's."""
    if "utilisation" not in group.measures:
        return None
    cuda = ranks.device.type == "cuda"
    gpu, why = nvml_gpu(str(torch.cuda.get_device_properties(ranks.device).uuid) if cuda else None)
    return Observer({spec.name: own if spec.pinned(group.measure) else cores for spec in group.variants}, gpu, why)


def observed(
    observer: Observer, variants: Sequence[Variant], found: Mapping[str, Measured], ranks: Ranks, cores: int
) -> dict[str, Seen]:
    """Of each variant, by name: what its blocks used, and the parts of some steps that are profiled after all blocks.

    All ranks call it alike. cores: of a host.
    """
    told: dict[str, Seen] = {}
    hosts = ranks.place.world_size // ranks.place.host_ranks
    for variant in variants:
        blocks = found[variant.name].blocks
        seconds = sum(block.seconds * block.steps for block in blocks) / sum(block.steps for block in blocks)
        values, missing = observer.values(variant.name, seconds, cores * hosts, ranks.control)
        if isinstance(variant, Ours):
            parts, untold = observer.profile(variant, ranks.device, ranks.control)
            values, missing = values | parts, missing | untold
        told[variant.name] = values, missing
    return told


def _counts() -> list[float]:
    """Of all threads of this process so far: user and system CPU seconds, voluntary and involuntary switches."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return [used.ru_utime, used.ru_stime, float(used.ru_nvcsw), float(used.ru_nivcsw)]


def _together(figures: Sequence[float], control: dist.ProcessGroup) -> list[float]:
    """Sums over all ranks; one that a rank does not know is not a number."""
    sums = torch.tensor(figures, dtype=torch.float64)
    dist.all_reduce(sums, group=control)
    return [float(each) for each in sums]


class Host(NamedTuple):
    """What the processes of all ranks used together, over all blocks of a case."""

    user_seconds: float
    system_seconds: float
    voluntary: float
    """Switches, as `involuntary`."""
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
    """watts: of all GPUs together. busy: share of the time. Of either no value where it is not a number."""
    found = {}
    if not math.isnan(watts):
        found = {values.POWER_WATTS: watts, values.ENERGY_JOULES_PER_STEP: watts * step_seconds}
    return found if math.isnan(busy) else found | {values.GPU_UTILISATION: busy}


def share_values(shares: Shares) -> dict[str, float]:
    """By the names of values."""
    parts: Mapping[values.SharedPart, float] = shares.parts
    return {values.SHARES[part]: share for part, share in parts.items()} | {values.COMMUNICATION_HIDDEN: shares.hidden}
