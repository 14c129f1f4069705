"""The HTTP server of a node that Prometheus scrapes. It has threads of its own, and only reads what others computed."""

import contextlib
import os
import selectors
import socket
import socketserver
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.core import Metric as MetricFamily

from convoy.gang.async_call import say
from convoy.gang.telemetry.sampler import HardwareSampler
from convoy.launch.monitor.metrics import COMMON_LABELS, METRICS, Scrape
from convoy.launch.monitor.ports import listen_everywhere
from convoy.report.train_report import TrainReport

MOST_CONNECTIONS = 16
"""Each holds a thread and a file descriptor of the agent; one more is closed at once."""

CONNECTION_SECONDS = 10.0
"""A connection that lasts longer is closed, however little the scraper sends or takes at a time."""

POLL_SECONDS = 1.0
"""From one look at the age of connections to the next, while there are any. An endpoint that nobody scrapes sleeps."""

RETRY_SECONDS = 5.0
"""Between two attempts to open a port that is taken."""

END_SECONDS = 5.0
"""For the thread to end; nothing in it takes that long."""


class MetricsEndpoint:
    """Serves the metrics of a node while a `with` block runs."""

    def __init__(self, port: int, job: str, node: int) -> None:
        """While the port cannot be used, as when a process of the previous attempt still has it, nothing is served, and
        the endpoint tries again."""
        self._port, self._labels = port, (job, str(node))
        self._report: TrainReport | None = None
        self._sampler: HardwareSampler | None = None
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        self._app = make_wsgi_app(registry)
        self._over = threading.Event()

    def __enter__(self) -> "MetricsEndpoint":
        server = self._open(report_failure=True)
        self._wake, self._woken = socket.socketpair()  # the second one becomes readable when the first one is closed
        self._thread = threading.Thread(target=self._serve_until_over, args=(server,), name="metrics", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._wake.close()
        self._thread.join(END_SECONDS)
        self._woken.close()

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

    def _open(self, *, report_failure: bool = False) -> "_Server | None":
        """The server at the port; None: the port cannot be used now."""
        try:
            server = _Server(self._port)
        except (OSError, OverflowError) as error:  # OverflowError: there is no such port
            if report_failure:
                why = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
                text = f"port {self._port} cannot be used ({why}); its metrics are served as soon as it can"
                say(f"convoy: node {self._labels[1]}: {text}", error=True)
            return None
        server.set_app(self._app)
        return server

    def _serve_until_over(self, server: "_Server | None") -> None:
        while server is None and not self._over.wait(RETRY_SECONDS):
            server = self._open()
        if server is None:
            return
        with server, selectors.DefaultSelector() as events:
            events.register(server, selectors.EVENT_READ)
            events.register(self._woken, selectors.EVENT_READ)
            while not self._over.is_set():
                events.select(POLL_SECONDS if server.has_connections else None)
                server.handle_request()
                server.close_connections(CONNECTION_SECONDS)
            server.close_connections(0.0)


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    """Has a socket of its own: HTTPServer asks the DNS for this host's name when it binds one, and may wait for it."""

    daemon_threads = True
    timeout = 0.0
    """`handle_request` waits for nobody."""

    def __init__(self, port: int) -> None:
        """Raises OSError or OverflowError if the port cannot be used."""
        super().__init__(("", port), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listen_everywhere(port)
        self.server_name, self.server_port = "", port
        self.setup_environ()
        self._free = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._accepted: dict[Any, float] = {}
        """The open connections, with when each was accepted by the monotonic clock."""

    @property
    def has_connections(self) -> bool:
        """Some are open."""
        return bool(self._accepted)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        self._accepted[request] = time.monotonic()
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started
            self._release(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._release(request)

    def close_connections(self, older_than_seconds: float) -> None:
        """End these connections; the threads that wait for them end by it."""
        accepted_before = time.monotonic() - older_than_seconds
        for request, accepted in self._accepted.copy().items():  # threads take theirs out meanwhile
            if accepted <= accepted_before:
                with contextlib.suppress(OSError):  # it has just ended by itself
                    request.shutdown(socket.SHUT_RDWR)

    def _release(self, request: Any) -> None:
        self._accepted.pop(request, None)
        self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A scraper that goes away is nobody's concern."""


class _Handler(WSGIRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Scrapes are not printed."""

    def address_string(self) -> str:
        return str(self.client_address[0])
