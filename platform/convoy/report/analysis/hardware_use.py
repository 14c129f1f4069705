"""What the nodes' hardware did while it trained, by the samples in the event log. Pure."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from convoy.display.charts import MAX_POINTS
from convoy.job.events.hardware import GpusSampled
from convoy.job.events.registry import Event, HardwareSampled, ScriptStep, StepDone
from convoy.report.analysis.lineage import by_generation
from convoy.report.train_report import HardwareUse, NodeUse, Throttling, UsePoint

Number = TypeVar("Number", int, float)

Weighted = tuple[HardwareSampled, float]
"""An event, and for how many seconds of it it counts."""

MAX_PIECES = MAX_POINTS // 2
"""The time of all samples is cut into at most so many equal pieces, one for each point."""


def hardware_use(events: Sequence[Event]) -> HardwareUse | None:
    """What the samples say; None: there are none."""
    samples = [e for e in events if isinstance(e, HardwareSampled)]
    if not samples:
        return None
    training = _of_training(events)
    nodes: dict[int, list[HardwareSampled]] = defaultdict(list)
    for e in training or samples:
        nodes[e.node].append(e)
    return HardwareUse(
        nodes=tuple(_node_use(node, own) for node, own in sorted(nodes.items())),
        points=_points(samples),
        while_training=bool(training),
        no_gpus=next((e.no_gpus for e in reversed(samples) if e.no_gpus), ""),
    )


def _of_training(events: Sequence[Event]) -> list[HardwareSampled]:
    """The samples that lie for the most part between the first logged step of a generation and its last one."""
    chosen = []
    for own in by_generation(events).values():
        steps = [e.t for e in own if isinstance(e, StepDone | ScriptStep)]
        if steps:
            first, last = min(steps), max(steps)
            chosen += [e for e in own if isinstance(e, HardwareSampled) and first <= e.t - e.seconds / 2 <= last]
    return chosen


def _node_use(node: int, own: Sequence[HardwareSampled]) -> NodeUse:
    gpus = [e.gpus for e in own if e.gpus is not None]
    disks = [e.disk_free_bytes for e in own if e.disk_free_bytes is not None]
    return NodeUse(
        node=node,
        seconds=sum(e.seconds for e in own),
        cpu=_mean(own, lambda e: e.cpu) or 0.0,
        memory_bytes=max(e.memory_bytes for e in own),
        memory_total_bytes=own[-1].memory_total_bytes,
        disk_free_bytes=disks[-1] if disks else None,
        sent_bytes_per_second=_mean(own, lambda e: e.sent_bytes_per_second) or 0.0,
        received_bytes_per_second=_mean(own, lambda e: e.received_bytes_per_second) or 0.0,
        rdma_sent_bytes_per_second=_mean(own, lambda e: e.rdma_sent_bytes_per_second),
        rdma_received_bytes_per_second=_mean(own, lambda e: e.rdma_received_bytes_per_second),
        gpus=max((each.count for each in gpus), default=0),
        gpu=_gpu_mean(own, lambda gpus: gpus.utilisation),
        lowest_gpu=_gpu_mean(own, lambda gpus: gpus.lowest_utilisation),
        gpu_power_watts=_gpu_mean(own, lambda gpus: gpus.power_watts),
        gpu_temperature_celsius=_highest(each.temperature_celsius for each in gpus),
        gpu_memory_bytes=_highest(each.memory_bytes for each in gpus),
        gpu_memory_total_bytes=_highest(each.memory_total_bytes for each in gpus),
        gpu_clock_hertz=_gpu_mean(own, lambda gpus: gpus.sm_clock_hertz),
        throttling=_throttling(own),
    )


def _throttling(own: Sequence[HardwareSampled]) -> tuple[Throttling, ...]:
    """By reason, the most frequent one first."""
    whole = sum(e.seconds for e in own if e.gpus is not None)
    seconds: dict[str, float] = defaultdict(float)
    indices: dict[str, set[int]] = defaultdict(set)
    for e in own:
        for each in e.gpus.throttled if e.gpus else ():
            seconds[each.reason] += each.share * e.seconds
            indices[each.reason].update(each.gpus)
    found = [
        Throttling(reason=reason, gpus=tuple(sorted(indices[reason])), share=part / whole)
        for reason, part in seconds.items()
    ]
    return tuple(sorted(found, key=lambda each: -each.share))


def _points(samples: Sequence[HardwareSampled]) -> tuple[UsePoint, ...]:
    """Means over the nodes in equal pieces of time, none for a piece without samples. An event counts in a piece for as
    much of its time as lies in it."""
    start = min(e.t - e.seconds for e in samples)
    length = max(max(e.t for e in samples) - start, 1e-9)
    pieces = min(MAX_PIECES, max(1, round(length / min(e.seconds for e in samples))))
    width = length / pieces
    inside: dict[int, list[Weighted]] = defaultdict(list)
    for e in samples:
        first, last = (int((t - start) / width) for t in (e.t - e.seconds + 1e-6, e.t - 1e-6))
        for piece in range(max(first, 0), min(last, pieces - 1) + 1):
            begin = start + piece * width
            inside[piece].append((e, min(e.t, begin + width) - max(e.t - e.seconds, begin)))
    return tuple(
        UsePoint(
            t=start + (piece + 0.5) * width,
            cpu=_weighted_mean(own, lambda e: e.cpu) or 0.0,
            gpu=_weighted_gpu_mean(own, lambda gpus: gpus.utilisation),
            gpu_power_watts=_weighted_gpu_mean(own, lambda gpus: gpus.power_watts),
        )
        for piece, own in sorted(inside.items())
    )


def _mean(own: Iterable[HardwareSampled], value: Callable[[HardwareSampled], float | None]) -> float | None:
    """Weighted by the seconds of each; None: it is not known of any."""
    return _weighted_mean(((e, e.seconds) for e in own), value)


def _gpu_mean(own: Iterable[HardwareSampled], value: Callable[[GpusSampled], float | None]) -> float | None:
    return _weighted_gpu_mean(((e, e.seconds) for e in own), value)


def _weighted_mean(own: Iterable[Weighted], value: Callable[[HardwareSampled], float | None]) -> float | None:
    """None: it is not known of any."""
    known = [(each, weight) for e, weight in own if (each := value(e)) is not None]
    seconds = sum(weight for _, weight in known)
    return sum(each * weight for each, weight in known) / seconds if seconds else None


def _weighted_gpu_mean(own: Iterable[Weighted], value: Callable[[GpusSampled], float | None]) -> float | None:
    return _weighted_mean(own, lambda e: None if e.gpus is None else value(e.gpus))


def _highest(values: Iterable[Number | None]) -> Number | None:
    return max((each for each in values if each is not None), default=None)
