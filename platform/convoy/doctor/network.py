"""The host's side of the network: limits, buffers, interfaces, interrupts, RDMA devices.

Where the host has RDMA devices, such as EFA, what is not as it should be is a warning or a problem; elsewhere a note.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from convoy.display.formatting import size
from convoy.doctor.diagnosis import Diagnosis, Level
from convoy.doctor.host import Host, Interface, format_cpus
from convoy.network.path import Path, examine_path, resolve

FILES = 16384
"""Open files of one rank at most: over TCP, NCCL opens 16 sockets to a peer on EC2, and a gang may have 1024 ranks.
Source: NCCL's user guide, `NCCL_SOCKET_NTHREADS` and `NCCL_NSOCKS_PERTHREAD`."""

HUGE_PAGES = 5128
"""Pages of 2 MiB that AWS's images for EFA reserve. Source: Amazon EKS User Guide, "Run machine learning training on
Amazon EKS with Elastic Fabric Adapter"."""

DELAY_SECONDS = 1e-3
"""Round-trip time between hosts of one zone under load, where no peer is given."""

EC2_FLOW_BITS_PER_SECOND = 10e9
"""Of one TCP connection within a cluster placement group. Source: Amazon EC2 User Guide, "Amazon EC2 instance network
bandwidth"."""

JUMBO = 9001
"""MTU of EC2 within a VPC, in bytes."""

CONGESTION_CONTROLS = ("cubic", "bbr", "dctcp")
"""Those that keep a fast link full after a loss."""

MIB = 2**20


@dataclass(frozen=True)
class Network:
    """What the checks look at."""

    host: Host
    interface: Interface | None
    """That of the default route, or by which the peer is reached."""
    path: Path | None
    """To the peer; None: no peer was given."""

    @property
    def has_rdma(self) -> bool:
        return bool(self.host.rdma_devices())

    @property
    def concern(self) -> Level:
        """How much it matters that something is not as it should be."""
        return "warning" if self.has_rdma else "note"

    @property
    def bits_per_second(self) -> float | None:
        """What one TCP connection can use; None: not known."""
        machine = self.host.machine()
        if machine is not None:
            return min(EC2_FLOW_BITS_PER_SECOND, machine.network_gbps * 1e9 / machine.network_cards)
        return self.interface.bits_per_second if self.interface else None

    @property
    def delay_seconds(self) -> float:
        return (self.path.round_trip_seconds if self.path else None) or DELAY_SECONDS

    @property
    def buffer_bytes(self) -> int | None:
        """What one connection needs, in whole MiB: TCP keeps half of a buffer for its own bookkeeping. Source: tcp(7),
        `tcp_adv_win_scale`."""
        if self.bits_per_second is None:
            return None
        return MIB * math.ceil(2 * self.bits_per_second / 8 * self.delay_seconds / MIB)


def check_network(host: Host, peer: str | None = None) -> list[Diagnosis]:
    """All findings about the network. peer: a host to which the path is examined. Raises ConfigError if there is no way
    to it."""
    name = host.default_interface()
    interface, path = host.interface(name) if name else None, None
    if peer is not None:
        path = examine_path(resolve(peer), interface.mtu if interface else JUMBO)
        if path.interface is not None and path.interface != name:
            interface = host.interface(path.interface)
            path = examine_path(resolve(peer), interface.mtu)
    network = Network(host, interface, path)
    return [finding for check in CHECKS if (finding := check(network)) is not None]


def check_rdma(network: Network) -> Diagnosis:
    """RDMA adapters: the kernel's view, and the devices that a process needs to open."""
    host = network.host
    adapters = [path.name for path in host.rdma_devices()]
    opened = list((host.dev / "infiniband").glob("uverbs*"))
    if not adapters:
        return Diagnosis("EFA", "note", "none: nodes talk over TCP")
    seen = f"{len(adapters)} adapters ({', '.join(adapters)}), {len(opened)} devices in {host.dev / 'infiniband'}"
    if len(opened) >= len(adapters):
        return Diagnosis("EFA", "ok", seen)
    return Diagnosis(
        "EFA", "problem", seen, "docker run --device /dev/infiniband …", f"{len(adapters)} devices",
        "A process opens an adapter by its uverbs device; without it, traffic falls back to TCP.",
    )  # fmt: skip


