"""A sample of this host next to what the kernel's own files say."""

import time
from pathlib import Path

import psutil
import pytest

from convoy.gang.telemetry import host
from convoy.gang.telemetry.host import NodeReader


def proc_cpu() -> tuple[int, int]:
    """Clock ticks of all cores since the host started, and those in which they were idle. Source: proc(5)."""
    user, nice, system, idle, iowait, irq, softirq, steal = map(
        int, Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    )
    return user + nice + system + idle + iowait + irq + softirq + steal, idle + iowait


def proc_memory(name: str) -> int:
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return 1024 * int(lines[name].split()[0])


def proc_bytes(interface: str) -> tuple[int, int]:
    """Sent and received."""
    lines = dict(line.split(":") for line in Path("/proc/net/dev").read_text().splitlines()[2:])
    columns = {name.strip(): line.split() for name, line in lines.items()}[interface]
    return int(columns[8]), int(columns[0])


def test_a_sample_agrees_with_proc(tmp_path: Path) -> None:
    reader = NodeReader([], tmp_path)
    before, began = proc_cpu(), time.monotonic()
    while time.monotonic() < began + 0.5:
        pass  # at least one core is busy
    sample, after = reader.read(), proc_cpu()

    busy = 1 - (after[1] - before[1]) / (after[0] - before[0])
    assert sample.cpu == pytest.approx(busy, abs=0.1)
    assert sample.cpu > 0.5 / (psutil.cpu_count() or 1)
    assert sample.memory_total_bytes == proc_memory("MemTotal")
    used = proc_memory("MemTotal") - proc_memory("MemAvailable")
    assert sample.memory_used_bytes == pytest.approx(used, rel=0.2)
    assert 0.4 < sample.seconds < 20
    assert sample.gpus == ()
    for name, counted in sample.interfaces.items():
        sent, received = proc_bytes(name)
        assert 0 <= sent - counted.sent < 2**30
        assert 0 <= received - counted.received < 2**30
    assert "lo" not in sample.interfaces


def test_rates_are_of_the_time_since_the_sample_before(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = [
        host.Reading(interfaces={"eth0": counts(n), "lo": counts(9 * n)}, rails={"efa0/1": efa(n)}, transport={})
        for n in (1_000, 6_000, 6_500)
    ]
    monkeypatch.setattr(host, "read_counters", lambda: readings.pop(0))
    reader = NodeReader([], None)
    first, second = reader.read(), reader.read()
    assert (first.network.sent, first.network.received) == (5_000, 10_000)
    assert (second.network.sent, second.network.received) == (500, 1_000)
    assert first.rdma == host.Bytes(50_000, 0)
    assert second.interfaces == {"eth0": host.Bytes(6_500, 13_000)}
    assert second.rails == {"efa0/1": host.Bytes(65_000, 0)}
    assert second.disk_free_bytes is None


def counts(sent: int) -> dict[str, int]:
    names = ("sent_packets", "send_errors", "send_drops", "received_packets", "receive_errors", "receive_drops")
    return {"sent_bytes": sent, "received_bytes": 2 * sent, **dict.fromkeys(names, 0)}


def efa(sent: int) -> dict[str, int]:
    return {"tx_bytes": 10 * sent, "rx_bytes": 0}


def test_a_root_that_hangs_leaves_the_other_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hangs = time.sleep
    monkeypatch.setattr(psutil, "disk_usage", lambda folder: hangs(60))
    reader = NodeReader([], tmp_path)
    began = time.monotonic()
    samples = [reader.read() for _ in range(3)]
    assert time.monotonic() - began < 20
    assert {sample.disk_free_bytes for sample in samples} == {None}


def test_the_free_space_is_that_of_the_root_s_file_system(tmp_path: Path) -> None:
    reader = NodeReader([], tmp_path)
    deadline = time.monotonic() + 20
    while (free := reader.read().disk_free_bytes) is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert free == pytest.approx(psutil.disk_usage(str(tmp_path)).free, rel=0.2)
