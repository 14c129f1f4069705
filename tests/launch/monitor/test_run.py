"""A real gang with an endpoint, through the gang's step: scraped while a worker is killed, and with a port that is
taken."""

import os
import signal
import threading
import urllib.request
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from convoy.config.errors import ConfigError
from convoy.config.monitor import MonitorConfig
from convoy.gang import agent
from convoy.gang.task import Task
from convoy.gang.telemetry.sampler import HardwareSampler
from convoy.job.events.registry import FailureDetected, StepDone
from convoy.launch.gang.step import run_gang_step
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


def test_a_port_that_is_taken_ends_the_step_before_a_gang_exists(tmp_path: Path) -> None:
    with listen_everywhere(0) as listener:
        port = listener.getsockname()[1]
        task = with_port(a_task(str(tmp_path)), port)
        with pytest.raises(
            ConfigError, match=rf"^monitor.port = {port}: it cannot be used on .*; choose another port$"
        ):
            run_gang_step(task, a_node(nproc=1), lambda page, how: None, "")
    assert not (tmp_path / "job" / "generations").exists()


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
