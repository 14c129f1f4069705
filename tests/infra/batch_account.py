"""An AWS account in moto that has what a configuration needs, made by boto3; and answers where moto has none."""

import base64
import functools
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from unittest.mock import patch

import boto3
from botocore.client import BaseClient
from botocore.exceptions import ClientError

from convoy.catalog.instances import instance
from convoy.infra.check import check_account, open_account
from convoy.infra.connect import connect, parse_config_text, read_config_text
from convoy.infra.findings import Finding
from convoy.infra.profile import settings_with
from convoy.infra.stack import Stack

ACCOUNT, REGION, ZONE, NAME = "123456789012", "us-east-1", "us-east-1a", "convoy"
BUCKET, ROLE = "convoy-bucket", f"arn:aws:iam::{ACCOUNT}:role/convoy-task"
IMAGE = f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/convoy:1"
TAGS = [{"Key": "Name", "Value": "convoy-gang"}, {"Key": "convoy:stack", "Value": NAME}]

TYPE, NODES = "p5.48xlarge", 4
"""Of the preset `custom-30b-p5`."""

USER_DATA = """\
MIME-Version: 1.0
Content-Type: multipart/mixed; boundary="=="

--==
Content-Type: text/cloud-boothook; charset="us-ascii"

#!/bin/bash
echo 'OPTIONS="--default-ulimit memlock=-1:-1"' >> /etc/sysconfig/docker
--==--
"""


@functools.cache
def client(service: str, region: str = REGION) -> Any:
    make: Any = boto3.client
    return make(service, region_name=region, aws_access_key_id="x", aws_secret_access_key="x")


@dataclass
class AwsReplies:
    """What EC2 and Service Quotas answer where moto has no answer."""

    quotas: dict[str, float] = field(default_factory=dict)
    groups: dict[str, dict[str, Any]] = field(default_factory=dict)
    reservations: dict[str, dict[str, Any]] = field(default_factory=dict)
    offered: bool = True

    def to(self, operation: str, given: Mapping[str, Any]) -> dict[str, Any] | None:
        """None: moto answers."""
        match operation:
            case "ListServiceQuotas":
                return {"Quotas": [{"QuotaName": name, "Value": value} for name, value in self.quotas.items()]}
            case "DescribePlacementGroups":
                return {"PlacementGroups": [_one(self.groups, given["GroupNames"][0], "InvalidPlacementGroup.Unknown")]}
            case "DescribeCapacityReservations":
                name, code = given["CapacityReservationIds"][0], "InvalidCapacityReservationId.NotFound"
                return {"CapacityReservations": [_one(self.reservations, name, code)]}
            case "DescribeInstanceTypeOfferings" if not self.offered:
                return {"InstanceTypeOfferings": []}
        return None

    @contextmanager
    def given(self) -> Iterator[None]:
        call: Any = BaseClient._make_api_call  # type: ignore[attr-defined]

        def answer(client: Any, operation: str, given: Mapping[str, Any]) -> Any:
            own = self.to(operation, given)
            return call(client, operation, given) if own is None else own

        with patch.object(BaseClient, "_make_api_call", answer):
            yield


def _one(of: Mapping[str, Any], name: str, code: str) -> Any:
    if name not in of:
        raise ClientError({"Error": {"Code": code, "Message": name}}, "Describe")
    return of[name]


