"""The evaluator of policies, against AWS's documentation and moto; and the recorder of calls, against a real run."""

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore import xform_name
from botocore.exceptions import ClientError
from hypothesis import given
from hypothesis import strategies as st
from moto.core import set_initial_no_auth_action_count
from moto.iam.access_control import IAMPolicy, PermissionResult
from mypy_boto3_s3 import S3Client

from tests.infra.iam_calls import Call, Recording, UnknownCallError, iam_requests
from tests.infra.iam_policy import Decision, Policy, Request, decide

ACCOUNT = "123456789012"
ROLE = f"arn:aws:iam::{ACCOUNT}:role/task"
OBJECT = "arn:aws:s3:::bucket/metaflow/a"
READ = Request("s3:GetObject", OBJECT, principal=ROLE)


def policy(*statements: dict[str, Any]) -> Policy:
    return {"Version": "2012-10-17", "Statement": list(statements)}


def allow(action: Any = "s3:GetObject", resource: Any = "*", **more: Any) -> dict[str, Any]:
    return {"Effect": "Allow", "Action": action, "Resource": resource, **more}


def deny(action: Any = "s3:GetObject", resource: Any = "*", **more: Any) -> dict[str, Any]:
    return allow(action, resource, **more) | {"Effect": "Deny"}


def test_a_deny_wins_wherever_it_stands_and_without_an_allow_nothing_is_allowed() -> None:
    assert decide(READ, []) == "implicit deny"
    assert decide(READ, [policy(allow())]) == "allow"
    assert decide(READ, [policy(allow(), deny())]) == "explicit deny"
    assert decide(READ, [policy(deny()), policy(allow())]) == "explicit deny"
    assert decide(READ, [policy(deny("s3:PutObject")), policy(allow())]) == "allow"


@pytest.mark.parametrize(
    ("statement", "applies"),
    [
        (allow("s3:getobject"), True),
        (allow("s3:Get*"), True),
        (allow("s3:?etObject"), True),
        (allow("*"), True),
        (allow("s3:Get"), False),
        (allow(["s3:PutObject", "s3:GetObject"]), True),
        (allow("S3:GetObjectVersion"), False),
        (allow(resource=OBJECT), True),
        (allow(resource="arn:aws:s3:::bucket/metaflow/*"), True),
        (allow(resource="arn:aws:s3:::bucket/meta????/*"), True),
        (allow(resource="arn:aws:s3:::bucket/*/a"), True),
        (allow(resource="arn:aws:s3:::bucket*"), True),
        (allow(resource="arn:aws:s3:::bucket"), False),
        (allow(resource="arn:aws:s3:::bucket/Metaflow/*"), False),
        (allow(resource="arn:aws:s3:::b.cket/*"), False),
        (allow(resource="arn:aws:s3:::other/*"), False),
        (allow(resource=["arn:aws:s3:::other/*", "arn:*"]), True),
        (allow(resource="arn:*/a"), False),  # a `*` that is not the last of its part passes no colon
        ({"Effect": "Allow", "NotAction": "s3:Put*", "Resource": "*"}, True),
        ({"Effect": "Allow", "NotAction": ["s3:Put*", "s3:GET*"], "Resource": "*"}, False),
        ({"Effect": "Allow", "Action": "*", "NotResource": "arn:aws:s3:::other/*"}, True),
        ({"Effect": "Allow", "Action": "*", "NotResource": ["arn:aws:s3:::bucket/*"]}, False),
    ],
)
def test_a_statement_applies_to_its_actions_and_resources(statement: dict[str, Any], applies: bool) -> None:
    assert decide(READ, [policy(statement)]) == ("allow" if applies else "implicit deny")


