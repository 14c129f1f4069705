"""`convoy infra left`: what still runs or costs is listed with its price; what was deleted, is free or is another
stack's is not."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from moto import mock_aws

from convoy.catalog.prices import SHIPPED
from convoy.cli import infra
from convoy.infra import left
from convoy.infra.left import Leftover, find_leftovers, split_arn, total
from tests.cli import assert_refused, convoy
from tests.infra.batch_account import ACCOUNT, REGION, client

pytestmark = pytest.mark.infra

TAGS = [{"Key": "convoy:stack", "Value": "convoy"}]
OTHER = [{"Key": "convoy:stack", "Value": "other"}]


@pytest.fixture
def aws() -> Iterator[None]:
    with mock_aws():
        yield


def tagged(kind: str, tags: list[dict[str, str]]) -> list[dict[str, Any]]:
    return [{"ResourceType": kind, "Tags": tags}]


def run_instance(kind: str, tags: list[dict[str, str]], **own: Any) -> str:
    made = client("ec2").run_instances(
        ImageId="ami-0123456789abcdef0",
        InstanceType=kind,
        MinCount=1,
        MaxCount=1,
        TagSpecifications=tagged("instance", tags),
        **own,
    )
    name: str = made["Instances"][0]["InstanceId"]
    return name


def make_stack(tags: list[dict[str, str]], name: str) -> dict[str, str]:
    """One resource of each kind, free ones too; their names by kind."""
    ec2 = client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16", TagSpecifications=tagged("vpc", tags))["Vpc"]["VpcId"]
    subnets = [
        ec2.create_subnet(
            VpcId=vpc,
            CidrBlock=f"10.0.{i}.0/24",
            AvailabilityZone=f"{REGION}{zone}",
            TagSpecifications=tagged("subnet", tags),
        )["Subnet"]["SubnetId"]
        for i, zone in enumerate("ab")
    ]
    address = ec2.allocate_address(Domain="vpc", TagSpecifications=tagged("elastic-ip", tags))
    gateway = ec2.create_nat_gateway(
        SubnetId=subnets[0], AllocationId=address["AllocationId"], TagSpecifications=tagged("natgateway", tags)
    )["NatGateway"]["NatGatewayId"]
    volume = ec2.create_volume(
        AvailabilityZone=f"{REGION}a", Size=8, VolumeType="gp3", TagSpecifications=tagged("volume", tags)
    )["VolumeId"]
    client("elbv2").create_load_balancer(Name=name, Subnets=subnets, Type="network", Tags=tags)
    client("rds").create_db_instance(
        DBInstanceIdentifier=name, DBInstanceClass="db.t4g.small", Engine="postgres", AllocatedStorage=20, Tags=tags,
        MasterUsername="me", MasterUserPassword="not-a-secret",
    )  # fmt: skip
    system = client("fsx").create_file_system(
        FileSystemType="LUSTRE", StorageCapacity=1200, SubnetIds=subnets[:1], Tags=tags
    )["FileSystem"]["FileSystemId"]
    plain = {tag["Key"]: tag["Value"] for tag in tags}
    role = f"arn:aws:iam::{ACCOUNT}:role/eks"
    client("eks").create_cluster(name=name, roleArn=role, resourcesVpcConfig={"subnetIds": subnets}, tags=plain)
    client("ecr").create_repository(repositoryName=name, tags=tags)
    client("s3").create_bucket(Bucket=f"{name}-bucket")
    client("s3").put_bucket_tagging(Bucket=f"{name}-bucket", Tagging={"TagSet": tags})
    client("sqs").create_queue(QueueName=name, tags=plain)
    client("ecs").create_cluster(clusterName=name)
    client("ecs").register_task_definition(
        family="task", containerDefinitions=[{"name": "it", "image": "x", "memory": 8}]
    )
    for service in ("kept", "deleted"):
        client("ecs").create_service(
            cluster=name, serviceName=service, taskDefinition="task", desiredCount=0,
            tags=[{"key": tag["Key"], "value": tag["Value"]} for tag in tags],
        )  # fmt: skip
    client("ecs").delete_service(cluster=name, service="deleted")
    client("kms").schedule_key_deletion(
        KeyId=client("kms").create_key(Tags=[{"TagKey": t["Key"], "TagValue": t["Value"]} for t in tags])[
            "KeyMetadata"
        ]["KeyId"]
    )
    return {
        "EBS gp3": volume, "NAT gateway": gateway, "Elastic IP": address["PublicIp"], "EKS cluster": name,
        "ECR repository": name, "RDS database": name, "FSx file system": system, "S3 bucket": f"{name}-bucket",
        "Fargate service": f"{name}/kept",
    }  # fmt: skip


def test_each_thing_that_costs_is_listed_and_nothing_else(aws: None) -> None:
    names = make_stack(TAGS, "convoy")
    make_stack(OTHER, "other")
    found = {each.kind: each for each in find_leftovers("convoy", REGION, client)}
    balancer = found.pop("load balancer")
    assert "/convoy/" in balancer.name
    assert {kind: each.name for kind, each in found.items()} == names
    priced = {kind: each.usd_per_hour for kind, each in found.items() if each.usd_per_hour is not None}
    assert priced == {"NAT gateway": 0.045, "Elastic IP": 0.005, "EKS cluster": 0.1}
    assert "0.045 USD/h" in found["NAT gateway"].line()
    assert "price not known here" in balancer.line()


def test_machines_have_the_catalog_s_price_and_say_who_started_them(aws: None) -> None:
    on_demand = run_instance("p5.48xlarge", [*TAGS, {"Key": "karpenter.sh/nodepool", "Value": "p5-spot"}])
    spot = run_instance("p4d.24xlarge", TAGS, InstanceMarketOptions={"MarketType": "spot"})
    unknown = run_instance("t3.micro", TAGS)
    stopped, ended = run_instance("p4d.24xlarge", TAGS), run_instance("p4d.24xlarge", TAGS)
    run_instance("p4d.24xlarge", OTHER)
    client("ec2").stop_instances(InstanceIds=[stopped])
    client("ec2").terminate_instances(InstanceIds=[ended])
    found = {each.name: each for each in find_leftovers("convoy", REGION, client) if each.kind.startswith("EC2")}
    price, spot_price = SHIPPED.price("p5.48xlarge", "on_demand", REGION), SHIPPED.price("p4d.24xlarge", "spot", REGION)
    assert price is not None
    assert found[on_demand] == Leftover(
        "EC2 p5.48xlarge", on_demand, "running, of node pool p5-spot", price.usd_per_hour
    )
    assert found[unknown].usd_per_hour is None
    assert found[stopped] == Leftover("EC2 p4d.24xlarge", stopped, "stopped", 0.0)
    assert found.keys() == {on_demand, spot, unknown, stopped}
    assert spot_price is None or found[spot].usd_per_hour == spot_price.usd_per_hour


def test_the_command_prints_a_total_and_its_exit_code_says_whether_anything_is_left(
    aws: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(infra, "boto3_client", client)
    done = convoy("infra", "left", "convoy", "--region", REGION)
    assert (done.exit_code, done.output) == (0, f"nothing is left of convoy in {REGION}\n")
    run_instance("p5.48xlarge", TAGS)
    client("ecr").create_repository(repositoryName="convoy", tags=TAGS)
    price = SHIPPED.price("p5.48xlarge", "on_demand", REGION)
    assert price is not None
    done = convoy("infra", "left", "convoy", "--region", REGION)
    *rows, last = done.output.splitlines()
    assert done.exit_code == 1
    assert [row.split()[0] for row in rows] == ["EC2", "EBS", "ECR"][:: 1 if len(rows) == 3 else 2]
    unknown = len(rows) - 1
    assert last == f"{len(rows)} left, {price.usd_per_hour:,.3f} USD/h, {unknown} of unknown price"


def test_a_right_that_is_lacking_is_one_line(aws: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from botocore.exceptions import ClientError

    def denied(service: str, region: str) -> Any:
        if service == "eks":
            raise ClientError({"Error": {"Code": "AccessDeniedException", "Message": "no"}}, "ListClusters")
        return client(service, region)

    monkeypatch.setattr(infra, "boto3_client", denied)
    done = convoy("infra", "left", "convoy", "--region", REGION)
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert "ListClusters" in done.stderr


def test_a_region_is_needed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_DEFAULT_REGION", "AWS_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setattr("boto3.DEFAULT_SESSION", None)
    assert_refused("--region: required, because AWS's clients have no default region", "infra", "left", "convoy")


def test_what_belongs_to_a_cluster_is_free_and_the_cluster_is_not_listed_twice() -> None:
    """moto's tagging service has nothing of EKS."""
    parts = (
        "addon/convoy/vpc-cni/1",
        "nodegroup/convoy/system/1",
        "podidentityassociation/convoy/a-1",
        "cluster/convoy",
    )
    arns = [f"arn:aws:eks:us-east-1:1:{part}" for part in parts]

    class Tagging:
        def get_paginator(self, name: str) -> "Tagging":
            return self

        def paginate(self, **_: object) -> list[dict[str, list[dict[str, str]]]]:
            return [{"ResourceTagMappingList": [{"ResourceARN": arn} for arn in arns]}]

    assert list(left._others("convoy", REGION, lambda *_: Tagging())) == []
    arns.append("arn:aws:fsx:us-east-1:1:file-system/fs-1")
    assert [each.kind for each in left._others("convoy", REGION, lambda *_: Tagging())] == ["FSx file system"]


def test_names_are_read_from_arns() -> None:
    assert split_arn("arn:aws:rds:us-east-1:1:db:convoy") == ("rds", "db", "convoy")
    assert split_arn("arn:aws:elasticloadbalancing:us-east-1:1:loadbalancer/net/x/1") == (
        "elasticloadbalancing", "loadbalancer", "net/x/1",
    )  # fmt: skip
    assert split_arn("arn:aws:logs:us-east-1:1:log-group:/convoy/a") == ("logs", "log-group", "/convoy/a")
    assert split_arn("arn:aws:s3:::bucket") == ("s3", "", "bucket")


def test_a_total_of_known_prices_alone_has_no_remark() -> None:
    assert (
        total([Leftover("EC2 a", "i-1", "running", 1.5), Leftover("EC2 a", "i-2", "running", 2.0)])
        == "2 left, 3.500 USD/h"
    )
    assert total([Leftover("S3 bucket", "b", "", None)]) == "1 left, 1 of unknown price"
