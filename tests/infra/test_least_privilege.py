"""The policies that Terraform gives to tasks and to those who start runs, against the AWS calls of real runs.

What the calls ask of IAM is recorded in iam_requests.json, run by run, without the names that differ from run to run.
Each is evaluated by `tests/infra/iam_policy.py`, because moto's own enforcement knows neither conditions nor the
resources of AWS Batch. Of the runs in `recorded_runs.py`, training and one of the others, another one for each commit,
are recorded anew, on moto: they may make no call that asks for anything else. `make campaign` records all of them.
"""

import json
import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any

import boto3
import pytest

from tests.campaign import in_full
from tests.flows.places import Place
from tests.infra.iam_calls import Recording, iam_requests
from tests.infra.iam_policy import Policy, Request, decide
from tests.infra.recorded_runs import ACCOUNT, BUCKET, ENVIRONMENT, LOCAL, NAME, REGION, RUNS, SAMPLED, TASK_ROLE
from tests.infra.terraform import copy_repository, initialised, leave_out_waits

pytestmark = [pytest.mark.infra, pytest.mark.timeout(600)]

UNUSED = {
    ("s3:AbortMultipartUpload", f"arn:aws:s3:::{BUCKET}/metaflow/*"): "boto3 gives up a large artifact that breaks off",
    ("s3:GetObject", f"arn:aws:s3:::{BUCKET}/fsx/*"):
        "a corpus that lies on FSx is read from S3 where FSx is not mounted",
    ("logs:GetLogEvents", f"arn:aws:logs:{REGION}:{ACCOUNT}:log-group:/aws/batch/job:log-stream:*"):
        "of a task that ran out of memory, only AWS has the last lines, for a person to read",
    ("eks:DescribeCluster", f"arn:aws:eks:{REGION}:{ACCOUNT}:cluster/{NAME}-k8s"):
        "`aws eks update-kubeconfig` asks for the cluster's address",
}  # fmt: skip
"""Rights, as (action, resource), that no recorded call used: why they are given all the same."""


@dataclass(frozen=True)
class Policies:
    """What Terraform made."""

    task: Policy
    submit: Policy
    submit_kubernetes: Policy
    attached: list[Policy]
    """To the role of tasks."""
    trust: Policy
    """Who may take that role."""
    bucket: Policy

    def decide(self, request: Request, *, as_task: bool) -> str:
        """as_task: by a task, else by who starts runs and has both policies."""
        asked = replace(request, principal=TASK_ROLE)
        return decide(asked, [self.task] if as_task else [self.task, self.submit], [self.bucket])


