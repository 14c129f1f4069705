"""Karpenter's decision whether a machine of a type would take a pod, by its own arithmetic.

Sources: aws/karpenter-provider-aws 1.14.1, `pkg/providers/instancetype/types.go` (computeCapacity,
kubeReservedResources, systemReservedResources, evictionThreshold), and kubernetes-sigs/karpenter 1.14, `pkg/scheduling`
(labels, taints). The types are AWS's own descriptions, as moto carries them, not the catalog's.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Manifest = dict[str, Any]
Amounts = dict[str, float]
"""Resources by name: CPUs, bytes, or a number."""

UNITS = {
    "m": 1e-3,
    "": 1.0,
    "k": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}
MIB = 2**20

CPU_TYPES = ("m7i.2xlarge", "m6i.2xlarge")
"""Types that Karpenter may start for ordinary steps."""


@dataclass(frozen=True)
class Node:
    """A machine that Karpenter could start."""

    labels: Mapping[str, str]
    allocatable: Amounts
    """What pods may request, daemons' included."""
    taints: tuple[Manifest, ...] = ()
    daemons: Amounts = field(default_factory=dict)
    """What the pods of DaemonSets request on it."""


def quantity(text: Any) -> float:
    """A Kubernetes quantity, e.g. `5120Mi`."""
    words = re.fullmatch(r"([0-9.]+)([a-zA-Z]*)", str(text))
    assert words, text
    return float(words[1]) * UNITS[words[2]]


def allocatable(described: Manifest, max_pods: int | None = None, storage_bytes: float = 20 * 2**30) -> Amounts:
    """What Karpenter expects a node to offer pods. described: the type, as DescribeInstanceTypes has it."""
    network, cpus = described["NetworkInfo"], described["VCpuInfo"]["DefaultVCpus"]
    card = next(
        each for each in network["NetworkCards"] if each["NetworkCardIndex"] == network["DefaultNetworkCardIndex"]
    )
    pods = max_pods or card["MaximumNetworkInterfaces"] * (network["Ipv4AddressesPerInterface"] - 1) + 2
    memory = math.floor(described["MemoryInfo"]["SizeInMiB"] * (1 - 0.075)) * MIB
    found = {
        "cpu": cpus - _reserved_cpus(cpus),
        "memory": memory - (11 * pods + 255 + 100) * MIB,
        "ephemeral-storage": storage_bytes * 0.9 - 2**30,
        "pods": pods,
        "nvidia.com/gpu": sum(each["Count"] for each in described.get("GpuInfo", {}).get("Gpus", [])),
        "vpc.amazonaws.com/efa": network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0),
    }
    return {name: float(amount) for name, amount in found.items()}


def _reserved_cpus(cpus: int) -> float:
    """6 % of the first, 1 % of the second, half a percent of the next two, a quarter of a percent of the others."""
    shares = [0.06, 0.01, 0.005, 0.005]
    return sum(shares[:cpus]) + 0.0025 * max(0, cpus - 4)


def requests(pod: Manifest) -> Amounts:
    """What a pod requests; where it only has a limit, that."""
    total: Amounts = {"pods": 1.0}
    for container in pod["spec"]["containers"]:
        resources = container.get("resources", {})
        for name, amount in ({**resources.get("limits", {}), **resources.get("requests", {})}).items():
            total[name] = total.get(name, 0.0) + quantity(amount)
    return total


def obstacles(pod: Manifest, node: Node) -> list[str]:
    """Why no such machine is started for the pod; empty: it is."""
    found = [
        f"label {name}={wanted}, node has {node.labels.get(name)}"
        for name, wanted in (pod["spec"].get("nodeSelector") or {}).items()
        if node.labels.get(name) != wanted
    ]
    found += [
        f"taint {taint['key']}" for taint in node.taints if not _tolerated(taint, pod["spec"].get("tolerations") or [])
    ]
    for name, wanted in requests(pod).items():
        free = node.allocatable.get(name, 0.0) - node.daemons.get(name, 0.0)
        if wanted > free:
            found.append(f"{name}: requests {wanted:,.0f}, free {free:,.0f}")
    return found


def _tolerated(taint: Manifest, tolerations: Iterable[Manifest]) -> bool:
    return any(
        each.get("key") in (None, taint["key"])
        and (each.get("operator", "Equal") == "Exists" or each.get("value", "") == taint.get("value", ""))
        and each.get("effect") in (None, "", taint["effect"])
        for each in tolerations
    )


def daemon_requests(daemons: Iterable[Manifest], node: Node) -> Amounts:
    """What those of the DaemonSets request whose pods run on this node."""
    total: Amounts = {}
    for daemon in daemons:
        pod = daemon["spec"]["template"]
        empty = Node(node.labels, dict.fromkeys(requests(pod), math.inf), node.taints)
        if not obstacles(pod, empty):
            for name, amount in requests(pod).items():
                total[name] = total.get(name, 0.0) + amount
    return total
