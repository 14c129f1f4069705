"""Finds the resources of a stack, by its tag, that still run or cost money."""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from convoy.catalog.aws_prices import Client
from convoy.catalog.prices import SHIPPED, Market
from convoy.catalog.services import Service, service_price
from convoy.infra.account import Json
from convoy.infra.findings import answer_or_none

TAG = "convoy:stack"

_MARKETS: dict[str | None, Market] = {None: "on_demand", "spot": "spot", "capacity-block": "capacity_block"}
"""By EC2's `InstanceLifecycle`."""

FREE = {
    ("ec2", kind)
    for kind in (
        "dhcp-options", "internet-gateway", "key-pair", "launch-template", "network-acl", "network-interface",
        "placement-group", "route-table", "security-group", "security-group-rule", "subnet", "vpc",
        "fleet", "spot-instances-request",  # of which Karpenter makes one for each start of machines
        "vpc-endpoint",  # the stacks have a gateway endpoint only
    )
} | {
    ("batch", ""), ("budgets", ""), ("ecs", "cluster"), ("ecs", "task-definition"),
    ("eks", "access-entry"), ("eks", "addon"), ("eks", "nodegroup"), ("eks", "podidentityassociation"),
    ("elasticloadbalancing", "listener"), ("elasticloadbalancing", "listener-rule"), ("events", ""), ("iam", ""),
    ("elasticloadbalancing", "targetgroup"),
    ("rds", "pg"), ("rds", "subgrp"), ("scheduler", ""), ("servicediscovery", ""), ("sns", ""), ("sqs", ""),
}  # fmt: skip
"""Services and types of resources that cost nothing while they are not used; an empty type stands for all."""

_DESCRIBED = {
    ("ec2", "instance"),
    ("ec2", "volume"),
    ("ec2", "natgateway"),
    ("ec2", "elastic-ip"),
    ("ecr", "repository"),
    ("eks", "cluster"),
}
"""Types of resources that their own service describes: their cost depends on their state, or some implementations of
the tagging service do not list them."""

_NAMES = {
    ("ecs", "service"): "Fargate service", ("elasticloadbalancing", "loadbalancer"): "load balancer",
    ("fsx", "file-system"): "FSx file system", ("logs", "log-group"): "log group", ("rds", "db"): "RDS database",
    ("rds", "snapshot"): "RDS snapshot", ("s3", ""): "S3 bucket", ("secretsmanager", "secret"): "secret",
}  # fmt: skip
"""Readable names for types that the tagging service lists."""


class Leftover(NamedTuple):
    """One resource."""

    kind: str
    name: str
    state: str
    usd_per_hour: float | None
    """None: the catalog has no price for it."""

    def line(self) -> str:
        cost = "price not known here" if self.usd_per_hour is None else f"{self.usd_per_hour:,.3f} USD/h"
        return f"{self.kind:<20} {self.name}: {', '.join(filter(None, (self.state, cost)))}"


def find_leftovers(stack: str, region: str, client: Client) -> list[Leftover]:
    """All resources with the stack's tag that may cost something."""
    finders = (_instances, _volumes, _nat_gateways, _addresses, _clusters, _repositories, _others)
    return [each for find in finders for each in find(stack, region, client)]


def _instances(stack: str, region: str, client: Client) -> Iterator[Leftover]:
    states = {"Name": "instance-state-name", "Values": ["pending", "running", "stopping", "stopped"]}
    pages = client("ec2", region).get_paginator("describe_instances").paginate(Filters=[_tag_filter(stack), states])
    for page in pages:
        for machine in (machine for group in page["Reservations"] for machine in group["Instances"]):
            kind, state, tags = machine["InstanceType"], machine["State"]["Name"], _tags(machine)
            market = _MARKETS.get(machine.get("InstanceLifecycle"))
            price = SHIPPED.price(kind, market, region) if market else None
            usd = price.usd_per_hour if price else None
            if state in ("stopping", "stopped"):
                usd = 0.0
            if pool := tags.get("karpenter.sh/nodepool"):
                state += f", of node pool {pool}"
            yield Leftover(f"EC2 {kind}", machine["InstanceId"], state, usd)


def _volumes(stack: str, region: str, client: Client) -> Iterator[Leftover]:
    pages = client("ec2", region).get_paginator("describe_volumes").paginate(Filters=[_tag_filter(stack)])
    for volume in (volume for page in pages for volume in page["Volumes"]):
        yield Leftover(
            f"EBS {volume['VolumeType']}", volume["VolumeId"], f"{volume['Size']} GiB, {volume['State']}", None
        )


