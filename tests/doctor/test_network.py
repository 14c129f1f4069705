"""The network section says what a host should have, why, and how it gets it; without RDMA all of it are notes."""

import io
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from convoy.config.errors import ConfigError
from convoy.doctor.diagnosis import Diagnosis, print_findings
from convoy.doctor.host import Host, format_cpus, parse_cpus
from convoy.doctor.network import Network, check_mtu, check_network, check_path
from convoy.network.path import Path as Way
from convoy.network.path import resolve
from tests.doctor.hosts import a_host, on_ec2, put, with_efa


def found(host: Host) -> dict[str, Diagnosis]:
    return {finding.name: finding for finding in check_network(host)}


def test_a_host_that_is_as_it_should_be_has_nothing_to_fix(tmp_path: Path) -> None:
    assert {finding.name: finding.level for finding in check_network(a_host(tmp_path)) if finding.level != "ok"} == {
        "EFA": "note", "GPUDirect RDMA": "note", "huge pages": "note",
    }  # fmt: skip
    assert [finding.fix for finding in check_network(a_host(tmp_path / "other"))] == [""] * 11


def test_a_laptop_gets_notes(tmp_path: Path) -> None:
    laptop = a_host(
        tmp_path, files=1024, locked=8388608, net__ipv4__tcp_congestion_control="reno",
        net__ipv4__tcp_rmem="4096 131072 212992", net__core__rmem_max="212992",
    )  # fmt: skip
    levels = {finding.level for finding in check_network(laptop)}
    assert levels == {"ok", "note"}
    assert found(laptop)["congestion control"].fix == "sudo sysctl -w net.ipv4.tcp_congestion_control=cubic"


def test_a_machine_with_efa_needs_locked_memory_huge_pages_and_all_devices(tmp_path: Path) -> None:
    findings = found(with_efa(a_host(tmp_path, locked=65536), devices=1))
    assert findings["EFA"].level == "problem"
    assert findings["EFA"].observed.startswith("4 adapters (efa_0, efa_1, efa_2, efa_3), 1 devices in ")
    assert (findings["locked memory"].level, findings["locked memory"].observed) == ("problem", "65.5 kB")
    assert (findings["huge pages"].level, findings["huge pages"].fix) == (
        "warning", "sudo sysctl -w vm.nr_hugepages=5128",
    )  # fmt: skip
    assert findings["GPUDirect RDMA"].level == "ok"


def test_a_machine_with_efa_that_is_as_it_should_be_is_fine(tmp_path: Path) -> None:
    assert {finding.level for finding in check_network(with_efa(a_host(tmp_path, vm__nr_hugepages="5128")))} == {"ok"}


def test_an_efa_driver_without_peer_to_peer_is_a_warning(tmp_path: Path) -> None:
    finding = found(with_efa(a_host(tmp_path), p2p="none"))["GPUDirect RDMA"]
    assert (finding.level, finding.observed) == ("warning", "peer-to-peer of EFA: none")
    assert finding.fix == "sudo sh -c 'modprobe -r efa && modprobe efa'"


@pytest.mark.parametrize(
    ("module", "version", "level"),
    [("nvidia_peermem", "Kernel Module", "ok"), ("gdrdrv", "Kernel Module", "warning"),
     ("gdrdrv", "Open Kernel Module for x86_64", "ok")],
)  # fmt: skip
def test_another_adapter_needs_peermem_or_the_open_driver(
    module: str, version: str, level: str, tmp_path: Path
) -> None:
    host = a_host(tmp_path)
    (host.sysfs / "class/infiniband/mlx5_0").mkdir(parents=True)
    for name in ("nvidia", module):
        (host.sysfs / "module" / name).mkdir(parents=True)
    put(host.proc, {"driver/nvidia/version": f"NVRM version: NVIDIA UNIX {version}  580.1"})
    finding = found(host)["GPUDirect RDMA"]
    assert (finding.level, module in finding.observed) == (level, True)
    assert finding.fix == ("" if level == "ok" else "sudo modprobe nvidia_peermem")