def check_gpu_direct(network: Network) -> Diagnosis | None:
    """Whether adapters can read and write the memory of GPUs."""
    host = network.host
    name, modules = "GPUDirect RDMA", host.sysfs / "module"
    if not network.has_rdma or not (modules / "nvidia").exists():
        return Diagnosis(name, "note", "needs NVIDIA's driver and an RDMA adapter")
    seen = [module for module in ("nvidia_peermem", "gdrdrv") if (modules / module).exists()]
    efa = (modules / "efa").exists()
    providers = {(device / "device/p2p").read_text().strip() for device in host.rdma_devices()
                 if (device / "device/p2p").exists()}  # fmt: skip
    seen += [f"peer-to-peer of EFA: {', '.join(sorted(providers))}"] if providers else []
    version = host.proc / "driver/nvidia/version"
    dma_buf = version.exists() and "Open Kernel Module" in version.read_text()
    seen += ["DMA-BUF of the open driver"] if dma_buf else []
    if "NVIDIA" in providers or (not efa and ("nvidia_peermem" in seen or dma_buf)):
        return Diagnosis(name, "ok", ", ".join(seen))
    fix = "sh -c 'modprobe -r efa && modprobe efa'" if efa else "modprobe nvidia_peermem"
    wanted = "an EFA driver that finds NVIDIA's" if efa else "nvidia_peermem, or NVIDIA's open driver"
    return Diagnosis(
        name, "warning", ", ".join(seen) or "no module for it", host.as_root(fix), wanted,
        "Without it, all data between nodes is copied through host memory.",
    )  # fmt: skip


def check_locked_memory(network: Network) -> Diagnosis | None:
    """RLIMIT_MEMLOCK: what an adapter reads and writes must stay in memory."""
    limit = network.host.limit("Max locked memory")
    if limit is None:
        return None
    if limit[0] == math.inf:
        return Diagnosis("locked memory", "ok", "unlimited")
    return Diagnosis(
        "locked memory", "problem" if network.has_rdma else "note", size(limit[0]),
        _raise_limit(network.host, "memlock", "l", limit[1], math.inf), "unlimited, where there is RDMA",
        "Memory that an adapter reads and writes is locked.",
    )  # fmt: skip


def check_open_files(network: Network) -> Diagnosis | None:
    """RLIMIT_NOFILE."""
    limit = network.host.limit("Max open files")
    if limit is None:
        return None
    seen = "unlimited" if limit[0] == math.inf else f"{limit[0]:.0f}"
    if limit[0] >= FILES:
        return Diagnosis("open files", "ok", seen)
    return Diagnosis(
        "open files", network.concern, seen, _raise_limit(network.host, "nofile", "n", limit[1], FILES), f"{FILES}",
        "Over TCP, each rank has several sockets to each of its peers.",
    )  # fmt: skip


def _raise_limit(host: Host, name: str, letter: str, hard: float, wanted: float) -> str:
    """A line that raises a limit of the shell it is pasted into; where nobody may, the container's own."""
    amount = "unlimited" if wanted == math.inf else f"{wanted:.0f}"
    if hard >= wanted:
        return f"ulimit -S{letter} {amount}"
    if host.is_root and not host.may_raise_limits():
        return f"docker run --ulimit {name}={-1 if wanted == math.inf else amount} …"
    return host.as_root(f"prlimit --pid $$ --{name}={amount}:{amount}")


def check_huge_pages(network: Network) -> Diagnosis | None:
    """Pages of 2 MiB, of which libfabric takes its buffers for EFA."""
    count = network.host.sysctl("vm.nr_hugepages")
    if count is None:
        return None
    if not network.has_rdma:
        return Diagnosis("huge pages", "note", f"{count}; only EFA uses them")
    if int(count) >= HUGE_PAGES:
        return Diagnosis("huge pages", "ok", count)
    command = network.host.as_root(f"sysctl -w vm.nr_hugepages={HUGE_PAGES}")
    why = "libfabric takes the buffers of EFA from them; ordinary pages are slightly slower."
    return Diagnosis("huge pages", network.concern, count, command, f"{HUGE_PAGES}", why)


