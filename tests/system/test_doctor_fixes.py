"""Each fix line of the doctor that can run here is run by bash, and its finding goes.

Not run: what needs EFA or a GPU (device files, modules), huge pages, which would take 10 GiB of this machine, and lines
for who starts a container, which end in an ellipsis.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from convoy.drills.testbed.namespaces import Network
from tests.doctor.hosts import a_host, on_ec2, put

pytestmark = pytest.mark.system

CHECK = """
import json, sys
from pathlib import Path
from convoy.doctor.host import Host
from convoy.doctor.network import check_network
proc, sysfs, *peer = sys.argv[1:]
findings = check_network(Host(Path(proc), Path(sysfs), Path("/dev")), *peer)
print(json.dumps({finding.name: finding.fix for finding in findings if finding.fix}))
"""

SHELL = """
before=$("$@") && echo "$before" && while IFS= read -r line; do eval "$line" >&2 || exit 1; done < <(
    python -c 'import json, sys
for line in json.loads(sys.argv[1]).values(): "…" in line or print(line)' "$before"
) && "$@"
"""
"""Check, run each line that is to be pasted, and check again, all in one shell: limits and CPUs are its own."""


def fixed(prefix: list[str], proc: Path, sysfs: Path, *peer: str) -> tuple[dict[str, str], dict[str, str]]:
    """The fix lines by finding, and those of the findings that are left once they were run."""
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    check = [sys.executable, "-c", CHECK, str(proc), str(sysfs), *peer]
    done = subprocess.run(
        [*prefix, "bash", "-c", SHELL, "bash", *check], capture_output=True, text=True, env=environ, timeout=60
    )
    assert done.returncode == 0, done.stderr
    before, after = map(json.loads, done.stdout.splitlines())
    return before, {name: line for name, line in after.items() if "…" not in line}


@pytest.fixture
def network() -> Iterator[Network]:
    with Network(2, mtu=9001) as network:
        yield network


def test_limits_buffers_congestion_control_and_mtu_are_fixed_by_their_lines(network: Network, tmp_path: Path) -> None:
    prefix = list(network.command_prefix(0))
    for words in (
        ["sysctl", "-qw", "net.ipv4.tcp_congestion_control=reno"],
        ["sysctl", "-qw", "net.ipv4.tcp_rmem=4096 131072 1048576", "net.ipv4.tcp_wmem=4096 16384 1048576"],
        ["ip", "link", "set", "dev", "eth0", "mtu", "1500"],
    ):
        subprocess.run([*prefix, *words], check=True)
    host = on_ec2(a_host(tmp_path), "g5.12xlarge")
    (host.sysfs / "class/net/eth0").symlink_to("/sys/class/net/eth0")  # of the namespace
    (host.sysfs / "class/net/ens5").unlink()
    before, after = fixed([*prefix, "prlimit", "--memlock=65536:", "--nofile=1024:"], Path("/proc"), host.sysfs)
    assert set(before) == {"locked memory", "open files", "TCP buffers", "congestion control", "MTU"}
    assert before["open files"] == "ulimit -Sn 16384"
    assert after == {}


def test_a_path_with_a_smaller_mtu_is_fixed_by_its_line(network: Network) -> None:
    subprocess.run([*network.command_prefix(1), "ip", "link", "set", "eth0", "mtu", "1500"], check=True)
    before, after = fixed(list(network.command_prefix(0)), Path("/proc"), Path("/sys"), network.addresses[1])
    assert before["path to the peer"] == "ip link set dev eth0 mtu 1500"
    assert "path to the peer" not in after


def test_a_process_far_from_its_interface_and_interrupts_on_one_cpu_are_fixed_by_their_lines(tmp_path: Path) -> None:
    first, *_, last = sorted(os.sched_getaffinity(0))
    host = a_host(tmp_path, node=1)
    put(host.sysfs, {"devices/system/node/node1/cpulist": f"{last}"})
    put(host.proc, {"irq/31/smp_affinity_list": first, "irq/32/smp_affinity_list": first})
    (host.proc / "self/status").unlink()
    (host.proc / "self/status").symlink_to("/proc/self/status")
    before, after = fixed(["taskset", "-c", str(first)], host.proc, host.sysfs)
    assert before["NUMA node"] == f"taskset -cp {last} $$"
    assert "interrupts" in before
    assert after == {}


def test_the_largest_buffers_of_sockets_are_fixed_by_their_line(tmp_path: Path) -> None:
    names = ("rmem_max", "wmem_max")
    files = [Path("/proc/sys/net/core") / name for name in names]
    usual = [file.read_text() for file in files]
    host = a_host(tmp_path)
    put(host.proc, {"self/limits": ""})
    for name in names:
        (host.proc / "sys/net/core" / name).unlink()
        (host.proc / "sys/net/core" / name).symlink_to(f"/proc/sys/net/core/{name}")
    try:
        for file in files:
            file.write_text("212992")
        before, after = fixed([], host.proc, host.sysfs)
        assert before == {"socket buffers": "sysctl -w net.core.rmem_max=3145728 net.core.wmem_max=3145728"}
        assert after == {}
    finally:
        for file, text in zip(files, usual, strict=True):
            file.write_text(text)