def test_policy_variables_have_the_values_of_the_request_and_without_one_nothing_matches() -> None:
    own = policy(allow(resource="arn:aws:s3:::bucket/${aws:username}/*"))
    for values, decision in ({"aws:UserName": "metaflow"}, "allow"), ({}, "implicit deny"):
        assert decide(Request("s3:GetObject", OBJECT, values), [own]) == decision
    for values in ({"aws:username": "*"}, {"aws:username": ("metaflow", "b")}):  # a value's `*` is no wildcard
        assert decide(Request("s3:GetObject", OBJECT, values), [own]) == "implicit deny"
    starred = policy(allow(resource="arn:aws:s3:::bucket/${*}"))
    assert decide(READ, [starred]) == "implicit deny"
    assert decide(Request("s3:GetObject", "arn:aws:s3:::bucket/*"), [starred]) == "allow"
    tagged = policy(allow(Condition={"StringEquals": {"aws:ResourceTag/owner": "${aws:PrincipalTag/owner}"}}))
    both = {"aws:ResourceTag/owner": "blue", "aws:PrincipalTag/owner": "blue"}
    assert decide(Request("s3:GetObject", OBJECT, both), [tagged]) == "allow"
    assert decide(Request("s3:GetObject", OBJECT, both | {"aws:PrincipalTag/owner": "b"}), [tagged]) == "implicit deny"


ARNS = "arn:aws:iam::*:role/con*"


@pytest.mark.parametrize(
    ("operator", "wanted", "value", "holds"),
    [
        ("StringEquals", ["a", "b"], "b", True),
        ("StringEquals", ["a", "b"], "B", False),
        ("StringEquals", "a*", "ab", False),
        ("StringEquals", "a*", "a*", True),
        ("StringEquals", "a", None, False),
        ("StringEqualsIfExists", "a", None, True),
        ("StringEqualsIfExists", "a", "b", False),
        ("StringNotEquals", ["a", "b"], "c", True),
        ("StringNotEquals", ["a", "b"], "a", False),
        ("StringNotEquals", "a", None, True),
        ("StringLike", ["convoy/*", "metaflow/*"], "metaflow/a", True),
        ("StringLike", "metaflow/*", "metaflow", False),
        ("StringLike", "m?taflow", "metaflow", True),
        ("StringLikeIfExists", "metaflow/*", None, True),
        ("StringNotLike", ["a*", "b*"], "cd", True),
        ("StringNotLike", ["a*", "c*"], "cd", False),
        ("ArnLike", ARNS, "arn:aws:iam::1:role/convoy", True),
        ("ArnEquals", ARNS, "arn:aws:iam::1:role/convoy", True),
        ("ArnLike", ARNS, "arn:aws:iam::1:user/convoy", False),
        ("ArnLike", "arn:aws:iam:*", "arn:aws:iam::1:role/convoy", False),  # not all six parts
        ("ArnNotLike", ARNS, "arn:aws:iam::1:user/convoy", True),
        ("ArnNotLike", ARNS, None, True),
        ("Bool", "false", "False", True),
        ("Bool", False, "false", True),
        ("Bool", "true", "false", False),
        ("Bool", "false", None, False),
        ("BoolIfExists", "false", None, True),
        ("Null", "true", None, True),
        ("Null", "true", "a", False),
        ("Null", False, "a", True),
        ("Null", "false", None, False),
        ("NumericEquals", 1, "1.0", True),
        ("NumericNotEquals", "1", "1.0", False),
        ("NumericLessThan", "1.2", "1.1", True),
        ("NumericLessThan", "1.2", "1.2", False),
        ("NumericLessThanEquals", "10", "9", True),
        ("NumericGreaterThan", "9", "10", True),
        ("NumericGreaterThanEquals", "10", "9", False),
        ("NumericLessThan", "1.2", None, False),
        ("ForAllValues:StringEquals", ["a", "b"], ("a", "b"), True),
        ("ForAllValues:StringEquals", ["a", "b"], ("a", "c"), False),
        ("ForAllValues:StringEquals", ["a", "b"], None, True),
        ("ForAllValues:StringNotEquals", "a", ("b", "a"), False),
        ("ForAnyValue:StringEquals", ["a", "b"], ("c", "b"), True),
        ("ForAnyValue:StringEquals", ["a", "b"], ("c",), False),
        ("ForAnyValue:StringEquals", "a", None, False),
        ("ForAnyValue:StringLikeIfExists", "a", None, False),
        ("ForAnyValue:StringNotLike", "a*", ("ab", "c"), True),
    ],
)
def test_condition_operators(operator: str, wanted: Any, value: Any, holds: bool) -> None:
    statement = allow(Condition={operator: {"s3:Prefix": wanted}})
    request = Request("s3:GetObject", OBJECT, {} if value is None else {"s3:prefix": value})
    assert decide(request, [policy(statement)]) == ("allow" if holds else "implicit deny")


