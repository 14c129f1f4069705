"""Facts of a host that bear on its network, read from /proc, /sys and /dev."""

import contextlib
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from convoy.catalog.instances import Instance, instance
from convoy.config.errors import ConfigError


@dataclass(frozen=True)
class Host:
    """Where the facts are."""

    proc: Path = Path("/proc")
    sysfs: Path = Path("/sys")
    dev: Path = Path("/dev")
    is_root: bool = field(default_factory=lambda: os.geteuid() == 0)

    def as_root(self, command: str) -> str:
        """The command, as this user runs it with root's rights."""
        return command if self.is_root else f"sudo {command}"

    def sysctl(self, name: str) -> str | None:
        """The value of a kernel parameter, its fields separated by one blank; None: there is none of this name."""
        text = read(self.proc / "sys" / name.replace(".", "/"))
        return None if text is None else " ".join(text.split())

    def limit(self, name: str) -> tuple[float, float] | None:
        """The soft and the hard limit of this process, as /proc/self/limits names it; None: not known."""
        found = re.search(rf"^{name} +(\d+|unlimited) +(\d+|unlimited)", read(self.proc / "self/limits") or "", re.M)
        if found is None:
            return None
        soft, hard = (float("inf") if text == "unlimited" else float(text) for text in found.groups())
        return soft, hard

    def may_raise_limits(self) -> bool:
        """Whether this process has CAP_SYS_RESOURCE, number 24 of capabilities(7); root in a container has not."""
        found = re.search(r"^CapEff:\s*([0-9a-f]+)", read(self.proc / "self/status") or "", re.M)
        return found is not None and bool(int(found[1], 16) >> 24 & 1)

    def allowed_cpus(self) -> set[int]:
        """CPUs on which this process may run."""
        found = re.search(r"^Cpus_allowed_list:\s*(\S+)", read(self.proc / "self/status") or "", re.M)
        return parse_cpus(found[1]) if found else set()

    def node_cpus(self, node: int) -> set[int]:
        """CPUs of a NUMA node."""
        return parse_cpus(read(self.sysfs / f"devices/system/node/node{node}/cpulist") or "")

    def irq_cpus(self, irq: int) -> set[int]:
        """CPUs that serve an interrupt."""
        folder = self.proc / "irq" / str(irq)
        wanted = parse_cpus(read(folder / "smp_affinity_list") or "")
        # Of several the kernel picks one. What was just set takes effect with the next interrupt.
        chosen = parse_cpus(read(folder / "effective_affinity_list") or "") if len(wanted) != 1 else set()
        return chosen & wanted or wanted

    def fired_irqs(self) -> set[int]:
        """Numbers of the interrupts that came at least once."""
        lines = re.findall(r"^ *(\d+): +([\d ]+)", read(self.proc / "interrupts") or "", re.M)
        return {int(irq) for irq, counts in lines if any(int(count) for count in counts.split())}

    def rdma_devices(self) -> list[Path]:
        """Adapters that the kernel has an RDMA driver for, EFA among them."""
        return sorted((self.sysfs / "class/infiniband").glob("*"))

    def machine(self) -> Instance | None:
        """The EC2 type; None: this is no EC2 instance, or of a type that the catalog does not have."""
        dmi = self.sysfs / "devices/virtual/dmi/id"
        if read(dmi / "sys_vendor") == "Amazon EC2":
            with contextlib.suppress(ConfigError):
                return instance(read(dmi / "product_name") or "")
        return None

    def interfaces(self) -> list[str]:
        """Names of the network interfaces, without loopback."""
        folders = (self.sysfs / "class/net").glob("*")
        return sorted(path.name for path in folders if path.name != "lo" and (path / "mtu").exists())

    def default_interface(self) -> str | None:
        """That of the default route, else the first that is up; None: there is none."""
        routes = [line.split() for line in (read(self.proc / "net/route") or "").splitlines()[1:]]
        if defaults := [route[0] for route in routes if len(route) > 7 and route[1] == route[7] == "00000000"]:
            return defaults[0]
        up = (name for name in self.interfaces() if read(self.sysfs / f"class/net/{name}/operstate") == "up")
        return next(up, None)

    def interface(self, name: str) -> "Interface":
        """The facts of one interface."""
        folder = self.sysfs / "class/net" / name
        above = [folder.resolve(), *folder.resolve().parents]  # the device of a virtio interface is a bus's child
        node = next((read(path / "numa_node") for path in above if (path / "numa_node").exists()), None)
        irqs = next((path / "msi_irqs" for path in above if (path / "msi_irqs").is_dir()), None)
        speed = read(folder / "speed")
        return Interface(
            name=name,
            mtu=int(read(folder / "mtu") or 0),
            bits_per_second=float(speed) * 1e6 if speed and speed.isdigit() and int(speed) > 0 else None,
            numa_node=int(node) if node and node.isdigit() else None,
            irqs=tuple(sorted(int(path.name) for path in irqs.iterdir())) if irqs else (),
            driver=(folder / "device/driver").resolve().name if (folder / "device/driver").exists() else None,
        )


@dataclass(frozen=True)
class Interface:
    """A network interface."""

    name: str
    mtu: int
    """Bytes."""
    bits_per_second: float | None
    """Rate of its link; None: not known."""
    numa_node: int | None
    """None: the machine has one node only, or the device names none."""
    irqs: tuple[int, ...]
    """Numbers of its interrupts."""
    driver: str | None


def read(path: Path) -> str | None:
    """The text of a file without blanks around it; None if it cannot be read."""
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None


def parse_cpus(text: str) -> set[int]:
    """CPU numbers of a list such as `0-3,8`."""
    spans = (part.partition("-") for part in text.split(",") if part.strip())
    return {cpu for first, _, last in spans for cpu in range(int(first), int(last or first) + 1)}


def format_cpus(cpus: set[int]) -> str:
    """CPU numbers as a list such as `0-3,8`."""
    starts = sorted(cpu for cpu in cpus if cpu - 1 not in cpus)
    ends = sorted(cpu for cpu in cpus if cpu + 1 not in cpus)
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True))
