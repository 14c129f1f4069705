"""Events of a node's hardware while a gang runs."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

from convoy.job.events.event import Event

ThrottleReason = Literal[
    "power cap", "hardware slowdown", "thermal slowdown by software", "thermal slowdown by hardware", "power brake"
]
"""What keeps a GPU's clock below what it was asked for. At full load many GPUs run into their power cap by design."""


class Throttled(BaseModel):
    """GPUs of a node whose clock was kept down for one reason."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    reason: ThrottleReason
    gpus: tuple[int, ...]
    """Those that reported it at least once."""
    share: float
    """Of the readings of all the node's GPUs."""


class GpusSampled(BaseModel):
    """All GPUs of a node's workers. None: no GPU reported this."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    count: int
    utilisation: float | None
    """Share of the time in which a kernel ran; mean over GPUs and readings."""
    lowest_utilisation: float | None
    """Of the GPU with the lowest mean."""
    power_watts: float | None
    """Of one GPU; mean over GPUs and readings."""
    temperature_celsius: float | None
    """Highest of any."""
    memory_bytes: int | None
    """Highest of any, whatever process holds it."""
    memory_total_bytes: int | None
    """Of one GPU."""
    sm_clock_hertz: float | None
    """Mean over GPUs and readings."""
    throttled: tuple[Throttled, ...] = ()


class HardwareSampled(Event):
    """A node's hardware over some seconds, from samples of every five seconds (agent). One event covers more of them
    the longer the agent runs: docs/guides/watch.md#what-is-sampled."""

    kind: Literal["hardware_sampled"] = "hardware_sampled"
    seconds: float
    """That end with this event."""
    samples: int
    cpu: float
    """Share of all cores' time in which they were busy."""
    memory_bytes: int
    """Highest; of the host, without what can be reclaimed."""
    memory_total_bytes: int
    disk_free_bytes: int | None = None
    """Lowest; of the file system that holds the job's root. None: it is a bucket, or did not answer."""
    sent_bytes_per_second: float
    """By all network interfaces of the host but the loopback."""
    received_bytes_per_second: float
    rdma_sent_bytes_per_second: float | None = None
    """By all RDMA adapters, whose traffic the network interfaces do not count. None: there are none."""
    rdma_received_bytes_per_second: float | None = None
    gpus: GpusSampled | None = None
    """None: the node's workers have no GPU, or it cannot be asked."""
    no_gpus: str = ""
    """Why GPUs that are there cannot be asked; empty: they are, or there are none."""
