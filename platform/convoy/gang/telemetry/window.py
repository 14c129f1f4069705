"""From samples to events of the log: how many samples one event covers, and what it keeps of them. Pure."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from convoy.gang.telemetry.gpus import GpuReading
from convoy.job.events.hardware import GpusSampled, HardwareSampled, Throttled, ThrottleReason

if TYPE_CHECKING:  # imports psutil
    from convoy.gang.telemetry.host import NodeSample

SAMPLE_SECONDS = 5.0
"""From one sample to the next."""

SHARE_OF_AGE = 1 / 60
"""An event covers at least this share of the time since the first sample. So the log of a short job has every sample,
and that of a day has what a chart can show."""

MOST_SECONDS = 3600.0
"""An event covers no more than this. In an attempt of ten days a node writes about 640 events, of which on an object
store each is an object; 128 nodes of 8 GPUs write 81,000, which are 42 MB. Each attempt begins anew with an
event for each sample, and a node writes 210 in its first hour."""


class SampleWindow:
    """Gathers samples until an event is due."""

    def __init__(self, no_gpus: str = "") -> None:
        """no_gpus: why GPUs that are there cannot be asked."""
        self._no_gpus = no_gpus
        self._samples: list[NodeSample] = []
        self._seconds = 0.0

    def add(self, sample: "NodeSample") -> HardwareSampled | None:
        """The event of all samples since the last one, when it is due with this sample."""
        self._samples.append(sample)
        self._seconds += sample.seconds
        due = min(SHARE_OF_AGE * self._seconds, MOST_SECONDS)
        # A sample comes a little early or late.
        covered = sum(each.seconds for each in self._samples) + SAMPLE_SECONDS / 2
        return self.take() if covered > due else None

    def take(self) -> HardwareSampled | None:
        """The event of the samples since the last one; None: there are none."""
        samples, self._samples = self._samples, []
        return summarise(samples, self._no_gpus) if samples else None


def summarise(samples: "Sequence[NodeSample]", no_gpus: str = "") -> HardwareSampled:
    """The event of consecutive samples, at least one. Means are weighted by the samples' seconds."""
    seconds = sum(each.seconds for each in samples)
    disks = [each.disk_free_bytes for each in samples if each.disk_free_bytes is not None]
    rdma = [each.rdma for each in samples if each.rdma is not None]
    readings = [gpu for each in samples for gpu in each.gpus]
    return HardwareSampled(
        seconds=round(seconds, 3),
        samples=len(samples),
        cpu=round(sum(each.cpu * each.seconds for each in samples) / seconds, 4),
        memory_bytes=max(each.memory_used_bytes for each in samples),
        memory_total_bytes=samples[-1].memory_total_bytes,
        disk_free_bytes=min(disks, default=None),
        sent_bytes_per_second=round(sum(each.network.sent for each in samples) / seconds),
        received_bytes_per_second=round(sum(each.network.received for each in samples) / seconds),
        rdma_sent_bytes_per_second=round(sum(each.sent for each in rdma) / seconds) if rdma else None,
        rdma_received_bytes_per_second=round(sum(each.received for each in rdma) / seconds) if rdma else None,
        gpus=_summarise_gpus(readings) if readings else None,
        no_gpus=no_gpus,
    )


def _summarise_gpus(readings: Sequence[GpuReading]) -> GpusSampled:
    by_gpu: dict[int, list[GpuReading]] = {}
    for reading in readings:
        by_gpu.setdefault(reading.index, []).append(reading)
    busy = [mean for own in by_gpu.values() if (mean := _mean(own, lambda gpu: gpu.utilisation)) is not None]
    temperatures = [gpu.temperature_celsius for gpu in readings if gpu.temperature_celsius is not None]
    used = [gpu.memory_used_bytes for gpu in readings if gpu.memory_used_bytes is not None]
    totals = [gpu.memory_total_bytes for gpu in readings if gpu.memory_total_bytes is not None]
    return GpusSampled(
        count=len(by_gpu),
        utilisation=_mean(readings, lambda gpu: gpu.utilisation, 4),
        lowest_utilisation=round(min(busy), 4) if busy else None,
        power_watts=_mean(readings, lambda gpu: gpu.power_watts, 1),
        temperature_celsius=max(temperatures, default=None),
        memory_bytes=max(used, default=None),
        memory_total_bytes=max(totals, default=None),
        sm_clock_hertz=_mean(readings, lambda gpu: gpu.sm_clock_hertz, -6),
        throttled=tuple(_throttled(readings)),
    )


def _mean(readings: Sequence[GpuReading], value: Callable[[GpuReading], float | None], digits: int = 6) -> float | None:
    known = [each for gpu in readings if (each := value(gpu)) is not None and math.isfinite(each)]
    return round(sum(known) / len(known), digits) if known else None


def _throttled(readings: Sequence[GpuReading]) -> Iterator[Throttled]:
    reasons: dict[ThrottleReason, list[int]] = {}
    for gpu in readings:
        for reason in gpu.throttled:
            reasons.setdefault(reason, []).append(gpu.index)
    for reason, indices in reasons.items():
        share = round(len(indices) / len(readings), 4)
        yield Throttled(reason=reason, gpus=tuple(sorted(set(indices))), share=share)