def _nat_gateways(stack: str, region: str, client: Client) -> Iterator[Leftover]:
    pages = client("ec2", region).get_paginator("describe_nat_gateways").paginate(Filter=[_tag_filter(stack)])
    for gateway in (gateway for page in pages for gateway in page["NatGateways"]):
        if _tags(gateway).get(TAG) == stack and gateway["State"] not in ("deleted", "failed"):
            yield Leftover(
                "NAT gateway", gateway["NatGatewayId"], gateway["State"], _hourly_price("nat_gateway", region)
            )


def _addresses(stack: str, region: str, client: Client) -> Iterator[Leftover]:
    for address in client("ec2", region).describe_addresses(Filters=[_tag_filter(stack)])["Addresses"]:
        state = "in use" if address.get("AssociationId") else "not in use"
        yield Leftover("Elastic IP", address["PublicIp"], state, _hourly_price("public_ipv4", region))


def _clusters(stack: str, region: str, client: Client) -> Iterator[Leftover]:
    eks = client("eks", region)
    for name in (name for page in eks.get_paginator("list_clusters").paginate() for name in page["clusters"]):
        cluster = eks.describe_cluster(name=name)["cluster"]
        if cluster.get("tags", {}).get(TAG) == stack:
            yield Leftover("EKS cluster", name, cluster["status"], _hourly_price("eks_cluster", region))


def _hourly_price(service: Service, region: str) -> float | None:
    price = service_price(service, region)
    return price.usd if price else None


def _repositories(stack: str, region: str, client: Client) -> Iterator[Leftover]:
    ecr = client("ecr", region)
    pages = ecr.get_paginator("describe_repositories").paginate()
    for repository in (repository for page in pages for repository in page["repositories"]):
        if _tags(ecr.list_tags_for_resource(resourceArn=repository["repositoryArn"]), "tags").get(TAG) == stack:
            yield Leftover("ECR repository", repository["repositoryName"], "", None)


def _others(stack: str, region: str, client: Client) -> Iterator[Leftover]:
    """Types that the functions above do not cover, from the tagging service. It also lists what is free, and for some
    time what was deleted."""
    tagging = client("resourcegroupstaggingapi", region).get_paginator("get_resources")
    gone = {("kms", "key"): _is_scheduled_for_deletion, ("ecs", "service"): _service_ended}
    for page in tagging.paginate(TagFilters=[{"Key": TAG, "Values": [stack]}]):
        for arn in (row["ResourceARN"] for row in page["ResourceTagMappingList"]):
            service, kind, name = split_arn(arn)
            if {(service, kind), (service, "")} & (FREE | _DESCRIBED):
                continue
            is_gone = gone.get((service, kind))
            if is_gone is None or not is_gone(name, region, client):
                yield Leftover(_NAMES.get((service, kind)) or f"{service} {kind}".strip(), name, "", None)


def _is_scheduled_for_deletion(name: str, region: str, client: Client) -> bool:
    """Whether the key is to be deleted: it waits for at least 7 days, and costs nothing meanwhile."""
    state: str = client("kms", region).describe_key(KeyId=name)["KeyMetadata"]["KeyState"]
    return state == "PendingDeletion"


def _service_ended(name: str, region: str, client: Client) -> bool:
    """Whether the service of ECS has no tasks any more. name: its cluster's and its own."""
    cluster, _, own = name.rpartition("/")
    answer = answer_or_none(
        lambda: client("ecs", region).describe_services(cluster=cluster, services=[own]), "ClusterNotFoundException"
    )
    return not answer or all(each["status"] == "INACTIVE" for each in answer["services"])


def split_arn(arn: str) -> tuple[str, str, str]:
    """Service, type of the resource and name: `arn:aws:rds:REGION:ACCOUNT:db:NAME`, or with a slash after the type. The
    type is empty where the ARN has none, as of a bucket."""
    _, _, service, _, _, resource = arn.split(":", 5)
    kind, separator, name = re.sub("[:/]", "\n", resource, count=1).partition("\n")
    return (service, kind, name) if separator else (service, "", kind)


def _tag_filter(stack: str) -> Json:
    return {"Name": f"tag:{TAG}", "Values": [stack]}


def _tags(described: Any, key: str = "Tags") -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in described.get(key, ())}


def total(leftovers: list[Leftover]) -> str:
    """The sum of the known prices, and how many are not known."""
    known = [each.usd_per_hour for each in leftovers if each.usd_per_hour is not None]
    unknown = len(leftovers) - len(known)
    parts = [f"{len(leftovers)} left"]
    parts += [f"{sum(known):,.3f} USD/h"] if known else []
    parts += [f"{unknown} of unknown price"] if unknown else []
    return ", ".join(parts)
