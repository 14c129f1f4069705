"""The endpoint of the gang's step: of a real gang that is scraped while a worker is killed; and one that cannot be
opened costs a line of output, not the gang."""

import os
import signal
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from convoy.config.monitor import MonitorConfig
from convoy.gang import agent
from convoy.gang.task import Task
from convoy.gang.telemetry.sampler import HardwareSampler
from convoy.job.events.registry import FailureDetected, StepDone
from convoy.launch.gang import step as gang_step
from convoy.launch.gang.step import run_gang_step
from convoy.launch.monitor import endpoint, ports
from convoy.launch.monitor.endpoint import MetricsEndpoint
from convoy.launch.monitor.ports import listen_everywhere
from tests.gang.tasks import a_node, a_task, events_of, wait_for

OPENMETRICS = {"Accept": "application/openmetrics-text; version=1.0.0"}


def with_port(task: Task, port: int) -> Task:
    """With metrics of the job as often as possible."""
    shown = task.config.report.model_copy(update={"card_refresh_seconds": 1.0})
    return replace(task, config=task.config.model_copy(update={"monitor": MonitorConfig(port=port), "report": shown}))


def scrape(port: int) -> Mapping[str, float]:
    """By sample name, of those without labels of their own; empty: nothing listens."""
    try:
        request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers=OPENMETRICS)
        with urllib.request.urlopen(request, timeout=20) as answer:
            families = text_string_to_metric_families(answer.read().decode())
            return {sample.name: sample.value for family in families for sample in family.samples}
    except OSError:
        return {}


def is_served(port: int) -> bool:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20).close()
    except OSError:
        return False
    return True


def run_step(task: Task, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], object] = lambda: None) -> bool:
    """The step with something else in place of its gang. Returns whether it had an endpoint."""
    endpoints: list[MetricsEndpoint | None] = []

    def gang(task: Task, node: Any, draw: Any, live: Any, plan: Any, endpoint: MetricsEndpoint | None) -> None:
        endpoints.append(endpoint)
        meanwhile()

    monkeypatch.setattr(gang_step, "_run_lead_node", gang)
    run_gang_step(task, a_node(nproc=1), lambda page, how: None, "")
    (found,) = endpoints
    return found is not None


def test_a_node_whose_port_is_taken_trains_and_serves_as_soon_as_the_port_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(endpoint, "RETRY_SECONDS", 0.05)
    with listen_everywhere(0) as listener:
        port = listener.getsockname()[1]

        def free_it() -> None:
            listener.close()
            wait_for("the endpoint", lambda: is_served(port))

        assert run_step(with_port(a_task(str(tmp_path)), port), monkeypatch, free_it)
    why = f"port {port} cannot be used (Address already in use); its metrics are served as soon as it can"
    assert capsys.readouterr().err == f"convoy: node 0: {why}\n"
    listen_everywhere(port).close()


def test_a_node_whose_port_stays_taken_ends_as_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with listen_everywhere(0) as listener:
        began = time.monotonic()
        assert run_step(with_port(a_task(str(tmp_path)), listener.getsockname()[1]), monkeypatch)
        assert time.monotonic() - began < endpoint.RETRY_SECONDS


def test_a_node_without_the_package_trains_without_an_endpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ports, "find_spec", lambda name: None)
    assert not run_step(with_port(a_task(str(tmp_path)), 9400), monkeypatch)
    why = "monitor.port = 9400: needs the extra: pip install 'metaflow-convoy[prometheus]'"
    assert capsys.readouterr().err == f"convoy: node 0: its metrics are not served: {why}\n"


@pytest.mark.slow
def test_a_gang_is_scraped_while_a_worker_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "HardwareSampler", partial(HardwareSampler, every_seconds=0.2))
    with listen_everywhere(0) as free:
        port = free.getsockname()[1]
    task = with_port(a_task(str(tmp_path), train={"steps": 100_000, "threads_per_rank": 1}), port)
    workers = _workers_of(monkeypatch)
    step = threading.Thread(target=run_gang_step, args=(task, a_node(), lambda page, how: None, ""), daemon=True)
    step.start()
    wait_for("two steps", lambda: scrape(port).get("convoy_step", 0) >= 2)
    os.kill(workers()[1], signal.SIGKILL)
    seen: list[Mapping[str, float]] = []

    def recovered() -> bool:
        seen.append(scrape(port))
        trained = [e for e in events_of(task) if isinstance(e, StepDone) and e.generation == 2]
        return bool(trained) and seen[-1].get("convoy_incidents_total") == 1

    wait_for("the incident, and steps after it", recovered)
    os.kill(workers()[0], signal.SIGTERM)
    step.join(60)

    assert not step.is_alive()
    assert all(values for values in seen)
    events = events_of(task)
    assert [e.signal for e in events if isinstance(e, FailureDetected)] == ["SIGKILL"]
    incidents = [values["convoy_incidents_total"] for values in seen]
    assert incidents == sorted(incidents)
    assert {values["convoy_loss"] for values in seen} <= {e.loss for e in events if isinstance(e, StepDone)}
    assert any(0 <= values.get("convoy_cpu_utilisation_ratio", -1) <= 1 for values in seen)
    listen_everywhere(port).close()


def _workers_of(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Process ids of the workers of the gang that the step starts next."""
    gangs: list[agent.Gang] = []
    entered = agent.Gang.__enter__

    def enter(gang: agent.Gang) -> agent.Gang:
        gangs.append(gang)
        return entered(gang)

    monkeypatch.setattr(agent.Gang, "__enter__", enter)
    return lambda: [worker.pid for worker in gangs[0].workers.workers] if gangs[0].workers else []