def test_all_conditions_of_a_statement_must_hold() -> None:
    conditions = {"StringLike": {"s3:prefix": "a*", "s3:delimiter": "/"}, "Bool": {"aws:SecureTransport": "true"}}
    values = {"s3:prefix": "ab", "s3:delimiter": "/", "aws:SecureTransport": "true"}
    assert decide(Request("s3:GetObject", OBJECT, values), [policy(allow(Condition=conditions))]) == "allow"
    for key in values:
        request = Request("s3:GetObject", OBJECT, values | {key: "no"})
        assert decide(request, [policy(allow(Condition=conditions))]) == "implicit deny", key


@pytest.mark.parametrize(
    ("principal", "allows", "denies"),
    [
        ("*", True, True),
        ({"AWS": "*"}, True, True),
        ({"AWS": ["arn:aws:iam::1:role/x", ROLE]}, True, True),
        ({"AWS": f"arn:aws:iam::{ACCOUNT}:root"}, False, True),
        ({"AWS": ACCOUNT}, False, True),
        ({"AWS": "arn:aws:iam::1:root"}, False, False),
        ({"Service": "ecs-tasks.amazonaws.com"}, False, False),
    ],
)
def test_a_resource_policy_is_for_its_principals(principal: Any, allows: bool, denies: bool) -> None:
    assert decide(READ, [], [policy(allow(Principal=principal))]) == ("allow" if allows else "implicit deny")
    decision = decide(READ, [policy(allow())], [policy(deny(Principal=principal))])
    assert decision == ("explicit deny" if denies else "allow")


def test_a_trust_policy_has_no_resource() -> None:
    trust = {"Effect": "Allow", "Principal": {"Service": "ecs-tasks.amazonaws.com"}, "Action": "sts:AssumeRole"}
    assert decide(Request("sts:AssumeRole", ROLE, principal="ecs-tasks.amazonaws.com"), [], [policy(trust)]) == "allow"
    assert decide(Request("sts:AssumeRole", ROLE, principal="ec2.amazonaws.com"), [], [policy(trust)]) != "allow"


@pytest.mark.parametrize(
    ("document", "error"),
    [
        (policy(allow(Condition={"DateLessThan": {"aws:CurrentTime": "2026"}})), "DateLessThan is not known"),
        (policy(allow("s3:PutObject", Condition={"StringIs": {"a": "b"}})), "StringIs is not known"),
        (policy(allow(Condition={"ForSomeValues:StringLike": {"a": "b"}})), "ForSomeValues:StringLike is not known"),
        (policy(allow(Condition={"NumericNotLessThan": {"a": "1"}})), "NumericNotLessThan is not known"),
        (policy(allow(Condition={"StringLike": {"aws:TagKeys": "a"}})), "aws:TagKeys has 2 values"),
        (policy(allow(Condition={"StringNotLike": {"a": "${aws:username}"}})), "variables in StringNotLike"),
        (policy(allow(resource="${aws:username, 'all'}")), "a default of a policy variable"),
        (policy({"Effect": "Allow", "Action": "*", "NotResource": "${aws:username}"}), "variables in NotResource"),
        (policy(allow(NotAction="s3:*")), "either Action or NotAction"),
        (policy({"Effect": "Allow", "Action": "s3:GetObject"}), "either Resource or NotResource"),
        (policy(allow(Resources="*")), "statement elements .'Resources'. are not known"),
        (policy(allow(Principal="*")), "names a principal if and only if"),
        (policy(allow() | {"Effect": "allow"}), "must be Allow or Deny"),
        ({"Version": "2008-10-17", "Statement": allow()}, "must be '2012-10-17'"),
        ({"Statement": allow()}, "must be '2012-10-17'"),
    ],
)
def test_what_is_not_known_of_a_policy_raises(document: Policy, error: str) -> None:
    request = Request("s3:GetObject", OBJECT, {"aws:TagKeys": ("a", "b")})
    with pytest.raises(ValueError, match=error):
        decide(request, [document])


