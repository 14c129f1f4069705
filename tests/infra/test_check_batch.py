"""`convoy infra check` on AWS Batch: an account that has everything, and each single thing that may be wrong in one."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from moto import mock_aws

from convoy.catalog.instances import Interface, instance
from convoy.infra.account import quota_name, requires_tls
from convoy.infra.batch import BATCH_CHECKS, raises_locked_memory
from convoy.infra.machines import layout_text
from tests.infra.batch_account import ACCOUNT, BUCKET, NODES, TYPE, BatchAwsAccount, client, metadata_service
from tests.infra.moto_batch import as_aws_validates

pytestmark = pytest.mark.infra


@pytest.fixture
def account() -> Iterator[BatchAwsAccount]:
    with mock_aws(), as_aws_validates(), metadata_service() as url:
        yield BatchAwsAccount(url)


def reserve(account: BatchAwsAccount, **own: object) -> None:
    """The launch template names a reservation."""
    found = {"State": "active", "TotalInstanceCount": NODES, "AvailabilityZone": "us-east-1a", "InstanceType": TYPE}
    account.replies.reservations["cr-1"] = found | own
    account.change_template(
        CapacityReservationSpecification={"CapacityReservationTarget": {"CapacityReservationId": "cr-1"}}
    )


def name_no_reservation(account: BatchAwsAccount) -> None:
    reserve(account)
    account.replies.reservations.clear()


def set_market(account: BatchAwsAccount, market: str) -> None:
    account.change_template(InstanceMarketOptions={"MarketType": market})


def without_interface(account: BatchAwsAccount, last: int) -> None:
    account.change_template(NetworkInterfaces=account.template["NetworkInterfaces"][:last])


def first_interface(account: BatchAwsAccount, **own: object) -> None:
    first, *others = account.template["NetworkInterfaces"]
    account.change_template(NetworkInterfaces=[first | own, *others])


def other_group(account: BatchAwsAccount) -> None:
    other = account.ec2.create_security_group(GroupName="other", Description="other", VpcId=account.vpc)["GroupId"]
    first_interface(account, Groups=[other])


def set_environment(account: BatchAwsAccount, **own: object) -> None:
    account.resources.update(own)


def set_metadata(account: BatchAwsAccount, **own: object) -> None:
    account.change_template(MetadataOptions=account.template["MetadataOptions"] | own)


def replace_role(account: BatchAwsAccount) -> None:
    account.iam.delete_role(RoleName="convoy-task")
    account.make_role("ec2.amazonaws.com")


def internet_route(account: BatchAwsAccount) -> None:
    gateway = account.ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
    account.ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=account.vpc)
    account.ec2.replace_route(RouteTableId=account.table, DestinationCidrBlock="0.0.0.0/0", GatewayId=gateway)


def add_zone(account: BatchAwsAccount) -> None:
    second = account.make_subnet("10.0.1.0/24", "us-east-1b")
    account.ec2.associate_route_table(RouteTableId=account.table, SubnetId=second)
    set_environment(account, subnets=[account.subnet, second])


def delete_queue(account: BatchAwsAccount) -> None:
    account.batch.update_job_queue(jobQueue="convoy-gpu", state="DISABLED")
    account.batch.delete_job_queue(jobQueue="convoy-gpu")


BREAKAGES: dict[str, tuple[str, Callable[[BatchAwsAccount], object]]] = {
    "queue disabled": ("queue", lambda s: s.batch.update_job_queue(jobQueue="convoy-gpu", state="DISABLED")),
    "queue deleted": ("queue", delete_queue),
    "default queue is the gang's": (
        "default queue", lambda s: s.profile.update(METAFLOW_BATCH_JOB_QUEUE="convoy-gpu")),
    "no default queue": ("default queue", lambda s: s.profile.pop("METAFLOW_BATCH_JOB_QUEUE")),
    "default queue does not exist": ("default queue", lambda s: s.profile.update(METAFLOW_BATCH_JOB_QUEUE="other")),
    "default queue disabled": (
        "default queue", lambda s: s.batch.update_job_queue(jobQueue="convoy-cpu", state="DISABLED")),
    "environment disabled": (
        "compute environment",
        lambda s: s.batch.update_compute_environment(computeEnvironment="gpu", state="DISABLED")),
    "spot": ("environment type", lambda s: set_environment(s, type="SPOT")),
    "spot allocation": ("environment type", lambda s: set_environment(s, allocationStrategy="SPOT_CAPACITY_OPTIMIZED")),
    "other type": ("instance type", lambda s: set_environment(s, instanceTypes=["p4d.24xlarge"])),
    "two types": ("instance type", lambda s: set_environment(s, instanceTypes=[TYPE, "p4d.24xlarge"])),
    "one machine too few": ("vCPUs", lambda s: set_environment(s, maxvCpus=NODES * 192 - 1)),
    "no launch template": ("launch template", lambda s: set_environment(s, launchTemplate=None)),
    "launch template deleted": (
        "launch template", lambda s: s.ec2.delete_launch_template(LaunchTemplateName="convoy")),
    "spot in the launch template": ("launch template", lambda s: set_market(s, "spot")),
    "two zones": ("zone", add_zone),
    "type not offered": ("zone", lambda s: setattr(s.replies, "offered", False)),
    "internet gateway": ("route", internet_route),
    "no default route": (
        "route", lambda s: s.ec2.delete_route(RouteTableId=s.table, DestinationCidrBlock="0.0.0.0/0")),
    "31 adapters": ("interfaces", lambda s: without_interface(s, -1)),
    "primary efa-only": ("interfaces", lambda s: first_interface(s, InterfaceType="efa-only")),
    "primary without EFA": ("interfaces", lambda s: first_interface(s, InterfaceType="interface")),
    "second device": ("interfaces", lambda s: first_interface(s, DeviceIndex=1)),
    "no placement group": ("placement group", lambda s: set_environment(s, placementGroup=None)),
    "placement group deleted": ("placement group", lambda s: s.replies.groups.clear()),
    "placement group spread": (
        "placement group", lambda s: s.replies.groups["convoy-gang"].update(Strategy="spread")),
    "no self egress": ("security group", lambda s: s.ec2.revoke_security_group_egress(
        GroupId=s.group, IpPermissions=s.self_rule)),
    "no self ingress": ("security group", lambda s: s.ec2.revoke_security_group_ingress(
        GroupId=s.group, IpPermissions=s.self_rule)),
    "an interface with another group": ("security group", other_group),
    "an empty default group": ("task interface", lambda s: s.ec2.revoke_security_group_egress(
        GroupId=s.default_group, IpPermissions=s.ec2.describe_security_groups(GroupIds=[s.default_group])[
            "SecurityGroups"][0]["IpPermissionsEgress"])),
    "hop limit 1": ("instance metadata", lambda s: set_metadata(s, HttpPutResponseHopLimit=1)),
    "IMDSv1": ("instance metadata", lambda s: set_metadata(s, HttpTokens="optional")),
    "metadata service of machines disabled": (
        "instance metadata", lambda s: set_metadata(s, HttpEndpoint="disabled")),
    "no boothook": ("locked memory", lambda s: s.change_user_data("text/cloud-boothook", "text/x-shellscript")),
    "memlock limited": ("locked memory", lambda s: s.change_user_data("-1:-1", "65536:65536")),
    "memlock half limited": ("locked memory", lambda s: s.change_user_data("-1:-1", "-1:65536")),
    "memlock of sessions": ("locked memory", lambda s: s.change_user_data(
        "--default-ulimit memlock=-1:-1", "* soft memlock unlimited")),
    "memlock only in a comment": ("locked memory", lambda s: s.change_user_data("echo", "# echo")),
    "image deleted": ("image", lambda s: client("ecr").batch_delete_image(
        repositoryName="convoy", imageIds=[{"imageTag": "1"}])),
    "repository deleted": ("image", lambda s: client("ecr").delete_repository(repositoryName="convoy", force=True)),
    "role deleted": ("job role", lambda s: s.iam.delete_role(RoleName="convoy-task")),
    "role of machines": ("job role", replace_role),
    "local datastore": ("datastore", lambda s: s.profile.update(METAFLOW_DEFAULT_DATASTORE="local")),
    "no root of the datastore": ("datastore", lambda s: s.profile.pop("METAFLOW_DATASTORE_SYSROOT_S3")),
    "local metadata": ("metadata service", lambda s: s.profile.update(METAFLOW_DEFAULT_METADATA="local")),
    "no address of a metadata service": (
        "metadata service", lambda s: s.profile.update(METAFLOW_SERVICE_URL="http://localhost:abc")),
    "metadata service down": (
        "metadata service", lambda s: s.profile.update(METAFLOW_SERVICE_URL="http://127.0.0.1:9")),
    "no metadata service": ("metadata service", lambda s: s.profile.pop("METAFLOW_SERVICE_URL")),
    "tasks find no metadata service": (
        "metadata service", lambda s: s.profile.pop("METAFLOW_SERVICE_INTERNAL_URL")),
    "bucket deleted": ("bucket", lambda s: client("s3").delete_bucket(Bucket=BUCKET)),
    "no TLS rule": ("bucket TLS", lambda s: client("s3").delete_bucket_policy(Bucket=BUCKET)),
    "no KMS": ("bucket encryption", lambda s: s.encrypt("AES256")),
    "public access": ("bucket public access", lambda s: client("s3").delete_public_access_block(Bucket=BUCKET)),
    "quota too low": ("quota", lambda s: s.replies.quotas.update({"Running On-Demand P instances": 767.0})),
    "quota not listed": ("quota", lambda s: s.replies.quotas.pop("Running On-Demand P instances")),
    "no budget": ("budget", lambda s: client("budgets").delete_budget(AccountId=ACCOUNT, BudgetName="convoy")),
    "reservation expired": ("reservation", lambda s: reserve(s, State="expired")),
    "reservation too small": ("reservation", lambda s: reserve(s, TotalInstanceCount=NODES - 1)),
    "reservation elsewhere": ("reservation", lambda s: reserve(s, AvailabilityZone="us-east-1b")),
    "reservation of another type": ("reservation", lambda s: reserve(s, InstanceType="p4d.24xlarge")),
    "reservation deleted": ("reservation", name_no_reservation),
}  # fmt: skip
"""The check that reports it, and how it is made."""


def test_an_account_that_has_everything_is_ok(account: BatchAwsAccount) -> None:
    findings = account.findings()
    assert [each.line() for each in findings.values() if each.status != "ok"] == []
    assert list(findings) == [check.name for check in BATCH_CHECKS]


@pytest.mark.parametrize("name", BREAKAGES)
def test_a_single_breakage_changes_its_finding_alone(account: BatchAwsAccount, name: str) -> None:
    check, break_it = BREAKAGES[name]
    break_it(account)
    wrong = [finding for finding in account.findings().values() if finding.status != "ok"]
    assert [(each.name, each.status) for each in wrong] == [(check, "missing")]
    assert all(each.seen and each.wanted and each.fix for each in wrong)
    assert "\n" not in wrong[0].line()


def test_what_only_costs_is_a_warning(account: BatchAwsAccount) -> None:
    account.ec2.delete_vpc_endpoints(VpcEndpointIds=[account.endpoint])
    assert [(each.name, each.status) for each in account.findings().values() if each.status != "ok"] == [
        ("S3 gateway endpoint", "warning")
    ]


def test_an_image_of_another_account_is_not_looked_up(account: BatchAwsAccount) -> None:
    aws = "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.9"
    finding = account.findings(image=aws)["image"]
    assert (finding.status, finding.seen) == (
        "warning",
        f"{aws}: not this account's, so not looked up",
    )


def test_adapters_may_be_at_another_place_of_their_cards(account: BatchAwsAccount) -> None:
    first, *others = account.template["NetworkInterfaces"]
    account.change_template(NetworkInterfaces=[first, *(each | {"DeviceIndex": 1} for each in others)])
    assert account.findings()["interfaces"].status == "ok"


def test_a_capacity_block_needs_a_reservation_and_no_quota(account: BatchAwsAccount) -> None:
    account.replies.quotas.clear()
    set_market(account, "capacity-block")
    assert account.findings("llama-13b-p5", "capacity_block")["reservation"].status == "missing"
    reserve(account, EndDate=datetime(2026, 12, 24, 11, 30, tzinfo=UTC))
    findings = account.findings("llama-13b-p5", "capacity_block")
    assert [each.line() for each in findings.values() if each.status != "ok"] == []
    assert findings["reservation"].seen.endswith("until 2026-12-24 11:30 UTC")


def test_a_right_that_is_lacking_is_a_finding_that_names_it(
    account: BatchAwsAccount, monkeypatch: pytest.MonkeyPatch
) -> None:
    from botocore.exceptions import ClientError

    answer = account.replies.to

    def deny(operation: str, given: dict[str, object]) -> object:
        if operation == "DescribeComputeEnvironments":
            raise ClientError({"Error": {"Code": "AccessDeniedException", "Message": "no"}}, operation)
        return answer(operation, given)

    monkeypatch.setattr(account.replies, "to", deny)
    (finding,) = [each for each in account.findings().values() if each.status != "ok"]
    assert finding.name == "compute environment"
    assert finding.fix == "ask for permission to call DescribeComputeEnvironments"


@pytest.mark.parametrize(
    ("instance_type", "market", "name"),
    [
        ("p5en.48xlarge", "spot", "All P5 Spot Instance Requests"),
        ("p4d.24xlarge", "spot", "All P4, P3 and P2 Spot Instance Requests"),
        ("g6e.xlarge", "on_demand", "Running On-Demand G and VT instances"),
        ("c7i.xlarge", "on_demand", "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances"),
        ("p6-b200.48xlarge", "on_demand", "Running On-Demand P instances"),
        ("p6-b200.48xlarge", "spot", None),
    ],
)
def test_the_quota_of_a_type_is_found_by_its_name(instance_type: str, market: str, name: str | None) -> None:
    names = [
        "Running Dedicated p5 Hosts", "Running On-Demand Inf instances", "Running On-Demand High Memory instances",
        "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances", "Running On-Demand G and VT instances",
        "Running On-Demand P instances", "All P4, P3 and P2 Spot Instance Requests", "All P5 Spot Instance Requests",
    ]  # fmt: skip
    kind = {"spot": r"All (.+) Spot Instance Requests", "on_demand": r"Running On-Demand (.+) instances"}[market]
    assert quota_name(instance_type, kind, names) == name


def test_only_a_policy_for_everything_and_everybody_requires_tls() -> None:
    arn = "arn:aws:s3:::b"
    good: dict[str, Any] = {
        "Effect": "Deny", "Principal": {"AWS": "*"}, "Action": ["s3:*"], "Resource": [arn, f"{arn}/*"],
        "Condition": {"Bool": {"aws:SecureTransport": ["false"]}},
    }  # fmt: skip
    assert requires_tls({"Statement": good}, "b")
    changes: tuple[dict[str, object], ...] = (
        {"Effect": "Allow"}, {"Principal": {"AWS": "arn:aws:iam::1:root"}}, {"Action": "s3:GetObject"},
        {"Resource": f"{arn}/*"}, {"Condition": {"Bool": {"aws:SecureTransport": "true"}}}, {"Condition": {}},
        {"Condition": {"Bool": {"aws:SecureTransport": "false", "aws:ViaAWSService": "false"}}},
        {"Condition": good["Condition"] | {"StringEquals": {"aws:PrincipalAccount": "1"}}},
    )  # fmt: skip
    for change in changes:
        assert not requires_tls({"Statement": [good | change]}, "b")


def test_locked_memory_may_be_raised_in_the_daemon_s_json() -> None:
    text = 'Content-Type: text/cloud-boothook\n\n{"memlock": {"Name": "memlock", "Hard": -1, "Soft": -1}}\n'
    assert raises_locked_memory(text.encode())
    assert not raises_locked_memory(text.replace("-1", "-100").encode())
    assert not raises_locked_memory(b"")


def test_a_layout_is_one_line() -> None:
    assert layout_text(instance(TYPE).interfaces("batch")) == (
        "efa on card 0, device 0; efa-only on cards 1-31, device 0"
    )
    assert layout_text([Interface(0, 0, "interface"), Interface(2, 1, "efa-only")]) == (
        "efa-only on card 2, device 1; interface on card 0, device 0"
    )