@pytest.fixture(scope="module")
def server(s3_endpoint: str) -> Iterator[str]:
    """The URL of moto, to which all of this file's processes are led."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3"):
            patch.delenv(name, raising=False)
        patch.setenv("AWS_ENDPOINT_URL", s3_endpoint)
        patch.setenv("METAFLOW_S3_ENDPOINT_URL", s3_endpoint)
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        patch.setenv("AWS_DEFAULT_REGION", REGION)
        patch.setattr("moto.batch.models.Job.run", _run_until_terminated)
        yield s3_endpoint


def _run_until_terminated(job: Any) -> None:
    """In place of a container that moto would start with Docker."""
    job.job_started_at = datetime.now()
    job._start_attempt()
    job.status = "RUNNING"
    while not job.stop:
        time.sleep(0.05)
    job._mark_stopped(success=False)


@pytest.fixture(scope="module")
def policies(server: str, tmp_path_factory: pytest.TempPathFactory) -> Policies:
    """The bucket, the policies and the role of tasks, applied to moto."""
    repository = copy_repository(tmp_path_factory.mktemp("stack"))
    leave_out_waits(repository)
    root = repository / "infra" / "least-privilege"
    root.mkdir()
    given = {"account": ACCOUNT, "region": REGION, "bucket": "${module.datastore.bucket}"}
    outputs = {"task": "iam.task_policy", "submit": "iam.submit_policy", "kubernetes": "kubernetes.submit_policy"}
    content = {
        "provider": {"aws": {"region": REGION, "s3_use_path_style": True}},
        "module": {
            "datastore": {"source": "../modules/datastore", "name": NAME, "keep_data": False},
            "iam": {"source": "../modules/iam", "name": NAME, "backend": "batch"} | given,
            "kubernetes": {"source": "../modules/iam", "name": f"{NAME}-k8s", "backend": "kubernetes"} | given,
        },
        "output": {name: {"value": f"${{module.{value}}}"} for name, value in outputs.items()},
    }
    (root / "main.tf.json").write_text(json.dumps(content))
    applied = initialised(repository, root.name, server)
    applied.run("apply", "-auto-approve", "-input=false", "-no-color")
    made = {name: json.loads(each["value"]) for name, each in json.loads(applied.run("output", "-json").stdout).items()}
    iam, s3, role = boto3.client("iam"), boto3.client("s3"), f"{NAME}-task"
    attached = [
        iam.get_policy_version(PolicyArn=each["PolicyArn"], VersionId="v1")["PolicyVersion"]["Document"]
        for each in iam.list_attached_role_policies(RoleName=role)["AttachedPolicies"]
    ]
    assert iam.list_role_policies(RoleName=role)["PolicyNames"] == []
    trust = iam.get_role(RoleName=role)["Role"]["AssumeRolePolicyDocument"]
    bucket = json.loads(s3.get_bucket_policy(Bucket=BUCKET)["Policy"])
    s3.delete_bucket_policy(Bucket=BUCKET)  # moto takes its unmet condition for a denial
    return Policies(made["task"], made["submit"], made["kubernetes"], attached, trust, bucket)


@pytest.fixture(scope="module")
def queues(policies: Policies) -> None:
    """Job queues of the stack, for GPUs and for CPUs, on one compute environment."""
    iam, ec2, batch = boto3.client("iam"), boto3.client("ec2"), boto3.client("batch")
    role = iam.create_role(RoleName=f"{NAME}-machine", AssumeRolePolicyDocument="{}")["Role"]["Arn"]
    profile = iam.create_instance_profile(InstanceProfileName=f"{NAME}-machine")["InstanceProfile"]["Arn"]
    subnet = ec2.describe_subnets()["Subnets"][0]["SubnetId"]
    group = ec2.describe_security_groups()["SecurityGroups"][0]["GroupId"]
    batch.create_compute_environment(
        computeEnvironmentName=NAME, type="MANAGED", state="ENABLED", serviceRole=role,
        computeResources={"type": "EC2", "minvCpus": 0, "maxvCpus": 384, "instanceTypes": ["p4d.24xlarge"],
                          "instanceRole": profile, "subnets": [subnet], "securityGroupIds": [group]},
    )  # fmt: skip
    for kind in ("p4d", "cpu"):
        order = [{"order": 1, "computeEnvironment": NAME}]
        queue = f"{NAME}-{kind}"
        batch.create_job_queue(jobQueueName=queue, state="ENABLED", priority=1, computeEnvironmentOrder=order)


RECORDED = Path(__file__).with_name("iam_requests.json")
VARYING = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|[0-9a-f]{20,}")
"""Hashes and UUIDs."""


@pytest.fixture(scope="module")
def requests() -> dict[str, list[Request]]:
    """What each recorded run asks of IAM."""
    recorded = json.loads(RECORDED.read_text())
    return {run: [_read(line) for line in lines] for run, lines in recorded.items()}


def _read(line: str) -> Request:
    action, resource, *values = line.split(" ")
    context = {name: value for name, _, value in (each.partition("=") for each in values)}
    return Request(action, resource, {k: tuple(v.split(",")) if k == "aws:TagKeys" else v for k, v in context.items()})


def _line(request: Request) -> str:
    """The request, as the file has it: of a key, what the policies distinguish, and no names that vary."""
    resource = VARYING.sub("...", re.sub(r"(:::[^/]+/[^/]+/).+", r"\1...", request.resource))
    values = []
    for name, value in sorted(request.context.items()):
        if name == "s3:prefix":
            values.append(f"{name}={re.sub('/.+', '/...', str(value))}")
        elif not name.startswith("aws:RequestTag/"):
            values.append(f"{name}={value if isinstance(value, str) else ','.join(value)}")
    return " ".join([request.action, resource, *values])


def test_training_asks_for_what_is_recorded(
    policies: Policies, requests: dict[str, list[Request]], tmp_path: Path
) -> None:
    compare_with_recorded("train", requests, tmp_path)


@pytest.mark.sampled(len(SAMPLED))
@pytest.mark.parametrize("name", SAMPLED)
def test_a_run_asks_for_what_is_recorded(
    name: str, queues: None, requests: dict[str, list[Request]], tmp_path: Path
) -> None:
    compare_with_recorded(name, requests, tmp_path)


def compare_with_recorded(name: str, requests: dict[str, list[Request]], tmp_path: Path) -> None:
    """Record the calls of a run anew."""
    recording = Recording.at(tmp_path / "recording")
    before = _keys()
    place = Place(tmp_path, recording.environment | ENVIRONMENT)
    for run in RUNS[name]:
        run(place)
    calls = recording.calls()
    counts = Counter(f"{call.service}:{call.operation}" for call in calls)
    print(f"{len(calls)} calls: {', '.join(f'{operation} {count}' for operation, count in sorted(counts.items()))}")
    lines = {_line(request) for call in calls for request in iam_requests(call, ACCOUNT)}
    recorded = {_line(request) for request in requests.get(name, ())}
    assert sorted(lines - recorded) == [], f"not in {RECORDED.name}"
    if in_full():
        assert sorted(recorded - lines) == [], f"no longer asked for, but in {RECORDED.name}"
    puts = ("PutObject", "CompleteMultipartUpload", "CopyObject")
    written = {call.parameters["Key"] for call in recording.begun_calls() if call.operation in puts}
    assert written, "nothing was recorded"
    assert sorted(_keys() - before - written) == [], "written by a process that was not recorded"


def _keys() -> set[str]:
    """Of the objects in the bucket, without the corpora that the tests put there."""
    pages = boto3.client("s3").get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
    keys = {item["Key"] for page in pages for item in page.get("Contents", ())}
    return {key for key in keys if not key.startswith("corpus/")}


def test_each_request_is_allowed_by_the_policies_of_who_makes_it(
    policies: Policies, requests: dict[str, list[Request]]
) -> None:
    assert requests.keys() == RUNS.keys()
    refused = {
        f"{name}: {_line(request)}"
        for name, asked in requests.items()
        for request in asked
        if policies.decide(request, as_task=name in LOCAL) != "allow"
    }
    assert sorted(refused) == []


def test_a_gang_that_is_submitted_needs_the_tasks_policy_and_that_of_starting_runs(
    policies: Policies, requests: dict[str, list[Request]]
) -> None:
    for name in RUNS.keys() - set(LOCAL):
        refused = {request.action for request in requests[name] if policies.decide(request, as_task=True) != "allow"}
        assert {"batch:SubmitJob", "iam:PassRole"} <= refused
        assert not [action for action in refused if action.startswith("s3:")]


def test_each_right_is_used_by_a_recorded_request_or_listed_with_its_reason(
    policies: Policies, requests: dict[str, list[Request]]
) -> None:
    everything = list(chain.from_iterable(requests.values()))
    unused = set()
    for document in (policies.task, policies.submit, policies.submit_kubernetes):
        for statement in document["Statement"]:
            for action in statement["Action"]:
                for resource in statement["Resource"]:
                    right = {**document, "Statement": [statement | {"Action": action, "Resource": resource}]}
                    if not any(decide(request, [right]) == "allow" for request in everything):
                        unused.add((action, resource))
    assert unused == UNUSED.keys()


def test_no_right_has_a_wildcard_in_its_action_and_only_what_has_no_resource_is_for_all(policies: Policies) -> None:
    statements = [s for each in (policies.task, policies.submit, policies.submit_kubernetes) for s in each["Statement"]]
    assert not [action for statement in statements for action in statement["Action"] if "*" in action]
    for_all = {action for statement in statements if "*" in statement["Resource"] for action in statement["Action"]}
    assert all(action.startswith(("batch:Describe", "batch:List")) for action in for_all)


def test_the_role_of_tasks_has_the_task_policy_alone_and_only_ecs_gives_it_to_tasks_of_this_account(
    policies: Policies,
) -> None:
    assert policies.attached == [policies.task]
    own, other = {"aws:SourceAccount": ACCOUNT}, {"aws:SourceAccount": "210987654321"}
    for principal, values, decision in (
        ("ecs-tasks.amazonaws.com", own, "allow"),
        ("ecs-tasks.amazonaws.com", other, "implicit deny"),
        ("ec2.amazonaws.com", own, "implicit deny"),
        (f"arn:aws:iam::{ACCOUNT}:role/other", own, "implicit deny"),
    ):
        request = Request("sts:AssumeRole", TASK_ROLE, values, principal)
        assert decide(request, [], [policies.trust]) == decision, (principal, values)


def test_without_tls_the_bucket_refuses_what_it_else_allows(policies: Policies) -> None:
    for allowed in _s3("GetObject", f"{BUCKET}/convoy/a"), _s3("ListBucket", BUCKET, prefix="convoy/"):
        assert policies.decide(allowed, as_task=True) == "allow"
        plain = replace(allowed, context={**allowed.context, "aws:SecureTransport": "false"})
        assert policies.decide(plain, as_task=True) == "explicit deny"


def _s3(action: str, path: str, **values: str) -> Request:
    context = {f"s3:{name}": value for name, value in values.items()} | {"aws:SecureTransport": "true"}
    return Request(f"s3:{action}", f"arn:aws:s3:::{path}", context)


def _batch(action: str, name: str, region: str = REGION, account: str = ACCOUNT) -> Request:
    return Request(f"batch:{action}", f"arn:aws:batch:{region}:{account}:{name}")


def _pass(role: str, service: str = "ecs-tasks.amazonaws.com") -> Request:
    return Request("iam:PassRole", f"arn:aws:iam::{ACCOUNT}:role/{role}", {"iam:PassedToService": service})


@pytest.mark.parametrize(
    "request_",
    [
        *(_s3(action, "other/convoy/a") for action in ("GetObject", "PutObject", "DeleteObject")),
        *(_s3(action, f"{BUCKET}-other/convoy/a") for action in ("GetObject", "PutObject", "DeleteObject")),
        _s3("ListBucket", "other", prefix="convoy/"),
        _s3("ListBucketMultipartUploads", "other"),
        *(_s3(action, f"{BUCKET}/other/a") for action in ("GetObject", "PutObject", "DeleteObject")),
        *(_s3(action, f"{BUCKET}/convoy-other/a") for action in ("GetObject", "PutObject", "DeleteObject")),
        *(_s3(action, f"{BUCKET}/corpus/a") for action in ("PutObject", "DeleteObject", "AbortMultipartUpload")),
        *(_s3("ListBucket", BUCKET, prefix=prefix) for prefix in ("other/", "con", "convoy-other/")),
        *(_s3(action, BUCKET) for action in ("DeleteBucket", "PutBucketPolicy", "PutEncryptionConfiguration",
                                             "PutBucketPublicAccessBlock", "PutLifecycleConfiguration")),
        *(_s3(action, f"{BUCKET}/convoy/a") for action in ("PutObjectAcl", "BypassGovernanceRetention")),
        _batch("SubmitJob", "job-queue/other"),
        _batch("SubmitJob", f"job-queue/{NAME}other"),
        _batch("SubmitJob", f"job-queue/{NAME}-p4d", region="eu-west-1"),
        _batch("SubmitJob", f"job-queue/{NAME}-p4d", account="210987654321"),
        _batch("SubmitJob", "job-definition/other:1"),
        _batch("RegisterJobDefinition", "job-definition/other"),
        _batch("DeregisterJobDefinition", "job-definition/metaflow_1:1"),
        _batch("TerminateJob", "job/1", account="210987654321"),
        _batch("UpdateJobQueue", f"job-queue/{NAME}-p4d"),
        _batch("UpdateComputeEnvironment", f"compute-environment/{NAME}"),
        _batch("TagResource", f"job-queue/{NAME}-p4d"),
        _pass(f"{NAME}-machine"),
        _pass(f"{NAME}-task-other"),
        _pass(f"{NAME}-task", service="ec2.amazonaws.com"),
        Request("iam:PutRolePolicy", TASK_ROLE),
        Request("sts:AssumeRole", f"arn:aws:iam::{ACCOUNT}:role/other"),
        Request("logs:GetLogEvents", f"arn:aws:logs:{REGION}:{ACCOUNT}:log-group:other:log-stream:s"),
        Request("eks:DescribeCluster", f"arn:aws:eks:{REGION}:{ACCOUNT}:cluster/{NAME}"),
        Request("ec2:RunInstances", "*"),
    ],
    ids=lambda request: f"{request.action} {request.resource.partition(':::')[2] or request.resource}",
)  # fmt: skip
def test_who_starts_runs_is_denied_other_buckets_prefixes_queues_and_roles(
    policies: Policies, request_: Request
) -> None:
    assert policies.decide(request_, as_task=False) == "implicit deny"


def test_on_kubernetes_only_the_cluster_is_described_and_no_other(policies: Policies) -> None:
    for cluster, decision in (f"{NAME}-k8s", "allow"), (NAME, "implicit deny"):
        request = Request("eks:DescribeCluster", f"arn:aws:eks:{REGION}:{ACCOUNT}:cluster/{cluster}")
        assert decide(request, [policies.submit_kubernetes]) == decision
    assert decide(_batch("SubmitJob", f"job-queue/{NAME}-p4d"), [policies.submit_kubernetes]) == "implicit deny"
