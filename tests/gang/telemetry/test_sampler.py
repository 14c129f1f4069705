"""The thread that samples: what it gives, and that nobody waits for it."""

import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from convoy.gang.telemetry import gpus
from convoy.gang.telemetry.sampler import HardwareSampler
from tests.gang.tasks import a_node, wait_for
from tests.gang.telemetry.fake_nvml import fake_nvml


def test_samples_become_events_while_it_runs_and_none_is_left_at_the_end(tmp_path: Path) -> None:
    with HardwareSampler(a_node(), tmp_path, every_seconds=0.01) as sampler:
        events = wait_for("an event", sampler.take_events)
    assert all(0 <= event.cpu <= 1 and event.samples == 1 for event in events)
    sampler.take_rest()
    assert sampler.take_rest() == sampler.take_events() == []


@pytest.mark.parametrize(
    ("index", "shares_host", "expected"),
    [(0, True, [0.90, 0.91]), (1, True, [0.92, 0.93]), (1, False, [0.90, 0.91])],
)
def test_a_node_samples_the_gpus_of_its_own_workers(
    monkeypatch: pytest.MonkeyPatch, index: int, shares_host: bool, expected: list[float]
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(4))
    node = replace(a_node(nproc=2, index=index, nodes=2), shares_host=shares_host)
    with HardwareSampler(node, None, every_seconds=0.01) as sampler:
        sample = wait_for("a sample", lambda: sampler.newest)
    assert [gpu.utilisation for gpu in sample.gpus] == expected


def test_a_driver_that_hangs_delays_neither_the_agent_nor_its_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked, released = threading.Event(), threading.Event()

    def hang() -> None:
        asked.set()
        released.wait(60)

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(nvmlInit=hang))
    began = time.monotonic()
    with HardwareSampler(a_node(), tmp_path, every_seconds=0.01) as sampler:
        assert asked.wait(20)
        assert (sampler.take_events(), sampler.newest) == ([], None)
    assert sampler.take_rest() == []
    assert time.monotonic() - began < 10
    released.set()


def test_gpus_that_cannot_be_asked_are_named_and_the_host_is_sampled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "nvidia0").touch()
    monkeypatch.setattr(gpus, "DEVICES", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    why = "nvidia-ml-py is not installed: pip install 'metaflow-convoy[nvml]'"
    with HardwareSampler(a_node(), tmp_path, every_seconds=0.01) as sampler:
        (event, *_) = wait_for("an event", sampler.take_events)
    assert (event.no_gpus, event.gpus) == (why, None)
    assert capsys.readouterr().err == f"convoy: node 0: its GPUs are not sampled: {why}\n"


def test_a_sample_that_fails_is_a_line_of_output_and_the_next_one_is_tried(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from convoy.gang.telemetry import host

    read, failures = host.read_counters, [OSError("no counters"), OSError("no counters")]
    monkeypatch.setattr(host, "read_counters", lambda: read())
    with HardwareSampler(a_node(), tmp_path, every_seconds=0.01) as sampler:
        wait_for("a sample", lambda: sampler.newest)

        def fail() -> object:
            if failures:
                raise failures.pop()
            return read()

        monkeypatch.setattr(host, "read_counters", fail)
        wait_for("the failures", lambda: not failures)
        before = sampler.newest
        wait_for("a later sample", lambda: sampler.newest is not before)
    assert capsys.readouterr().err == "convoy: node 0: a sample of its hardware failed: no counters\n"
