"""Hosts written as trees of files, as the kernel shows them."""

from pathlib import Path

from convoy.doctor.host import Host

LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max open files            {files:<20} {files:<20} files
Max locked memory         {locked:<20} {locked:<20} bytes
"""

EFA_COUNT = 4


def put(root: Path, files: dict[str, object]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")


def a_host(
    root: Path,
    *,
    speed: int = 10000,
    mtu: int = 9001,
    node: int = 0,
    cpus: str = "0-7",
    files: object = 65536,
    locked: object = "unlimited",
    **sysctls: str,
) -> Host:
    """A host with two nodes of eight CPUs in all and one interface, ens5, as it should be. speed: Mbit/s."""
    proc, sysfs, dev = root / "proc", root / "sys", root / "dev"
    device = "devices/pci0000:00/0000:00:05.0"
    known = {
        "net.ipv4.tcp_rmem": "4096\t131072\t16777216", "net.ipv4.tcp_wmem": "4096\t16384\t16777216",
        "net.core.rmem_max": "16777216", "net.core.wmem_max": "16777216", "vm.nr_hugepages": "0",
        "net.ipv4.tcp_congestion_control": "cubic", "net.ipv4.tcp_available_congestion_control": "reno cubic",
    }  # fmt: skip
    known.update({name.replace("__", "."): value for name, value in sysctls.items()})
    put(proc, {f"sys/{name.replace('.', '/')}": value for name, value in known.items()})
    put(proc, {
        "self/limits": LIMITS.format(files=files, locked=locked),
        "self/status": f"Name:\tpython\nCpus_allowed_list:\t{cpus}",
        "net/route": "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n"
                     "docker0\t000011AC\t00000000\t1\t0\t0\t0\t0000FFFF\n"
                     "ens5\t00000000\t0101000A\t3\t0\t0\t0\t00000000",
        "interrupts": "   CPU0 CPU1\n 30:  0  0  PCI-MSIX config\n 31:  7  0  PCI-MSIX in\n 32:  0  9  PCI-MSIX out",
        "irq/31/smp_affinity_list": "0-7", "irq/31/effective_affinity_list": "0",
        "irq/32/smp_affinity_list": "0-7", "irq/32/effective_affinity_list": "1",
    })  # fmt: skip
    put(sysfs, {
        f"{device}/net/ens5/mtu": mtu, f"{device}/net/ens5/speed": speed, f"{device}/net/ens5/operstate": "up",
        f"{device}/numa_node": node, f"{device}/msi_irqs/30": "msix", f"{device}/msi_irqs/31": "msix",
        f"{device}/msi_irqs/32": "msix", "class/net/lo/mtu": 65536,
        "devices/system/node/node0/cpulist": "0-3", "devices/system/node/node1/cpulist": "4-7",
    })  # fmt: skip
    (sysfs / "class/net/ens5").symlink_to(sysfs / device / "net/ens5")
    dev.mkdir()
    return Host(proc, sysfs, dev, is_root=False)


def with_efa(host: Host, devices: int = EFA_COUNT, gpu: bool = True, p2p: str = "NVIDIA") -> Host:
    """The host with EFA adapters, of which it has opened so many devices, and a GPU."""
    for i in range(EFA_COUNT):
        put(host.sysfs, {f"class/infiniband/efa_{i}/device/p2p": p2p})
    for i in range(devices):
        put(host.dev, {f"infiniband/uverbs{i}": ""})
    (host.sysfs / "module/efa").mkdir(parents=True)
    if gpu:
        (host.sysfs / "module/nvidia").mkdir()
    return host


def on_ec2(host: Host, kind: str) -> Host:
    put(host.sysfs / "devices/virtual/dmi/id", {"sys_vendor": "Amazon EC2", "product_name": kind})
    return host