@pytest.mark.parametrize(
    ("allowed", "fix"),
    [("reno bbr", "sudo sysctl -w net.ipv4.tcp_congestion_control=bbr"),
     ("reno", "sudo sysctl -w net.ipv4.tcp_congestion_control=cubic")],
)  # fmt: skip
def test_a_congestion_control_that_is_allowed_to_all_is_preferred(allowed: str, fix: str, tmp_path: Path) -> None:
    host = a_host(
        tmp_path, net__ipv4__tcp_congestion_control="reno", net__ipv4__tcp_allowed_congestion_control=allowed
    )  # fmt: skip
    assert found(host)["congestion control"].fix == fix


def test_buffers_are_judged_by_bandwidth_times_delay(tmp_path: Path) -> None:
    host = a_host(tmp_path, speed=100000, net__ipv4__tcp_rmem="4096 131072 6291456", net__core__wmem_max="212992")
    findings = found(host)
    # 100 Gbit/s × 1 ms are 12.5 MB; twice that is 24 whole MiB.
    assert findings["TCP buffers"].wanted == "25.2 MB: twice 100 Gbit/s × 1 ms, in whole MiB"
    assert findings["TCP buffers"].fix == (
        'sudo sysctl -w net.ipv4.tcp_rmem="4096 131072 25165824" net.ipv4.tcp_wmem="4096 16384 25165824"'
    )
    assert findings["socket buffers"].fix == (
        "sudo sysctl -w net.core.rmem_max=25165824 net.core.wmem_max=25165824"
    )  # fmt: skip


def test_a_measured_delay_replaces_the_usual_one(tmp_path: Path) -> None:
    host = a_host(tmp_path)
    interface = host.interface("ens5")
    assert Network(host, interface, None).buffer_bytes == 3 * 2**20
    assert Network(host, interface, Way("ens5", 0.02, 9001)).buffer_bytes == 48 * 2**20
    assert Network(host, interface, Way("ens5", 2e-5, 9001)).buffer_bytes == 2**20


def test_a_link_without_a_speed_leaves_the_buffers_unjudged(tmp_path: Path) -> None:
    host = a_host(tmp_path, speed=-1, net__core__rmem_max="1")
    assert {name: found(host)[name].level for name in ("TCP buffers", "socket buffers")} == {
        "TCP buffers": "note", "socket buffers": "note",
    }  # fmt: skip
    assert "the link names no speed" in found(host)["TCP buffers"].observed


def test_a_flow_on_ec2_has_ten_gbit_at_most_and_jumbo_frames_are_wanted(tmp_path: Path) -> None:
    host = on_ec2(a_host(tmp_path, speed=-1, mtu=1500), "p5.48xlarge")
    network = Network(host, host.interface("ens5"), None)
    assert network.bits_per_second == 10e9
    finding = check_mtu(network)
    assert finding is not None
    assert finding.fix == "sudo ip link set dev ens5 mtu 9001"
    unknown = on_ec2(a_host(tmp_path / "other", speed=-1), "x9.huge")
    assert Network(unknown, None, None).bits_per_second is None


def test_a_path_that_carries_less_than_the_interface_is_a_warning_and_needs_no_jumbo_frames(
    tmp_path: Path,
) -> None:
    host = on_ec2(a_host(tmp_path, mtu=1500), "g5.12xlarge")
    network = Network(host, host.interface("ens5"), Way("ens5", 1e-3, 1400))
    path, mtu = check_path(network), check_mtu(network)
    assert path is not None
    assert mtu is not None
    assert (path.level, path.fix) == ("warning", "sudo ip link set dev ens5 mtu 1400")
    assert mtu.level == "ok"
    silent = check_path(Network(host, host.interface("ens5"), Way("ens5", None, None)))
    assert silent is not None
    assert silent.level == "note"


def test_a_process_on_another_node_than_the_interface_is_moved(tmp_path: Path) -> None:
    finding = found(a_host(tmp_path, node=1, cpus="0-3"))["NUMA node"]
    assert finding.observed == "ens5 is on node 1, this process on CPUs 0-3"
    assert finding.fix == "taskset -cp 4-7 $$"
    assert found(a_host(tmp_path / "other", node=-1))["NUMA node"].observed == "the interface names none"


