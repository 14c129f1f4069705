"""One sample of a node's hardware: what is sampled together, and who reads it."""

import contextlib
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from convoy.gang.async_call import BackgroundCall
from convoy.gang.telemetry.gpus import Gpu, GpuReading
from convoy.network.counters import SYSFS, Reading, Traffic, read_counters, traffic_between
from convoy.storage import StoreUnavailable

NOTHING = Reading(interfaces={}, rails={}, transport={})


@dataclass(frozen=True)
class Bytes:
    """Data that passed through one adapter, or through several."""

    sent: int
    received: int


@dataclass(frozen=True)
class NodeSample:
    """A node's hardware over the seconds since the sample before."""

    t: float
    """Unix time of its end."""
    seconds: float
    cpu: float
    """Share of all cores' time in which they were busy, from 0 to 1."""
    memory_used_bytes: int
    """Memory of the host that is not available to a new process."""
    memory_total_bytes: int
    disk_free_bytes: int | None
    """Of the file system that holds the job's root; None: the root is a bucket, or has not answered."""
    network: Bytes
    """Of all interfaces since the sample before: of those with hardware of their own or, as in a container that has
    none, of all but the loopback."""
    rdma: Bytes | None
    """Of all RDMA adapters since the sample before; the kernel's interfaces do not count it. None: there are none."""
    interfaces: Mapping[str, Bytes]
    """Since the interface appeared, by name; the same ones as in `network`."""
    rails: Mapping[str, Bytes]
    """Since the adapter appeared, by `DEVICE/PORT`."""
    gpus: tuple[GpuReading, ...]
    """Of this node's workers."""


class NodeReader:
    """Takes samples one after the other. Used by one thread."""

    def __init__(self, gpus: Sequence[Gpu], root: Path | None) -> None:
        """gpus: of this node's workers. root: of the job; None: it is not a folder."""
        self._gpus = gpus
        self._disk = None if root is None else _FreeSpace(root)
        psutil.cpu_percent()  # each call covers the time since the one before
        self._counters, self._at = read_counters(), time.monotonic()

    def read(self) -> NodeSample:
        """The sample from the last call until now. Raises OSError if the kernel does not report something."""
        counters, at = read_counters(), time.monotonic()
        seconds = at - self._at
        traffic = traffic_between(self._counters, counters, seconds)
        total = traffic_between(NOTHING, counters, seconds)
        self._counters, self._at = counters, at
        names, memory = _counted_interfaces(total), psutil.virtual_memory()
        return NodeSample(
            t=time.time(),
            seconds=seconds,
            cpu=psutil.cpu_percent() / 100,
            memory_used_bytes=memory.total - memory.available,
            memory_total_bytes=memory.total,
            disk_free_bytes=None if self._disk is None else self._disk.newest(),
            network=_sum_of([each for name, each in _interfaces(traffic).items() if name in names]),
            rdma=_sum_of(list(_rails(traffic).values())) if counters.rails else None,
            interfaces={name: each for name, each in _interfaces(total).items() if name in names},
            rails=_rails(total),
            gpus=tuple(gpu.read() for gpu in self._gpus),
        )


class _FreeSpace:
    """Free bytes of a file system, without a wait for one that hangs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._call = self._begin()

    def newest(self) -> int | None:
        """By a call that began with the last sample; None: it has not returned, or failed."""
        if not self._call.is_over:
            return None
        free = None
        with contextlib.suppress(StoreUnavailable, OSError):
            free = self._call.result()
        self._call = self._begin()
        return free

    def _begin(self) -> BackgroundCall[int]:
        folder = str(self._folder)
        return BackgroundCall("free space", lambda: psutil.disk_usage(folder).free, math.inf)


def _interfaces(traffic: Traffic) -> dict[str, Bytes]:
    return {each.name: Bytes(each.sent_bytes, each.received_bytes) for each in traffic.interfaces}


def _rails(traffic: Traffic) -> dict[str, Bytes]:
    return {each.name: Bytes(each.sent_bytes, each.received_bytes) for each in traffic.rails}


def _counted_interfaces(traffic: Traffic) -> frozenset[str]:
    """Bridges and the host's ends of its containers' interfaces carry the bytes of a real one a second time."""
    names = frozenset(each.name for each in traffic.interfaces if not each.loopback)
    return frozenset(name for name in names if (SYSFS / "class/net" / name / "device").exists()) or names


def _sum_of(adapters: Sequence[Bytes]) -> Bytes:
    return Bytes(sum(each.sent for each in adapters), sum(each.received for each in adapters))
