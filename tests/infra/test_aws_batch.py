"""infra/aws-batch as a user meets it, on a stand-in for AWS: applied, planned again, connected, checked, used for a dry
run, and broken in three ways.

The file system is not applied: moto has no FSx data repository associations. options.tftest.hcl and
modules.tftest.hcl in infra/aws-batch/tests cover it with a mock provider.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import boto3
import pytest
import yaml

from convoy.catalog.instances import instance
from tests.campaign import in_full
from tests.infra.batch_stack import WORDS, User
from tests.infra.terraform import REPOSITORY, TerraformFolder

pytestmark = [pytest.mark.infra, pytest.mark.campaign]

PRESET = "custom-30b-p5"
MANIFEST = {"schemaVersion": 2, "mediaType": "application/vnd.docker.distribution.manifest.v2+json", "layers": []}
FORGOTTEN = {
    # Moto adds the tags of the template itself to the tags of what it starts, so there seems to be a new version, which
    # the compute environment is to use.
    "aws_launch_template": {"tag_specifications", "latest_version"},
    # It does not return these.
    "aws_batch_compute_environment": {"compute_resources", "update_policy"},
    "aws_vpc_security_group_egress_rule": {"description"},
    "aws_vpc_security_group_ingress_rule": {"description"},
}
if in_full():
    FORGOTTEN["aws_db_parameter_group"] = {"parameter"}
    FORGOTTEN["aws_ecs_service"] = {"availability_zone_rebalancing", "health_check_grace_period_seconds"}
"""What a second plan wants to change on moto, by types of resources. Tests with a mock provider hold these values."""


@pytest.fixture(scope="module")
def user(batch_stack: TerraformFolder, aws_url: str, tmp_path_factory: pytest.TempPathFactory) -> User:
    """Connected."""
    user = User(tmp_path_factory.mktemp("user"), aws_url)
    image = batch_stack.convoy_output()["image"].rpartition("/")[2]
    name, _, tag = image.partition(":")
    client(aws_url)("ecr").put_image(repositoryName=name, imageManifest=json.dumps(MANIFEST), imageTag=tag)
    done = user.convoy("connect", str(batch_stack.folder), PRESET, "--output", "my.yaml")
    assert "my.yaml" in done.stdout, done.stderr
    return user


@pytest.fixture
def aws(aws_url: str) -> Callable[[str], Any]:
    return client(aws_url)


def client(url: str) -> Callable[[str], Any]:
    session = boto3.Session("test", "test", region_name="us-east-1")
    return lambda service: session.client(service, endpoint_url=url)


def test_a_second_plan_changes_nothing_but_what_moto_forgets(batch_stack: TerraformFolder) -> None:
    batch_stack.run("plan", "-input=false", "-no-color", "-out=second", *WORDS)
    changes = json.loads(batch_stack.run("show", "-json", "second").stdout)["resource_changes"]
    found = {}
    for each in changes:
        before, after = each["change"]["before"], each["change"]["after"]
        if each["mode"] == "managed" and each["change"]["actions"] != ["no-op"]:
            assert each["change"]["actions"] == ["update"], each["address"]
            names = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
            found.setdefault(each["type"], set()).update(names)
            if each["type"] == "aws_batch_compute_environment":
                for resources in (before["compute_resources"][0], after["compute_resources"][0]):
                    resources["launch_template"][0].pop("version", None)
                assert before["compute_resources"] == after["compute_resources"]
    assert found == FORGOTTEN
    assert len(changes) > 60, "it planned little"


def test_batch_starts_machines_as_a_gang_needs_them(batch_stack: TerraformFolder, aws: Callable[[str], Any]) -> None:
    pools = {pool["instance_type"]: pool for pool in batch_stack.convoy_output()["pools"]}
    for name, pool in pools.items():
        (queue,) = aws("batch").describe_job_queues(jobQueues=[pool["queue"]])["jobQueues"]
        assert (queue["state"], queue["status"]) == ("ENABLED", "VALID")
        (order,) = queue["computeEnvironmentOrder"]
        found = aws("batch").describe_compute_environments(computeEnvironments=[order["computeEnvironment"]])
        (environment,) = found["computeEnvironments"]
        resources = environment["computeResources"]
        assert (environment["type"], resources["type"]) == ("MANAGED", "EC2")
        assert resources["maxvCpus"] == 4 * instance(name).vcpus
        template = resources["launchTemplate"]
        (version,) = aws("ec2").describe_launch_template_versions(
            LaunchTemplateId=template["launchTemplateId"], Versions=[template["version"]]
        )["LaunchTemplateVersions"]
        data = version["LaunchTemplateData"]
        assert data["MetadataOptions"]["HttpPutResponseHopLimit"] == 2
        layout = [
            (each["NetworkCardIndex"], each["DeviceIndex"], each["InterfaceType"]) for each in data["NetworkInterfaces"]
        ]
        assert layout == [tuple(each) for each in instance(name).interfaces("batch")]


def test_the_account_has_all_that_the_configuration_needs(user: User) -> None:
    done = user.convoy("check", "my.yaml")
    assert done.returncode == 0, done.stdout
    assert [line for line in done.stdout.splitlines()[:-1] if not line.startswith("ok")] == []


def test_what_is_taken_away_is_found_and_nothing_else(
    user: User, batch_stack: TerraformFolder, aws: Callable[[str], Any]
) -> None:
    output = batch_stack.convoy_output()
    batch, ec2, s3 = aws("batch"), aws("ec2"), aws("s3")

    batch.update_job_queue(jobQueue="convoy-p5-48xlarge", state="DISABLED")
    assert user.missing() == ["queue"]
    batch.update_job_queue(jobQueue="convoy-p5-48xlarge", state="ENABLED")

    group = output["security_group"]
    (rules,) = ec2.describe_security_groups(GroupIds=[group])["SecurityGroups"]
    itself = [rule for rule in rules["IpPermissionsEgress"] if rule["UserIdGroupPairs"]]
    ec2.revoke_security_group_egress(GroupId=group, IpPermissions=itself)
    assert user.missing() == ["security group"]
    ec2.authorize_security_group_egress(GroupId=group, IpPermissions=itself)

    policy = s3.get_bucket_policy(Bucket=output["bucket"])["Policy"]
    s3.delete_bucket_policy(Bucket=output["bucket"])
    assert user.missing() == ["bucket TLS"]
    s3.put_bucket_policy(Bucket=output["bucket"], Policy=policy)
    assert user.missing() == []


def test_the_written_configuration_passes_a_dry_run(user: User) -> None:
    written = yaml.safe_load((user.folder / "my.yaml").read_text())
    assert written["cluster"]["queue"] == "convoy-p5-48xlarge"
    flow = REPOSITORY / "flows" / "train_flow.py"
    command = [sys.executable, str(flow), "--config", "run", "my.yaml", "run", "--dry-run"]
    done = subprocess.run(command, capture_output=True, text=True, env=user.environment, cwd=user.folder)
    assert done.returncode == 0, done.stderr
    assert "convoy-p5-48xlarge" in done.stdout