@pytest.mark.parametrize("principal", [{"Federated": "x"}, {"CanonicalUser": "x"}])
def test_an_unknown_kind_of_principal_raises(principal: Any) -> None:
    with pytest.raises(ValueError, match="are not known"):
        decide(READ, [], [policy(allow(Principal=principal))])


ACTIONS = ["s3:GetObject", "s3:GetObjectTagging", "s3:PutObject", "s3:ListBucket"]
RESOURCES = ["arn:aws:s3:::bucket", "arn:aws:s3:::bucket/metaflow/a", "arn:aws:s3:::bucket/convoy/a", "arn:aws:s3:::b"]
MOTO: dict[PermissionResult, Decision] = {
    PermissionResult.PERMITTED: "allow",
    PermissionResult.DENIED: "explicit deny",
    PermissionResult.NEUTRAL: "implicit deny",
}
STATEMENTS = st.builds(
    lambda effect, action, patterns, resources: {"Effect": effect, action: patterns, "Resource": resources},
    st.sampled_from(["Allow", "Deny"]),
    st.sampled_from(["Action", "NotAction"]),
    st.lists(st.sampled_from([*ACTIONS, "s3:Get*", "s3:*Object", "*"]), min_size=1, max_size=2),
    st.lists(st.sampled_from([*RESOURCES, "*", "arn:aws:s3:::bucket/*", "arn:aws:s3:::b*/a"]), min_size=1, max_size=2),
)


@given(st.lists(STATEMENTS, min_size=1, max_size=4), st.sampled_from(ACTIONS), st.sampled_from(RESOURCES))
def test_moto_decides_the_same(statements: list[dict[str, Any]], action: str, resource: str) -> None:
    document = policy(*statements)
    moto = IAMPolicy({"policy_document": json.dumps(document)}).is_action_permitted(action, resource)
    assert decide(Request(action, resource), [document]) == MOTO[moto]


@pytest.fixture
def bucket(s3_environment: str, s3_client: S3Client) -> str:
    """A bucket with an object in `metaflow/`."""
    name = f"test-{uuid.uuid4().hex}"
    s3_client.create_bucket(Bucket=name)
    s3_client.put_object(Bucket=name, Key="metaflow/a", Body=b"x")
    return name


@pytest.fixture
def attempt(bucket: str, s3_environment: str) -> Iterator[Callable[[Policy, Call], bool]]:
    """Whether moto lets a user with this policy alone make this call of S3."""
    iam, name = boto3.client("iam"), f"user-{uuid.uuid4().hex}"
    iam.create_user(UserName=name)
    key = iam.create_access_key(UserName=name)["AccessKey"]
    session = boto3.Session(key["AccessKeyId"], key["SecretAccessKey"], region_name="us-east-1")
    s3 = session.client("s3", endpoint_url=s3_environment)

    def allowed(document: Policy, call: Call) -> bool:
        iam.put_user_policy(UserName=name, PolicyName="own", PolicyDocument=json.dumps(document))

        @set_initial_no_auth_action_count(0)  # moto takes each request from here on for one to authorise
        def make_call() -> None:
            getattr(s3, xform_name(call.operation))(**call.parameters)

        try:
            make_call()
        except ClientError as error:
            if error.response["Error"]["Code"] not in ("AccessDenied", "403"):
                raise
            return False
        return True

    yield allowed
    iam.delete_user_policy(UserName=name, PolicyName="own")
    iam.delete_access_key(UserName=name, AccessKeyId=key["AccessKeyId"])
    iam.delete_user(UserName=name)


def s3_call(operation: str, error: str | None = None, **parameters: Any) -> Call:
    return Call("s3", operation, parameters, error, "us-east-1", "")


