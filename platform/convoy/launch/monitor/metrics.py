"""Every metric of the endpoint, described once: the endpoint, the dashboard and the documentation read `METRICS`."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:  # `tools/monitoring.py` and the checks before a run need neither
    from convoy.gang.telemetry.gpus import GpuReading
    from convoy.gang.telemetry.host import Bytes, NodeSample
    from convoy.report.train_report import TrainReport

Group = Literal["Job", "GPUs", "Host"]

COMMON_LABELS = ("convoy_job", "convoy_node")
"""Of every metric. `job` and `instance` are Prometheus's own."""


@dataclass(frozen=True)
class Scrape:
    """What a node knows when it is scraped."""

    now: float
    """Unix time."""
    report: "TrainReport | None"
    """Of the whole job, on node 0; None on other nodes, and before the event log was read."""
    sample: "NodeSample | None"
    """The newest one of the node; None: there is none yet."""


Point = tuple[tuple[str, ...], float]
"""Values of the metric's own labels, and its value."""


@dataclass(frozen=True)
class Metric:
    """A metric, as OpenMetrics describes one, and where its values come from."""

    name: str
    """Ends with its unit, if it has one; of a counter without `_total`."""
    unit: str
    """One of OpenMetrics' base units; empty: a plain number."""
    help: str
    group: Group
    title: str
    """Of its panel on the dashboard."""
    values: Callable[[Scrape], Iterator[Point]]
    kind: Literal["gauge", "counter"] = "gauge"
    labels: tuple[str, ...] = ()
    is_rate: bool = False
    """The dashboard shows its growth per second."""

    @property
    def sample_name(self) -> str:
        """As a query names it."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


def _of_job(value: "Callable[[TrainReport], float | None]") -> Callable[[Scrape], Iterator[Point]]:
    def values(scrape: Scrape) -> Iterator[Point]:
        found = None if scrape.report is None else value(scrape.report)
        if found is not None:
            yield (), found

    return values


def _of_node(value: "Callable[[NodeSample], float | None]") -> Callable[[Scrape], Iterator[Point]]:
    def values(scrape: Scrape) -> Iterator[Point]:
        found = None if scrape.sample is None else value(scrape.sample)
        if found is not None:
            yield (), found

    return values


def _of_gpus(value: "Callable[[GpuReading], float | None]") -> Callable[[Scrape], Iterator[Point]]:
    def values(scrape: Scrape) -> Iterator[Point]:
        for gpu in scrape.sample.gpus if scrape.sample else ():
            found = value(gpu)
            if found is not None:
                yield (str(gpu.index),), found

    return values


def _of_adapters(
    adapters: "Callable[[NodeSample], Mapping[str, Bytes]]", count: "Callable[[Bytes], int]"
) -> Callable[[Scrape], Iterator[Point]]:
    def values(scrape: Scrape) -> Iterator[Point]:
        for name, counted in adapters(scrape.sample).items() if scrape.sample else ():
            yield (name,), count(counted)

    return values


def _checkpoint_age(scrape: Scrape) -> Iterator[Point]:
    if scrape.report is not None and scrape.report.checkpoints:
        yield (), scrape.now - scrape.report.checkpoints[-1].t


def _event_age(scrape: Scrape) -> Iterator[Point]:
    if scrape.report is not None and scrape.report.last_event is not None:
        yield (), scrape.now - scrape.report.last_event


def _throttled(scrape: Scrape) -> Iterator[Point]:
    for gpu in scrape.sample.gpus if scrape.sample else ():
        for reason in gpu.throttled:
            yield (str(gpu.index), reason), 1.0


METRICS: tuple[Metric, ...] = (
    Metric(
        "convoy_step", "", "Optimizer steps that are done and count.",
        "Job", "Step", _of_job(lambda job: job.step),
    ),
    Metric(
        "convoy_loss", "", "Training loss of the newest logged step; nats per token, or the mean loss of a module.",
        "Job", "Training loss", _of_job(lambda job: job.steps[-1].loss if job.steps else None),
    ),
    Metric(
        "convoy_tokens_per_second", "",
        "Tokens per second of the whole gang in the newest logged step, or the samples of a user's dataset.",
        "Job", "Tokens per second", _of_job(lambda job: job.steps[-1].tokens_per_second if job.steps else None),
    ),
    Metric(
        "convoy_goodput_ratio", "ratio", "Share of the nodes' time so far in which the job progressed.",
        "Job", "Goodput", _of_job(lambda job: job.goodput.share if job.goodput else None),
    ),
    Metric(
        "convoy_checkpoint_age_seconds", "seconds",
        "Time since the newest checkpoint that can be restored; since it was restored, if its save is not in the log.",
        "Job", "Age of the newest checkpoint", _checkpoint_age,
    ),
    Metric(
        "convoy_incidents", "", "Failures and preemptions of the job so far.",
        "Job", "Incidents", _of_job(lambda job: len(job.incidents)), kind="counter",
    ),
    Metric(
        "convoy_cost_usd", "usd",
        "Cost of the job so far: machines, storage, requests, transfer and file system, as far as prices are known.",
        "Job", "Cost", _of_job(lambda job: float(job.cost.total) if job.cost and job.cost.total is not None else None),
    ),
    Metric(
        "convoy_event_age_seconds", "seconds",
        "Time since the newest event that the metrics of the job were computed from.",
        "Job", "Age of the newest event", _event_age,
    ),
    Metric(
        "convoy_gpu_utilisation_ratio", "ratio", "Share of the driver's last period in which a kernel ran on the GPU.",
        "GPUs", "GPU utilisation", _of_gpus(lambda gpu: gpu.utilisation), labels=("gpu",),
    ),
    Metric(
        "convoy_gpu_memory_used_bytes", "bytes", "Memory of the GPU that any process holds.",
        "GPUs", "GPU memory", _of_gpus(lambda gpu: gpu.memory_used_bytes), labels=("gpu",),
    ),
    Metric(
        "convoy_gpu_power_watts", "watts", "Power that the GPU draws.",
        "GPUs", "GPU power", _of_gpus(lambda gpu: gpu.power_watts), labels=("gpu",),
    ),
    Metric(
        "convoy_gpu_temperature_celsius", "celsius", "Temperature of the GPU.",
        "GPUs", "GPU temperature", _of_gpus(lambda gpu: gpu.temperature_celsius), labels=("gpu",),
    ),
    Metric(
        "convoy_gpu_sm_clock_hertz", "hertz", "Clock of the GPU's multiprocessors.",
        "GPUs", "SM clock", _of_gpus(lambda gpu: gpu.sm_clock_hertz), labels=("gpu",),
    ),
    Metric(
        "convoy_gpu_throttled", "", "1 while the reason keeps the GPU's clock down; absent while it does not.",
        "GPUs", "Throttled GPUs", _throttled, labels=("gpu", "reason"),
    ),
    Metric(
        "convoy_cpu_utilisation_ratio", "ratio", "Share of all cores' time in the last five seconds that was busy.",
        "Host", "CPU utilisation", _of_node(lambda node: node.cpu),
    ),
    Metric(
        "convoy_memory_used_bytes", "bytes", "Memory of the host that is not available to a new process.",
        "Host", "Host memory", _of_node(lambda node: node.memory_used_bytes),
    ),
    Metric(
        "convoy_disk_free_bytes", "bytes", "Free space of the file system with the job's root, if that is a folder.",
        "Host", "Free space of the root", _of_node(lambda node: node.disk_free_bytes),
    ),
    Metric(
        "convoy_network_sent_bytes", "bytes", "Bytes that a network interface sent since it appeared.",
        "Host", "Sent by network interfaces", _of_adapters(lambda node: node.interfaces, lambda count: count.sent),
        kind="counter", labels=("device",), is_rate=True,
    ),
    Metric(
        "convoy_network_received_bytes", "bytes", "Bytes that a network interface received since it appeared.",
        "Host", "Received by network interfaces",
        _of_adapters(lambda node: node.interfaces, lambda count: count.received),
        kind="counter", labels=("device",), is_rate=True,
    ),
    Metric(
        "convoy_rdma_sent_bytes", "bytes", "Bytes that a port of an RDMA adapter, such as EFA, sent since it appeared.",
        "Host", "Sent by RDMA", _of_adapters(lambda node: node.rails, lambda count: count.sent),
        kind="counter", labels=("device",), is_rate=True,
    ),
    Metric(
        "convoy_rdma_received_bytes", "bytes",
        "Bytes that a port of an RDMA adapter, such as EFA, received since it appeared.",
        "Host", "Received by RDMA", _of_adapters(lambda node: node.rails, lambda count: count.received),
        kind="counter", labels=("device",), is_rate=True,
    ),
    Metric(
        "convoy_sample_age_seconds", "seconds", "Time since the newest sample of the node's hardware.",
        "Host", "Age of the newest sample", lambda scrape: (
            ((), scrape.now - sample.t) for sample in ((scrape.sample,) if scrape.sample else ())
        ),
    ),
)  # fmt: skip
"""In the order of the endpoint, the dashboard and the documentation."""