def check_tcp_buffers(network: Network) -> Diagnosis | None:
    """The sizes up to which the kernel grows the buffers of a connection."""
    names = ("net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem")
    triples = [(network.host.sysctl(name) or "").split() for name in names]
    if any(len(triple) != 3 for triple in triples):
        return None
    most = [int(triple[2]) for triple in triples]
    seen = f"{size(most[0])} to receive and {size(most[1])} to send"
    wanted = network.buffer_bytes
    if wanted is None or min(most) >= wanted:
        return _buffers("TCP buffers", network, seen)
    pairs = (f'{name}="{low} {usual} {max(int(now), wanted)}"'
             for name, (low, usual, now) in zip(names, triples, strict=True))  # fmt: skip
    return _buffers("TCP buffers", network, seen, f"sysctl -w {' '.join(pairs)}")


def check_socket_buffers(network: Network) -> Diagnosis | None:
    """The sizes that a program may ask for. They are the same in all network namespaces."""
    names = ("net.core.rmem_max", "net.core.wmem_max")
    most = [network.host.sysctl(name) for name in names]
    values = [int(value) for value in most if value is not None]
    if len(values) != 2:
        return None
    seen = f"{size(values[0])} to receive and {size(values[1])} to send"
    wanted = network.buffer_bytes
    if wanted is None or min(values) >= wanted:
        return _buffers("socket buffers", network, seen)
    pairs = (f"{name}={max(value, wanted)}" for name, value in zip(names, values, strict=True))
    return _buffers("socket buffers", network, seen, f"sysctl -w {' '.join(pairs)}")


def _buffers(name: str, network: Network, seen: str, command: str = "") -> Diagnosis:
    if network.bits_per_second is None or network.buffer_bytes is None:
        return Diagnosis(name, "note", f"at most {seen}; what is needed is not known: the link names no speed")
    product = f"{network.bits_per_second / 1e9:g} Gbit/s × {network.delay_seconds * 1e3:.2g} ms"
    need = f"{size(network.buffer_bytes)}: twice {product}, in whole MiB"
    if not command:
        return Diagnosis(name, "ok", f"at most {seen}; needed {need}")
    return Diagnosis(
        name, network.concern, f"at most {seen}", network.host.as_root(command), need,
        "A connection has no more than its buffer under way in a round-trip time.",
    )  # fmt: skip


def check_congestion_control(network: Network) -> Diagnosis | None:
    """How TCP reacts to loss."""
    host = network.host
    used = host.sysctl("net.ipv4.tcp_congestion_control")
    if used is None:
        return None
    if used in CONGESTION_CONTROLS:
        return Diagnosis("congestion control", "ok", used)
    # A container's network namespace may use only what is allowed to all; the host's, what the kernel has.
    lists = (host.sysctl(f"net.ipv4.tcp_{kind}_congestion_control") or "" for kind in ("allowed", "available"))
    choices = [name for text in lists for name in CONGESTION_CONTROLS if name in text.split()]
    better = choices[0] if choices else None
    setting = f"sysctl -w net.ipv4.tcp_congestion_control={better or 'cubic'}"
    command = setting if better else f"sh -c 'modprobe tcp_cubic && {setting}'"
    return Diagnosis(
        "congestion control", network.concern, used, host.as_root(command), " or ".join(CONGESTION_CONTROLS[:2]),
        "Others take long to fill a fast link again after a loss.",
    )  # fmt: skip


