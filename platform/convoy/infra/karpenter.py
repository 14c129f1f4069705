"""For which pods Karpenter starts a machine of a node pool, and what daemons take of that machine. Pure.

Sources: Karpenter's documentation, "NodePools" and "Scheduling"; aws/karpenter-provider-aws 1.14.1,
`pkg/providers/instancetype/types.go`.
"""

import re
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any

from convoy.catalog.instances import Instance
from convoy.infra.account import Json

CAPACITY_TYPE_LABEL = "karpenter.sh/capacity-type"
NODE_POOL_LABEL = "karpenter.sh/nodepool"
ZONE_LABEL = "topology.kubernetes.io/zone"

WELL_KNOWN = ("kubernetes.io", "karpenter.sh", "karpenter.k8s.aws", "topology.k8s.aws")
"""Ends of the domains of labels that machines have whether or not their pool names them."""


def machine_labels(machine: Instance) -> dict[str, str]:
    """Labels of a machine of this type, as far as the catalog knows them."""
    family, _, size = machine.name.partition(".")
    generation = re.search(r"\d+", family)
    gpus = {"karpenter.k8s.aws/instance-gpu-count": str(machine.gpus)} if machine.gpus else {}
    return gpus | {
        "node.kubernetes.io/instance-type": machine.name,
        "karpenter.k8s.aws/instance-category": family[0],
        "karpenter.k8s.aws/instance-family": family,
        "karpenter.k8s.aws/instance-size": size,
        "karpenter.k8s.aws/instance-generation": generation[0] if generation else "",
        "karpenter.k8s.aws/instance-cpu": str(machine.vcpus),
        "karpenter.k8s.aws/instance-memory": str(machine.memory_gib * 1024),
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/os": "linux",
    }


def starts_for(pool: Json, labels: Mapping[str, str]) -> bool:
    """Whether the pool starts machines with all of these labels."""
    own, requirements = pool_labels(pool), pool_requirements(pool)
    defined = own.keys() | {each["key"] for each in requirements}
    return (
        meets(requirements, labels)
        and all(own.get(key, value) == value for key, value in labels.items())
        and all(key in defined or _is_well_known(key) for key in labels)
    )


def pool_labels(pool: Json) -> dict[str, str]:
    """Labels that all its machines have: those that it names, and those for which it allows one value."""
    single = {
        each["key"]: each["values"][0]
        for each in pool_requirements(pool)
        if each["operator"] == "In" and len(each["values"]) == 1
    }
    named: dict[str, str] = pool["spec"]["template"].get("metadata", {}).get("labels", {})
    return single | named | {NODE_POOL_LABEL: pool["metadata"]["name"]}


def pool_requirements(pool: Json) -> list[Json]:
    requirements: list[Json] = pool["spec"]["template"]["spec"].get("requirements", [])
    return requirements


def capacity_types(pool: Json) -> set[str]:
    """Of the machines that it may start. Karpenter takes reserved ones first, then spot, then on demand."""
    wanted = [each for each in pool_requirements(pool) if each["key"] == CAPACITY_TYPE_LABEL]
    return {each for each in ("reserved", "spot", "on-demand") if meets(wanted, {CAPACITY_TYPE_LABEL: each})}


def not_ready(found: Json) -> str | None:
    """Why Karpenter does not use a pool or a class; None: it does."""
    for condition in found.get("status", {}).get("conditions", ()):
        if condition["type"] == "Ready":
            reason = condition.get("message") or condition.get("reason") or "no reason given"
            return None if condition["status"] == "True" else f"not ready ({reason})"
    return "not ready (Karpenter has not looked at it)"


def allowed_zones(pool: Json) -> list[str] | None:
    """None: all."""
    named = (each for each in pool_requirements(pool) if (each["key"], each["operator"]) == (ZONE_LABEL, "In"))
    zones = [each["values"] for each in named]
    return zones[0] if zones else None