@contextmanager
def metadata_service() -> Iterator[str]:
    """The URL of a service that answers as Metaflow's does."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/ping" else 404)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class AwsAccount:
    """What both backends need: network, bucket, image, budget, quotas and a placement group. Made while moto runs."""

    def __init__(self, service_url: str) -> None:
        self.replies = AwsReplies()
        self.replies.quotas |= {"Running On-Demand P instances": 2000.0, "All P5 Spot Instance Requests": 2000.0}
        self.replies.quotas |= {
            "Running On-Demand G and VT instances": 0.0,
            "All P4, P3 and P2 Spot Instance Requests": 0.0,
        }
        self.replies.groups["convoy-gang"] = {"GroupName": "convoy-gang", "Strategy": "cluster", "State": "available"}
        self.profile = {
            "METAFLOW_DEFAULT_DATASTORE": "s3",
            "METAFLOW_DATASTORE_SYSROOT_S3": f"s3://{BUCKET}/metaflow",
            "METAFLOW_DEFAULT_METADATA": "service",
            "METAFLOW_SERVICE_URL": service_url,
            "METAFLOW_SERVICE_INTERNAL_URL": "http://10.0.0.9:8080",
        }
        self.ec2 = client("ec2")
        self._make_network()
        self._make_bucket()
        ecr, budgets = client("ecr"), client("budgets")
        ecr.create_repository(repositoryName="convoy")
        manifest = json.dumps({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json"})
        ecr.put_image(repositoryName="convoy", imageManifest=manifest, imageTag="1")
        notification = {"NotificationType": "ACTUAL", "ComparisonOperator": "GREATER_THAN", "Threshold": 80.0}
        budgets.create_budget(
            AccountId=ACCOUNT,
            Budget={
                "BudgetName": NAME,
                "BudgetLimit": {"Amount": "1000", "Unit": "USD"},
                "TimeUnit": "MONTHLY",
                "BudgetType": "COST",
            },
            NotificationsWithSubscribers=[
                {
                    "Notification": notification,
                    "Subscribers": [{"SubscriptionType": "EMAIL", "Address": "me@example.com"}],
                }
            ],
        )

    def _make_network(self) -> None:
        ec2 = self.ec2
        self.vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
        self.subnet = self.make_subnet("10.0.0.0/24", ZONE)
        address = ec2.allocate_address(Domain="vpc")["AllocationId"]
        gateway = ec2.create_nat_gateway(SubnetId=self.subnet, AllocationId=address)["NatGateway"]["NatGatewayId"]
        self.table = ec2.create_route_table(VpcId=self.vpc)["RouteTable"]["RouteTableId"]
        ec2.create_route(RouteTableId=self.table, DestinationCidrBlock="0.0.0.0/0", NatGatewayId=gateway)
        ec2.associate_route_table(RouteTableId=self.table, SubnetId=self.subnet)
        self.endpoint = ec2.create_vpc_endpoint(
            VpcId=self.vpc,
            ServiceName=f"com.amazonaws.{REGION}.s3",
            VpcEndpointType="Gateway",
            RouteTableIds=[self.table],
        )["VpcEndpoint"]["VpcEndpointId"]
        tags = [{"ResourceType": "security-group", "Tags": TAGS}]
        self.group = ec2.create_security_group(
            GroupName="gang", Description="gang", VpcId=self.vpc, TagSpecifications=tags
        )["GroupId"]
        self.self_rule = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": self.group}]}]
        ec2.authorize_security_group_ingress(GroupId=self.group, IpPermissions=self.self_rule)
        ec2.authorize_security_group_egress(GroupId=self.group, IpPermissions=self.self_rule)

    def make_subnet(self, cidr: str, zone: str) -> str:
        tags = [{"ResourceType": "subnet", "Tags": TAGS}]
        made = self.ec2.create_subnet(VpcId=self.vpc, CidrBlock=cidr, AvailabilityZone=zone, TagSpecifications=tags)
        name: str = made["Subnet"]["SubnetId"]
        return name

    def _make_bucket(self) -> None:
        s3, arn = client("s3"), f"arn:aws:s3:::{BUCKET}"
        s3.create_bucket(Bucket=BUCKET)
        statement = {
            "Effect": "Deny", "Principal": "*", "Action": "s3:*", "Resource": [arn, f"{arn}/*"],
            "Condition": {"Bool": {"aws:SecureTransport": "false"}},
        }  # fmt: skip
        s3.put_bucket_policy(Bucket=BUCKET, Policy=json.dumps({"Version": "2012-10-17", "Statement": [statement]}))
        self.encrypt("aws:kms")
        blocks = ("BlockPublicAcls", "BlockPublicPolicy", "IgnorePublicAcls", "RestrictPublicBuckets")
        s3.put_public_access_block(Bucket=BUCKET, PublicAccessBlockConfiguration=dict.fromkeys(blocks, True))

    def encrypt(self, algorithm: str) -> None:
        rule = {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": algorithm}}
        client("s3").put_bucket_encryption(Bucket=BUCKET, ServerSideEncryptionConfiguration={"Rules": [rule]})

    def stack(self, **own: Any) -> Stack:
        """The stack's output, and what a backend adds to it."""
        common = {
            "stack": NAME, "account": ACCOUNT, "region": REGION, "root": f"s3://{BUCKET}/convoy", "bucket": BUCKET,
            "image": IMAGE, "metaflow": self.profile, "launcher": {"tunnel_command": "aws ssm start-session"},
        }  # fmt: skip
        return Stack.model_validate(common | own)

    def check_preset(self, preset: str, stack: Stack) -> dict[str, Finding]:
        """The findings of the preset's check after it was connected with the stack, by their names."""
        config = parse_config_text("my.yaml", connect(read_config_text(preset), stack)).config
        with self.replies.given():
            account = open_account(config, settings_with(self.profile, {}), client, REGION)
            return {finding.name: finding for finding in check_account(account)}


