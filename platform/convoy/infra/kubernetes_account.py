"""A Kubernetes cluster as a gang uses it: its pod, and the node pool and node class that start its machines."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from convoy.catalog.instances import Interface
from convoy.infra import karpenter
from convoy.infra.account import Json
from convoy.infra.cluster_api import ClusterApi
from convoy.infra.machines import (
    MachineAccount,
    Machines,
    find_placement_group,
    find_security_groups,
    find_subnets,
)
from convoy.launch.decorators import step_decorators

CAPACITY = {"on_demand": "on-demand", "reserved": "on-demand", "spot": "spot", "capacity_block": "reserved"}
"""Karpenter's name of what each market starts: it calls `reserved` what runs in a capacity reservation, whereas a
reserved instance is a price of machines on demand."""


@dataclass(frozen=True)
class KubernetesAccount(MachineAccount):
    """What the API server says; each question is asked only once."""

    api: ClusterApi

    @cached_property
    def pod(self) -> dict[str, Any]:
        """What a pod of the gang requests, in Metaflow's words."""
        return step_decorators(self.config).gang[0].arguments

    @property
    def namespace(self) -> str:
        return self.cluster.namespace or self.settings.get("KUBERNETES_NAMESPACE") or "default"

    @cached_property
    def labels(self) -> dict[str, str]:
        """Of the machines that such a pod needs."""
        wanted = {karpenter.CAPACITY_TYPE_LABEL: CAPACITY[self.cluster.market], **self.pod["node_selector"]}
        return karpenter.machine_labels(self.machine) | wanted

    @cached_property
    def pools(self) -> list[Json] | None:
        """None: Karpenter is not installed."""
        return self.api.objects("karpenter.sh", "v1", "nodepools")

    @cached_property
    def pool(self) -> Json | None:
        """Of the pools that start such machines, the one that Karpenter tries first: it passes over those that are not
        ready or whose taints the pod does not tolerate."""
        fitting = [pool for pool in self.pools or () if karpenter.starts_for(pool, self.labels) and self._buys(pool)]
        return max(fitting, key=lambda pool: (self._is_used(pool), pool["spec"].get("weight", 0)), default=None)

    def _buys(self, pool: Json) -> bool:
        """Whether its machines are of the market: the pod may leave that to the pool."""
        wanted, types = self.labels[karpenter.CAPACITY_TYPE_LABEL], karpenter.capacity_types(pool)
        return wanted in types if karpenter.CAPACITY_TYPE_LABEL in self.pod["node_selector"] else types == {wanted}

    def _is_used(self, pool: Json) -> bool:
        taints = pool["spec"]["template"]["spec"].get("taints", ())
        return karpenter.not_ready(pool) is None and not karpenter.intolerable(taints, self.pod["tolerations"])

    @property
    def template(self) -> Json:
        """What the pool says of each machine; empty without a pool."""
        return self.pool["spec"]["template"]["spec"] if self.pool else {}

    @cached_property
    def node_class(self) -> Json | None:
        if self.pool is None:
            return None
        return self.api.named("karpenter.k8s.aws", "v1", "ec2nodeclasses", self.template["nodeClassRef"]["name"])

    @cached_property
    def daemon_sets(self) -> list[Json]:
        """Those with a pod on each machine of the pool."""
        labels = self.labels | (karpenter.pool_labels(self.pool) if self.pool else {})
        found = self.api.objects("apps", "v1", "daemonsets") or []
        return [each for each in found if karpenter.runs_on(each, labels, self.template.get("taints", ()))]

    @cached_property
    def machines(self) -> Machines | None:
        if self.node_class is None:
            return None
        spec = self.node_class["spec"]
        options, selector = spec.get("metadataOptions", {}), spec.get("placementGroupSelector", {})
        group = {f"Group{key.capitalize()}s": [value] for key, value in selector.items()}
        reserved = [term.get("id") for term in spec.get("capacityReservationSelectorTerms", ())]
        return Machines(
            where=f"EC2NodeClass {self.node_class['metadata']['name']}",
            subnets=self._select(find_subnets, "subnet-id", spec["subnetSelectorTerms"]),
            security_groups=self._select(find_security_groups, "group-id", spec["securityGroupSelectorTerms"]),
            interfaces=frozenset(
                Interface(each["networkCardIndex"], each["deviceIndex"], each["interfaceType"])
                for each in spec.get("networkInterfaces", ())
            ),
            placement_group=find_placement_group(self, **group) if group else None,
            reservation=next(iter(reserved), None),
            metadata_enabled=options.get("httpEndpoint", "enabled") == "enabled",
            hop_limit=options.get("httpPutResponseHopLimit", 1),
            tokens=options.get("httpTokens", "required"),
        )

    @property
    def zones(self) -> frozenset[str]:
        """Those of the subnets that the pool and the pod allow."""
        limits = [karpenter.allowed_zones(self.pool) if self.pool else None, self._pod_zones()]
        return super().zones.intersection(*(limit for limit in limits if limit is not None))

    def _pod_zones(self) -> list[str] | None:
        zone = self.labels.get(karpenter.ZONE_LABEL)
        return None if zone is None else [zone]

    def _select(self, find: Callable[..., list[Json]], id_filter: str, terms: list[Json]) -> list[Json]:
        """What any of the terms of a node class selects."""
        found: list[Json] = []
        for term in terms:
            filters = {id_filter: [term["id"]]} if "id" in term else {}
            filters |= {"group-name": [term["name"]]} if "name" in term else {}
            filters |= {f"tag:{key}": [value] for key, value in term.get("tags", {}).items()}  # `*`: any, as in EC2
            found += [each for each in find(self, filters) if each not in found]
        return found
