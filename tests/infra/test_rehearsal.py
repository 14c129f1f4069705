"""Karpenter starts machines for Convoy's own pods, and leaves them alone: rehearsed with pods that Metaflow makes."""

from collections.abc import Iterator

import boto3
import pytest
from moto import mock_aws

from convoy.catalog.instances import instance_names
from tests.infra.karpenter import CPU_TYPES, MIB, Manifest, Node, allocatable, obstacles
from tests.infra.pods import config, gang_jobset, ordinary_job, pods_of

DAEMONS = {"cpu": 0.3, "memory": 500.0 * MIB, "pods": 8.0}
"""What the DaemonSets of a cluster request on each node: those of EKS, of the device plugins and of FSx, rounded up."""


@pytest.fixture(scope="module")
def described() -> Iterator[dict[str, Manifest]]:
    """AWS's own description of each type, as moto carries it."""
    credentials = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
    with mock_aws():
        client = boto3.client("ec2", region_name="us-east-1", **credentials)
        names = [*instance_names(), *CPU_TYPES]
        found = client.describe_instance_types(InstanceTypes=names)["InstanceTypes"]
        yield {str(each["InstanceType"]): dict(each) for each in found}


@pytest.mark.processes
@pytest.mark.parametrize("name", instance_names())
def test_a_machine_of_every_type_is_started_for_the_pods_of_a_gang(
    name: str, described: dict[str, Manifest], monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = {"node.kubernetes.io/instance-type": name, "karpenter.sh/capacity-type": "spot"}
    taint = {"key": "nvidia.com/gpu", "effect": "NoSchedule", "value": "true"}
    node = Node(labels, allocatable(described[name]), (taint,), DAEMONS)
    for pod in pods_of(gang_jobset(config(name), monkeypatch)):
        assert obstacles(pod, node) == []


@pytest.mark.processes
@pytest.mark.parametrize("name", CPU_TYPES)
def test_a_cpu_machine_is_started_for_the_other_steps(
    name: str, described: dict[str, Manifest], monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node({"node.kubernetes.io/instance-type": name}, allocatable(described[name]), (), DAEMONS)
    (pod,) = pods_of(ordinary_job(config("p4d.24xlarge"), monkeypatch))
    assert obstacles(pod, node) == []


@pytest.mark.processes
def test_karpenter_drains_none_of_the_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    """Metaflow gives pods no grace, so a drain on a spot notice would end them before they save."""
    for manifest in (gang_jobset(config("p5.48xlarge"), monkeypatch), ordinary_job(config("p5.48xlarge"), monkeypatch)):
        for pod in pods_of(manifest):
            assert pod["metadata"]["annotations"]["karpenter.sh/do-not-disrupt"] == "true"


def test_the_arithmetic_is_karpenters(described: dict[str, Manifest]) -> None:
    """Figures of issue reports and of Karpenter's own reference of types, by hand."""
    assert allocatable(described["c7i.xlarge"])["memory"] / MIB == 7577 - 11 * 58 - 355
    assert allocatable(described["c7i.xlarge"])["cpu"] == pytest.approx(3.92)
    assert allocatable(described["p4d.24xlarge"])["pods"] == 737
