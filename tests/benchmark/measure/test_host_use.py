"""What hosts used: figures of counters that were made up, gathered over ranks that stand for several hosts."""

from dataclasses import replace
from pathlib import Path

import pytest

from convoy.benchmark.groups import VariantSpec
from convoy.benchmark.measure.host_use import HostMeter, host_meter, host_uses
from convoy.benchmark.measure.memory_footprint import Footprint
from convoy.benchmark.results.case import HostUse
from convoy.gang.telemetry import host
from convoy.network.counters import Reading, read_counters
from convoy.training.process_groups import Ranks
from tests.benchmark.benches import a_group, one_of_two
from tests.benchmark.cases import replaced
from tests.gang.telemetry.test_host import counts
from tests.ranks import in_a_group

STEPS = 4
CASES = (VariantSpec(name="both"), VariantSpec(name="first", ranks=1))


def kernel(folder: Path, sent: int, rdma: int) -> Reading:
    """Counters in files as the kernel has them: a loopback, an interface, and a port of EFA."""
    (folder / "net").mkdir(exist_ok=True)
    lines = (f"{name}: {2 * n} 1 0 0 0 0 0 0 {n} 1 0 0 0 0 0 0" for name, n in (("lo", 99 * sent), ("ens5", sent)))
    (folder / "net/dev").write_text("\n".join(("Inter-|", " face |", *lines)))
    port = folder / "class/infiniband/rdmap0s6/ports/1/hw_counters"
    port.mkdir(parents=True, exist_ok=True)
    for name, n in (("tx_bytes", rdma), ("rx_bytes", 3 * rdma), ("lifespan", 12)):
        (port / name).write_text(f"{n}\n")
    return read_counters(folder, folder)


def test_bytes_in_blocks_are_counted_on_interfaces_and_on_rdma_adapters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two blocks of four steps, with traffic of others in between."""
    counted = ((0, 0), (0, 0), (400, 8000), (10**6, 10**6), (10**6 + 400, 10**6))
    readings = [kernel(tmp_path, *each) for each in counted]
    monkeypatch.setattr(host, "read_counters", lambda: readings.pop(0))
    meter = HostMeter()
    for _ in range(2):
        with meter.watch("ours", STEPS):
            pass
    totals = meter.totals["ours"]
    assert (totals.steps, totals.network, totals.rdma) == (8, host.Bytes(800, 1600), host.Bytes(8000, 24000))
    assert totals.memory_used_bytes > 0


def alone_on_its_host(rank: int) -> Ranks:
    """One of two ranks, each on a host of its own."""
    ranks = one_of_two(rank)
    return replace(ranks, place=replaced(ranks.place, host_rank=0, host_ranks=1))


def uses_of_rank(rank: int) -> dict[str, tuple[HostUse, ...]]:
    """The second case leaves the second host idle, and its memory was not measured."""
    group, ranks = a_group("unused", *CASES, suite="memory"), alone_on_its_host(rank)
    readings = [
        Reading(interfaces={"eth0": counts(n)}, rails={"efa0/1": {"tx_bytes": 10 * n}}, transport={})
        for n in (0, 0, 800 * (rank + 1), 10**6, 10**6)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host, "read_counters", lambda: readings.pop(0))
        meter = host_meter(group, ranks)
        assert meter is not None
        for spec in CASES:
            with meter.watch(spec.name, STEPS):
                pass
    footprints = [Footprint(100 + each, 200, 0, 300, 50 * each, 0) for each in range(2)]
    return host_uses(group, meter, {"both": footprints}, ranks)


def test_each_host_has_the_memory_of_its_ranks_and_its_own_bytes() -> None:
    found, other = in_a_group(2, uses_of_rank)
    memory = [(use.host, use.ranks, use.memory_peak_bytes, use.offloaded_bytes) for use in found["both"]]
    assert memory == [(0, 1, 600, 0), (1, 1, 601, 50)]
    first, second = found["both"]
    assert (first.sent_bytes, second.sent_bytes, second.received_bytes) == (200, 400, 800)
    assert (first.rdma_sent_bytes, second.rdma_sent_bytes, first.adapter_bytes) == (2000, 4000, 2200)
    idle = [(use.ranks, use.memory_peak_bytes, use.offloaded_bytes, use.sent_bytes) for use in found["first"]]
    assert idle == [(1, None, None, 0), (0, None, None, 0)]
    assert other == found


def meters_of_rank(rank: int) -> tuple[bool, bool]:
    groups = (a_group("unused", CASES[0], suite=suite) for suite in ("utilisation", "throughput"))
    metered, other = (host_meter(group, one_of_two(rank)) is not None for group in groups)
    return metered, other


def test_one_rank_of_a_host_reads_its_counters_in_suites_that_show_them() -> None:
    assert in_a_group(2, meters_of_rank) == [(True, False), (False, False)]
