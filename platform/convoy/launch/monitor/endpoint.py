"""The HTTP server of a node that Prometheus scrapes. It has threads of its own, and only reads what others computed."""

import socketserver
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.core import Metric as MetricFamily

from convoy.gang.telemetry.sampler import HardwareSampler
from convoy.launch.monitor.metrics import COMMON_LABELS, METRICS, Scrape
from convoy.launch.monitor.ports import listen_everywhere
from convoy.report.train_report import TrainReport

REQUEST_SECONDS = 10.0
"""A scraper that sends or takes nothing for this long is disconnected; meanwhile it holds one thread."""

POLL_SECONDS = 0.1
"""Most that the end of the endpoint takes."""


class MetricsEndpoint:
    """Serves the metrics of a node while a `with` block runs."""

    def __init__(self, port: int, job: str, node: int) -> None:
        """Raises OSError if the port cannot be used."""
        self._labels = (job, str(node))
        self._report: TrainReport | None = None
        self._sampler: HardwareSampler | None = None
        registry = CollectorRegistry(auto_describe=False)
        self._server = _Server(port)
        self._server.set_app(make_wsgi_app(registry))
        registry.register(self)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(POLL_SECONDS,), name="metrics", daemon=True
        )

    def __enter__(self) -> "MetricsEndpoint":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def watch(self, sampler: HardwareSampler) -> None:
        """Serve its samples from now on."""
        self._sampler = sampler

    def publish(self, report: TrainReport) -> None:
        """Serve this report of the job from now on."""
        self._report = report

    def describe(self) -> Iterable[MetricFamily]:
        """Nothing is collected to learn the names."""
        return ()

    def collect(self) -> Iterator[MetricFamily]:
        """All metrics that have a value now, as prometheus_client asks for them."""
        sample = None if self._sampler is None else self._sampler.newest
        scrape = Scrape(time.time(), self._report, sample)
        for metric in METRICS:
            family_class = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            names = (*COMMON_LABELS, *metric.labels)
            family = family_class(metric.name, metric.help, labels=names, unit=metric.unit)
            for labels, value in metric.values(scrape):
                family.add_metric((*self._labels, *labels), value)
            if family.samples:
                yield family


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    """Has a socket of its own: HTTPServer asks the DNS for this host's name when it binds one, and may wait for it."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("", port), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listen_everywhere(port)
        self.server_name, self.server_port = "", port
        self.setup_environ()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A scraper that goes away is nobody's concern."""


class _Handler(WSGIRequestHandler):
    timeout = REQUEST_SECONDS

    def log_message(self, *_: Any) -> None:
        """Scrapes are not printed."""

    def address_string(self) -> str:
        return str(self.client_address[0])
