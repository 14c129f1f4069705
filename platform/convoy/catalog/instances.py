"""AWS instance types: those with NVIDIA GPUs, and a few without for a first trial."""

import math
from datetime import date
from typing import Literal, NamedTuple

from pydantic import Field

from convoy.catalog import load_table
from convoy.config.base import FrozenConfig
from convoy.config.errors import ConfigError, name_hint

MONTH_SECONDS = 365.25 / 12 * 86400

MEMORY_SHARE = 0.85
"""Share of a machine's nominal memory that a task may have: the rest is the kernel's, the container agent's and, with
EFA, 10 GiB of huge pages'."""

DAEMONS_MIB = 512
"""Memory that the DaemonSets of a Kubernetes node may request."""


class Interface(NamedTuple):
    """A network interface that a machine is started with."""

    network_card_index: int
    device_index: int
    interface_type: Literal["interface", "efa", "efa-only"]
    """As EC2 calls them: for IP, for IP and EFA, for EFA without an address."""


class Gpu(FrozenConfig):
    """The GPUs of one instance, all of one kind."""

    name: str
    """AWS's short name, e.g. `A100`; not the name CUDA reports."""
    count: int = Field(ge=1)
    """How many."""
    memory_mib: int = Field(ge=1)
    """Memory of each, in MiB."""


class Instance(FrozenConfig):
    """What one machine of a type has."""

    name: str
    """E.g. `p4d.24xlarge`."""
    vcpus: int = Field(ge=1)
    """Hardware threads."""
    memory_gib: int = Field(ge=1)
    """Host memory, in GiB."""
    gpu: Gpu | None
    """None: it has none."""
    nvlink_gb_per_second: float = Field(ge=0)
    """Of one GPU to the others of its machine, in GB/s (1e9 bytes) per direction; 0: they have no NVLink."""
    efa_interfaces: int = Field(ge=0)
    """Elastic Fabric Adapters at most; 0 where the type has none."""
    network_cards: int = Field(ge=1)
    """An adapter of each can do EFA, where the type has EFA."""
    interfaces_per_card: int = Field(ge=1)
    """Network interfaces that each card takes."""
    ipv4_per_interface: int = Field(ge=1)
    """IPv4 addresses that each interface takes."""
    network_gbps: float = Field(gt=0)
    """Sustained network bandwidth per direction, in Gbit/s, over all cards."""
    nvme_count: int = Field(ge=0)
    """Local disks; what is on them is lost with the machine."""
    nvme_gb: int = Field(ge=0)
    """Size of each local disk, in GB."""
    ebs_mbps: int = Field(ge=0)
    """Sustained bandwidth to EBS, in Mbit/s."""

    @property
    def gpus(self) -> int:
        """How many, 0 without."""
        return self.gpu.count if self.gpu else 0

    @property
    def karpenter_memory_mib(self) -> int:
        """Memory that Karpenter expects an empty node to have for pods, in MiB: without 7.5 % for the hypervisor, 11
        MiB for each possible pod, 255 MiB for the kubelet and 100 MiB that trigger eviction. A pod that requests more
        starts no machine. Source: aws/karpenter-provider-aws 1.14.1, `pkg/providers/instancetype/types.go`.
        """
        pods = self.interfaces_per_card * (self.ipv4_per_interface - 1) + 2
        return math.floor(0.925 * self.memory_gib * 1024) - 11 * pods - 255 - 100

    @property
    def task_memory_mib(self) -> int:
        """Memory that a task may request, /dev/shm included, in MiB."""
        return min(int(MEMORY_SHARE * self.memory_gib * 1024), self.karpenter_memory_mib - DAEMONS_MIB)

    def interfaces(self, backend: Literal["batch", "kubernetes"]) -> tuple[Interface, ...]:
        """Network interfaces that a node of a gang is started with: one for IP, and every EFA adapter.

        The first one cannot be `efa-only`. AWS Batch attaches another to card 0 for each task of a multi-node job;
        where that card has two places, its EFA adapter must be the first interface itself. Source: Amazon EC2 User
        Guide, "Maximize network bandwidth on Amazon EC2 instances with multiple network cards".
        `infra/modules/gpu-nodes/main.tf` computes the same in Terraform, from the same catalog.
        """
        if self.efa_interfaces == 0:
            return (Interface(0, 0, "interface"),)
        others = tuple(Interface(card, 0, "efa-only") for card in range(1, self.efa_interfaces))
        if backend == "batch" and self.interfaces_per_card == 2:
            return (Interface(0, 0, "efa"), *others)
        return (Interface(0, 0, "interface"), Interface(0, 1, "efa-only"), *others)


def instance_names() -> list[str]:
    """Every type of the catalog, sorted."""
    return sorted(load_table("instances")["instances"])


def instance_with_gpu(gpu: str, gpu_bytes: float) -> Instance | None:
    """The machine with most of this GPU, whose memory is nearest to so many bytes; None: no type of the catalog has it.
    gpu: AWS's short name."""
    machines = [machine for machine in map(instance, instance_names()) if machine.gpu and machine.gpu.name == gpu]
    return min(machines, key=lambda machine: (abs(_gpu_bytes(machine) - gpu_bytes), -machine.gpus), default=None)


def _gpu_bytes(machine: Instance) -> float:
    return machine.gpu.memory_mib * 2**20 if machine.gpu else 0.0


def instance(name: str) -> Instance:
    """The facts of one type. Raises ConfigError if the catalog does not have it."""
    facts = load_table("instances")["instances"].get(name)
    if facts is None:
        raise ConfigError(f"cluster.instance_type = {name}: not in the catalog; {_suggestions(name)}")
    return Instance(name=name, **facts)


def _suggestions(name: str) -> str:
    """Types of the same family, or of families that begin so, else the nearest, else all."""
    begin, names = name.strip().lower().split(".")[0], instance_names()
    family = [each for each in names if begin and each.startswith(f"{begin}.")]
    family = family or [each for each in names if begin and each.startswith(begin)]
    return f"did you mean {' or '.join(family)}?" if family else name_hint(name, names)


class InterruptionBand(FrozenConfig):
    """Of one instance type."""

    instance: str
    low: float = Field(ge=0, lt=1)
    """Share of machines that were reclaimed within a month: the band's lower end."""
    high: float = Field(gt=0, lt=1)
    date: date
    """Day of the observation."""
    source: str


def interruption_band(instance: str) -> InterruptionBand | None:
    """The newest that the catalog has; None: nothing is known of this type."""
    rows = [row for row in load_table("interruptions")["interruptions"] if row["instance"] == instance]
    if not rows:
        return None
    newest = max(rows, key=lambda row: str(row["date"]))
    source = load_table("interruptions")["sources"][newest["source"]]
    return InterruptionBand.model_validate({**newest, "source": source})


def mtbf_seconds(monthly_share: float, nodes: int) -> float:
    """Mean time between interruptions of a gang of this many machines, if each machine is taken independently and at a
    constant rate. monthly_share: the chance that one machine is taken within a month. Raises ValueError unless 0 <
    monthly_share < 1."""
    if not 0 < monthly_share < 1:
        raise ValueError(f"monthly_share = {monthly_share}: must be between 0 and 1")
    return MONTH_SECONDS / (-math.log1p(-monthly_share) * nodes)