@pytest.mark.parametrize(
    "operation", ["GetObject", "HeadObject", "PutObject", "CreateMultipartUpload", "DeleteObject", "ListObjectsV2",
                  "ListMultipartUploads"],
)  # fmt: skip
def test_moto_s_s3_lets_the_same_calls_through(
    operation: str, bucket: str, attempt: Callable[[Policy, Call], bool]
) -> None:
    call = s3_call(operation, Bucket=bucket, **({} if operation.startswith("List") else {"Key": "metaflow/a"}))
    (request,) = iam_requests(call, ACCOUNT)
    decisions = set()
    for document in (
        policy(allow(request.action, request.resource)),
        policy(allow("s3:*", [f"arn:aws:s3:::{bucket}", f"arn:aws:s3:::{bucket}/metaflow/*"])),
        policy(allow("s3:*", f"arn:aws:s3:::{bucket}/convoy/*")),
        policy(allow("s3:GetObject", "*")),
        policy(allow("s3:PutObject", "*"), allow("s3:ListBucket", "*")),
        policy({"Effect": "Allow", "NotAction": request.action, "Resource": "*"}),
        policy(allow("*", "*"), deny(request.action, request.resource)),
        policy(allow("*", "*"), deny("s3:*", f"arn:aws:s3:::{bucket}-other*")),
    ):
        decided = decide(request, [document]) == "allow"
        assert attempt(document, call) == decided, document
        decisions.add(decided)
    assert decisions == {True, False}


def test_calls_of_s3_ask_for_these_actions() -> None:
    def asked(call: Call) -> list[tuple[str, str]]:
        return [(request.action, request.resource.removeprefix("arn:aws:s3:::")) for request in iam_requests(call, "")]

    assert asked(s3_call("UploadPart", Bucket="b", Key="k")) == [("s3:PutObject", "b/k")]
    assert asked(s3_call("AbortMultipartUpload", Bucket="b", Key="k")) == [("s3:AbortMultipartUpload", "b/k")]
    assert asked(s3_call("HeadBucket", Bucket="b")) == [("s3:ListBucket", "b")]
    deleted = s3_call("DeleteObjects", Bucket="b", Delete={"Objects": [{"Key": "x"}, {"Key": "y"}]})
    assert asked(deleted) == [("s3:DeleteObject", "b/x"), ("s3:DeleteObject", "b/y")]
    for source in ("other/x", "/other/x", {"Bucket": "other", "Key": "x"}):
        copied = s3_call("CopyObject", Bucket="b", Key="k", CopySource=source)
        assert asked(copied) == [("s3:GetObject", "other/x"), ("s3:PutObject", "b/k")]
    listed = iam_requests(s3_call("ListObjectsV2", Bucket="b", Prefix="a/", Delimiter="/", MaxKeys=1), ACCOUNT)
    values = {"s3:prefix": "a/", "s3:delimiter": "/", "s3:max-keys": "1", "aws:SecureTransport": "true"}
    assert listed == [Request("s3:ListBucket", "arn:aws:s3:::b", values)]


def test_a_missing_object_is_told_only_to_those_who_may_list_its_name() -> None:
    reading, listing = iam_requests(s3_call("GetObject", "NoSuchKey", Bucket="b", Key="a/k"), ACCOUNT)
    assert (reading.action, listing.action, listing.context["s3:prefix"]) == ("s3:GetObject", "s3:ListBucket", "a/k")
    assert len(iam_requests(s3_call("HeadObject", "404", Bucket="b", Key="a/k"), ACCOUNT)) == 2
    assert len(iam_requests(s3_call("PutObject", "PreconditionFailed", Bucket="b", Key="a/k"), ACCOUNT)) == 1


def batch_call(operation: str, **parameters: Any) -> Call:
    return Call("batch", operation, parameters, None, "eu-west-1", "")


