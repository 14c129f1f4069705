"""Traffic is the growth of the counters of the kernel and of the adapters."""

from pathlib import Path

import pytest

from convoy.network.counters import Traffic, host_sent_bytes, imbalance_percent, read_counters, traffic_between
from tests.doctor.hosts import put

DEV = """Inter-|   Receive                                         |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
    lo: {lo} 1 0 0 0 0 0 0 {lo} 1 0 0 0 0 0 0
  eth0:{rx} {rxp} 0 {drop} 0 0 0 0 {tx} {txp} 2 1 0 0 0 0
eth0.5: 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0
"""

SNMP = """Ip: Forwarding DefaultTTL
Ip: 1 64
Tcp: RtoAlgorithm MaxConn OutSegs RetransSegs
Tcp: 1 -1 {out} {again}
Udp: InDatagrams RcvbufErrors
Udp: 0 {udp}
"""

NETSTAT = """TcpExt: SyncookiesSent TCPTimeouts TCPBacklogDrop ListenDrops
TcpExt: 0 {timeouts} {backlog} 2
IpExt: InNoRoutes
IpExt: 0
"""


COUNTERS = ("lo", "rx", "tx", "rxp", "txp", "drop", "out", "again", "udp", "timeouts", "backlog")


def write(root: Path, **counts: int) -> None:
    """The files of /proc/net. counts: by the names in COUNTERS; those that are left out are 0."""
    every = dict.fromkeys(COUNTERS, 0) | counts
    files = {"dev": DEV, "snmp": SNMP, "netstat": NETSTAT}
    put(root / "proc/net", {name: text.format(**every) for name, text in files.items()})


def efa(root: Path, device: str, **counters: int) -> None:
    folder = f"sys/class/infiniband/{device}/ports/1/hw_counters"
    put(root, {f"{folder}/{name}": count for name, count in counters.items()} | {f"{folder}/lifespan": "12 ms"})


def infiniband(root: Path, device: str, sent_words: int, received_words: int, discards: int = 0) -> None:
    put(root / f"sys/class/infiniband/{device}/ports/1/counters", {
        "port_xmit_data": sent_words, "port_rcv_data": received_words, "port_xmit_discards": discards,
        "port_rcv_errors": 0, "link_downed": "N/A",
    })  # fmt: skip


def between(root: Path) -> tuple[Path, Path]:
    return root / "proc", root / "sys"


def test_interfaces_and_transports_count_from_the_first_reading(tmp_path: Path) -> None:
    write(tmp_path, lo=50, rx=1000, tx=10, rxp=3, txp=2, drop=4, out=7, again=1, udp=1, timeouts=1, backlog=1)
    before = read_counters(*between(tmp_path))
    write(tmp_path, lo=80, rx=3000, tx=70, rxp=9, txp=4, drop=9, out=17, again=4, udp=3, timeouts=2, backlog=6)
    traffic = traffic_between(before, read_counters(*between(tmp_path)), 2.0)
    lo, eth0, vlan = traffic.interfaces
    assert (lo.name, lo.loopback, lo.sent_bytes, lo.received_bytes) == ("lo", True, 30, 30)
    assert (eth0.name, eth0.loopback, eth0.sent_bytes, eth0.received_bytes) == ("eth0", False, 60, 2000)
    assert (eth0.sent_packets, eth0.received_packets, eth0.drops, eth0.errors) == (2, 6, 5, 0)
    assert (vlan.name, vlan.sent_bytes) == ("eth0.5", 0)
    assert traffic.transport.model_dump() == {
        "tcp_sent_segments": 10, "tcp_retransmitted_segments": 3, "tcp_timeouts": 1, "tcp_receive_drops": 5,
        "udp_receive_drops": 2,
    }  # fmt: skip
    assert (traffic.rails, traffic.rail_imbalance_percent, traffic.interface_imbalance_percent) == ((), None, None)


def test_efa_counts_bytes_and_rdma_apart(tmp_path: Path) -> None:
    write(tmp_path)
    known = {
        "tx_bytes": 5,
        "rx_bytes": 7,
        "rdma_write_bytes": 3,
        "rdma_read_bytes": 0,
        "rx_drops": 1,
        "retrans_bytes": 2,
    }
    efa(tmp_path, "rdmap16s27", **known)
    before = read_counters(*between(tmp_path))
    efa(tmp_path, "rdmap16s27", **{name: count + 1000 for name, count in known.items()})
    (rail,) = traffic_between(before, read_counters(*between(tmp_path)), 1.0).rails
    assert rail.model_dump() == {
        "name": "rdmap16s27/1", "sent_bytes": 1000, "received_bytes": 1000, "rdma_write_bytes": 1000,
        "rdma_read_bytes": 1000, "retransmitted_bytes": 1000, "drops": 1000,
    }  # fmt: skip


def test_infiniband_counts_words_of_four_bytes(tmp_path: Path) -> None:
    write(tmp_path)
    infiniband(tmp_path, "mlx5_0", 100, 50)
    before = read_counters(*between(tmp_path))
    infiniband(tmp_path, "mlx5_0", 350, 60, discards=2)
    (rail,) = traffic_between(before, read_counters(*between(tmp_path)), 1.0).rails
    assert (rail.sent_bytes, rail.received_bytes, rail.drops, rail.rdma_write_bytes) == (1000, 40, 2, None)


def rails(root: Path, *sent: int) -> Traffic:
    write(root)
    for i in range(len(sent)):
        efa(root, f"efa_{i}", tx_bytes=9, rx_bytes=0)
    before = read_counters(*between(root))
    for i, count in enumerate(sent):
        efa(root, f"efa_{i}", tx_bytes=9 + count, rx_bytes=0)
    return traffic_between(before, read_counters(*between(root)), 1.0)


@pytest.mark.parametrize(
    ("sent", "percent"),
    [((100, 100, 100, 100), 0), ((200, 100, 100, 0), 100), ((400, 0, 0, 0), 300), ((0, 0), None), ((5,), None)],
)
def test_an_idle_rail_is_an_imbalance(sent: tuple[int, ...], percent: float | None, tmp_path: Path) -> None:
    assert rails(tmp_path, *sent).rail_imbalance_percent == percent


def test_imbalance_is_the_largest_over_the_mean() -> None:
    assert imbalance_percent([3, 5]) == pytest.approx(25)
    assert imbalance_percent([]) is None


def test_a_device_that_appeared_or_was_reset_has_counted_from_zero(tmp_path: Path) -> None:
    write(tmp_path, rx=5000)
    efa(tmp_path, "efa_0", tx_bytes=10**15, rx_bytes=1)
    before = read_counters(*between(tmp_path))
    write(tmp_path, rx=300)
    efa(tmp_path, "efa_0", tx_bytes=20, rx_bytes=1)
    efa(tmp_path, "efa_1", tx_bytes=30, rx_bytes=1)
    traffic = traffic_between(before, read_counters(*between(tmp_path)), 1.0)
    assert [rail.sent_bytes for rail in traffic.rails] == [20, 30]
    assert traffic.interfaces[1].received_bytes == 300


def test_a_host_sends_what_all_its_interfaces_send(tmp_path: Path) -> None:
    write(tmp_path, lo=5, tx=70)
    assert host_sent_bytes(tmp_path / "proc") == 75


def test_a_kernel_that_shows_no_counters_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_counters(*between(tmp_path))
