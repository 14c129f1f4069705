"""The endpoint of a node, as Prometheus sees it: read over HTTP by prometheus_client's own parser. Figures of GPUs and
of the job are made up."""

import contextlib
import socket
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import cast

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.parser import text_string_to_metric_families as plain_families

from convoy.gang.telemetry.gpus import GpuReading
from convoy.gang.telemetry.host import Bytes, NodeSample
from convoy.gang.telemetry.sampler import HardwareSampler
from convoy.job.events.registry import Rent
from convoy.launch.monitor import endpoint
from convoy.launch.monitor.endpoint import MOST_CONNECTIONS, MetricsEndpoint
from convoy.launch.monitor.metrics import METRICS
from convoy.launch.monitor.ports import listen_everywhere
from convoy.report.fold import fold
from convoy.report.train_report import TrainReport
from tests.gang.tasks import wait_for
from tests.report.synthetic import Log

OPENMETRICS = "application/openmetrics-text; version=1.0.0"

SAMPLE = NodeSample(
    t=0.0, seconds=5.0, cpu=0.25, memory_used_bytes=3_000, memory_total_bytes=4_000, disk_free_bytes=500,
    network=Bytes(1, 2), rdma=Bytes(3, 4), interfaces={"eth0": Bytes(10, 20), "eth1": Bytes(30, 40)},
    rails={"efa0/1": Bytes(50, 60)},
    gpus=(
        GpuReading(0, 0.9, 60, 80, 650.5, 70.0, 1.98e9, ()),
        GpuReading(1, 0.8, 61, 80, 640.0, 91.0, 1.2e9, ("thermal slowdown by hardware",)),
    ),
)  # fmt: skip


def a_report() -> TrainReport:
    rent = Rent(instance="p5.48xlarge", market="spot", region="us-east-1", usd_per_hour=36.0)
    log = Log(rents={0: rent, 1: rent}, t=time.time() - 3600)
    log.start()
    log.steps(1, 20, every=20)
    log.restart(20, parent=(0, 20))
    return fold(log.events, 40)


@dataclass
class Served:
    endpoint: MetricsEndpoint
    port: int

    def scrape(self, accept: str = OPENMETRICS) -> str:
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/metrics", headers={"Accept": accept})
        with urllib.request.urlopen(request, timeout=20) as answer:
            assert answer.headers["Content-Type"].startswith(accept.split(";")[0])
            text: str = answer.read().decode()
            return text

    def values(self) -> dict[tuple[str, tuple[str, ...]], float]:
        """By sample name and the values of its own labels."""
        found = {}
        for family in text_string_to_metric_families(self.scrape()):
            for sample in family.samples:
                labels = dict(sample.labels)
                assert (labels.pop("convoy_job"), labels.pop("convoy_node")) == ("job", "3")
                found[sample.name, tuple(labels.values())] = sample.value
        return found


@pytest.fixture
def served() -> Iterator[Served]:
    with listen_everywhere(0) as free:
        port = free.getsockname()[1]
    with MetricsEndpoint(port, "job", 3) as running:
        yield Served(running, port)


def watch(served: Served, sample: NodeSample = SAMPLE) -> None:
    served.endpoint.watch(cast(HardwareSampler, SimpleNamespace(newest=replace(sample, t=time.time() - 2))))


def test_every_metric_is_served_under_its_name_with_its_unit_and_help(served: Served) -> None:
    watch(served)
    served.endpoint.publish(a_report())
    families = {family.name: family for family in text_string_to_metric_families(served.scrape())}
    assert list(families) == [metric.name for metric in METRICS]
    for metric in METRICS:
        family = families[metric.name]
        assert (family.type, family.unit, family.documentation) == (metric.kind, metric.unit, metric.help)
        assert {sample.name for sample in family.samples} == {metric.sample_name}
    assert {family.name for family in plain_families(served.scrape("text/plain"))} >= {
        "convoy_step",
        "convoy_incidents",
    }


def test_the_job_s_figures_are_those_of_its_report(served: Served) -> None:
    report = a_report()
    served.endpoint.publish(report)
    values = served.values()
    assert report.goodput is not None
    assert report.cost is not None
    assert report.cost.total is not None
    assert report.cost.total > 0
    assert values["convoy_step", ()] == report.step == 20
    assert values["convoy_loss", ()] == report.steps[-1].loss
    assert values["convoy_tokens_per_second", ()] == report.steps[-1].tokens_per_second
    assert values["convoy_goodput_ratio", ()] == report.goodput.share
    assert values["convoy_incidents_total", ()] == len(report.incidents) == 1
    assert values["convoy_cost_usd", ()] == float(report.cost.total)
    assert values["convoy_checkpoint_age_seconds", ()] == pytest.approx(time.time() - report.checkpoints[-1].t, abs=30)
    assert values["convoy_event_age_seconds", ()] < values["convoy_checkpoint_age_seconds", ()]