def test_calls_of_batch_logs_and_sts_ask_for_these_actions() -> None:
    def asked(call: Call) -> list[tuple[str, str]]:
        return [(request.action, request.resource) for request in iam_requests(call, ACCOUNT)]

    arn = f"arn:aws:batch:eu-west-1:{ACCOUNT}"
    job = {"jobQueue": "gpu", "jobDefinition": f"{arn}:job-definition/metaflow_1:1"}
    submitted = [("batch:SubmitJob", f"{arn}:job-queue/gpu"), ("batch:SubmitJob", job["jobDefinition"])]
    assert asked(batch_call("SubmitJob", **job)) == submitted
    tagging = [("batch:TagResource", job["jobDefinition"]), ("batch:TagResource", f"{arn}:job/new")]
    assert asked(batch_call("SubmitJob", tags={"app": "metaflow"}, **job)) == submitted + tagging
    container = {"jobRoleArn": ROLE, "executionRoleArn": "arn:aws:iam::1:role/x"}
    nodes = {"nodeRangeProperties": [{"container": {"jobRoleArn": ROLE}}, {"container": {"jobRoleArn": ROLE}}]}
    for definition, roles in (
        ({"containerProperties": container}, [ROLE, "arn:aws:iam::1:role/x"]),
        ({"nodeProperties": nodes}, [ROLE]),
        ({"containerProperties": {"image": "i"}}, []),
    ):
        registered = batch_call("RegisterJobDefinition", jobDefinitionName="metaflow_1", **definition)
        passed = [("iam:PassRole", role) for role in roles for _ in range(2)]
        assert asked(registered) == [("batch:RegisterJobDefinition", f"{arn}:job-definition/metaflow_1"), *passed]
    assert asked(batch_call("TerminateJob", jobId="1")) == [("batch:TerminateJob", f"{arn}:job/1")]
    assert asked(batch_call("DescribeJobs", jobs=["1"])) == [("batch:DescribeJobs", "*")]
    reading = Call("logs", "GetLogEvents", {"logGroupName": "g", "logStreamName": "s"}, None, "eu-west-1", "")
    assert asked(reading) == [("logs:GetLogEvents", f"arn:aws:logs:eu-west-1:{ACCOUNT}:log-group:g:log-stream:s")]
    assert asked(Call("sts", "AssumeRole", {"RoleArn": ROLE}, None, "", "")) == [("sts:AssumeRole", ROLE)]
    assert asked(Call("sts", "GetCallerIdentity", {}, None, "", "")) == []


@pytest.mark.parametrize(
    "call",
    [
        s3_call("GetBucketAcl", Bucket="b"),
        s3_call("PutObject", Bucket="b", Key="k", Tagging="a=b"),
        s3_call("PutObject", Bucket="b", Key="k", SSEKMSKeyId="key"),
        s3_call("GetObject", Bucket="b", Key="k", VersionId="1"),
        batch_call("DeleteJobQueue", jobQueue="gpu"),
        Call("logs", "PutLogEvents", {}, None, "", ""),
        Call("sts", "GetSessionToken", {}, None, "", ""),
        Call("ec2", "DescribeInstances", {}, None, "", ""),
    ],
)
def test_a_call_of_which_it_is_not_known_what_it_asks_raises(call: Call) -> None:
    with pytest.raises(UnknownCallError, match=f"^{call.service}:{call.operation}"):
        iam_requests(call, ACCOUNT)


SCRIPT = """
import os, subprocess, sys
import boto3, botocore.exceptions, botocore.session, s3fs
bucket, s3 = sys.argv[1], boto3.client("s3")
s3.put_object(Bucket=bucket, Key="a", Body=b"secret")
try:
    s3.get_object(Bucket=bucket, Key="none")
except botocore.exceptions.ClientError:
    pass
if os.fork() == 0:
    botocore.session.Session().create_client("s3").delete_object(Bucket=bucket, Key="forked")
    os._exit(0)
os.wait()
s3fs.S3FileSystem().cat_file(f"{bucket}/a")
child = "import boto3, sys; boto3.resource('s3').Bucket(sys.argv[1]).upload_file(__file__, 'child')"
open("child.py", "w").write(child)
subprocess.run([sys.executable, "-P", "child.py", bucket], check=True)
"""


def test_calls_of_all_processes_and_of_s3fs_are_recorded_without_bodies(bucket: str, tmp_path: Path) -> None:
    recording = Recording.at(tmp_path / "recording")
    environment = {**os.environ, **recording.environment}
    subprocess.run([sys.executable, "-c", SCRIPT, bucket], check=True, cwd=tmp_path, env=environment)
    calls = recording.calls()
    seen = [(call.operation, call.parameters["Key"], call.error) for call in calls if call.operation != "HeadObject"]
    assert seen == [
        ("PutObject", "a", None),
        ("GetObject", "none", "NoSuchKey"),
        ("DeleteObject", "forked", None),
        ("GetObject", "a", None),
        ("PutObject", "child", None),
    ]
    assert {(call.service, call.region, call.parameters["Bucket"]) for call in calls} == {("s3", "us-east-1", bucket)}
    assert "secret" not in recording.file.read_text()
    assert calls[-1].program.startswith("child.py")