def forbids_drift(pool: Json) -> bool:
    """Whether machines stay although their node class has changed since they were started."""
    return any(
        budget["nodes"] in ("0", "0%") and "schedule" not in budget and "Drifted" in budget.get("reasons", ["Drifted"])
        for budget in pool["spec"].get("disruption", {}).get("budgets", ())
    )


def meets(expressions: Iterable[Json], labels: Mapping[str, str]) -> bool:
    """Whether a machine with these labels meets the expressions. A label that is not among them counts as met."""
    return all(_meets(each, labels[each["key"]]) for each in expressions if each["key"] in labels)


def _meets_on_machine(expressions: Iterable[Json], labels: Mapping[str, str]) -> bool:
    """Like `meets`, for a machine that has these labels, well-known ones, and no others."""
    absent = (each for each in expressions if each["key"] not in labels and not _is_well_known(each["key"]))
    return meets(expressions, labels) and all(each["operator"] in ("NotIn", "DoesNotExist") for each in absent)


def _is_well_known(key: str) -> bool:
    return key.partition("/")[0].endswith(WELL_KNOWN)


def _meets(expression: Json, value: str) -> bool:
    match expression["operator"]:
        case "In":
            return value in expression["values"]
        case "NotIn":
            return value not in expression["values"]
        case "DoesNotExist":
            return False
        case "Gt" | "Gte" | "Lt" | "Lte" as operator:
            number, bound = int(value), int(expression["values"][0])
            return {"Gt": number > bound, "Gte": number >= bound, "Lt": number < bound, "Lte": number <= bound}[
                operator
            ]
        case _:  # Exists
            return True


def intolerable(taints: Iterable[Json], tolerations: Iterable[Mapping[str, str]]) -> list[Json]:
    """The taints that keep a pod with these tolerations away."""
    tolerations = list(tolerations)
    return [
        taint
        for taint in taints
        if taint["effect"] != "PreferNoSchedule" and not any(_tolerates(each, taint) for each in tolerations)
    ]


def _tolerates(toleration: Mapping[str, str], taint: Json) -> bool:
    exists = toleration.get("operator") == "Exists"
    same_key = toleration.get("key") == taint["key"] or (exists and not toleration.get("key"))
    same_value = exists or toleration.get("value", "") == taint.get("value", "")
    return same_key and same_value and toleration.get("effect") in (None, "", taint["effect"])


def runs_on(daemon_set: Json, labels: Mapping[str, str], taints: Iterable[Json]) -> bool:
    """Whether it has a pod on machines with these labels and taints."""
    pod = daemon_set["spec"]["template"]["spec"]
    affinity = pod.get("affinity", {}).get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution", {})
    terms = affinity.get("nodeSelectorTerms", [])
    selected = [{"key": key, "operator": "In", "values": [value]} for key, value in pod.get("nodeSelector", {}).items()]
    return (
        _meets_on_machine(selected, labels)
        and (not terms or any(_meets_on_machine(term.get("matchExpressions", ()), labels) for term in terms))
        and not intolerable(taints, pod.get("tolerations", ()))
    )


def quantity(text: str | int | float) -> float:
    """What Kubernetes writes as `500m` or `2Gi`."""
    parse: Any = import_module("kubernetes.utils").parse_quantity  # an extra
    return float(parse(text))


def requested(pod: Json, resource: str) -> float:
    """What a pod requests: all its containers together, or one that runs before them if that is more."""

    def of(container: Json) -> float:
        resources = container.get("resources", {})
        return quantity({**resources.get("limits", {}), **resources.get("requests", {})}.get(resource, 0))

    return max(sum(map(of, pod["containers"])), *map(of, pod.get("initContainers", [])), 0.0)


def free_cpus(machine: Instance) -> float:
    """CPUs that Karpenter expects an empty machine to have for pods: the kubelet keeps 6 % of the first, 1 % of the
    second, 0.5 % of the next two and 0.25 % of all others."""
    kept = [0.06, 0.01, 0.005, 0.005, *[0.0025] * machine.vcpus][: machine.vcpus]
    return machine.vcpus - sum(kept)