def check_mtu(network: Network) -> Diagnosis | None:
    """The largest packet of the interface."""
    interface = network.interface
    if interface is None:
        return Diagnosis("MTU", "note", "no interface is up")
    seen = f"{interface.mtu} bytes on {interface.name}"
    jumbo = network.host.machine() is not None or interface.driver == "ena"
    limited = network.path is not None and network.path.mtu is not None and network.path.mtu < JUMBO
    if not jumbo or limited or interface.mtu >= JUMBO:
        return Diagnosis("MTU", "ok", seen)
    command = network.host.as_root(f"ip link set dev {interface.name} mtu {JUMBO}")
    return Diagnosis("MTU", network.concern, seen, command, f"{JUMBO}",
                     "Each packet costs the CPU the same, whatever its size.")  # fmt: skip


def check_path(network: Network) -> Diagnosis | None:
    """The largest packet that reaches the peer."""
    path, interface = network.path, network.interface
    if path is None or interface is None:
        return None
    if path.mtu is None or path.round_trip_seconds is None:
        return Diagnosis("path to the peer", "note", "the peer answers no UDP packet: a firewall may drop them")
    seen = f"packets of {path.mtu} bytes arrive, {path.round_trip_seconds * 1e3:.2g} ms there and back"
    if path.mtu >= min(interface.mtu, 65535):
        return Diagnosis("path to the peer", "ok", seen)
    command = network.host.as_root(f"ip link set dev {interface.name} mtu {path.mtu}")
    return Diagnosis(
        "path to the peer", "warning", seen, command, f"{interface.mtu}, as on {interface.name}",
        "A connection hangs if its packets are lost on the way; otherwise raise the MTU of the peer or of what lies "
        "between.",
    )  # fmt: skip


def check_numa(network: Network) -> Diagnosis | None:
    """Whether this process may run next to the interface."""
    host, interface = network.host, network.interface
    if interface is None or interface.numa_node is None:
        return Diagnosis("NUMA node", "note", "the interface names none")
    cpus, near = host.allowed_cpus(), host.node_cpus(interface.numa_node)
    seen = f"{interface.name} is on node {interface.numa_node}, this process on CPUs {format_cpus(cpus)}"
    if cpus & near or not near:
        return Diagnosis("NUMA node", "ok", seen)
    return Diagnosis(
        "NUMA node", network.concern, seen, f"taskset -cp {format_cpus(near)} $$", f"CPUs {format_cpus(near)}",
        "All data of the interface crosses the link between the nodes.",
    )  # fmt: skip


def check_interrupts(network: Network) -> Diagnosis | None:
    """Whether several CPUs, on the node of the interface, serve its interrupts."""
    host, interface = network.host, network.interface
    fired = host.fired_irqs()
    irqs = [irq for irq in interface.irqs if irq in fired] if interface else []
    if interface is None or not irqs:
        return Diagnosis("interrupts", "note", "those of the interface are not known")
    near = host.node_cpus(interface.numa_node) if interface.numa_node is not None else host.node_cpus(0)
    serving = {irq: host.irq_cpus(irq) for irq in irqs}
    cpus = set().union(*serving.values())
    seen = f"{len(irqs)} of {interface.name}, on CPUs {format_cpus(cpus)}"
    spread = len(cpus) > 1 or len(irqs) == 1 or len(near) == 1
    if not near or (spread and cpus <= near):
        return Diagnosis("interrupts", "ok", seen)
    order = sorted(near)
    pairs = " ".join(f"{irq}:{order[i % len(order)]}" for i, irq in enumerate(irqs))
    loop = f"for i in {pairs}; do echo ${{i#*:}} > {host.proc}/irq/${{i%:*}}/smp_affinity_list; done"
    return Diagnosis(
        "interrupts", network.concern, seen, loop if host.is_root else f"sudo sh -c '{loop}'",
        f"spread over CPUs {format_cpus(near)}",
        "One CPU alone limits the rate, and one of another node reads remote memory; irqbalance may change it again.",
    )  # fmt: skip


CHECKS: tuple[Callable[[Network], Diagnosis | None], ...] = (
    check_rdma,
    check_gpu_direct,
    check_locked_memory,
    check_open_files,
    check_huge_pages,
    check_tcp_buffers,
    check_socket_buffers,
    check_congestion_control,
    check_mtu,
    check_path,
    check_numa,
    check_interrupts,
)
"""None of a check: this kernel or container does not show what it looks at."""