def test_interrupts_that_one_cpu_serves_are_spread_over_the_interface_s_node(tmp_path: Path) -> None:
    host = a_host(tmp_path, node=1, cpus="4-7")
    put(host.proc, {"irq/31/smp_affinity_list": "2", "irq/32/smp_affinity_list": "2"})
    finding = found(host)["interrupts"]
    assert (finding.observed, finding.wanted) == ("2 of ens5, on CPUs 2", "spread over CPUs 4-7")
    assert finding.fix.startswith("sudo sh -c 'for i in 31:4 32:5; do echo ${i#*:} > ")
    put(host.proc, {"irq/31/smp_affinity_list": "4", "irq/32/smp_affinity_list": "5"})
    assert found(host)["interrupts"].level == "ok"


def test_a_limit_is_raised_by_the_shell_by_root_or_by_who_starts_the_container(tmp_path: Path) -> None:
    host = a_host(tmp_path, files=1024, locked=65536)
    as_root = replace(host, is_root=True)
    limits, status = host.proc / "self/limits", host.proc / "self/status"
    assert found(host)["open files"].fix == "sudo prlimit --pid $$ --nofile=16384:16384"
    assert found(as_root)["locked memory"].fix == "docker run --ulimit memlock=-1 …"
    status.write_text(f"{status.read_text()}CapEff:\t0000000001000000\n")
    assert found(as_root)["locked memory"].fix == "prlimit --pid $$ --memlock=unlimited:unlimited"
    limits.write_text(limits.read_text().replace("1024                 files", "1048576              files"))
    assert found(host)["open files"].fix == "ulimit -Sn 16384"


def test_each_fix_is_one_line_that_bash_can_read(tmp_path: Path) -> None:
    host = a_host(
        tmp_path, speed=100000, mtu=1500, node=1, cpus="0-3", files=1024, locked=65536,
        net__ipv4__tcp_congestion_control="reno", net__ipv4__tcp_rmem="4096 131072 1", net__core__rmem_max="1",
    )  # fmt: skip
    findings = [finding for finding in check_network(with_efa(on_ec2(host, "g5.12xlarge"), 0, p2p="")) if finding.fix]
    assert len(findings) == 11
    for finding in findings:
        assert "\n" not in finding.fix
        assert shlex.split(finding.fix)
        assert finding.wanted
        assert finding.why.endswith(".")


def test_what_the_kernel_does_not_show_is_no_finding(tmp_path: Path) -> None:
    empty = Host(tmp_path, tmp_path, tmp_path, is_root=True)
    assert {finding.level for finding in check_network(empty)} == {"note"}


def test_the_first_interface_that_is_up_serves_where_there_is_no_default_route(tmp_path: Path) -> None:
    host = a_host(tmp_path)
    assert host.default_interface() == "ens5"
    (host.proc / "net/route").write_text("Iface\tDestination\n")
    assert host.default_interface() == "ens5"
    put(host.sysfs, {"class/net/ens5/operstate": "down"})
    assert host.default_interface() is None


def test_a_fix_is_printed_on_one_line_whatever_the_width() -> None:
    out = io.StringIO()
    fix = "sudo sysctl -w " + " ".join(f"net.ipv4.name{i}=[{i}]" for i in range(9))
    print_findings(Console(file=out, width=40), [Diagnosis("n", "note", "seen", fix, "more", "It helps.")])
    lines = [line.strip() for line in out.getvalue().splitlines()]
    assert lines == ["note     n  seen", "wanted: more. It helps.", fix]


@given(st.sets(st.integers(0, 300)))
def test_lists_of_cpus_are_read_as_they_are_written(cpus: set[int]) -> None:
    assert parse_cpus(format_cpus(cpus)) == cpus


@pytest.mark.parametrize("peer", ["no.such.host.invalid", "", "a" * 300])
def test_a_peer_that_is_no_host_is_refused(peer: str) -> None:
    with pytest.raises(ConfigError, match=f"^--peer {peer}: must be a host with an IPv4 address"):
        resolve(peer)