def test_the_node_s_figures_are_those_of_its_newest_sample(served: Served) -> None:
    watch(served)
    values = served.values()
    assert values["convoy_gpu_utilisation_ratio", ("1",)] == 0.8
    assert values["convoy_gpu_power_watts", ("0",)] == 650.5
    assert values["convoy_gpu_throttled", ("1", "thermal slowdown by hardware")] == 1
    assert values["convoy_network_sent_bytes_total", ("eth1",)] == 30
    assert values["convoy_rdma_received_bytes_total", ("efa0/1",)] == 60
    assert values["convoy_cpu_utilisation_ratio", ()] == 0.25
    assert 2 <= values["convoy_sample_age_seconds", ()] < 30
    watch(served, replace(SAMPLE, gpus=(), disk_free_bytes=None, cpu=0.75))
    values = served.values()
    assert values["convoy_cpu_utilisation_ratio", ()] == 0.75
    assert not {name for name, _ in values if "gpu" in name or "disk" in name}


def test_what_is_not_known_yet_is_absent(served: Served) -> None:
    assert served.values() == {}
    log = Log()
    log.form(1)
    served.endpoint.publish(fold(log.events))
    names = {name for name, _ in served.values()}
    assert {"convoy_loss", "convoy_cost_usd", "convoy_checkpoint_age_seconds"} & names == set()
    assert {"convoy_step", "convoy_incidents_total"} <= names


def test_scrapers_that_hang_keep_nobody_waiting(served: Served) -> None:
    watch(served)
    hanging = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(10)]
    for i, each in enumerate(hanging[::2]):
        each.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n" + b"\r\n" * (i % 2))  # half a request, or no reader
    began = time.monotonic()
    assert served.values()
    served.endpoint.publish(a_report())
    assert time.monotonic() - began < 5
    for each in hanging:
        each.close()
    assert served.values()


def is_closed(client: socket.socket) -> bool:
    """By the other side. Waits for nothing."""
    client.setblocking(False)
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def test_idle_connections_take_a_limited_number_of_threads(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "CONNECTION_SECONDS", 600.0)
    idle = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(MOST_CONNECTIONS + 30)]
    wait_for("the end of those that are too many", lambda: sum(map(is_closed, idle)) >= 30)
    assert sum(map(is_closed, idle)) == 30
    for each in idle:
        each.close()
    wait_for("an answer to the next scraper", lambda: answers(served))


def test_a_connection_is_closed_though_its_scraper_sends_a_byte_now_and_then(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(MOST_CONNECTIONS)]
    monkeypatch.setattr(endpoint, "CONNECTION_SECONDS", 0.5)

    def are_closed_though_they_send() -> bool:
        for each in slow:
            with contextlib.suppress(ConnectionError):
                each.send(b"G")
        return all(map(is_closed, slow))

    wait_for("the end of the slow ones", are_closed_though_they_send)
    wait_for("an answer to the next scraper", lambda: answers(served))
    for each in slow:
        each.close()


def test_an_endpoint_looks_after_connections_only_while_there_are_any(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it costs nothing between two scrapes."""
    looks: list[float] = []
    look = endpoint._Server.close_connections
    monkeypatch.setattr(endpoint, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(
        endpoint._Server, "close_connections", lambda self, seconds: (looks.append(seconds), look(self, seconds))
    )
    with socket.create_connection(("127.0.0.1", served.port)):
        wait_for("several looks", lambda: len(looks) > 10)

    def are_over() -> bool:
        before = len(looks)
        time.sleep(0.1)
        return len(looks) == before

    wait_for("the end of the looks", are_over)
    assert served.scrape()


def answers(served: Served) -> bool:
    try:
        return served.scrape() != ""
    except OSError:  # the threads of those before it have not ended yet
        return False


def test_its_end_waits_for_no_scraper_and_frees_the_port(served: Served) -> None:
    with listen_everywhere(0) as free:
        port = free.getsockname()[1]
    with MetricsEndpoint(port, "job", 0):
        hanging = socket.create_connection(("127.0.0.1", port))
        began = time.monotonic()
    assert time.monotonic() - began < 5
    listen_everywhere(port).close()
    hanging.close()