class BatchAwsAccount(AwsAccount):
    """With what AWS Batch needs."""

    def __init__(self, service_url: str) -> None:
        super().__init__(service_url)
        self.profile["METAFLOW_BATCH_JOB_QUEUE"] = "convoy-cpu"
        self.iam, self.batch = client("iam"), client("batch")
        self.make_role("ecs-tasks.amazonaws.com")
        profile = self.iam.create_instance_profile(InstanceProfileName="machine")["InstanceProfile"]["Arn"]
        service = self.iam.create_role(RoleName="batch", AssumeRolePolicyDocument="{}")["Role"]["Arn"]
        self.template: dict[str, Any] = {
            "UserData": base64.b64encode(USER_DATA.encode()).decode(),
            "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 2},
            "NetworkInterfaces": [
                {
                    "NetworkCardIndex": each.network_card_index, "DeviceIndex": each.device_index,
                    "InterfaceType": each.interface_type, "Groups": [self.group],
                }
                for each in instance(TYPE).interfaces("batch")
            ],
        }  # fmt: skip
        self.ec2.create_launch_template(LaunchTemplateName="convoy", LaunchTemplateData=self.template)
        resources = {
            "type": "EC2", "allocationStrategy": "BEST_FIT_PROGRESSIVE", "minvCpus": 0, "maxvCpus": NODES * 192,
            "instanceTypes": [TYPE], "instanceRole": profile, "subnets": [self.subnet],
            "placementGroup": "convoy-gang",
            "launchTemplate": {"launchTemplateName": "convoy", "version": "$Latest"},
        }  # fmt: skip
        filters = [{"Name": "group-name", "Values": ["default"]}, {"Name": "vpc-id", "Values": [self.vpc]}]
        self.default_group = self.ec2.describe_security_groups(Filters=filters)["SecurityGroups"][0]["GroupId"]
        rules = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": self.default_group}]}]  # as in AWS
        self.ec2.authorize_security_group_ingress(GroupId=self.default_group, IpPermissions=rules)
        self.batch.create_compute_environment(
            computeEnvironmentName="gpu",
            type="MANAGED",
            state="ENABLED",
            serviceRole=service,
            computeResources=resources,
        )
        order = [{"order": 1, "computeEnvironment": "gpu"}]
        for name in ("convoy-gpu", "convoy-cpu"):
            self.batch.create_job_queue(jobQueueName=name, state="ENABLED", priority=1, computeEnvironmentOrder=order)

    def make_role(self, service: str) -> None:
        trust = {"Effect": "Allow", "Principal": {"Service": service}, "Action": "sts:AssumeRole"}
        document = json.dumps({"Version": "2012-10-17", "Statement": [trust]})
        self.iam.create_role(RoleName="convoy-task", AssumeRolePolicyDocument=document)

    def change_template(self, **own: Any) -> None:
        """A new version with these values in place of the old ones."""
        self.template |= own
        self.ec2.create_launch_template_version(LaunchTemplateName="convoy", LaunchTemplateData=self.template)

    def change_user_data(self, old: str, new: str) -> None:
        self.change_template(UserData=base64.b64encode(USER_DATA.replace(old, new).encode()).decode())

    @property
    def resources(self) -> dict[str, Any]:
        """What moto holds of the compute environment's machines: its update takes few of their keys."""
        from moto.batch.models import batch_backends

        found: dict[str, Any] = batch_backends[ACCOUNT][REGION].get_compute_environment("gpu").compute_resources  # type: ignore[union-attr]
        return found

    def findings(self, preset: str = "custom-30b-p5", market: str = "on_demand", **own: Any) -> dict[str, Finding]:
        """own: outputs of the stack that differ."""
        pool = {"instance_type": TYPE, "market": market, "max_nodes": NODES, "queue": "convoy-gpu"}
        return self.check_preset(preset, self.stack(**{"backend": "batch", "pools": [pool], "iam_role": ROLE} | own))
